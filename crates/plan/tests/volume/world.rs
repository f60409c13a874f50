//! A cluster of one volume: objects that plans change, nodes that come and go, agents that carry out specs.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tether_crd::condition;
use tether_crd::engine::{EngineStatus, FENCED, INSTANCE_CREATION, InstanceState, ReplicaMode};
use tether_crd::replica::ReplicaStatus;
use tether_crd::volume::{Record, State};
use tether_crd::{Engine, Replica, Volume, VolumeAttachment};
use tether_machinery::patch;
use tether_plan::Plan;
use tether_plan::placement::{Hosts, Manager, Promised};
use tether_plan::volume::{Change, Kind, Observed, Settings, decide};

#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) now: Timestamp,
    pub(crate) volume: Option<Volume>,
    pub(crate) attachment: Option<VolumeAttachment>,
    pub(crate) engines: BTreeMap<String, Engine>,
    pub(crate) replicas: BTreeMap<String, Replica>,
    pub(crate) hosts: Hosts,
    pub(crate) settings: Settings,
    pub(crate) seed: u64,
    pub(crate) version: u64,
    pub(crate) events: Vec<String>,
    pub(crate) writes: usize,
    /// Nodes whose processes died while nobody could say so.
    pub(crate) crashed: BTreeSet<String>,
    /// Nodes whose processes stand still, which nobody knows yet.
    pub(crate) silent: BTreeSet<String>,
}

impl World {
    pub(crate) fn plan(&self) -> Plan<Change> {
        let mut promised = Promised::new();
        for replica in self.replicas.values() {
            let bytes = if replica.spec.active { replica.spec.volume_size.0 } else { 0 };
            *promised.entry(replica.spec.disk_id.clone()).or_default() += bytes;
        }
        let observed = Observed {
            volume: self.volume.as_ref().unwrap(),
            attachment: self.attachment.as_ref(),
            engines: self.engines.values().collect(),
            replicas: self.replicas.values().collect(),
            hosts: &self.hosts,
            promised: &promised,
            settings: &self.settings,
            seed: self.seed,
        };
        decide(&observed, self.now)
    }

    /// Decides and carries the plan out; false if there was nothing to do.
    pub(crate) fn step(&mut self) -> bool {
        if self.volume.is_none() {
            return false;
        }
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let plan = self.plan();
        self.events.extend(plan.events.iter().map(|event| format!("{event:?}")));
        let acted = !plan.changes.is_empty();
        self.writes += plan.changes.len();
        for change in plan.changes {
            self.apply(change);
        }
        acted
    }

    /// Decides until nothing is left to do.
    pub(crate) fn decided(mut self) -> Self {
        for _ in 0..20 {
            if !self.step() {
                return self;
            }
        }
        panic!("decisions never end: {}", self.plan());
    }

    pub(crate) fn apply(&mut self, change: Change) {
        self.version += 1;
        let version = self.version.to_string();
        match change {
            Change::CreateKey { .. } => {}
            Change::CreateAttachment(made) => self.attachment = Some(create(*made, &version)),
            Change::CreateEngine(made) => {
                let made: Engine = create(*made, &version);
                assert!(self.engines.insert(made.metadata.name.clone().unwrap(), made).is_none());
            }
            Change::CreateReplica(made) => {
                let made: Replica = create(*made, &version);
                assert!(self.replicas.insert(made.metadata.name.clone().unwrap(), made).is_none());
            }
            Change::Patch { kind, target, body, .. } => match kind {
                Kind::Volume => merge(self.volume.as_mut().unwrap(), &body, &version),
                Kind::Engine => merge(self.engines.get_mut(&target.name).unwrap(), &body, &version),
                Kind::Replica => merge(self.replicas.get_mut(&target.name).unwrap(), &body, &version),
                Kind::Attachment => merge(self.attachment.as_mut().unwrap(), &body, &version),
            },
            Change::SetTicket { id, ticket, .. } => {
                let tickets = &mut self.attachment.as_mut().unwrap().spec.attachment_tickets;
                match ticket {
                    Some(ticket) => drop(tickets.insert(id, *ticket)),
                    None => drop(tickets.remove(&id)),
                }
            }
            Change::Delete { kind, target } => {
                let at = Some(Time(self.now));
                match kind {
                    Kind::Volume => unreachable!("the controller deletes no volume"),
                    Kind::Engine => self.engines.get_mut(&target.name).unwrap().metadata.deletion_timestamp = at,
                    Kind::Replica => self.replicas.get_mut(&target.name).unwrap().metadata.deletion_timestamp = at,
                    Kind::Attachment => self.attachment.as_mut().unwrap().metadata.deletion_timestamp = at,
                }
            }
            Change::RemoveFinalizer { kind, target } => match kind {
                Kind::Volume => self.volume = None,
                Kind::Engine => drop(self.engines.remove(&target.name)),
                Kind::Replica => drop(self.replicas.remove(&target.name)),
                Kind::Attachment => self.attachment = None,
            },
        }
    }

    fn is_up(&self, node: &str) -> bool {
        self.hosts.get(node).is_some_and(|host| !host.is_down)
    }

    fn can_launch(&self, node: &str) -> bool {
        self.hosts.get(node).is_some_and(tether_plan::placement::Host::can_launch)
    }

    /// Every agent that is up carries out what it is told, one step; false if there was nothing to do.
    pub(crate) fn agents(&mut self) -> bool {
        let before = (self.engines.clone(), self.replicas.clone(), self.record().cloned());
        let names: Vec<String> = self.replicas.keys().cloned().collect();
        for (index, name) in names.iter().enumerate() {
            self.replica_agent(name, index);
        }
        let names: Vec<String> = self.engines.keys().cloned().collect();
        for name in names {
            self.engine_agent(&name);
        }
        before != (self.engines.clone(), self.replicas.clone(), self.record().cloned())
    }

    pub(crate) fn record(&self) -> Option<&Record> {
        self.volume.as_ref().and_then(|volume| volume.status.record.as_ref())
    }

    fn replica_agent(&mut self, name: &str, index: usize) {
        let node = self.replicas[name].spec.node_id.clone();
        if !self.is_up(&node) || self.silent.contains(&node) {
            return;
        }
        if self.replicas[name].metadata.deletion_timestamp.is_some() {
            self.replicas.remove(name);
            return;
        }
        let can_launch = self.can_launch(&node);
        let replica = self.replicas.get_mut(name).unwrap();
        let (wanted, state) = (replica.spec.desire_state, replica.status.current_state);
        match (wanted, state) {
            (InstanceState::Running, InstanceState::Stopped) if can_launch => crate::build::run(replica, index),
            (InstanceState::Stopped, InstanceState::Stopped) => {}
            (InstanceState::Stopped, _) => replica.status = ReplicaStatus::default(),
            _ => {}
        }
    }

    fn member(&self, replica: &str) -> String {
        self.replicas[replica].spec.data_directory_name.clone()
    }

    /// Whether the process behind a replica answers.
    fn answers(&self, replica: &str) -> bool {
        self.replicas.get(replica).is_some_and(|found| {
            found.status.current_state == InstanceState::Running
                && self.is_up(&found.spec.node_id)
                && !self.crashed.contains(&found.spec.node_id)
                && !self.silent.contains(&found.spec.node_id)
        })
    }

    fn engine_agent(&mut self, name: &str) {
        let engine = &self.engines[name];
        let node = engine.spec.node_id.clone();
        if engine.metadata.deletion_timestamp.is_some() {
            if self.is_up(&node) {
                let uuid = engine.status.uuid.clone();
                self.engines.remove(name);
                self.clear_standby(&uuid);
            }
            return;
        }
        if !self.is_up(&node) {
            return;
        }
        match (engine.spec.desire_state, engine.status.current_state) {
            (InstanceState::Running, InstanceState::Stopped | InstanceState::Running)
                if !engine.spec.active && self.can_launch(&node) =>
            {
                self.stand_by(name);
            }
            (InstanceState::Running, InstanceState::Stopped) if self.can_launch(&node) => self.start_engine(name),
            (InstanceState::Running, InstanceState::Running) => self.serve(name),
            (InstanceState::Stopped, InstanceState::Stopped) => {}
            (InstanceState::Stopped, _) => self.engines.get_mut(name).unwrap().status = EngineStatus::default(),
            _ => {}
        }
    }

    /// An engine that stood by stops, or is stopped from taking over.
    fn clear_standby(&mut self, uuid: &str) {
        if let Some(record) = self.volume.as_mut().and_then(|volume| volume.status.record.as_mut()) {
            record.standby = record.standby.take().filter(|standby| standby != uuid);
        }
    }

    /// An engine takes the volume in the record and opens its members.
    fn start_engine(&mut self, name: &str) {
        let map = self.engines[name].spec.replica_address_map.clone();
        let here: Vec<String> =
            map.keys().filter(|replica| self.answers(replica)).map(|replica| self.member(replica)).collect();
        let mut record = self.record().cloned().unwrap_or(Record { in_sync: here.clone(), ..Default::default() });
        record.in_sync.retain(|member| here.contains(member));
        if record.in_sync.is_empty() {
            return;
        }
        record.epoch += 1;
        let uuid = self.uuid(name);
        record.standby = record.standby.take().filter(|standby| *standby != uuid);
        record.holder = Some(uuid.clone());
        let modes = map.keys().filter(|replica| self.answers(replica)).map(|replica| {
            let in_sync = record.in_sync.contains(&self.member(replica));
            (replica.clone(), if in_sync { ReplicaMode::ReadWrite } else { ReplicaMode::WriteOnly })
        });
        let modes = modes.collect();
        let status = &mut self.engines.get_mut(name).unwrap().status;
        status.current_state = InstanceState::Running;
        status.started = true;
        status.uuid = uuid;
        (status.ip, status.port) = ("10.0.0.1".into(), 9500);
        status.replica_mode_map = modes;
        status.current_replica_address_map = map;
        status.endpoint = "/dev/longhorn/v1".into();
        self.volume.as_mut().unwrap().status.record = Some(record);
    }

    /// The uid of an engine's process: the one that runs, or a new one.
    fn uuid(&mut self, name: &str) -> String {
        self.version += 1;
        let known = self.engines[name].status.uuid.clone();
        if known.is_empty() { format!("{name}@{}", self.version) } else { known }
    }

    /// The target's consumer writes: the engine that stands by takes the volume over.
    pub(crate) fn write_at(&mut self, name: &str) {
        assert_eq!(self.record().unwrap().standby.as_ref(), Some(&self.engines[name].status.uuid), "nobody else may");
        self.start_engine(name);
    }

    /// An engine that is not active reads through the one that is.
    fn stand_by(&mut self, name: &str) {
        let uuid = self.uuid(name);
        let record = self.volume.as_mut().unwrap().status.record.as_mut().unwrap();
        if record.holder.as_ref() == Some(&uuid) {
            self.serve(name);
            return;
        }
        let stopped = self.engines[name].status.current_state == InstanceState::Stopped;
        if (stopped && record.standby.is_some()) || (!stopped && record.standby.as_ref() != Some(&uuid)) {
            // Another one is named, or this one not any more.
            self.engines.get_mut(name).unwrap().status.current_state = InstanceState::Error;
            return;
        }
        record.standby = Some(uuid.clone());
        self.engines.get_mut(name).unwrap().status.uuid = uuid;
        let status = &mut self.engines.get_mut(name).unwrap().status;
        status.current_state = InstanceState::Running;
        status.started = true;
        status.endpoint = "standby".into();
        let map = self.engines[name].spec.replica_address_map.clone();
        let status = &mut self.engines.get_mut(name).unwrap().status;
        status.replica_mode_map = map.keys().map(|replica| (replica.clone(), ReplicaMode::ReadWrite)).collect();
        status.current_replica_address_map = map;
    }

    /// A running engine lets members join and leave.
    fn serve(&mut self, name: &str) {
        let map = self.engines[name].spec.replica_address_map.clone();
        let mut record = self.record().cloned().unwrap();
        let holds = record.holder.as_ref() == Some(&self.engines[name].status.uuid);
        if !holds && self.engines[name].status.endpoint == "standby" {
            // It is the volume's engine now: it takes the volume, which fences the other.
            self.start_engine(name);
            return;
        }
        if !holds {
            // Another engine took the volume: this one is fenced.
            let status = &mut self.engines.get_mut(name).unwrap().status;
            status.current_state = InstanceState::Error;
            condition::set(&mut status.conditions, INSTANCE_CREATION, condition::FALSE, FENCED, "fenced", self.now);
            return;
        }
        let dismissed = &self.engines[name].spec.dismissed_standby;
        record.standby = record.standby.take().filter(|standby| standby != dismissed);
        let mut modes = self.engines[name].status.replica_mode_map.clone();
        modes.retain(|replica, _| map.contains_key(replica));
        for replica in map.keys() {
            let mode = match modes.get(replica) {
                _ if !self.answers(replica) => ReplicaMode::Error,
                None | Some(ReplicaMode::Error) => ReplicaMode::WriteOnly,
                Some(_) => ReplicaMode::ReadWrite,
            };
            modes.insert(replica.clone(), mode);
        }
        let good = modes.iter().filter(|(_, mode)| **mode == ReplicaMode::ReadWrite);
        let good: Vec<String> = good.map(|(replica, _)| self.member(replica)).collect();
        // The last member is never removed: I/O waits for it.
        if good.is_empty() {
            for (replica, mode) in &mut modes {
                if record.in_sync.contains(&self.member(replica)) {
                    *mode = ReplicaMode::ReadWrite;
                }
            }
        } else {
            record.in_sync = good;
        }
        let size = self.engines[name].spec.volume_size;
        let status = &mut self.engines.get_mut(name).unwrap().status;
        status.replica_mode_map = modes;
        status.current_replica_address_map = map;
        status.current_size = size;
        self.volume.as_mut().unwrap().status.record = Some(record);
    }

    /// The node loses power; what is known of it changes as soon as it is noticed.
    pub(crate) fn crash(&mut self, node: &str) {
        self.crashed.insert(node.to_owned());
        let host = self.hosts.get_mut(node).unwrap();
        host.is_down = true;
        host.not_ready = Some("KubernetesNodeNotReady".into());
        host.manager = Manager::Unknown;
    }

    /// The node is back, and its agent says what became of its processes.
    pub(crate) fn come_back(&mut self, node: &str) {
        let host = self.hosts.get_mut(node).unwrap();
        host.is_down = false;
        host.not_ready = None;
        host.manager = Manager::Running;
        if !self.crashed.remove(node) {
            return;
        }
        let died = |state: &mut InstanceState| {
            if *state != InstanceState::Stopped {
                *state = InstanceState::Error;
            }
        };
        for replica in self.replicas.values_mut().filter(|replica| replica.spec.node_id == node) {
            died(&mut replica.status.current_state);
        }
        for engine in self.engines.values_mut().filter(|engine| engine.spec.node_id == node) {
            died(&mut engine.status.current_state);
            engine.status.replica_mode_map.clear();
        }
    }

    /// Tickets do what they do with a faulted volume: detach it, and want it again where it was.
    pub(crate) fn tickets(&mut self, wanted: &str) {
        let Some(volume) = &mut self.volume else { return };
        let is_faulted = volume.status.robustness == tether_crd::volume::Robustness::Faulted;
        let is_detached = volume.status.state == State::Detached;
        let moves = !volume.spec.node_id.is_empty() && volume.spec.node_id != wanted;
        if is_faulted || moves {
            volume.spec.node_id.clear();
        } else if volume.spec.node_id.is_empty() && is_detached {
            wanted.clone_into(&mut volume.spec.node_id);
        }
    }

    /// Decisions and agents take turns until nothing moves.
    pub(crate) fn settle(&mut self, wanted: &str) {
        for _ in 0..60 {
            let before = self.volume.clone();
            self.tickets(wanted);
            let mut moved = before != self.volume;
            moved |= self.step();
            moved |= self.agents();
            if !moved {
                return;
            }
        }
        panic!("never at rest: {}", self.plan());
    }

    pub(crate) fn pass(&mut self, time: SignedDuration) {
        self.now += time;
    }

    pub(crate) fn status(&self) -> (State, tether_crd::volume::Robustness, &str) {
        let status = &self.volume.as_ref().unwrap().status;
        (status.state, status.robustness, &status.current_node_id)
    }
}

trait HasMeta {
    fn meta(&mut self) -> &mut ObjectMeta;
}

impl<K: k8s_openapi::Metadata<Ty = ObjectMeta>> HasMeta for K {
    fn meta(&mut self) -> &mut ObjectMeta {
        self.metadata_mut()
    }
}

fn create<K: HasMeta>(mut made: K, version: &str) -> K {
    let meta = made.meta();
    meta.uid = Some(format!("uid-{version}"));
    meta.resource_version = Some(version.to_owned());
    made
}

/// What the API server makes of a merge patch.
fn merge<K: Serialize + DeserializeOwned + HasMeta>(object: &mut K, body: &Value, version: &str) {
    let mut value = serde_json::to_value(&*object).unwrap();
    patch::merge(&mut value, body);
    *object = serde_json::from_value(value).unwrap();
    object.meta().resource_version = Some(version.to_owned());
}
