//! The volume's side of a live migration: an engine that stands by, and what becomes of it.

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
    assert!(world.replicas.values().all(|replica| replica.spec.engine_name == "v1-e-1"));
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
