//! The file: three redb tables, loaded once with every check there is, then only written.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use redb::{
    Database, DatabaseError, ReadTransaction, ReadableDatabase, ReadableTable, StorageBackend, StorageError,
    TableDefinition, TableError,
};

use super::codec::{self, Totals, Undo};
use super::history::History;
use super::medium::{AnyBackend, Medium};
use super::state::State;
use super::{Entry, Event, EventKind, Key, OpenError, Options};

/// Increased when older code could no longer read what is written.
const FORMAT: u64 = 1;

const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("tether/meta");
const OBJECTS: TableDefinition<'_, (&str, &str, &str), &[u8]> = TableDefinition::new("tether/objects");
const HISTORY: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("tether/history");

const META_FORMAT: &str = "format";
const META_TOTALS: &str = "totals";

/// How a redb file begins.
const REDB_MAGIC: [u8; 9] = *b"redb\x1a\x0a\xa9\x0d\x0a";

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
        let Loaded { db, totals, state } = match open_backend(&*medium)? {
            Some(backend) => load(&medium, backend, cache_bytes)?,
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
            .unwrap_or_else(|_| Err(CommitError("the database panicked".into())));
        match result {
            Ok(()) => self.totals = totals,
            Err(_) => self.db = None,
        }
        result
    }

    /// Opens the file again after a failed commit and returns the revision that it holds.
    pub(super) fn reopen(&mut self) -> Result<u64, OpenError> {
        self.db = None;
        self.medium.forget_cached();
        let backend = open_backend(&*self.medium)?;
        let backend = backend.ok_or_else(|| damaged(&self.medium.name(), "the file has disappeared"))?;
        let Loaded { db, totals, .. } = load(&self.medium, backend, self.cache_bytes)?;
        self.db = Some(db);
        self.totals = totals;
        Ok(totals.revision)
    }
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

/// A file that was opened, with all that it holds.
struct Loaded {
    db: Database,
    totals: Totals,
    state: State,
}

fn open_backend(medium: &dyn Medium) -> Result<Option<Box<dyn StorageBackend>>, OpenError> {
    medium.open().map_err(|source| OpenError::Io { path: medium.name(), action: "open it", source })
}

/// Makes an empty store, or opens the one that another process made meanwhile.
fn create(medium: &Arc<dyn Medium>, cache_bytes: usize) -> Result<Loaded, OpenError> {
    let failed = |source| OpenError::Io { path: medium.name(), action: "create it", source };
    let backend = medium.create().map_err(failed)?;
    let db = initialize(backend, cache_bytes).map_err(|error| failed(std::io::Error::other(error)))?;
    if medium.publish().map_err(failed)? {
        return Ok(Loaded { db, totals: Totals::EMPTY, state: State::empty() });
    }
    let backend = open_backend(&**medium)?.ok_or_else(|| failed(std::io::ErrorKind::NotFound.into()))?;
    load(medium, backend, cache_bytes)
}

fn initialize(backend: Box<dyn StorageBackend>, cache_bytes: usize) -> Result<Database, redb::Error> {
    let db = Database::builder().set_cache_size(cache_bytes).create_with_backend(AnyBackend(backend))?;
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

/// Opens what exists and reads all of it. Any doubt is an error: an object that silently is not there would be
/// deleted, by its owner's controllers, from the real world.
fn load(medium: &Arc<dyn Medium>, backend: Box<dyn StorageBackend>, cache_bytes: usize) -> Result<Loaded, OpenError> {
    let path = medium.name();
    check_magic(&path, &*backend)?;
    let at_repair = medium.clone();
    let open = || {
        let mut builder = Database::builder();
        builder.set_cache_size(cache_bytes);
        builder.set_repair_callback(move |session| {
            if session.progress() == 0.0 {
                at_repair.forget_cached();
            }
        });
        let db = builder.create_with_backend(AnyBackend(backend)).map_err(|error| open_error(&path, error))?;
        let (totals, state) = {
            let txn = db.begin_read().map_err(|error| damaged(&path, error))?;
            read_all(&path, &txn)?
        };
        Ok(Loaded { db, totals, state })
    };
    // redb asserts some of what it reads.
    catch_unwind(AssertUnwindSafe(open))
        .unwrap_or_else(|_| Err(damaged(&path, "its structure contradicts itself (the database panicked on it)")))
}

fn check_magic(path: &str, backend: &dyn StorageBackend) -> Result<(), OpenError> {
    let io = |source| OpenError::Io { path: path.to_owned(), action: "read it", source };
    let len = backend.len().map_err(io)?;
    if len == 0 {
        return Err(OpenError::Empty { path: path.to_owned() });
    }
    let mut start = vec![0; REDB_MAGIC.len().min(len as usize)];
    backend.read(0, &mut start).map_err(io)?;
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
            if !matches!(source.kind(), std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::InvalidData) =>
        {
            OpenError::Io { path: path.to_owned(), action: "read it", source }
        }
        other => damaged(path, other),
    }
}

fn damaged(path: &str, detail: impl std::fmt::Display) -> OpenError {
    OpenError::Damaged { path: path.to_owned(), detail: detail.to_string() }
}

fn foreign(path: &str, found: impl Into<String>) -> OpenError {
    OpenError::Foreign { path: path.to_owned(), found: found.into() }
}

fn read_all(path: &str, txn: &ReadTransaction) -> Result<(Totals, State), OpenError> {
    let totals = read_meta(path, txn)?;
    let objects = read_objects(path, txn, &totals)?;
    let history = read_history(path, txn, &totals, &objects)?;
    Ok((totals, State::new(totals.revision, objects.into_values().collect(), history)))
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

fn read_objects(path: &str, txn: &ReadTransaction, totals: &Totals) -> Result<HashMap<Arc<Key>, Entry>, OpenError> {
    let table = txn.open_table(OBJECTS).map_err(|error| damaged(path, error))?;
    let mut found = Totals { objects: 0, digest: 0, ..*totals };
    let mut objects = HashMap::with_capacity(totals.objects.min(1 << 20) as usize);
    for row in table.iter().map_err(|error| damaged(path, error))? {
        let (key, row) = row.map_err(|error| damaged(path, error))?;
        let (resource, namespace, name) = key.value();
        let key = Arc::new(Key::new(resource, namespace, name));
        let (revision, value) = codec::read_object(&key, row.value())
            .map_err(|error| damaged(path, format!("object {resource} {namespace}/{name}: {error}")))?;
        let entry = Entry { key: key.clone(), revision, value };
        found.add(&entry);
        objects.insert(key, entry);
    }
    if found != *totals {
        let detail = format!(
            "{} objects (digest {:016x}) where {} (digest {:016x}) were stored",
            found.objects, found.digest, totals.objects, totals.digest
        );
        return Err(damaged(path, detail));
    }
    Ok(objects)
}

/// Follows the undo log from the newest row to the oldest, and so finds the state after each change.
fn read_history(
    path: &str,
    txn: &ReadTransaction,
    totals: &Totals,
    objects: &HashMap<Arc<Key>, Entry>,
) -> Result<History, OpenError> {
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
        return Err(damaged(path, format!("history ends at {}, not at {}", expected + 1, totals.first)));
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
    objects: &HashMap<Arc<Key>, Entry>,
    states: &mut HashMap<Arc<Key>, Option<Entry>>,
) -> Option<Event> {
    let (key, after) = match states.get_key_value(&undo.key) {
        Some((key, after)) => (key.clone(), after.clone()),
        None => match objects.get_key_value(&undo.key) {
            Some((key, object)) => (key.clone(), Some(object.clone())),
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
