//! Opening a file that exists: it is checked from end to end before it is believed.
//!
//! Any doubt is an error. An object that silently is not there would be deleted, by the controllers that own its
//! dependents, from the real world.

use std::collections::HashMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use redb::{
    Database, DatabaseError, ReadTransaction, ReadableDatabase, ReadableTable, StorageBackend, StorageError, TableError,
};

use super::backend::Backend;
use super::codec::{self, Totals, Undo};
use super::disk::{FORMAT, HISTORY, META, META_FORMAT, META_TOTALS, OBJECTS};
use super::history::History;
use super::medium::Medium;
use super::state::State;
use super::{Entry, Event, EventKind, Key, OpenError};

/// How a redb file begins.
const REDB_MAGIC: [u8; 9] = *b"redb\x1a\x0a\xa9\x0d\x0a";

/// A file that was opened, with all that it holds.
pub(super) struct Loaded {
    pub(super) db: Database,
    pub(super) totals: Totals,
    pub(super) state: State,
}

/// Opens and reads the medium's file; `None` if there is none.
pub(super) fn load(medium: &Arc<dyn Medium>, cache_bytes: usize) -> Result<Option<Loaded>, OpenError> {
    let path = medium.name();
    let Some(backend) = open_backend(&**medium)? else { return Ok(None) };
    let open = || {
        let (totals, state) = examine(medium, backend, cache_bytes)?;
        let again = open_backend(&**medium)?.ok_or_else(|| damaged(&path, "it has just disappeared"))?;
        let (db, _) = open_database(medium, Backend::direct(again), cache_bytes, || ())?;
        // It was not locked for an instant.
        if read_meta(&path, &begin_read(&path, &db)?)? != totals {
            return Err(OpenError::InUse { path: path.clone() });
        }
        Ok(Some(Loaded { db, totals, state }))
    };
    // redb asserts some of what it reads.
    catch_unwind(AssertUnwindSafe(open))
        .unwrap_or_else(|_| Err(damaged(&path, "its structure contradicts itself (the database panicked on it)")))
}

/// Reads everything, in a shadow. The pages' checksums are verified by redb: in a repair if the file was not closed
/// properly, on demand if it was. They cover what the rows' own checksums cannot, such as which pages are free.
fn examine(
    medium: &Arc<dyn Medium>,
    backend: Box<dyn StorageBackend>,
    cache_bytes: usize,
) -> Result<(Totals, State), OpenError> {
    let path = medium.name();
    check_magic(&path, &*backend)?;
    let shadow = Backend::shadow(backend).map_err(|source| read_failed(&path, source))?;
    // What was last written may have failed to reach the disk while the page cache still shows it.
    let before_repair = {
        let medium = medium.clone();
        move || medium.forget_cached()
    };
    let (mut db, repaired) = open_database(medium, shadow, cache_bytes, before_repair)?;
    if !repaired && !db.check_integrity().map_err(|error| open_error(&path, error))? {
        return Err(damaged(&path, "checksum mismatch in its structure"));
    }
    let txn = begin_read(&path, &db)?;
    let totals = read_meta(&path, &txn)?;
    let mut state = read_objects(&path, &txn, &totals)?;
    let history = read_history(&path, &txn, &totals, &state)?;
    state.restore_history(history);
    Ok((totals, state))
}

/// The database, and whether it had to be repaired because it was not closed properly; `before_repair` is called first.
fn open_database(
    medium: &Arc<dyn Medium>,
    backend: Backend,
    cache_bytes: usize,
    before_repair: impl Fn() + 'static,
) -> Result<(Database, bool), OpenError> {
    let repaired = Arc::new(AtomicBool::new(false));
    let mut builder = Database::builder();
    builder.set_cache_size(cache_bytes);
    let at_repair = repaired.clone();
    builder.set_repair_callback(move |_| {
        if !at_repair.swap(true, Ordering::Relaxed) {
            before_repair();
        }
    });
    let db = builder.create_with_backend(backend).map_err(|error| open_error(&medium.name(), error))?;
    Ok((db, repaired.load(Ordering::Relaxed)))
}

fn open_backend(medium: &dyn Medium) -> Result<Option<Box<dyn StorageBackend>>, OpenError> {
    medium.open().map_err(|source| OpenError::Io { path: medium.name(), action: "open it", source })
}

fn begin_read(path: &str, db: &Database) -> Result<ReadTransaction, OpenError> {
    db.begin_read().map_err(|error| damaged(path, error))
}

fn check_magic(path: &str, backend: &dyn StorageBackend) -> Result<(), OpenError> {
    let len = backend.len().map_err(|source| read_failed(path, source))?;
    if len == 0 {
        return Err(OpenError::Empty { path: path.to_owned() });
    }
    let mut start = vec![0; REDB_MAGIC.len().min(len as usize)];
    backend.read(0, &mut start).map_err(|source| read_failed(path, source))?;
    if start == REDB_MAGIC {
        return Ok(());
    }
    if start.iter().all(|byte| *byte == 0) {
        return Err(damaged(path, "its beginning is blank"));
    }
    Err(foreign(path, format!("it begins with \"{}\"", start.escape_ascii())))
}

fn open_error(path: &str, error: DatabaseError) -> OpenError {
    match error {
        DatabaseError::DatabaseAlreadyOpen => OpenError::InUse { path: path.to_owned() },
        DatabaseError::UpgradeRequired(version) => foreign(path, format!("redb file format {version}")),
        // Reading past the end is how a truncated file shows; any other I/O error is the disk's.
        DatabaseError::Storage(StorageError::Io(source))
            if !matches!(source.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData) =>
        {
            read_failed(path, source)
        }
        other => damaged(path, other),
    }
}

fn read_failed(path: &str, source: io::Error) -> OpenError {
    OpenError::Io { path: path.to_owned(), action: "read it", source }
}

fn damaged(path: &str, detail: impl std::fmt::Display) -> OpenError {
    OpenError::Damaged { path: path.to_owned(), detail: detail.to_string() }
}

fn foreign(path: &str, found: impl Into<String>) -> OpenError {
    OpenError::Foreign { path: path.to_owned(), found: found.into() }
}

fn read_meta(path: &str, txn: &ReadTransaction) -> Result<Totals, OpenError> {
    let meta = match txn.open_table(META) {
        Ok(meta) => meta,
        Err(TableError::TableDoesNotExist(_)) => return Err(foreign(path, "a redb file of another program")),
        Err(error) => return Err(damaged(path, error)),
    };
    let row = |name: &str| {
        let row = meta.get(name).map_err(|error| damaged(path, error))?;
        row.map(|row| row.value().to_vec()).ok_or_else(|| damaged(path, format!("its {name} row is missing")))
    };
    let format = row(META_FORMAT)?;
    let format = format.try_into().map(u64::from_le_bytes).map_err(|_| damaged(path, "its format row is malformed"))?;
    if format > FORMAT {
        return Err(OpenError::Newer { path: path.to_owned(), found: format, supported: FORMAT });
    }
    if format == 0 {
        return Err(damaged(path, "its format is 0"));
    }
    let totals =
        codec::read_totals(&row(META_TOTALS)?).map_err(|error| damaged(path, format!("totals row: {error}")))?;
    if totals.first == 0 || totals.first > totals.revision + 1 {
        return Err(damaged(path, "its totals row contradicts itself"));
    }
    Ok(totals)
}

fn read_objects(path: &str, txn: &ReadTransaction, totals: &Totals) -> Result<State, OpenError> {
    let table = txn.open_table(OBJECTS).map_err(|error| damaged(path, error))?;
    let mut found = Totals { objects: 0, digest: 0, ..*totals };
    let mut state = State::empty(totals.revision);
    for row in table.iter().map_err(|error| damaged(path, error))? {
        let (key, row) = row.map_err(|error| damaged(path, error))?;
        let (resource, namespace, name) = key.value();
        let key = Arc::new(Key::new(resource, namespace, name));
        let (revision, value) = codec::read_object(&key, row.value())
            .map_err(|error| damaged(path, format!("object {resource} {namespace}/{name}: {error}")))?;
        let entry = Entry { key, revision, value };
        found.add(&entry);
        state.restore(&entry);
    }
    if found != *totals {
        let detail = format!(
            "{} objects (digest {:016x}) where {} (digest {:016x}) were stored",
            found.objects, found.digest, totals.objects, totals.digest
        );
        return Err(damaged(path, detail));
    }
    Ok(state)
}

/// Follows the undo log from the newest row to the oldest, and so finds the state after each change.
fn read_history(path: &str, txn: &ReadTransaction, totals: &Totals, objects: &State) -> Result<History, OpenError> {
    let table = txn.open_table(HISTORY).map_err(|error| damaged(path, error))?;
    let mut states: HashMap<Arc<Key>, Option<Entry>> = HashMap::new();
    let mut events = Vec::with_capacity((totals.revision + 1 - totals.first).min(1 << 20) as usize);
    let mut expected = totals.revision;
    for row in table.iter().map_err(|error| damaged(path, error))?.rev() {
        let (revision, row) = row.map_err(|error| damaged(path, error))?;
        let revision = revision.value();
        if revision != expected || revision < totals.first {
            return Err(damaged(path, format!("history row {revision} where {expected} was stored")));
        }
        expected -= 1;
        let undo = codec::read_undo(revision, row.value())
            .map_err(|error| damaged(path, format!("history row {revision}: {error}")))?;
        let event = undo_one(revision, undo, objects, &mut states)
            .ok_or_else(|| damaged(path, format!("history row {revision} does not lead to the stored objects")))?;
        events.push(event);
    }
    if expected + 1 != totals.first {
        return Err(damaged(path, format!("history begins at {}, not at {}", expected + 1, totals.first)));
    }
    let mut history = History::starting_at(totals.first);
    for event in events.into_iter().rev() {
        history.push(Arc::new(event));
    }
    Ok(history)
}

/// Turns one row into its event and steps `states` back over it; `None` if it does not fit.
fn undo_one(
    revision: u64,
    undo: Undo,
    objects: &State,
    states: &mut HashMap<Arc<Key>, Option<Entry>>,
) -> Option<Event> {
    let (key, after) = match states.get_key_value(&undo.key) {
        Some((key, after)) => (key.clone(), after.clone()),
        None => match objects.get(&undo.key) {
            Some(object) => (object.key.clone(), Some(object)),
            None => (Arc::new(undo.key), None),
        },
    };
    let entry = match (undo.kind, after) {
        (EventKind::Deleted, None) => Entry { key: key.clone(), revision, value: undo.last },
        (EventKind::Added | EventKind::Modified, Some(after)) if after.revision == revision => after,
        _ => return None,
    };
    let state = |(revision, value): (u64, Bytes)| Entry { key: key.clone(), revision, value };
    let previous = undo.previous.map(state);
    states.insert(key, previous.clone());
    Some(Event { kind: undo.kind, entry, previous })
}
