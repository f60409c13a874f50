//! Whole stories of one volume, told by what agents and decisions make of each other.

use jiff::SignedDuration;
use tether_crd::engine::InstanceState;
use tether_crd::replica::ReplicaStatus;
use tether_crd::volume::{Robustness, State};
use tether_plan::volume::REPLICA_START_PATIENCE;

use crate::build::*;
use crate::world::World;

fn attached() -> World {
    let mut world = new_volume(3, &["a", "b", "c"]);
    world.settle("a");
    assert_eq!(world.status(), (State::Attached, Robustness::Healthy, "a"), "{}", world.plan());
    world
}

fn on<'a>(world: &'a World, node: &str) -> &'a tether_crd::Replica {
    world.replicas.values().find(|replica| replica.spec.node_id == node).unwrap()
}

#[test]
fn a_new_volume_gets_attached_moves_and_comes_back() {
    let mut world = attached();
    assert_eq!(world.record().unwrap().in_sync.len(), 3);
    world.settle("");
    assert_eq!(world.status(), (State::Detached, Robustness::Unknown, ""));
    assert_eq!(world.engines["v1-e-0"].spec.node_id, "");
    world.settle("b");
    assert_eq!(world.status(), (State::Attached, Robustness::Healthy, "b"));
    assert_eq!(world.record().unwrap().epoch, 2);
}

/// The budget of decisions for an attach with three replicas: three replica specs, the engine's spec, two statuses.
#[test]
fn an_attach_costs_six_writes_and_rest_costs_none() {
    let mut world = attached();
    world.settle("");
    world.writes = 0;
    world.settle("b");
    assert_eq!(world.writes, 6);
    world.pass(SignedDuration::from_hours(24));
    assert!(!world.step() && world.plan().wake_at().is_none(), "{}", world.plan());
    world.settle("");
    world.writes = 0;
    world.pass(SignedDuration::from_hours(24));
    assert!(!world.step() && world.plan().wake_at().is_none(), "{}", world.plan());
}

#[test]
fn a_replica_node_that_dies_costs_redundancy_and_nothing_else() {
    let mut world = attached();
    world.crash("c");
    world.settle("a");
    assert_eq!(world.status(), (State::Attached, Robustness::Degraded, "a"));
    assert_eq!(world.record().unwrap().in_sync.len(), 2);
    let name = on(&world, "c").metadata.name.clone();
    world.come_back("c");
    world.settle("a");
    assert_eq!(world.status(), (State::Attached, Robustness::Healthy, "a"));
    assert_eq!(on(&world, "c").metadata.name, name, "the replica that returned is used again");
    assert_eq!(world.record().unwrap().in_sync.len(), 3);
    assert!(!world.events.iter().any(|event| event.contains("Detached ")));
}

#[test]
fn a_node_that_stays_away_is_replaced_after_a_while() {
    let mut world = new_volume(3, &["a", "b", "c", "d"]);
    world.settle("a");
    let away = world.replicas.values().map(|r| r.spec.node_id.clone()).find(|node| node != "a").unwrap();
    world.crash(&away);
    world.settle("a");
    let wake = world.plan().wake_at().expect("a wait");
    world.pass(wake.duration_since(world.now));
    world.settle("a");
    assert_eq!(world.status().1, Robustness::Healthy);
    let good: Vec<_> = world.replicas.values().filter(|r| r.spec.failed_at.is_empty()).collect();
    assert_eq!(good.len(), 3);
    assert!(good.iter().all(|replica| replica.spec.node_id != away));
}

#[test]
fn the_engine_node_dies_and_the_volume_is_wanted_elsewhere() {
    let mut world = attached();
    world.crash("a");
    world.step();
    assert_eq!(world.status(), (State::Attached, Robustness::Unknown, "a"));
    world.settle("b");
    assert_eq!(world.status(), (State::Attached, Robustness::Degraded, "b"));
    assert_eq!(world.record().unwrap().epoch, 2);
    assert_eq!(world.record().unwrap().in_sync.len(), 2);
    world.come_back("a");
    world.settle("b");
    assert_eq!(world.status(), (State::Attached, Robustness::Healthy, "b"));
}

#[test]
fn an_attach_does_not_wait_for_ever_for_a_replica_that_does_not_start() {
    let mut world = attached();
    world.settle("");
    // The instance manager of c says that it starts, and never does.
    let stuck = on(&world, "c").metadata.name.clone().unwrap();
    let keep_stuck = |world: &mut World| {
        let replica = world.replicas.get_mut(&stuck).unwrap();
        replica.status = ReplicaStatus::default();
        replica.status.current_state = InstanceState::Starting;
    };
    world.tickets("a");
    for _ in 0..5 {
        world.step();
        keep_stuck(&mut world);
        world.agents();
    }
    assert_eq!(world.engines["v1-e-0"].spec.desire_state, InstanceState::Stopped);
    let wake = world.plan().wake_at().expect("a bounded wait");
    assert!(wake <= world.now + REPLICA_START_PATIENCE);
    world.pass(wake.duration_since(world.now));
    for _ in 0..5 {
        world.step();
        keep_stuck(&mut world);
        world.agents();
    }
    assert_eq!(world.status(), (State::Attached, Robustness::Degraded, "a"));
    // It starts after all, joins, and is brought up to date.
    world.replicas.get_mut(&stuck).unwrap().status = ReplicaStatus::default();
    world.settle("a");
    assert_eq!(world.status(), (State::Attached, Robustness::Healthy, "a"));
}

#[test]
fn a_replica_that_missed_writes_is_never_needed_and_never_enough() {
    let mut world = attached();
    world.crash("c");
    world.settle("a");
    world.settle("");
    world.come_back("c");
    // Only c, which missed writes, can run: the volume does not start.
    world.crash("a");
    world.crash("b");
    world.settle("c");
    assert_ne!(world.status().0, State::Attached, "{}", world.plan());
    assert_eq!(world.record().unwrap().epoch, 1);
    // One that holds everything is enough.
    world.come_back("b");
    world.settle("c");
    assert_eq!(world.status(), (State::Attached, Robustness::Degraded, "c"), "{}", world.plan());
}

#[test]
fn the_number_of_replicas_can_change() {
    let mut world = attached();
    world.volume().spec.number_of_replicas = 2;
    world.settle("a");
    assert_eq!((world.replicas.len(), world.record().unwrap().in_sync.len()), (2, 2));
    assert_eq!(world.status().1, Robustness::Healthy);
    world.volume().spec.number_of_replicas = 3;
    world.settle("a");
    assert_eq!((world.replicas.len(), world.record().unwrap().in_sync.len()), (3, 3));
    assert_eq!(world.status().1, Robustness::Healthy);
}

#[test]
fn a_replica_that_is_to_leave_is_replaced_first() {
    let mut world = new_volume(2, &["a", "b", "c"]);
    world.settle("a");
    let leaving = world.replicas.values().next().unwrap();
    let (name, node) = (leaving.metadata.name.clone().unwrap(), leaving.spec.node_id.clone());
    world.hosts.get_mut(&node).unwrap().disks[0].is_evicting = true;
    world.settle("a");
    assert!(!world.replicas.contains_key(&name));
    assert_eq!((world.replicas.len(), world.status().1), (2, Robustness::Healthy));
}

#[test]
fn strict_locality_places_the_only_replica_where_the_volume_is_attached() {
    let mut world = new_volume(1, &["a", "b"]);
    world.volume().spec.data_locality = tether_crd::volume::DataLocality::StrictLocal;
    world.settle("");
    assert_eq!(world.replicas.values().next().unwrap().spec.node_id, "");
    world.settle("b");
    assert_eq!(world.status(), (State::Attached, Robustness::Healthy, "b"));
    assert_eq!(world.replicas.values().next().unwrap().spec.node_id, "b");
}

#[test]
fn deletion_ends_whatever_runs_and_wherever_nodes_are() {
    for crashed in [None, Some("a"), Some("c")] {
        let mut world = attached();
        if let Some(node) = crashed {
            world.crash(node);
        }
        world.volume().metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(world.now));
        for _ in 0..10 {
            world.step();
            let ends_in_order = crashed != Some("a") && !world.engines.is_empty();
            let going = world.replicas.values().filter(|replica| replica.metadata.deletion_timestamp.is_some());
            assert!(!ends_in_order || going.count() == 0, "an engine that ends needs its replicas: {crashed:?}");
            world.agents();
        }
        assert!(world.volume.is_none() && world.replicas.is_empty() && world.engines.is_empty(), "{crashed:?}");
    }
}

#[test]
fn an_engine_that_does_not_end_is_told_of_when_its_volume_is_to_leave_or_to_go() {
    let removal = tether_crd::engine::INSTANCE_REMOVAL;
    let held = |world: &mut World| {
        let conditions = &mut world.engine().status.conditions;
        tether_crd::condition::set(conditions, removal, "False", "", "/dev/longhorn/v1 is mounted", now());
    };
    let says = "It does not end: /dev/longhorn/v1 is mounted.";
    let mut world = attached();
    world.volume().spec.node_id.clear();
    world.step();
    held(&mut world);
    world.step();
    assert!(world.plan().to_string().contains(says), "{}", world.plan());
    assert!(world.events.iter().any(|event| event.contains("cannot leave node a") && event.contains(says)));
    world.volume().metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(world.now));
    world.step();
    assert!(world.plan().to_string().contains(says), "{}", world.plan());
    assert!(world.events.iter().any(|event| event.contains("cannot be deleted yet") && event.contains(says)));
}

#[test]
fn a_replica_whose_agent_says_nothing_does_not_keep_the_volume_where_it_was() {
    let mut world = attached();
    let silent = world.replicas.iter().find(|(_, replica)| replica.spec.node_id == "b").unwrap().0.clone();
    world.silent.insert("b".into());
    world.settle("c");
    assert_eq!(world.status().0, State::Detaching, "{}", world.plan());
    let until = world.plan().wake_at().expect("it is not waited for without an end");
    world.pass(until.duration_since(world.now));
    world.settle("c");
    // The record still names it: it is waited for once more, as any replica that starts late.
    let until = world.plan().wake_at().expect("it is not waited for without an end");
    world.pass(until.duration_since(world.now));
    world.settle("c");
    assert_eq!(world.status().0, State::Attached, "{}", world.plan());
    assert_eq!(world.replicas[&silent].spec.desire_state, InstanceState::Stopped, "it is started when it has ended");
    world.silent.clear();
    world.settle("c");
    assert_eq!(world.status(), (State::Attached, Robustness::Healthy, "c"), "{}", world.plan());
}

#[test]
fn a_volume_that_grows_while_detached_is_attached_for_it() {
    let mut world = attached();
    world.settle("");
    world.volume().spec.size.0 = 2 * GIB;
    world.settle("");
    let tickets = &world.attachment.as_ref().unwrap().spec.attachment_tickets;
    let node = tickets["volume-expansion-controller-v1"].node_id.clone();
    world.settle(&node);
    assert!(!world.volume.as_ref().unwrap().status.expansion_required, "{}", world.plan());
    assert!(world.attachment.as_ref().unwrap().spec.attachment_tickets.is_empty());
}

#[test]
fn an_engine_that_keeps_dying_does_not_keep_the_cluster_busy() {
    let mut world = attached();
    let mut epochs = Vec::new();
    for _ in 0..2 {
        world.engine().status.current_state = InstanceState::Error;
        world.engine().status.replica_mode_map.clear();
        world.settle("a");
        epochs.push((world.record().unwrap().epoch, world.status().0));
    }
    assert_eq!(epochs[0], (2, State::Attached), "the first time it is attached again at once");
    assert_eq!(epochs[1], (2, State::Detached), "then there is a pause");
    let until = world.plan().wake_at().expect("the pause ends");
    world.pass(until.duration_since(world.now));
    world.settle("a");
    assert_eq!((world.record().unwrap().epoch, world.status().0), (3, State::Attached));
}

#[test]
fn a_replica_that_cannot_be_started_is_replaced() {
    let mut world = new_volume(2, &["a", "b", "c"]);
    world.settle("a");
    world.settle("");
    let broken = world.replicas.values().next().unwrap().clone();
    let (name, node) = (broken.metadata.name.clone().unwrap(), broken.spec.node_id.clone());
    // The process never comes up, as its agent says.
    let refuse = |world: &mut World| {
        let since = tether_crd::condition::rfc3339(crate::build::now());
        if let Some(replica) = world.replicas.get_mut(&name) {
            replica.status = ReplicaStatus::default();
            let condition = tether_crd::Condition {
                kind: tether_crd::engine::INSTANCE_CREATION.into(),
                status: "False".into(),
                message: "the directory cannot be read".into(),
                last_transition_time: since,
                ..Default::default()
            };
            replica.status.conditions = vec![condition];
        }
    };
    for seconds in [0, 10, 60, 0, 600, 0, 0] {
        world.pass(SignedDuration::from_secs(seconds));
        for _ in 0..6 {
            world.tickets("a");
            world.step();
            world.agents();
            refuse(&mut world);
        }
    }
    assert_eq!(world.status(), (State::Attached, Robustness::Healthy, "a"), "{}", world.plan());
    let good = world.replicas.values().filter(|replica| replica.spec.failed_at.is_empty());
    assert!(good.clone().count() == 2 && good.into_iter().all(|replica| replica.metadata.name.as_ref() != Some(&name)));
    let told = world.events.iter().find(|event| event.contains("it could not be started")).unwrap();
    assert!(told.contains("the directory cannot be read") && told.contains(&node), "{told}");
}
