//! The instances of this process, by name.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::host::Address;
use crate::instance::{EngineInstance, ReplicaInstance};
use crate::record::Records;

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

    /// `running`, or how it ended.
    pub fn state(&self) -> String {
        let ended = match self {
            Self::Engine(engine) => engine.ended(),
            Self::Replica(replica) => replica.ended(),
        };
        ended.map_or_else(|| "running".to_owned(), |ended| ended.to_string())
    }

    pub fn has_ended(&self) -> bool {
        match self {
            Self::Engine(engine) => engine.ended().is_some(),
            Self::Replica(replica) => replica.ended().is_some(),
        }
    }
}

struct Entry {
    running: Running,
    addresses: Vec<Address>,
}

/// Every instance of this process.
#[derive(Default)]
pub struct Registry {
    instances: Mutex<BTreeMap<String, Entry>>,
    /// Where an instance manager keeps replicas; None: nothing is started by request.
    pub data_dir: Option<PathBuf>,
    /// Where it finds records.
    pub records: Option<Box<dyn Records>>,
    /// One start at a time, so that two requests for one name do not both open its directory.
    pub starting: tokio::sync::Mutex<()>,
}

impl Registry {
    /// The registry of a process that runs what it was told at its start.
    pub fn new() -> Self {
        Self::default()
    }

    /// The registry of an instance manager.
    pub fn of_manager(data_dir: PathBuf, records: Box<dyn Records>) -> Self {
        Self { data_dir: Some(data_dir), records: Some(records), ..Self::default() }
    }

    pub fn insert(&self, name: &str, running: Running, addresses: Vec<Address>) {
        self.instances.lock().insert(name.to_owned(), Entry { running, addresses });
    }

    pub fn remove(&self, name: &str) -> Option<Running> {
        self.instances.lock().remove(name).map(|entry| entry.running)
    }

    pub fn get(&self, name: &str) -> Option<(Running, Vec<Address>)> {
        self.instances.lock().get(name).map(|entry| (entry.running.clone(), entry.addresses.clone()))
    }

    pub fn list(&self) -> Vec<(String, Running, Vec<Address>)> {
        let all = self.instances.lock();
        all.iter().map(|(name, entry)| (name.clone(), entry.running.clone(), entry.addresses.clone())).collect()
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
