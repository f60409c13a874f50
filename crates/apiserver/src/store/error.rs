//! What can go wrong, one enum for each operation.

use std::io;
use std::sync::Arc;

use super::Entry;

/// Why a store cannot be opened. Each text names the file, what is wrong with it and what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{path}: already open in another process; stop that one first, or use another data directory")]
    InUse { path: String },
    #[error(
        "{path}: the file is empty, but a store is never empty: it was truncated or made by something else; restore it from a copy, or remove it to start with no objects"
    )]
    Empty { path: String },
    #[error("{path}: not a Tether object store ({found}); use another data directory, or move the file away")]
    Foreign { path: String, found: String },
    #[error(
        "{path}: written by a newer Tether (format {found}, this one reads up to {supported}); use that version, or newer"
    )]
    Newer { path: String, found: u64, supported: u64 },
    #[error("{path}: damaged: {detail}; restore it from a copy, or move it away to start with no objects")]
    Damaged { path: String, detail: String },
    #[error("{path}: cannot {action}: {source}")]
    Io { path: String, action: &'static str, source: io::Error },
    #[error("cannot start the store's committer thread: {0}")]
    Thread(io::Error),
}

/// Why a write was not acknowledged.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WriteError {
    /// The expectation did not hold; nothing was changed. `current` is the object as it is now.
    #[error("{}", conflict(.current.as_ref()))]
    Conflict { current: Option<Entry> },
    /// Nothing was changed.
    #[error("the object is too large: {bytes} bytes, at most {limit} are stored")]
    TooLarge { bytes: usize, limit: usize },
    /// Nothing was changed.
    #[error("the change could not be rendered: its encoder panicked")]
    Encoder,
    /// The commit that this write was part of failed. Nobody has seen the change; after the store recovered, it is
    /// there either completely or not at all.
    #[error("the write could not be made durable: {reason}")]
    Storage { reason: Arc<str> },
    /// An earlier commit failed and the store has not recovered yet; nothing was changed.
    #[error("the store is read-only: {reason}")]
    ReadOnly { reason: Arc<str> },
    #[error("the store is closed")]
    Closed,
}

fn conflict(current: Option<&Entry>) -> String {
    match current {
        Some(entry) => format!("the object is at revision {}", entry.revision),
        None => "the object does not exist".to_owned(),
    }
}

/// Why a list cannot be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    #[error("the state at that revision is no longer kept; the oldest is {oldest}")]
    Compacted { oldest: u64 },
    #[error("that revision does not exist yet; the latest is {latest}")]
    Future { latest: u64 },
}

/// Why a watch cannot be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchError {
    #[error("changes after that revision are no longer kept; the oldest to start from is {oldest}")]
    Compacted { oldest: u64 },
    #[error("that revision does not exist yet; the latest is {latest}")]
    Future { latest: u64 },
    #[error("the store is closed")]
    Closed,
}

/// Why a running watch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchEnd {
    /// It was read so slowly that history moved past it.
    #[error(
        "the watch fell behind: changes that it did not get are no longer kept; the oldest to start from is {oldest}"
    )]
    Compacted { oldest: u64 },
    #[error("the store is closed")]
    Closed,
}
