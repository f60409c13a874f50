//! The replicas of this node.

use std::net::SocketAddr;
use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use tether_controllers::cache::Cache;
use tether_controllers::worker::{Reconcile, log};
use tether_controllers::write::WriteError;
use tether_crd::{FINALIZER, NAMESPACE, Replica, names};
use tether_engine::control::proto;
use tether_engine::host::Address;
use tether_plan::instance::{Process, ProcessState, ReplicaChange, ReplicaObserved, decide_replica};
use tether_plan::object::name;

use super::Shared;
use super::manager::refused;

/// Looks in a row at one replica: what is started or stopped is looked at at once.
const MAX_LOOKS: usize = 4;

pub(super) struct Replicas {
    shared: Arc<Shared>,
    cache: Arc<Cache<Replica>>,
}

impl Replicas {
    pub fn new(shared: Arc<Shared>, cache: Arc<Cache<Replica>>) -> Arc<Self> {
        Arc::new(Self { shared, cache })
    }

    /// Whether something was done that has to be looked at.
    async fn apply(&self, replica: &Replica, change: ReplicaChange) -> Result<bool, WriteError> {
        let shared = &self.shared;
        let api = shared.api::<Replica>();
        match change {
            ReplicaChange::Start => {
                let started = self.start(replica).await;
                let why = started.as_ref().err().map(ToString::to_string);
                let mut errors = shared.start_errors.lock();
                match why {
                    Some(why) => errors.insert(name(replica).to_owned(), why),
                    None => errors.remove(name(replica)),
                };
                drop(errors);
                started.map(|()| true)
            }
            ReplicaChange::Stop => {
                let instance = instance(replica);
                let request = proto::StopRequest { name: instance.to_owned(), ..proto::StopRequest::default() };
                let stopped = shared.link.instances()?.stop(request).await;
                stopped.map_err(|status| refused("stop the replica", &status))?;
                shared.view.lock().stopped(instance);
                Ok(true)
            }
            ReplicaChange::RemoveData { directory } => {
                let request = proto::RemoveReplicaDataRequest { directory };
                let removed = shared.link.instances()?.remove_replica_data(request).await;
                removed.map_err(|status| refused("remove the replica's data", &status))?;
                Ok(false)
            }
            ReplicaChange::SetStatus { status, .. } => {
                let next = Replica { status: *status, ..replica.clone() };
                let written = api.replace_status(name(replica), &PostParams::default(), &next).await;
                self.cache.wrote(written.map_err(|error| WriteError::of("write a replica's status", error))?);
                Ok(false)
            }
            ReplicaChange::RemoveFinalizer { replica: target } => {
                let kept: Vec<_> = replica.finalizers().iter().filter(|held| *held != FINALIZER).collect();
                let metadata = json!({"uid": target.uid, "finalizers": kept});
                let patch = Patch::Merge(json!({"metadata": metadata}));
                match api.patch(&target.name, &PatchParams::default(), &patch).await {
                    Err(kube::Error::Api(status)) if status.is_not_found() => Ok(false),
                    other => other.map(|_| false).map_err(|error| WriteError::of("let go of a replica", error)),
                }
            }
        }
    }

    async fn start(&self, replica: &Replica) -> Result<(), WriteError> {
        let spec = &replica.spec;
        let request = proto::StartReplicaRequest {
            name: instance(replica).to_owned(),
            size: u64::try_from(spec.volume_size.0).unwrap_or_default(),
            key: self.shared.key(&spec.volume_name).await?,
            directory: names::data_path(&spec.disk_path, &spec.data_directory_name),
            member: spec.data_directory_name.clone(),
            ..proto::StartReplicaRequest::default()
        };
        let started = self.shared.link.instances()?.start_replica(request).await;
        let started = started.map_err(|status| refused("start the replica", &status))?;
        self.shared.view.lock().started(started.into_inner());
        Ok(())
    }
}

impl Reconcile for Replicas {
    type Key = String;
    const NAME: &'static str = "replica";

    async fn reconcile(&self, key: &String) -> Result<Option<Timestamp>, WriteError> {
        for _ in 0..MAX_LOOKS {
            let Some(replica) = self.cache.get(NAMESPACE, key) else { return Ok(None) };
            let (manager, process) = {
                let view = self.shared.view.lock();
                (view.manager(), view.get(instance(&replica)).filter(|found| found.kind == "replica").map(process))
            };
            let same = self.cache.find(instance(&replica));
            let twins = same.iter().map(|other| &**other).filter(|other| is_twin(&replica, other)).collect();
            let start_error = self.shared.start_errors.lock().get(key).cloned();
            let observed = ReplicaObserved {
                replica: &replica,
                manager,
                manager_name: &self.shared.manager_name,
                process: process.as_ref(),
                twins,
                start_error: start_error.as_deref(),
            };
            let plan = decide_replica(&observed, Timestamp::now());
            log(Self::NAME, &plan);
            let mut again = false;
            for change in plan.changes {
                again |= self.apply(&replica, change).await?;
                if again {
                    break;
                }
            }
            if !again {
                return Ok(plan.report.wake_at());
            }
        }
        Ok(None)
    }
}

/// The process of a replica is named after its directory: during a migration two objects stand for one.
pub(super) fn instance(replica: &Replica) -> &str {
    &replica.spec.data_directory_name
}

/// Whether another object stands for the same copy.
fn is_twin(replica: &Replica, other: &Replica) -> bool {
    name(replica) != name(other) && replica.spec.disk_path == other.spec.disk_path
}

/// An instance as decisions see it.
pub(super) fn process(instance: &proto::Instance) -> Process {
    let state = match instance.state.as_str() {
        "running" => ProcessState::Running,
        "starting" => ProcessState::Starting,
        "stopped" => ProcessState::Stopped,
        _ => ProcessState::Error,
    };
    let address = instance.addresses.iter().find_map(|text| tcp(text));
    Process {
        uid: instance.uid.clone(),
        state,
        reason: instance.reason.clone(),
        ip: address.map(|address| address.ip().to_string()).unwrap_or_default(),
        port: address.map(|address| address.port()).unwrap_or_default(),
    }
}

/// The address, if it is one of the network.
pub(super) fn tcp(text: &str) -> Option<SocketAddr> {
    match text.parse() {
        Ok(Address::Tcp(address)) => Some(address),
        _ => None,
    }
}
