//! The object store: every object in memory, every change durable before it is seen.
//!
//! ```text
//!   write() ──► bounded queue ──► committer thread ──► redb, one transaction, one fsync
//!                                      │ then
//!                                      ▼
//!   get() list() ◄──────────── State (objects + history) ────────────► Watch, by cursor
//! ```
//!
//! - Each change gets its own revision; revisions have no gaps. A deletion is a change like any other.
//! - The committer takes all that is queued, checks expectations against memory and against the batch itself,
//!   commits it at once, publishes it in revision order and only then answers the writers. Nobody, reader or
//!   watcher, sees a change that a power loss could take back.
//! - History is a bounded ring of the last changes, kept on disk too. Watches are cursors into it, older lists are
//!   answered by undoing it, and whoever falls behind its tail is told so.
//! - What is wrong with a file is said when it is opened; a store whose disk fails turns read-only, says why, and
//!   tries to recover.

mod backend;
mod codec;
mod commit;
mod disk;
mod error;
mod history;
mod load;
mod medium;
mod metrics;
mod pace;
mod state;
#[cfg(test)]
mod tests;
mod watch;

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Semaphore, oneshot, watch as watch_channel};

pub use self::error::{ListError, OpenError, WatchEnd, WatchError, WriteError};
pub use self::medium::Medium;
pub use self::metrics::Metrics;
pub use self::watch::Watch;

use self::commit::{Committer, Message, Request};
use self::disk::Disk;
use self::medium::FileMedium;
use self::state::State;

/// Changes that history keeps. At 1,000 writes/s this is most of a minute for a client to come back; at the pace of
/// an idle cluster it is hours. An event costs about 200 bytes beside its superseded value.
const HISTORY_EVENTS: usize = 50_000;
/// Bytes of superseded values that history keeps in memory. Values still current are shared and cost nothing here.
const HISTORY_BYTES: usize = 16 << 20;
/// redb's page cache. Reads are answered from memory, so only the inner pages of the trees and one batch need room.
const CACHE_BYTES: usize = 8 << 20;
/// Writers that may wait for the committer; further ones wait for a place. Several full batches, so that the
/// committer never runs dry, and a bound on what a stalled disk can pile up.
const QUEUED_WRITES: usize = 2_048;
/// Largest value accepted. Kubernetes bounds a request body to 3 MiB; managed fields may be added on top.
const VALUE_BYTES: usize = 4 << 20;

/// Where an object lives. Orders by resource, then namespace, then name: the order of lists.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Plural and group, as in a CRD's name: `pods`, `leases.coordination.k8s.io`.
    pub resource: String,
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub fn new(resource: impl Into<String>, namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { resource: resource.into(), namespace: namespace.into(), name: name.into() }
    }
}

/// One state of one object. Cheap to clone: key and value are shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: Arc<Key>,
    /// The revision that wrote this state.
    pub revision: u64,
    /// JSON, with `metadata.resourceVersion` inside.
    pub value: Bytes,
}

/// What a writer believes about the object that it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// It does not exist: create.
    Absent,
    /// It exists, and this is its latest revision: optimistic concurrency.
    Revision(u64),
    /// It exists, at whatever revision.
    Any,
}

/// Renders the value once its revision is known. Runs on the committer thread: it must not block.
pub type Encode = Box<dyn FnOnce(u64) -> Bytes + Send>;

/// What to do with an object.
pub enum Change {
    Put(Encode),
    /// The value is the object's final state, which watchers get with the deletion.
    Delete(Encode),
}

impl Change {
    pub fn put(encode: impl FnOnce(u64) -> Bytes + Send + 'static) -> Self {
        Self::Put(Box::new(encode))
    }

    pub fn delete(encode: impl FnOnce(u64) -> Bytes + Send + 'static) -> Self {
        Self::Delete(Box::new(encode))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    Added,
    Modified,
    Deleted,
}

/// One change, as watchers get it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub kind: EventKind,
    /// The state after the change; of a deletion, the final state.
    pub entry: Entry,
    /// The state before the change; none for `Added`.
    pub previous: Option<Entry>,
}

impl Event {
    pub fn revision(&self) -> u64 {
        self.entry.revision
    }
}

/// Which objects to list.
#[derive(Clone, Copy, Debug, Default)]
pub struct ListQuery<'a> {
    pub resource: &'a str,
    /// Only this namespace; `None` for all of them and for cluster-scoped resources.
    pub namespace: Option<&'a str>,
    /// The state at exactly this revision; `None` for the latest.
    pub at: Option<u64>,
    /// Only what comes after this namespace and name: the next page.
    pub after: Option<(&'a str, &'a str)>,
    /// At most so many entries; 0 for all.
    pub limit: usize,
}

/// One page of a list, ordered by namespace and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The revision whose state this is.
    pub revision: u64,
    pub entries: Vec<Entry>,
    /// How many more there are after this page.
    pub remaining: usize,
}

/// Which changes to watch.
#[derive(Clone, Debug)]
pub struct WatchQuery {
    pub resource: String,
    /// Only this namespace; `None` for all of them and for cluster-scoped resources.
    pub namespace: Option<String>,
    /// Changes after this revision: the one a list was read at, or the last one seen.
    pub from: u64,
}

/// Bounds of a store.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub history_events: usize,
    pub history_bytes: usize,
    pub cache_bytes: usize,
    pub queued_writes: usize,
    pub value_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            history_events: HISTORY_EVENTS,
            history_bytes: HISTORY_BYTES,
            cache_bytes: CACHE_BYTES,
            queued_writes: QUEUED_WRITES,
            value_bytes: VALUE_BYTES,
        }
    }
}

/// What the committer, readers and watches share.
struct Shared {
    state: RwLock<State>,
    /// Why writes are refused at the moment, if they are.
    read_only: watch_channel::Sender<Option<Arc<str>>>,
    metrics: Metrics,
}

impl Shared {
    fn new(state: State) -> Self {
        Self { state: RwLock::new(state), read_only: watch_channel::Sender::new(None), metrics: Metrics::default() }
    }
}

/// The embedded transactional object store. Dropping it ends its watches, finishes the writes in hand and closes the
/// file.
pub struct Store {
    shared: Arc<Shared>,
    queue: mpsc::Sender<Message>,
    places: Arc<Semaphore>,
    committer: Mutex<Option<JoinHandle<()>>>,
}

impl Store {
    /// Opens the store in `path`, or creates one there if there is no such file.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Arc<Self>, OpenError> {
        Self::open_with(FileMedium::new(path.as_ref()), options)
    }

    /// Opens a store on anything that redb can write to.
    pub fn open_with(medium: impl Medium, options: Options) -> Result<Arc<Self>, OpenError> {
        let (disk, state) = Disk::open(Arc::new(medium), options)?;
        let shared = Arc::new(Shared::new(state));
        let (queue, requests) = mpsc::channel();
        let mut committer = Committer::new(shared.clone(), disk, options);
        let thread = std::thread::Builder::new()
            .name("store-commit".into())
            .spawn(move || committer.run(&requests))
            .map_err(OpenError::Thread)?;
        Ok(Arc::new(Self {
            shared,
            queue,
            places: Arc::new(Semaphore::new(options.queued_writes)),
            committer: Mutex::new(Some(thread)),
        }))
    }

    /// The latest revision that is durable and visible; 0 before the first write.
    pub fn revision(&self) -> u64 {
        self.shared.state.read().revision()
    }

    pub fn get(&self, key: &Key) -> Option<Entry> {
        self.shared.state.read().get(key)
    }

    /// The objects of a namespace whose names begin with `prefix`, in order. Costs what it finds, whatever else there is.
    pub fn named(&self, resource: &str, namespace: &str, prefix: &str) -> Vec<Entry> {
        self.shared.state.read().named(resource, namespace, prefix)
    }

    pub fn list(&self, query: ListQuery<'_>) -> Result<Listing, ListError> {
        self.shared.state.read().list(query)
    }

    /// Changes one object and returns once the change is durable, with the state written.
    ///
    /// A write whose future is dropped may still happen.
    pub async fn write(&self, key: impl Into<Arc<Key>>, expect: Expect, change: Change) -> Result<Entry, WriteError> {
        let place = self.places.clone().acquire_owned().await.map_err(|_| WriteError::Closed)?;
        let (reply, answer) = oneshot::channel();
        let request = Request { key: key.into(), expect, change, reply, _place: Some(place) };
        self.queue.send(Message::Write(request)).map_err(|_| WriteError::Closed)?;
        answer.await.map_err(|_| WriteError::Closed)?
    }

    pub fn watch(&self, query: WatchQuery) -> Result<Watch, WatchError> {
        Watch::start(self.shared.clone(), query)
    }

    /// The revision of the resource's latest change: equal means that nothing changed in between. Starts over with
    /// the process, never going backwards within it.
    pub fn resource_changes(&self, resource: &str) -> u64 {
        self.shared.state.read().changed(resource)
    }

    /// Resources that have objects, with how many.
    pub fn resources(&self) -> Vec<(String, usize)> {
        self.shared.state.read().counts()
    }

    /// Why writes are refused at the moment; `None` while they are accepted. The receiver can be waited on.
    pub fn read_only(&self) -> watch_channel::Receiver<Option<Arc<str>>> {
        self.shared.read_only.subscribe()
    }

    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.places.close();
        let _ = self.queue.send(Message::Stop);
        if let Some(thread) = self.committer.lock().take() {
            let _ = thread.join();
        }
        self.shared.state.write().close();
    }
}
