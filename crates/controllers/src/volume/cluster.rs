//! What decisions about volumes need to know of all nodes, kept up to date as objects change: to gather it anew for each
//! decision would cost more than the decision.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use tether_crd::{Engine, InstanceManager, Node, Replica};
use tether_plan::Plan;
use tether_plan::object::name;
use tether_plan::placement::{Host, Hosts, Manager, Promised, running_since};
use tether_plan::volume::{Change, Settings};

/// All nodes, what is promised on their disks, and which volumes have something on them.
#[derive(Default)]
pub(super) struct Cluster {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    hosts: Hosts,
    /// How they are, and since when they run.
    managers: BTreeMap<String, (Manager, Option<Timestamp>)>,
    settings: Settings,
    promised: Promised,
    replicas: BTreeMap<Arc<str>, Held>,
    engines: BTreeMap<Arc<str>, Held>,
    on_node: ByNode,
    /// Names of nodes and disks, each held once.
    places: BTreeSet<Arc<str>>,
    /// The sequence of random numbers, seeded once.
    seed: u64,
}

/// Volumes by node; a volume is there once for each of its objects.
type ByNode = BTreeMap<Arc<str>, BTreeSet<(Arc<str>, Arc<str>)>>;

/// Where an engine or a replica is, and what it takes there.
#[derive(Clone, PartialEq, Eq)]
struct Held {
    volume: Arc<str>,
    node: Arc<str>,
    disk: Arc<str>,
    bytes: i64,
}

impl Cluster {
    /// Makes a decision on the cluster as it is. Places that are given away count at once, so that two decisions do not
    /// promise one space twice.
    pub(super) fn decide(
        &self,
        decision: impl FnOnce(&Hosts, &Promised, &Settings, u64) -> Plan<Change>,
    ) -> Plan<Change> {
        let mut state = self.state.lock();
        let seed = state.next_seed();
        let plan = decision(&state.hosts, &state.promised, &state.settings, seed);
        for change in &plan.changes {
            if let Change::CreateReplica(replica) = change {
                state.hold(name(&**replica), Some(of_replica(replica)));
            }
        }
        plan
    }

    /// Puts right what was noted for writes that did not happen.
    pub(super) fn correct(&self, seen: &[Arc<Replica>], volume: &str) {
        let mut state = self.state.lock();
        let exists = |held: &str| seen.iter().any(|replica| name(&**replica) == held);
        let gone: Vec<Arc<str>> = state
            .replicas
            .iter()
            .filter(|(held, at)| *at.volume == *volume && !exists(held))
            .map(|(k, _)| k.clone())
            .collect();
        for replica in gone {
            state.hold(&replica, None);
        }
    }

    pub(super) fn replica(&self, replica: &Replica, is_gone: bool) {
        let held = (!is_gone).then(|| of_replica(replica));
        self.state.lock().hold(name(replica), held);
    }

    pub(super) fn engine(&self, engine: &Engine, is_gone: bool) {
        let mut state = self.state.lock();
        let spec = &engine.spec;
        let held = (!is_gone).then(|| Held {
            volume: spec.volume_name.as_str().into(),
            node: spec.node_id.as_str().into(),
            disk: Arc::default(),
            bytes: 0,
        });
        let state = &mut *state;
        let held = held.map(|held| held.at(&mut state.places));
        note(&mut state.engines, &mut state.on_node, name(engine), held);
    }

    /// True if the node changed in something that a decision looks at.
    pub(super) fn node(&self, node: &Node, is_gone: bool) -> bool {
        let mut state = self.state.lock();
        if is_gone {
            return state.hosts.remove(name(node)).is_some();
        }
        let mut host = Host::of(node, None);
        (host.manager, host.manager_since) = state.managers.get(&host.name).copied().unwrap_or_default();
        let before = state.hosts.insert(host.name.clone(), host.clone());
        before.is_none_or(|before| !is_alike(&before, &host))
    }

    /// True if the instance manager changed in something that a decision looks at.
    pub(super) fn manager(&self, manager: &InstanceManager, is_gone: bool) -> bool {
        let mut state = self.state.lock();
        let node = &manager.spec.node_id;
        let now = if is_gone { (Manager::Missing, None) } else { (Manager::of(manager), running_since(manager)) };
        let before = state.managers.insert(node.clone(), now);
        if let Some(host) = state.hosts.get_mut(node) {
            (host.manager, host.manager_since) = now;
        }
        before != Some(now)
    }

    pub(super) fn set_settings(&self, settings: Settings) {
        self.state.lock().settings = settings;
    }

    /// The volumes that have an engine or a replica on the node.
    pub(super) fn volumes_on(&self, node: &str) -> BTreeSet<String> {
        let state = self.state.lock();
        state.on_node.get(node).into_iter().flatten().map(|(volume, _)| volume.to_string()).collect()
    }
}

impl State {
    fn next_seed(&mut self) -> u64 {
        if self.seed == 0 {
            // A process that starts anew must not make the names of the one before it.
            let mut bytes = [0; 8];
            getrandom::fill(&mut bytes).expect("the system must have random numbers");
            self.seed = u64::from_ne_bytes(bytes) | 1;
        }
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.seed
    }

    fn hold(&mut self, replica: &str, held: Option<Held>) {
        // Most of what changes about a replica is not where it is.
        if self.replicas.get(replica) == held.as_ref() {
            return;
        }
        if let Some(before) = self.replicas.get(replica) {
            let disk = self.promised.entry(before.disk.to_string()).or_default();
            *disk -= before.bytes;
            if *disk == 0 {
                self.promised.remove(&*before.disk);
            }
        }
        if let Some(held) = &held {
            *self.promised.entry(held.disk.to_string()).or_default() += held.bytes;
        }
        let held = held.map(|held| held.at(&mut self.places));
        note(&mut self.replicas, &mut self.on_node, replica, held);
    }
}

fn note(all: &mut BTreeMap<Arc<str>, Held>, on_node: &mut ByNode, name: &str, held: Option<Held>) {
    if all.get(name) == held.as_ref() {
        return;
    }
    if let Some((name, before)) = all.remove_entry(name)
        && let Some(there) = on_node.get_mut(&before.node)
    {
        there.remove(&(before.volume, name));
        if there.is_empty() {
            on_node.remove(&before.node);
        }
    }
    if let Some(held) = held {
        let name: Arc<str> = name.into();
        on_node.entry(held.node.clone()).or_default().insert((held.volume.clone(), name.clone()));
        all.insert(name, held);
    }
}

impl Held {
    /// The same, with the names of node and disk that all others there have.
    fn at(mut self, places: &mut BTreeSet<Arc<str>>) -> Self {
        for place in [&mut self.node, &mut self.disk] {
            if let Some(known) = places.get(place) {
                *place = known.clone();
            } else {
                places.insert(place.clone());
            }
        }
        self
    }
}

fn of_replica(replica: &Replica) -> Held {
    let spec = &replica.spec;
    Held {
        volume: spec.volume_name.as_str().into(),
        node: spec.node_id.as_str().into(),
        disk: spec.disk_id.as_str().into(),
        // A migration's twin stands for space that is promised already.
        bytes: if spec.active { spec.volume_size.0 } else { 0 },
    }
}

/// The same but for free space, which changes all the time and matters only to those who look for a place.
fn is_alike(one: &Host, other: &Host) -> bool {
    let plain = |host: &Host| {
        let mut host = host.clone();
        for disk in &mut host.disks {
            disk.available = 0;
        }
        host
    };
    plain(one) == plain(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(name: &str, node: &str, bytes: i64) -> Replica {
        let mut replica = Replica::default();
        replica.metadata.name = Some(name.into());
        replica.spec.volume_name = "v1".into();
        replica.spec.node_id = node.into();
        replica.spec.disk_id = format!("disk-{node}");
        replica.spec.volume_size.0 = bytes;
        replica.spec.active = true;
        replica
    }

    #[test]
    fn promises_follow_the_replicas() {
        let cluster = Cluster::default();
        let promised = |cluster: &Cluster| cluster.state.lock().promised.clone();
        let made = Change::CreateReplica(Box::new(replica("r1", "a", 5)));
        cluster.decide(|_, _, _, _| Plan { changes: vec![made], ..Plan::default() });
        assert_eq!(promised(&cluster), Promised::from([("disk-a".into(), 5)]), "given away with the decision");
        cluster.replica(&replica("r1", "a", 5), false);
        cluster.replica(&replica("r2", "a", 7), false);
        assert_eq!(promised(&cluster), Promised::from([("disk-a".into(), 12)]), "and not counted twice");
        cluster.replica(&replica("r2", "b", 7), false);
        assert_eq!(cluster.volumes_on("a"), BTreeSet::from(["v1".into()]));
        cluster.correct(&[Arc::new(replica("r2", "b", 7))], "v1");
        assert_eq!(promised(&cluster), Promised::from([("disk-b".into(), 7)]), "r1 was never made");
        assert!(cluster.volumes_on("a").is_empty());
        cluster.replica(&replica("r2", "b", 7), true);
        assert!(promised(&cluster).is_empty());
    }
}
