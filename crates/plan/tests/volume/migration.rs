//! The volume's side of a live migration: an engine that stands by, and what becomes of it.

use std::collections::{BTreeMap, BTreeSet};

use tether_crd::engine::InstanceState;
use tether_crd::volume::{AccessMode, Robustness, State};

use crate::build::*;
use crate::world::World;

/// Attached to a, as a volume that may move.
fn attached() -> World {
    let mut world = new_volume(3, &["a", "b", "c"]);
    world.volume().spec.access_mode = AccessMode::ReadWriteMany;
    world.volume().spec.migratable = true;
    world.settle("a");
    world
}

/// Decisions and agents take turns; tickets are set by hand.
fn turns(world: &mut World) {
    for _ in 0..20 {
        assert!(active(world) <= 1, "two engines count");
        assert_eq!(world.status().0, State::Attached, "a volume that moves stays attached");
        let moved = world.step() | world.agents();
        if !moved {
            return;
        }
    }
    panic!("never at rest: {}", world.plan());
}

/// Engines that count, of those that stay.
fn active(world: &World) -> usize {
    let stays = world.engines.values().filter(|engine| engine.metadata.deletion_timestamp.is_none());
    stays.filter(|engine| engine.spec.active).count()
}

fn migrating() -> World {
    let mut world = attached();
    world.volume().spec.migration_node_id = "b".into();
    turns(&mut world);
    world
}

/// Name and directory of the replicas that count, or do not.
fn replicas(world: &World, active: bool) -> BTreeMap<String, String> {
    let all = world
        .replicas
        .iter()
        .filter(|(_, replica)| replica.spec.active == active && replica.metadata.deletion_timestamp.is_none());
    all.map(|(name, replica)| (name.clone(), replica.spec.data_directory_name.clone())).collect()
}

fn directories(replicas: &BTreeMap<String, String>) -> BTreeSet<String> {
    replicas.values().cloned().collect()
}

fn told(world: &World, reason: &str) -> usize {
    world.events.iter().filter(|event| event.contains(reason)).count()
}

fn confirm(world: &mut World) {
    world.volume().spec.node_id = "b".into();
    world.volume().spec.migration_node_id.clear();
}

fn engines(world: &World) -> Vec<(&str, &str, bool)> {
    let all = world.engines.iter();
    all.map(|(name, engine)| (name.as_str(), engine.spec.node_id.as_str(), engine.spec.active)).collect()
}

#[test]
fn an_engine_stands_by_on_the_target() {
    let world = migrating();
    assert_eq!(engines(&world), [("v1-e-0", "a", true), ("v1-e-1", "b", false)]);
    assert!(world.engines["v1-e-1"].is_available_on("b"));
    let status = &world.volume.as_ref().unwrap().status;
    assert_eq!((status.current_node_id.as_str(), status.current_migration_node_id.as_str()), ("a", "b"));
    assert_eq!(world.record().unwrap().epoch, 1, "nobody but the first has an epoch");
    assert_eq!(world.engines["v1-e-1"].metadata.labels.as_ref().unwrap()["longhornnode"], "b");
    let mut again = world.clone();
    assert!(!again.step(), "deciding twice changes nothing");
}

#[test]
fn confirmed_it_takes_over() {
    let mut world = migrating();
    world.volume().spec.node_id = "b".into();
    world.volume().spec.migration_node_id.clear();
    turns(&mut world);
    assert_eq!(engines(&world), [("v1-e-1", "b", true)]);
    assert_eq!(world.status(), (State::Attached, Robustness::Healthy, "b"));
    assert_eq!(world.volume.as_ref().unwrap().status.current_migration_node_id, "");
    assert_eq!(world.record().unwrap().epoch, 2);
    assert_eq!(world.replicas.len(), 3);
    assert!(world.replicas.values().all(|replica| replica.spec.engine_name == "v1-e-1" && replica.spec.active));
    assert!(!world.events.iter().any(|event| event.contains("MigrationFailed")));
    // The next one is the next number.
    world.volume().spec.migration_node_id = "c".into();
    turns(&mut world);
    assert_eq!(engines(&world), [("v1-e-1", "b", true), ("v1-e-2", "c", false)]);
}

#[test]
fn rolled_back_the_first_goes_on() {
    let mut world = migrating();
    world.volume().spec.migration_node_id.clear();
    turns(&mut world);
    assert_eq!(engines(&world), [("v1-e-0", "a", true)]);
    assert_eq!(world.status(), (State::Attached, Robustness::Healthy, "a"));
    assert_eq!(world.record().unwrap().epoch, 1);
    assert!(!world.events.iter().any(|event| event.contains("MigrationFailed")));
}

#[test]
fn one_that_fails_to_stand_by_is_replaced() {
    let mut world = migrating();
    world.engines.get_mut("v1-e-1").unwrap().status.current_state = InstanceState::Error;
    turns(&mut world);
    assert_eq!(engines(&world), [("v1-e-0", "a", true), ("v1-e-1", "b", false)]);
    assert!(world.engines["v1-e-1"].is_available_on("b"));
}

#[test]
fn the_source_dies_and_the_volume_is_detached() {
    let mut world = migrating();
    world.engines.get_mut("v1-e-0").unwrap().status.current_state = InstanceState::Error;
    world.step();
    assert_eq!(world.status().1, Robustness::Faulted);
    // Tickets detach it, and cancel the move.
    world.volume().spec.node_id.clear();
    world.volume().spec.migration_node_id.clear();
    for _ in 0..12 {
        world.step();
        world.agents();
    }
    assert_eq!(engines(&world), [("v1-e-0", "", true)]);
    let status = &world.volume.as_ref().unwrap().status;
    assert_eq!((status.state, status.current_migration_node_id.as_str()), (State::Detached, ""));
    let note = "Volume migration failed unexpectedly; detach volume from extra node to resume";
    assert_eq!(world.events.iter().filter(|event| event.contains(note)).count(), 1);
}

#[test]
fn the_target_goes_down_and_a_rollback_leaves_nothing() {
    let mut world = migrating();
    world.crash("b");
    turns(&mut world);
    world.volume().spec.migration_node_id.clear();
    turns(&mut world);
    assert_eq!(engines(&world), [("v1-e-0", "a", true)]);
    assert_eq!(world.status(), (State::Attached, Robustness::Degraded, "a"));
}

#[test]
fn replicas_have_twins_that_take_their_place_without_a_copy() {
    let mut world = migrating();
    let (old, twins) = (replicas(&world, true), replicas(&world, false));
    assert_eq!((old.len(), twins.len()), (3, 3));
    assert_eq!(directories(&old), directories(&twins), "the same data");
    let map = &world.engines["v1-e-1"].spec.replica_address_map;
    assert_eq!(map.keys().collect::<Vec<_>>(), twins.keys().collect::<Vec<_>>());
    let mut addresses: Vec<_> = map.values().collect();
    let mut held: Vec<_> = world.engines["v1-e-0"].spec.replica_address_map.values().collect();
    addresses.sort();
    held.sort();
    assert_eq!(addresses, held, "the same processes");
    let rolled_back = {
        let mut world = world.clone();
        world.volume().spec.migration_node_id.clear();
        turns(&mut world);
        world
    };
    assert_eq!((replicas(&rolled_back, true), replicas(&rolled_back, false).len()), (old, 0));
    confirm(&mut world);
    turns(&mut world);
    assert_eq!((replicas(&world, true), replicas(&world, false).len()), (twins, 0));
    assert_eq!(told(&world, "Degraded"), 0, "nothing was rebuilt");
}

/// The controller dies after any of its writes; the next one goes on from there.
#[test]
fn a_confirmation_or_rollback_that_is_cut_off_anywhere_ends_alike() {
    for confirmed in [true, false] {
        let mut ends = BTreeSet::new();
        for writes in 0..20 {
            let mut world = migrating();
            let twins = if confirmed { replicas(&world, false) } else { replicas(&world, true) };
            if confirmed {
                confirm(&mut world);
            } else {
                world.volume().spec.migration_node_id.clear();
            }
            let plan = world.plan();
            for change in plan.changes.into_iter().take(writes) {
                world.apply(change);
                assert!(active(&world) <= 1, "two engines count");
            }
            turns(&mut world);
            assert_eq!(replicas(&world, true), twins, "after {writes} writes");
            ends.insert(format!("{:?} {:?}", engines(&world), world.status()));
        }
        assert_eq!(ends.len(), 1, "{ends:?}");
    }
}

#[test]
fn a_replica_that_failed_moves_too_and_keeps_its_data() {
    for before in [true, false] {
        let mut world = if before { attached() } else { migrating() };
        world.crash("c");
        if before {
            turns(&mut world);
            world.volume().spec.migration_node_id = "b".into();
        }
        turns(&mut world);
        let (old, twins) = (replicas(&world, true), replicas(&world, false));
        assert_eq!(directories(&old), directories(&twins));
        let failed = |world: &World| world.replicas.values().filter(|r| !r.spec.failed_at.is_empty()).count();
        assert_eq!(failed(&world), 2, "a replica and its twin");
        confirm(&mut world);
        turns(&mut world);
        assert_eq!(engines(&world), [("v1-e-1", "b", true)]);
        assert_eq!(world.status(), (State::Attached, Robustness::Degraded, "b"));
        assert_eq!(replicas(&world, true), twins);
        world.come_back("c");
        for _ in 0..12 {
            world.step();
            world.agents();
        }
        assert_eq!(world.status(), (State::Attached, Robustness::Healthy, "b"));
        assert_eq!(replicas(&world, true), twins, "what it had is used again");
    }
}

#[test]
fn the_first_write_of_the_target_takes_over_and_is_confirmed_later() {
    let mut world = migrating();
    world.write_at("v1-e-1");
    turns(&mut world);
    assert_eq!(world.status(), (State::Attached, Robustness::Healthy, "a"));
    assert_eq!(told(&world, "MigrationPromoted"), 1);
    assert_eq!(world.engines["v1-e-0"].status.current_state, InstanceState::Stopped, "it is fenced, and stopped");
    assert_eq!(world.record().unwrap().epoch, 2);
    confirm(&mut world);
    turns(&mut world);
    assert_eq!(engines(&world), [("v1-e-1", "b", true)]);
    assert_eq!(world.record().unwrap().epoch, 2, "it had the volume already");
    assert_eq!((told(&world, "DetachedUnexpectedly"), told(&world, "MigrationFailed")), (0, 0));
}

#[test]
fn a_rollback_after_the_target_took_over_starts_anew_at_the_source() {
    let mut world = migrating();
    let old = replicas(&world, true);
    world.write_at("v1-e-1");
    turns(&mut world);
    world.volume().spec.migration_node_id.clear();
    turns(&mut world);
    assert_eq!(engines(&world), [("v1-e-0", "a", true)]);
    assert_eq!(world.status(), (State::Attached, Robustness::Healthy, "a"));
    assert_eq!(world.record().unwrap().epoch, 3);
    assert_eq!(replicas(&world, true), old);
}

/// Watches of two kinds are not in step: the engine may be seen fenced before the record is seen that says by whom.
#[test]
fn a_source_that_is_fenced_before_the_record_is_seen_is_not_dead() {
    let mut world = migrating();
    let stale = world.record().cloned();
    world.write_at("v1-e-1");
    world.agents();
    let fresh = world.record().cloned();
    assert_eq!(world.engines["v1-e-0"].status.current_state, InstanceState::Error);
    world.volume().status.record = stale;
    world.step();
    assert_eq!(world.status(), (State::Attached, Robustness::Healthy, "a"));
    world.volume().status.record = fresh;
    turns(&mut world);
    assert_eq!(world.status(), (State::Attached, Robustness::Healthy, "a"));
}

#[test]
fn both_engines_die_after_the_target_took_over() {
    let mut world = migrating();
    world.write_at("v1-e-1");
    turns(&mut world);
    world.engines.get_mut("v1-e-1").unwrap().status.current_state = InstanceState::Error;
    world.step();
    assert_eq!(world.status().1, Robustness::Faulted);
}

#[test]
fn a_standby_on_a_node_that_is_gone_can_not_take_over_later() {
    let mut world = migrating();
    let standby = world.record().unwrap().standby.clone();
    assert!(standby.is_some());
    world.crash("b");
    turns(&mut world);
    assert_eq!(world.record().unwrap().standby, standby, "it may be confirmed yet");
    world.volume().spec.migration_node_id.clear();
    turns(&mut world);
    assert_eq!(world.record().unwrap().standby, None);
}

#[test]
fn the_source_goes_down_and_a_confirmation_needs_nobody_there() {
    let mut world = migrating();
    let twins = replicas(&world, false);
    world.crash("a");
    world.step();
    assert_eq!(world.status(), (State::Attached, Robustness::Unknown, "a"));
    confirm(&mut world);
    turns(&mut world);
    assert_eq!(engines(&world), [("v1-e-1", "b", true)]);
    assert_eq!(world.status(), (State::Attached, Robustness::Degraded, "b"));
    assert_eq!(replicas(&world, true), twins);
    world.come_back("a");
    for _ in 0..12 {
        world.step();
        world.agents();
    }
    assert_eq!(world.status(), (State::Attached, Robustness::Healthy, "b"));
    assert_eq!(replicas(&world, true), twins, "its data is used again");
}

#[test]
fn the_target_dies_just_before_it_is_confirmed() {
    let mut world = migrating();
    confirm(&mut world);
    // The controller had begun to replace it.
    world.engines.remove("v1-e-1");
    world.volume().status.record.as_mut().unwrap().standby = None;
    turns(&mut world);
    assert_eq!(engines(&world), [("v1-e-1", "b", true)]);
    assert_eq!(world.status(), (State::Attached, Robustness::Healthy, "b"));
}
