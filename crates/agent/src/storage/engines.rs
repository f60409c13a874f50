//! The engines of this node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams, PostParams};
use parking_lot::Mutex;
use serde_json::json;
use tether_controllers::cache::Cache;
use tether_controllers::queue::Queue;
use tether_controllers::worker::{Reconcile, log};
use tether_controllers::write::WriteError;
use tether_crd::engine::InstanceState;
use tether_crd::volume::Frontend;
use tether_crd::{Engine, FINALIZER, NAMESPACE, Replica, Snapshot, VolumeAttachment, names};
use tether_engine::control::proto;
use tether_engine::device::link::Link as DeviceLink;
use tether_engine::device::place::Name;
use tether_plan::instance::{
    EngineChange, EngineObserved, EngineProcess, Member, Process, ProcessState, decide_engine,
};
use tether_plan::object::{is_deleting, name};

use super::Shared;
use super::copy::Copies;
use super::manager::refused;
use super::replicas::{process, tcp};
use super::snapshots::{self, Lists};

/// Looks in a row at one engine: what is started or stopped is looked at at once.
const MAX_LOOKS: usize = 4;
/// An engine that takes longer than this to serve is said to be starting; most never are, and a status is saved.
const SLOW_START: SignedDuration = SignedDuration::from_secs(1);
/// How long a promotion is waited for: an ordinary one takes milliseconds, and one that waits for a lease must not keep
/// anybody from stopping the engine.
const PROMOTION_WAIT: Duration = Duration::from_secs(1);

/// Between two looks at the tickets of a volume whose device waits here for an engine.
const TICKET_LOOK: SignedDuration = SignedDuration::from_secs(2);

pub(super) struct Engines {
    shared: Arc<Shared>,
    cache: Arc<Cache<Engine>>,
    /// When engines were started that have yet to serve.
    starting: Mutex<BTreeMap<String, Timestamp>>,
    /// Where the replicas of engines were when they were started here.
    started_with: Mutex<BTreeMap<String, BTreeSet<String>>>,
    /// Held to read while an engine is started, to write while the device of one is removed that is not to run here.
    devices: tokio::sync::RwLock<()>,
    /// The standby that each engine took out of the record last.
    dismissed: Mutex<BTreeMap<String, String>>,
    /// Those that were handed to this node, by volume.
    snapshots: Arc<Cache<Snapshot>>,
    lists: Lists,
    /// Of this node.
    replicas: Arc<Cache<Replica>>,
    copies: Copies,
    queue: Arc<Queue<String>>,
}

impl Engines {
    pub fn new(
        shared: Arc<Shared>,
        cache: Arc<Cache<Engine>>,
        replicas: Arc<Cache<Replica>>,
        snapshots: Arc<Cache<Snapshot>>,
        queue: Arc<Queue<String>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            shared,
            cache,
            starting: Mutex::default(),
            started_with: Mutex::default(),
            devices: tokio::sync::RwLock::default(),
            dismissed: Mutex::default(),
            snapshots,
            lists: Lists::default(),
            replicas,
            copies: Copies::default(),
            queue,
        })
    }

    /// Whether something was done that has to be looked at.
    async fn apply(&self, engine: &Engine, change: EngineChange) -> Result<bool, WriteError> {
        let shared = &self.shared;
        let instance = || name(engine).to_owned();
        match change {
            EngineChange::Start { standby } => {
                let started = self.start(engine, standby).await;
                let why = started.as_ref().err().map(ToString::to_string);
                match why {
                    Some(why) => shared.start_errors.lock().insert(instance(), why),
                    None => shared.start_errors.lock().remove(name(engine)),
                };
                started?;
                self.starting.lock().insert(instance(), Timestamp::now());
                Ok(true)
            }
            EngineChange::Stop { keep_device } => {
                let stopped = self.stop(name(engine), keep_device).await;
                let mut errors = shared.stop_errors.lock();
                match &stopped {
                    Err(why) => errors.insert(instance(), why.to_string()),
                    Ok(()) => errors.remove(name(engine)),
                };
                drop(errors);
                stopped.map(|()| true)
            }
            EngineChange::RemoveDevice => self.remove_device(&engine.spec.volume_name).await.map(|()| false),
            EngineChange::Promote => {
                let request = proto::InstanceRequest { instance: instance() };
                let mut client = shared.link.engine()?;
                // It goes on without us; what comes of it is told by the stream.
                if let Ok(done) = tokio::time::timeout(PROMOTION_WAIT, client.promote(request)).await {
                    done.map_err(|s| refused("promote the engine", &s))?;
                }
                Ok(false)
            }
            EngineChange::DismissStandby { uid } => {
                let request = proto::RollbackRequest { instance: instance(), standby: uid.clone() };
                let dismissed = shared.link.engine()?.rollback(request).await;
                dismissed.map_err(|s| refused("take the standby out of the record", &s))?;
                self.dismissed.lock().insert(instance(), uid);
                Ok(false)
            }
            EngineChange::AddReplica { address } => {
                let replica = proto::ReplicaAddress { name: String::new(), address };
                let request = proto::AddReplicaRequest { instance: instance(), replica: Some(replica) };
                shared.link.engine()?.add_replica(request).await.map_err(|s| refused("add a replica", &s))?;
                Ok(false)
            }
            EngineChange::RemoveReplica { id } => {
                let request = proto::ReplicaRequest { instance: instance(), name: id };
                shared.link.engine()?.remove_replica(request).await.map_err(|s| refused("remove a replica", &s))?;
                Ok(false)
            }
            EngineChange::Expand { size } => {
                let request = proto::ExpandRequest { instance: instance(), size };
                shared.link.engine()?.expand(request).await.map_err(|s| refused("expand the volume", &s))?;
                self.lists.forget(name(engine));
                self.refresh(engine).await.map(|()| true)
            }
            EngineChange::Snapshot(change) => {
                let uid = shared.view.lock().get(name(engine)).map(|found| found.uid.clone()).unwrap_or_default();
                snapshots::step(shared, &self.lists, engine, &uid, change).await.map(|()| true)
            }
            EngineChange::Fill { volume, snapshot } => {
                let found = shared.view.lock().get(name(engine)).cloned();
                let Some(found) = found else { return Ok(false) };
                let (queue, key) = (self.queue.clone(), instance());
                let changed = move || queue.add(key.clone());
                let replicas = self.replicas.list();
                self.copies.begin(shared, engine, &found, &replicas, (volume, snapshot), changed).await;
                Ok(true)
            }
            EngineChange::SetStatus { status, .. } => {
                let next = Engine { status: *status, ..engine.clone() };
                let written = shared.api::<Engine>().replace_status(name(engine), &PostParams::default(), &next).await;
                self.cache.wrote(written.map_err(|error| WriteError::of("write an engine's status", error))?);
                Ok(false)
            }
            EngineChange::RemoveFinalizer { engine: target } => {
                let kept: Vec<_> = engine.finalizers().iter().filter(|held| *held != FINALIZER).collect();
                let patch = Patch::Merge(json!({"metadata": {"uid": target.uid, "finalizers": kept}}));
                match shared.api::<Engine>().patch(&target.name, &PatchParams::default(), &patch).await {
                    Err(kube::Error::Api(status)) if status.is_not_found() => Ok(false),
                    other => other.map(|_| false).map_err(|error| WriteError::of("let go of an engine", error)),
                }
            }
        }
    }

    /// Learns what a request has changed; the stream tells it too, but not before the next decision.
    async fn refresh(&self, engine: &Engine) -> Result<(), WriteError> {
        let request = proto::InstanceRequest { instance: name(engine).to_owned() };
        let info = self.shared.link.engine()?.info(request).await.map_err(|s| refused("ask the engine", &s))?;
        self.shared.view.lock().asked(name(engine), info.into_inner());
        Ok(())
    }

    async fn start(&self, engine: &Engine, standby: bool) -> Result<(), WriteError> {
        let spec = &engine.spec;
        let shows = !spec.disable_frontend && spec.frontend != Frontend::None;
        let device = shows && self.shared.layout.devices.is_some();
        // The volume owns its engine; its uid is what replicas know it by.
        let owner = engine.metadata.owner_references.iter().flatten().find(|owner| owner.kind == "Volume");
        let replicas = spec.replica_address_map.values();
        // One that is to grow starts as large as it was: its replicas still are, and it grows together with them.
        let (wanted, served) = (spec.volume_size, engine.status.current_size);
        let size = if served.0 > 0 { served.min(wanted) } else { wanted };
        let request = proto::StartEngineRequest {
            name: name(engine).to_owned(),
            volume: spec.volume_name.clone(),
            volume_uid: owner.map(|owner| owner.uid.clone()).unwrap_or_default(),
            size: u64::try_from(size.0).unwrap_or_default(),
            replicas: replicas
                .map(|address| proto::ReplicaAddress { name: String::new(), address: address.clone() })
                .collect(),
            key: self.shared.key(&spec.volume_name).await?,
            standby,
            source: if standby { spec.migration_source.clone() } else { String::new() },
            device,
            nbd_tcp: shows && !device,
            ..proto::StartEngineRequest::default()
        };
        let _devices = self.devices.read().await;
        let started = self.shared.link.instances()?.start_engine(request).await;
        let started = started.map_err(|status| refused("start the engine", &status))?;
        let places = spec.replica_address_map.values().cloned().collect();
        self.started_with.lock().insert(name(engine).to_owned(), places);
        self.shared.view.lock().started(started.into_inner());
        Ok(())
    }

    async fn stop(&self, engine: &str, keep_device: bool) -> Result<(), WriteError> {
        let detach_device = !keep_device;
        let request = proto::StopRequest { name: engine.to_owned(), detach_device, ..proto::StopRequest::default() };
        let stopped = self.shared.link.instances()?.stop(request).await;
        stopped.map_err(|status| refused("stop the engine", &status))?;
        self.shared.view.lock().stopped(engine);
        self.starting.lock().remove(engine);
        self.started_with.lock().remove(engine);
        Ok(())
    }

    /// The engine is not one of this node, or not any more: it was taken away while nothing was heard of this node. Nobody
    /// here will serve its device again, so that whoever still waits for it has to hear that it is gone.
    /// While a ticket asks for the volume here, its engine will be back and the device waits; when to look again then.
    async fn left_behind(&self, engine: &str) -> Result<Option<Timestamp>, WriteError> {
        let Some(volume) = names::volume_of_engine(engine) else { return Ok(None) };
        let _devices = self.devices.write().await;
        if self.cache.list().iter().any(|held| held.spec.volume_name == volume) {
            return Ok(None);
        }
        let runs = self.shared.view.lock().get(engine).is_some_and(|found| found.kind == "engine");
        let place = self.shared.layout.devices.as_ref();
        let device = place.zip(Name::new(volume).ok()).is_some_and(|(place, name)| place.directory(&name).exists());
        if !runs && !device {
            return Ok(None);
        }
        let found = self.shared.api::<Engine>().get_opt(engine).await;
        let found = found.map_err(|error| WriteError::of("read an engine", error))?;
        if found.is_some_and(|found| found.spec.node_id == self.shared.node) {
            return Ok(None);
        }
        if self.has_ticket(volume).await? {
            return Ok(Some(Timestamp::now() + TICKET_LOOK));
        }
        tracing::info!(engine, "is not to run on this node: what is left of it goes");
        if runs {
            self.stop(engine, false).await?;
        }
        self.remove_device(volume).await.map(|()| None)
    }

    /// Whether a ticket asks for the volume on this node; asked only when an engine is to end.
    async fn is_asked_for(&self, engine: &Engine, has_process: bool) -> Result<bool, WriteError> {
        let is_over = engine.status.current_state == InstanceState::Stopped && !has_process;
        if engine.spec.desire_state == InstanceState::Running || is_over {
            return Ok(false);
        }
        Ok(!is_deleting(engine) && self.has_ticket(&engine.spec.volume_name).await?)
    }

    async fn has_ticket(&self, volume: &str) -> Result<bool, WriteError> {
        let found = self.shared.api::<VolumeAttachment>().get_opt(volume).await;
        let found = found.map_err(|error| WriteError::of("read the tickets of a volume", error))?;
        let mut tickets = found.iter().flat_map(|held| held.spec.attachment_tickets.values());
        Ok(tickets.any(|ticket| ticket.node_id == self.shared.node))
    }

    /// An engine that did not end in order leaves its device waiting for the next one, which does not come here.
    async fn remove_device(&self, volume: &str) -> Result<(), WriteError> {
        let (Some(place), Ok(volume)) = (self.shared.layout.devices.clone(), Name::new(volume)) else {
            return Ok(());
        };
        let remove = move || match DeviceLink::find(&place, &volume) {
            Ok(Some(link)) => link.retire().map_err(|error| error.to_string()),
            Ok(None) => Ok(()),
            Err(error) => Err(error.to_string()),
        };
        let removed = tokio::task::spawn_blocking(remove).await.map_err(|error| error.to_string());
        removed.flatten().map_err(|why| WriteError::Unfinished { operation: format!("remove the device: {why}") })
    }
}

impl Reconcile for Engines {
    type Key = String;
    const NAME: &'static str = "engine";

    async fn reconcile(&self, key: &String) -> Result<Option<Timestamp>, WriteError> {
        for _ in 0..MAX_LOOKS {
            let Some(engine) = self.cache.get(NAMESPACE, key) else {
                return self.left_behind(key).await;
            };
            let (manager, found) = {
                let view = self.shared.view.lock();
                (view.manager(), view.get(key).filter(|found| found.kind == "engine").cloned())
            };
            let mut process = found.map(|found| engine_process(&found));
            let start_error = self.shared.start_errors.lock().get(key).cloned();
            let stop_error = self.shared.stop_errors.lock().get(key).cloned();
            let dismissed = self.dismissed.lock().get(key).cloned();
            let started_with = self.started_with.lock().get(key).cloned();
            let now = Timestamp::now();
            if process.as_ref().is_some_and(|found| found.process.state == ProcessState::Starting) {
                // Also one that stood by and takes over by itself.
                self.starting.lock().entry(key.clone()).or_insert(now);
            } else if process.is_some() {
                self.starting.lock().remove(key);
            }
            let begun = self.starting.lock().get(key).copied();
            let slow_at = begun.map(|begun| begun + SLOW_START);
            let is_asked_for = self.is_asked_for(&engine, process.is_some()).await?;
            let (mut ask_at, mut copy) = (None, None);
            if let Some(found) = process.as_mut().filter(|found| found.process.state == ProcessState::Running) {
                (found.snapshots, ask_at) = self.lists.known(key, &found.process.uid);
                copy = self.copies.progress(&engine, &found.process.uid);
            }
            let handed = self.snapshots.find(&engine.spec.volume_name);
            let observed = EngineObserved {
                engine: &engine,
                manager,
                manager_name: &self.shared.manager_name,
                process: process.as_ref(),
                start_error: start_error.as_deref(),
                stop_error: stop_error.as_deref(),
                is_slow: slow_at.is_none_or(|at| now >= at),
                is_asked_for,
                list_due: ask_at.is_some_and(|at| now >= at),
                snapshots: handed.iter().map(AsRef::as_ref).collect(),
                copy,
                dismissed: dismissed.as_deref(),
                started_with: started_with.as_ref(),
            };
            let plan = decide_engine(&observed, now);
            log(Self::NAME, &plan);
            let mut again = false;
            for change in plan.changes {
                again |= self.apply(&engine, change).await?;
                if again {
                    break;
                }
            }
            if !again {
                return Ok(slow_at.into_iter().chain(ask_at).filter(|at| *at > now).min());
            }
        }
        // There is more to do; others are looked at first.
        Ok(Some(Timestamp::now()))
    }
}

/// An engine's instance as decisions see it.
fn engine_process(instance: &proto::Instance) -> EngineProcess {
    let info = instance.engine.clone().unwrap_or_default();
    let members = info.replicas.iter().map(|replica| Member {
        id: replica.name.clone(),
        address: tcp(&replica.address).map_or_else(|| replica.address.clone(), |address| address.to_string()),
        in_sync: replica.in_sync,
        connected: replica.connected,
        resync: replica.resync.as_ref().map(|resync| percent(resync.done, resync.total)),
        error: replica.last_error.clone(),
    });
    // Where others find it is where standbys read through it.
    let peer = tcp(&info.peer);
    EngineProcess {
        process: Process {
            ip: peer.map(|peer| peer.ip().to_string()).unwrap_or_default(),
            port: peer.map(|peer| peer.port()).unwrap_or_default(),
            ..process(instance)
        },
        is_standby: info.phase == "Standby",
        is_fenced: info.phase == "Fenced",
        size: info.size,
        endpoint: endpoint(&info),
        members: members.collect(),
        snapshots: None,
    }
}

/// Steps of ten: a status for each percent would be a hundred writes for each rebuild.
fn percent(done: u64, total: u64) -> i64 {
    let percent = done.saturating_mul(100).checked_div(total).unwrap_or_default();
    i64::try_from(percent / 10 * 10).unwrap_or_default().min(100)
}

/// Where the volume is found on the node: its device; without devices, where NBD is served to the network.
fn endpoint(info: &proto::EngineInfo) -> String {
    if !info.device.is_empty() {
        return info.device.clone();
    }
    let on_network = |uri: &&String| uri.starts_with("nbd://") || uri.starts_with("nbds://");
    info.nbd.iter().find(on_network).cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_comes_before_a_port_and_a_socket_is_nobodys_endpoint() {
        let nbd = vec!["nbd+unix:///v1?socket=/x".to_owned(), "nbd://127.0.0.1:9/v1".to_owned()];
        let mut info = proto::EngineInfo { nbd, ..proto::EngineInfo::default() };
        assert_eq!(endpoint(&info), "nbd://127.0.0.1:9/v1");
        info.device = "/dev/longhorn/v1".to_owned();
        assert_eq!(endpoint(&info), "/dev/longhorn/v1");
        assert_eq!(endpoint(&proto::EngineInfo::default()), "");
    }
}
