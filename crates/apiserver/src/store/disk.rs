//! The file: three redb tables, loaded when it is opened and from then on only written.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use redb::{Database, StorageBackend, TableDefinition};

use super::backend::Backend;
use super::codec::{self, Totals};
use super::load::{Loaded, load};
use super::medium::Medium;
use super::state::State;
use super::{Event, EventKind, OpenError, Options};

/// Increased when older code could no longer read what is written.
pub(super) const FORMAT: u64 = 1;

pub(super) const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("tether/meta");
pub(super) const OBJECTS: TableDefinition<'_, (&str, &str, &str), &[u8]> = TableDefinition::new("tether/objects");
pub(super) const HISTORY: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("tether/history");

pub(super) const META_FORMAT: &str = "format";
pub(super) const META_TOTALS: &str = "totals";

/// An open store file.
pub(super) struct Disk {
    /// `None` after a failure, until the file was reopened.
    db: Option<Database>,
    medium: Arc<dyn Medium>,
    cache_bytes: usize,
    totals: Totals,
}

/// Why a batch is not on the disk, or not known to be.
#[derive(Debug)]
pub(super) struct CommitError(pub(super) String);

impl<E: Into<redb::Error>> From<E> for CommitError {
    fn from(error: E) -> Self {
        Self(error.into().to_string())
    }
}

impl Disk {
    pub(super) fn open(medium: Arc<dyn Medium>, options: Options) -> Result<(Self, State), OpenError> {
        let cache_bytes = options.cache_bytes;
        let Loaded { db, totals, state } = match load(&medium, cache_bytes)? {
            Some(loaded) => loaded,
            None => create(&medium, cache_bytes)?,
        };
        Ok((Self { db: Some(db), medium, cache_bytes, totals }, state))
    }

    pub(super) fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Makes a batch durable. On failure it is unknown whether it is, and [`Disk::reopen`] has to find out.
    pub(super) fn commit(&mut self, events: &[Arc<Event>], first: u64) -> Result<(), CommitError> {
        let db = self.db.as_ref().ok_or_else(|| CommitError("the file is not open".into()))?;
        let totals = totals_after(self.totals, events, first);
        // A panic inside the database must not take the committer with it; reopening discards what it left.
        let result = catch_unwind(AssertUnwindSafe(|| write_batch(db, self.totals.first, events, &totals)))
            .unwrap_or_else(|_| Err(panicked()));
        match result {
            Ok(()) => self.totals = totals,
            Err(_) => self.db = None,
        }
        result
    }

    /// Commits once more what is there. A commit is one fsync: after a crash a damaged page of the *last* one looks like
    /// a page that was never written, and redb goes back to the commit before it. Once sealed there is nothing to go
    /// back from, and the damage is reported.
    pub(super) fn seal(&mut self) -> Result<(), CommitError> {
        let db = self.db.as_ref().ok_or_else(|| CommitError("the file is not open".into()))?;
        let result = catch_unwind(AssertUnwindSafe(|| write_seal(db))).unwrap_or_else(|_| Err(panicked()));
        if result.is_err() {
            self.db = None;
        }
        result
    }

    /// Opens the file again after a failed commit and returns the revision that it holds.
    pub(super) fn reopen(&mut self) -> Result<u64, OpenError> {
        self.db = None;
        self.medium.forget_cached();
        let gone = || OpenError::Damaged { path: self.medium.name(), detail: "the file has disappeared".into() };
        let Loaded { db, totals, .. } = load(&self.medium, self.cache_bytes)?.ok_or_else(gone)?;
        self.db = Some(db);
        self.totals = totals;
        Ok(totals.revision)
    }
}

fn panicked() -> CommitError {
    CommitError("the database panicked".into())
}

fn write_seal(db: &Database) -> Result<(), CommitError> {
    let mut txn = db.begin_write()?;
    txn.set_two_phase_commit(true);
    txn.commit()?;
    Ok(())
}

fn totals_after(mut totals: Totals, events: &[Arc<Event>], first: u64) -> Totals {
    for event in events {
        if let Some(previous) = &event.previous {
            totals.remove(previous);
        }
        if event.kind != EventKind::Deleted {
            totals.add(&event.entry);
        }
        totals.revision = event.revision();
    }
    totals.first = first;
    totals
}

fn write_batch(db: &Database, old_first: u64, events: &[Arc<Event>], totals: &Totals) -> Result<(), CommitError> {
    let txn = db.begin_write()?;
    {
        let mut objects = txn.open_table(OBJECTS)?;
        let mut history = txn.open_table(HISTORY)?;
        for event in events {
            let Event { kind, entry, previous } = &**event;
            let key = (entry.key.resource.as_str(), entry.key.namespace.as_str(), entry.key.name.as_str());
            let last = if *kind == EventKind::Deleted {
                objects.remove(key)?;
                &*entry.value
            } else {
                objects.insert(key, &*codec::object_row(entry))?;
                &[]
            };
            let row = codec::undo_row(entry.revision, *kind, &entry.key, previous.as_ref(), last);
            history.insert(entry.revision, &*row)?;
        }
        for revision in old_first..totals.first {
            history.remove(revision)?;
        }
        txn.open_table(META)?.insert(META_TOTALS, &*codec::totals_row(totals))?;
    }
    txn.commit()?;
    Ok(())
}

/// Makes an empty store, or opens the one that another process made meanwhile.
fn create(medium: &Arc<dyn Medium>, cache_bytes: usize) -> Result<Loaded, OpenError> {
    let failed = |source| OpenError::Io { path: medium.name(), action: "create it", source };
    let backend = medium.create().map_err(failed)?;
    let db = initialize(backend, cache_bytes).map_err(|error| failed(std::io::Error::other(error)))?;
    if medium.publish().map_err(failed)? {
        return Ok(Loaded { db, totals: Totals::EMPTY, state: State::empty(0) });
    }
    load(medium, cache_bytes)?.ok_or_else(|| failed(std::io::ErrorKind::NotFound.into()))
}

fn initialize(backend: Box<dyn StorageBackend>, cache_bytes: usize) -> Result<Database, redb::Error> {
    let db = Database::builder().set_cache_size(cache_bytes).create_with_backend(Backend::direct(backend))?;
    let txn = db.begin_write()?;
    {
        txn.open_table(OBJECTS)?;
        txn.open_table(HISTORY)?;
        let mut meta = txn.open_table(META)?;
        meta.insert(META_FORMAT, &FORMAT.to_le_bytes()[..])?;
        meta.insert(META_TOTALS, &*codec::totals_row(&Totals::EMPTY))?;
    }
    txn.commit()?;
    Ok(db)
}
