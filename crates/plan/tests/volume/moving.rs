//! Replicas that move: away from disks and nodes that are to be emptied, back after a loss, to where they are spread better.

use tether_crd::condition;
use tether_crd::volume::{Choice, ReplicaAutoBalance, Robustness, State};
use tether_plan::drain;

use crate::build::new_volume;
use crate::world::World;

fn nodes(world: &World) -> Vec<&str> {
    let mut nodes: Vec<&str> = world.replicas.values().map(|replica| replica.spec.node_id.as_str()).collect();
    nodes.sort_unstable();
    nodes
}

/// The node that the volume's own ticket of this type asks for.
fn ticket(world: &World, kind: &str) -> Option<String> {
    let tickets = &world.attachment.as_ref()?.spec.attachment_tickets;
    tickets.get(&format!("{kind}-v1")).map(|ticket| ticket.node_id.clone())
}

/// A volume with two replicas, on nodes a and b; c is free.
fn two_of_three() -> World {
    let mut world = new_volume(2, &["a", "b", "c"]);
    world.settle("a");
    assert_eq!(nodes(&world), ["a", "b"]);
    world
}

#[test]
fn a_replica_leaves_a_node_or_a_disk_that_is_to_be_emptied() {
    for of_disk in [false, true] {
        let mut world = two_of_three();
        let host = world.hosts.get_mut("b").unwrap();
        host.is_evicting = !of_disk;
        host.disks[0].is_evicting = of_disk;
        world.settle("a");
        assert_eq!((nodes(&world), world.status().1), (vec!["a", "c"], Robustness::Healthy));
        assert_eq!(world.record().unwrap().in_sync.len(), 2);
        assert_eq!(ticket(&world, "volume-eviction-controller"), None, "its ticket goes when it is done");
    }
}

#[test]
fn a_wish_to_leave_that_is_taken_back_leaves_everything_as_it_was() {
    let mut world = new_volume(2, &["a", "b"]);
    world.settle("a");
    world.hosts.get_mut("b").unwrap().is_evicting = true;
    world.settle("a");
    assert_eq!(nodes(&world), ["a", "b"], "there is no other place");
    assert!(world.replicas.values().any(|replica| replica.spec.eviction_requested));
    world.hosts.get_mut("b").unwrap().is_evicting = false;
    world.settle("a");
    assert!(world.replicas.values().all(|replica| !replica.spec.eviction_requested));
}

#[test]
fn a_detached_volume_is_attached_to_be_moved() {
    let mut world = two_of_three();
    world.settle("");
    world.hosts.get_mut("b").unwrap().is_evicting = true;
    world.settle("");
    let node = ticket(&world, "volume-eviction-controller").unwrap();
    world.settle(&node);
    assert_eq!(nodes(&world), ["a", "c"]);
    assert_eq!(ticket(&world, "volume-eviction-controller"), None);
}

#[test]
fn replicas_leave_a_cordoned_node_as_the_drain_policy_says() {
    for (policy, replicas, moves) in [
        (drain::Policy::BlockIfContainsLastReplica, 1, false),
        (drain::Policy::BlockForEviction, 2, true),
        (drain::Policy::BlockForEvictionIfContainsLastReplica, 2, false),
        (drain::Policy::BlockForEvictionIfContainsLastReplica, 1, true),
    ] {
        let mut world = new_volume(replicas, &["a", "b", "c"]);
        world.settings.drain_policy = policy;
        world.settle("c");
        let from = nodes(&world)[0].to_owned();
        let host = world.hosts.get_mut(&from).unwrap();
        host.is_cordoned = true;
        host.unschedulable = Some("KubernetesNodeCordoned".into());
        world.settle("c");
        assert_eq!(!nodes(&world).contains(&from.as_str()), moves, "{policy:?} with {replicas}");
        assert_eq!(world.status().1, Robustness::Healthy);
    }
}

#[test]
fn a_detached_volume_gets_a_lost_replica_back_where_that_is_switched_on() {
    for enabled in [false, true] {
        let mut world = two_of_three();
        world.volume().spec.offline_rebuilding = if enabled { Choice::Enabled } else { Choice::Ignored };
        world.crash("b");
        world.settle("a");
        world.settle("");
        world.come_back("b");
        world.settle("");
        let asked = ticket(&world, "volume-rebuilding-controller");
        assert_eq!(asked.is_some(), enabled);
        let Some(node) = asked else { continue };
        world.settle(&node);
        assert_eq!(world.status().1, Robustness::Healthy, "{}", world.plan());
        assert_eq!(ticket(&world, "volume-rebuilding-controller"), None);
        let conditions = &world.volume.as_ref().unwrap().status.conditions;
        assert_eq!(condition::status(conditions, "OfflineRebuilding"), condition::FALSE);
    }
}

#[test]
fn replicas_spread_over_zones_when_one_comes() {
    for (policy, spreads) in [(ReplicaAutoBalance::Disabled, false), (ReplicaAutoBalance::LeastEffort, true)] {
        let mut world = new_volume(2, &["a", "b", "c"]);
        for (node, zone) in [("a", "one"), ("b", "one"), ("c", "two")] {
            world.hosts.get_mut(node).unwrap().zone = zone.to_owned();
        }
        world.hosts.get_mut("c").unwrap().allows_scheduling = false;
        world.volume().spec.replica_auto_balance = policy;
        world.settle("a");
        assert_eq!(nodes(&world), ["a", "b"]);
        world.hosts.get_mut("c").unwrap().allows_scheduling = true;
        world.settle("a");
        assert_eq!(nodes(&world).contains(&"c"), spreads, "{policy:?}: {}", world.plan());
        assert_eq!((nodes(&world).len(), world.status().0), (2, State::Attached));
    }
}
