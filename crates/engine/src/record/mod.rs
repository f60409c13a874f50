//! The record of a volume: whoever keeps it, an engine changes it by compare and swap and waits for it elsewhere.
//!
//! All of it blocks (a lock may be held by a process that was stopped, an API server may be away): so it runs on a
//! thread of its own, and an engine that waits for it suspends what needs the record and serves the rest.

mod file;
mod json;
mod keeper;

use std::path::PathBuf;

use tether_replication::engine::CasOutcome;
use tether_replication::record::{Change, Record};

pub use file::{RecordFile, RecordFileError};
pub use keeper::{Keeper, RecordCall, RecordReturn, Witness};

/// Looks at the record that is about to be replaced; an error keeps it as it is.
pub type Before<'a> = &'a mut dyn FnMut(&Record) -> Result<(), String>;

/// Where the record of one volume is kept. Calls may block; the keeper's thread makes them one at a time.
pub trait RecordStore: Send {
    /// The record, if there is one; or why that is not known. Never from a cache.
    fn load(&self) -> Result<Option<Record>, String>;

    /// Makes the record of a new volume, unless there is one already; what there is then.
    fn create(&self, record: &Record) -> Result<Record, String>;

    /// Judges `change` by [`Record::apply`] against the record as it is, lets `before` see that record, and replaces it
    /// only if it is still the same one.
    fn change(&self, change: &Change, before: Before<'_>) -> CasOutcome;
}

/// Finds the record of a volume for an engine that is started by request.
pub trait Records: Send + Sync {
    /// `wish` is what the request says about the place, empty if it says nothing.
    fn open(&self, volume: &str, wish: &str) -> Result<Box<dyn RecordStore>, String>;
}

/// Records in files: where the request says, else in one directory.
#[derive(Clone, Debug)]
pub struct RecordFiles {
    pub dir: PathBuf,
}

impl Records for RecordFiles {
    fn open(&self, volume: &str, wish: &str) -> Result<Box<dyn RecordStore>, String> {
        let path = match wish {
            "" => {
                std::fs::create_dir_all(&self.dir).map_err(|error| format!("{}: {error}", self.dir.display()))?;
                self.dir.join(format!("{volume}.record"))
            }
            path => PathBuf::from(path),
        };
        Ok(Box::new(RecordFile::new(path, volume.to_owned())))
    }
}
