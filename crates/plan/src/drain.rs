//! Whether a node may be drained: its instance manager goes with a drain, and with it every engine and replica there.
//!
//! A disruption budget keeps the pod of each instance manager. It is taken away from a cordoned node when nothing would be
//! lost, as `node-drain-policy` says; until then evictions are refused, and the reason is said here.

use tether_crd::engine::InstanceState;
use tether_crd::volume::State;
use tether_crd::{Engine, Replica, Volume};

use crate::object::{is_deleting, name};

/// When a drain has to wait: the values of `node-drain-policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// For a replica that is the last good one of its volume.
    BlockIfContainsLastReplica,
    /// The same, unless it is stopped.
    AllowIfReplicaIsStopped,
    /// For nothing.
    AlwaysAllow,
    /// For any replica: they are moved elsewhere.
    BlockForEviction,
    /// For a last good replica: it is moved elsewhere.
    BlockForEvictionIfContainsLastReplica,
}

impl Policy {
    /// As the setting writes it; what it does not know is the default, which is on the safe side.
    pub fn parse(word: &str) -> Self {
        match word {
            "allow-if-replica-is-stopped" => Self::AllowIfReplicaIsStopped,
            "always-allow" => Self::AlwaysAllow,
            "block-for-eviction" => Self::BlockForEviction,
            "block-for-eviction-if-contains-last-replica" => Self::BlockForEvictionIfContainsLastReplica,
            _ => Self::BlockIfContainsLastReplica,
        }
    }

    /// Whether replicas of a cordoned node are moved elsewhere: all, or those that are the last.
    pub fn evicts(self, is_last: bool) -> bool {
        match self {
            Self::BlockForEviction => true,
            Self::BlockForEvictionIfContainsLastReplica => is_last,
            _ => false,
        }
    }
}

/// A replica of the node, with its volume and the other replicas of that.
#[derive(Clone, Debug)]
pub struct Held<'a> {
    pub replica: &'a Replica,
    /// None: it is gone, and the replica is going.
    pub volume: Option<&'a Volume>,
    pub others: Vec<&'a Replica>,
}

/// What would be lost with a node.
#[derive(Clone, Debug)]
pub struct Observed<'a> {
    pub engines: Vec<&'a Engine>,
    pub replicas: Vec<Held<'a>>,
    /// Nodes whose instance managers are there and cannot be evicted.
    pub kept_nodes: Vec<&'a str>,
}

/// Why the instance manager of a node must stay; none: it may go.
pub fn blocked_by(observed: &Observed<'_>, policy: Policy) -> Option<String> {
    if policy == Policy::AlwaysAllow {
        return None;
    }
    let runs = |state: InstanceState| state != InstanceState::Stopped;
    if let Some(engine) = observed.engines.iter().find(|engine| runs(engine.status.current_state)) {
        return Some(format!(
            "volume {} is attached there; it is detached when what uses it has gone",
            engine.spec.volume_name
        ));
    }
    observed.replicas.iter().find_map(|held| {
        let volume = &held.replica.spec.volume_name;
        match policy {
            Policy::BlockForEviction if is_good(held.replica, held.volume) => {
                Some(format!("replica {} of volume {volume} is being moved elsewhere", name(held.replica)))
            }
            Policy::AllowIfReplicaIsStopped if !runs(held.replica.status.current_state) => None,
            Policy::BlockForEviction => None,
            _ => is_last(held, &observed.kept_nodes).then(|| {
                let and = match policy {
                    Policy::BlockForEvictionIfContainsLastReplica => "it is being moved elsewhere",
                    _ => "give the volume another one, or detach and delete it",
                };
                format!("replica {} is the last good one of volume {volume}; {and}", name(held.replica))
            }),
        }
    })
}

/// Whether nobody else on a node that stays holds what the replica holds.
pub fn is_last(held: &Held<'_>, kept_nodes: &[&str]) -> bool {
    let counts = |other: &&Replica| {
        is_good(other, held.volume) && !is_deleting(*other) && kept_nodes.contains(&other.spec.node_id.as_str())
    };
    is_good(held.replica, held.volume) && !held.others.iter().copied().any(|other| counts(&other))
}

/// Whether a replica holds every acknowledged write. The record knows; before the first attachment all are equally empty,
/// and a volume that nothing was ever written to has nothing to lose.
fn is_good(replica: &Replica, volume: Option<&Volume>) -> bool {
    let Some(volume) = volume.filter(|volume| !is_deleting(*volume) && volume.status.state != State::Deleting) else {
        return false;
    };
    let record = volume.status.record.as_ref();
    record.is_some_and(|record| record.in_sync.contains(&replica.spec.data_directory_name))
}

#[cfg(test)]
mod tests {
    use tether_crd::volume::Record;

    use super::*;

    fn replica(name: &str, node: &str, state: InstanceState) -> Replica {
        let mut replica = Replica::default();
        replica.metadata.name = Some(name.into());
        replica.spec.volume_name = "v1".into();
        replica.spec.data_directory_name = format!("dir-{name}");
        replica.spec.node_id = node.into();
        replica.status.current_state = state;
        replica
    }

    fn volume(in_sync: &[&str]) -> Volume {
        let mut volume = Volume::default();
        volume.metadata.name = Some("v1".into());
        let in_sync = in_sync.iter().map(|name| format!("dir-{name}")).collect();
        volume.status.record = Some(Record { in_sync, ..Record::default() });
        volume
    }

    /// What keeps node a, whose replica is r1; r2 is on b and r3 on c.
    fn keeps(policy: &str, in_sync: &[&str], state: InstanceState, kept_nodes: &[&str]) -> Option<String> {
        let volume = volume(in_sync);
        let here = replica("r1", "a", state);
        let others = [replica("r2", "b", state), replica("r3", "c", state)];
        let held = Held { replica: &here, volume: Some(&volume), others: others.iter().collect() };
        let observed = Observed { engines: Vec::new(), replicas: vec![held], kept_nodes: kept_nodes.to_vec() };
        blocked_by(&observed, Policy::parse(policy))
    }

    #[test]
    fn the_last_good_replica_keeps_its_node_as_the_policy_says() {
        use InstanceState::{Running, Stopped};
        let both = &["b", "c"];
        for (policy, of_three, last, last_stopped) in [
            ("block-if-contains-last-replica", false, true, true),
            ("allow-if-replica-is-stopped", false, true, false),
            ("always-allow", false, false, false),
            ("block-for-eviction", true, true, true),
            ("block-for-eviction-if-contains-last-replica", false, true, true),
            ("nonsense", false, true, true),
        ] {
            assert_eq!(keeps(policy, &["r1", "r2", "r3"], Running, both).is_some(), of_three, "{policy}");
            assert_eq!(keeps(policy, &["r1"], Running, both).is_some(), last, "{policy}, last");
            assert_eq!(keeps(policy, &["r1"], Stopped, both).is_some(), last_stopped, "{policy}, last and stopped");
            assert!(keeps(policy, &["r2"], Running, both).is_none(), "{policy}: a bad one is no loss");
        }
        let why = keeps("", &["r1"], Running, both).unwrap_or_default();
        assert!(why.contains("replica r1 is the last good one of volume v1"), "{why}");
    }

    #[test]
    fn a_replica_on_a_node_that_may_go_as_well_does_not_count() {
        let (good, runs) = (["r1", "r2"], InstanceState::Running);
        assert!(keeps("", &good, runs, &["b"]).is_none());
        assert!(keeps("", &good, runs, &["c"]).is_some(), "b may be drained at the same time");
    }

    #[test]
    fn an_engine_keeps_its_node() {
        let mut engine = Engine::default();
        engine.spec.volume_name = "v1".into();
        engine.status.current_state = InstanceState::Running;
        let observed = Observed { engines: vec![&engine], replicas: Vec::new(), kept_nodes: Vec::new() };
        assert!(blocked_by(&observed, Policy::BlockIfContainsLastReplica).is_some());
        assert!(blocked_by(&observed, Policy::AlwaysAllow).is_none());
        engine.status.current_state = InstanceState::Stopped;
        let observed = Observed { engines: vec![&engine], replicas: Vec::new(), kept_nodes: Vec::new() };
        assert!(blocked_by(&observed, Policy::BlockIfContainsLastReplica).is_none());
    }
}
