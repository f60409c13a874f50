//! Objects in a few words, and Longhorn's fixture: a volume of two replicas on two nodes.

use std::collections::BTreeMap;

use jiff::Timestamp;
use tether_crd::condition::rfc3339;
use tether_crd::engine::{InstanceState, ReplicaMode};
use tether_crd::replica::ReplicaStatus;
use tether_crd::volume::{Record, Robustness, State};
use tether_crd::{Engine, IntString, Replica, Volume, VolumeAttachment, names};
use tether_plan::placement::{Disk, Host, Manager};
use tether_plan::volume::Settings;

use crate::world::World;

/// The process of the engine that has the volume.
const HOLDER: &str = "v1-e-0@1";
pub(crate) const GIB: i64 = 1 << 30;
pub(crate) const NOW_SECOND: i64 = 1_800_000_000;

pub(crate) fn now() -> Timestamp {
    Timestamp::from_second(NOW_SECOND).unwrap()
}

/// So many seconds before now, as objects write it.
pub(crate) fn ago(seconds: i64) -> String {
    rfc3339(Timestamp::from_second(NOW_SECOND - seconds).unwrap())
}

/// A node that is fine, with one disk.
pub(crate) fn host(name: &str) -> Host {
    let disk = Disk {
        name: "default".into(),
        uuid: format!("disk-{name}"),
        path: "/var/lib/longhorn".into(),
        is_filesystem: true,
        allows_scheduling: true,
        available: 90 * GIB,
        maximum: 100 * GIB,
        ..Default::default()
    };
    Host {
        name: name.into(),
        allows_scheduling: true,
        manager: Manager::Running,
        disks: vec![disk],
        ..Default::default()
    }
}

pub(crate) fn down(mut host: Host, reason: &str) -> Host {
    host.is_down = true;
    host.not_ready = Some(reason.into());
    host.manager = Manager::Unknown;
    host
}

/// A volume that nobody has looked at yet.
pub(crate) fn new_volume(replicas: i64, nodes: &[&str]) -> World {
    let mut volume = Volume::default();
    volume.metadata.name = Some("v1".into());
    volume.metadata.namespace = Some("longhorn-system".into());
    volume.metadata.uid = Some("uid-v1".into());
    volume.metadata.resource_version = Some("1".into());
    volume.metadata.finalizers = Some(vec!["longhorn.io".into()]);
    volume.spec.size = IntString(GIB);
    volume.spec.number_of_replicas = replicas;
    volume.spec.frontend = tether_crd::volume::Frontend::BlockDev;
    World {
        now: now(),
        volume: Some(volume),
        attachment: None,
        engines: BTreeMap::new(),
        replicas: BTreeMap::new(),
        hosts: nodes.iter().map(|name| ((*name).to_owned(), host(name))).collect(),
        settings: Settings::default(),
        seed: 1,
        version: 1,
        events: Vec::new(),
        writes: 0,
        crashed: std::collections::BTreeSet::new(),
        silent: std::collections::BTreeSet::new(),
    }
}

/// Longhorn's fixture: two replicas, on node1 and node2, everything stopped, in this state.
pub(crate) fn fixture(state: State) -> World {
    let mut world = new_volume(2, &["node1", "node2"]);
    world.volume().status.state = state;
    world.volume().status.state_changed_at = rfc3339(now());
    world.volume().status.owner_id = "node1".into();
    world.attachment = Some(VolumeAttachment { metadata: meta("v1"), ..Default::default() });
    let mut engine = Engine { metadata: meta(&names::engine("v1", 0)), ..Default::default() };
    engine.spec.volume_name = "v1".into();
    engine.spec.volume_size = IntString(GIB);
    engine.spec.active = true;
    engine.spec.frontend = tether_crd::volume::Frontend::BlockDev;
    world.engines.insert("v1-e-0".into(), engine);
    for (index, node) in ["node1", "node2"].into_iter().enumerate() {
        let replica = replica(&format!("r{}", index + 1), node);
        world.replicas.insert(format!("r{}", index + 1), replica);
    }
    tether_crd::condition::set(&mut world.volume().status.conditions, "Scheduled", "True", "", "", now());
    world
}

pub(crate) fn replica(name: &str, node: &str) -> Replica {
    let mut replica = Replica { metadata: meta(name), ..Default::default() };
    replica.spec.volume_name = "v1".into();
    replica.spec.volume_size = IntString(GIB);
    replica.spec.engine_name = "v1-e-0".into();
    replica.spec.active = true;
    replica.spec.node_id = node.into();
    replica.spec.disk_id = format!("disk-{node}");
    replica.spec.disk_path = "/var/lib/longhorn".into();
    replica.spec.data_directory_name = format!("v1-{name}");
    replica
}

fn meta(name: &str) -> k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
    k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
        name: Some(name.into()),
        namespace: Some("longhorn-system".into()),
        uid: Some(format!("uid-{name}")),
        resource_version: Some("1".into()),
        finalizers: Some(vec!["longhorn.io".into()]),
        ..Default::default()
    }
}

/// Changes to the fixture, in words.
impl World {
    pub(crate) fn volume(&mut self) -> &mut Volume {
        self.volume.as_mut().unwrap()
    }

    pub(crate) fn engine(&mut self) -> &mut Engine {
        self.engines.values_mut().next().unwrap()
    }

    pub(crate) fn replica(&mut self, name: &str) -> &mut Replica {
        self.replicas.get_mut(name).unwrap()
    }

    pub(crate) fn wanted_on(mut self, node: &str) -> Self {
        self.volume().spec.node_id = node.into();
        self
    }

    pub(crate) fn current_on(mut self, node: &str) -> Self {
        self.volume().status.current_node_id = node.into();
        self
    }

    pub(crate) fn robustness(mut self, robustness: Robustness) -> Self {
        self.volume().status.robustness = robustness;
        if robustness == Robustness::Degraded {
            self.volume().status.last_degraded_at = ago(60);
        }
        self
    }

    /// The record names these replicas as in sync.
    pub(crate) fn recorded(mut self, in_sync: &[&str]) -> Self {
        let in_sync = in_sync.iter().map(|name| format!("v1-{name}")).collect();
        self.volume().status.record =
            Some(Record { version: 1, epoch: 1, holder: Some(HOLDER.into()), in_sync, ..Default::default() });
        self
    }

    pub(crate) fn replicas_are(mut self, state: InstanceState) -> Self {
        for (index, replica) in self.replicas.values_mut().enumerate() {
            if !replica.spec.failed_at.is_empty() {
                continue;
            }
            replica.status.current_state = state;
            if state == InstanceState::Running {
                run(replica, index);
            }
        }
        self
    }

    /// The engine runs where the volume is wanted or is, with these replicas.
    pub(crate) fn engine_runs(mut self, modes: &[(&str, ReplicaMode)]) -> Self {
        let volume = self.volume.as_ref().unwrap();
        let here = [&volume.status.current_node_id, &volume.spec.node_id].into_iter().find(|node| !node.is_empty());
        let node = here.unwrap().clone();
        let map: tether_crd::volume::Words = modes
            .iter()
            .map(|(name, _)| {
                let status = &self.replicas[*name].status;
                ((*name).to_owned(), format!("{}:{}", status.ip, status.port))
            })
            .collect();
        let engine = self.engine();
        engine.spec.node_id = node;
        engine.spec.desire_state = InstanceState::Running;
        engine.spec.replica_address_map = map.clone();
        engine.status.current_replica_address_map = map;
        engine.status.current_state = InstanceState::Running;
        engine.status.started = true;
        HOLDER.clone_into(&mut engine.status.uuid);
        engine.status.current_size = engine.spec.volume_size;
        engine.status.replica_mode_map = modes.iter().map(|(name, mode)| ((*name).to_owned(), *mode)).collect();
        self
    }

    pub(crate) fn healthy_since(mut self, seconds: i64) -> Self {
        for replica in self.replicas.values_mut() {
            replica.spec.healthy_at = ago(seconds);
            replica.spec.last_healthy_at = ago(seconds);
        }
        self
    }

    pub(crate) fn failed(mut self, name: &str, seconds: i64) -> Self {
        let spec = &mut self.replica(name).spec;
        spec.failed_at = ago(seconds);
        spec.last_failed_at = ago(seconds);
        spec.desire_state = InstanceState::Stopped;
        self.replica(name).status = ReplicaStatus::default();
        self
    }

    pub(crate) fn node(mut self, host: Host) -> Self {
        self.hosts.insert(host.name.clone(), host);
        self
    }

    pub(crate) fn set(mut self, set: impl FnOnce(&mut Self)) -> Self {
        set(&mut self);
        self
    }
}

/// The replica's process runs.
pub(crate) fn run(replica: &mut Replica, index: usize) {
    replica.spec.desire_state = InstanceState::Running;
    replica.status.current_state = InstanceState::Running;
    replica.status.started = true;
    replica.status.ip = "10.0.0.1".into();
    replica.status.port = 10_000 + i64::try_from(index).unwrap();
}
