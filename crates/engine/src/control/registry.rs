//! The instances of this process, by name.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::{OwnedMutexGuard, watch};
use uuid::Uuid;

use super::manager::Manager;
use crate::host::Address;
use crate::instance::{Ended, EngineInstance, ReplicaInstance};

/// Something that runs, or ran.
#[derive(Clone)]
pub enum Running {
    Engine(Arc<EngineInstance>),
    Replica(Arc<ReplicaInstance>),
}

impl Running {
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Engine(_) => "engine",
            Self::Replica(_) => "replica",
        }
    }

    /// How it ended, if it did.
    pub fn ended(&self) -> Option<Ended> {
        match self {
            Self::Engine(engine) => engine.ended(),
            Self::Replica(replica) => replica.ended(),
        }
    }
}

/// An instance and what is known of it from its start.
#[derive(Clone)]
pub struct Entry {
    pub running: Running,
    pub addresses: Vec<Address>,
    /// Of this run; an engine's is its uid in the record.
    pub uid: Uuid,
}

/// Every instance of this process.
pub struct Registry {
    instances: Mutex<BTreeMap<String, Entry>>,
    /// Told when an instance comes or goes.
    changes: watch::Sender<()>,
    /// There if instances are started by request.
    pub(super) manager: Option<Manager>,
    /// One start or stop of a name at a time, so that two requests for one do not both open its directory.
    busy: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// The process is about to end: nothing is started in it any more.
    ending: AtomicBool,
}

impl Default for Registry {
    fn default() -> Self {
        let (instances, busy) = (Mutex::default(), Mutex::default());
        Self { instances, changes: watch::Sender::new(()), manager: None, busy, ending: AtomicBool::new(false) }
    }
}

impl Registry {
    /// The registry of a process that runs what it was told at its start.
    pub fn new() -> Self {
        Self::default()
    }

    /// The registry of an instance manager.
    pub fn of_manager(manager: Manager) -> Self {
        Self { manager: Some(manager), ..Self::default() }
    }

    /// From now on nothing is started here: what runs is about to be stopped.
    pub fn end(&self) {
        self.ending.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    pub fn insert(&self, name: &str, entry: Entry) {
        self.instances.lock().insert(name.to_owned(), entry);
        self.changes.send_replace(());
    }

    /// Removes this run of an instance; another one of its name, started since, stays.
    pub fn remove(&self, name: &str, uid: Uuid) {
        let mut instances = self.instances.lock();
        if instances.get(name).is_some_and(|entry| entry.uid == uid) {
            instances.remove(name);
            self.changes.send_replace(());
        }
    }

    pub fn get(&self, name: &str) -> Option<Entry> {
        self.instances.lock().get(name).cloned()
    }

    pub fn list(&self) -> Vec<(String, Entry)> {
        self.instances.lock().iter().map(|(name, entry)| (name.clone(), entry.clone())).collect()
    }

    /// Says when instances come and go.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Waits for the turn of a name.
    pub(super) async fn turn(&self, name: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut busy = self.busy.lock();
            // What nobody waits for or holds is in nobody's way.
            busy.retain(|_, lock| Arc::strong_count(lock) > 1);
            busy.entry(name.to_owned()).or_default().clone()
        };
        lock.lock_owned().await
    }

    /// The instance of this name; with no name, the only one that `fits`.
    pub fn find<T>(&self, name: &str, fits: impl Fn(&Running) -> Option<T>) -> Result<T, String> {
        let all = self.instances.lock();
        if !name.is_empty() {
            let entry = all.get(name).ok_or_else(|| format!("no instance is called {name:?}"))?;
            return fits(&entry.running).ok_or_else(|| format!("{name:?} is a {}", entry.running.kind()));
        }
        let mut fitting = all.values().filter_map(|entry| fits(&entry.running));
        match (fitting.next(), fitting.next()) {
            (Some(only), None) => Ok(only),
            (None, _) => Err("nothing of this kind runs here".to_owned()),
            (Some(_), Some(_)) => Err("several run here: say which one".to_owned()),
        }
    }
}
