//! A volume that two pods share while it moves from one to the other.

use tether_crd::engine::SnapshotInfo;

use crate::world::*;

const MIGRATED: &str = "satisfied | The migrating attachment ticket is satisfied";

fn moving() -> World {
    let mut world = attached("node1").migratable().ticket("a", CSI, "node1").ticket("b", CSI, "node2");
    world.settle();
    assert_eq!(world.volume.spec.migration_node_id, "node2");
    world
}

/// 8.2.11.
#[test]
fn a_migration_starts_when_its_target_is_ready() {
    let two = || attached("node1").migratable().ticket("a", CSI, "node1").ticket("b", CSI, "node2");
    let rows = [
        ("no such node", two().without_node("node2"), ""),
        ("ManagerPodMissing", two().node("node2", "False", "ManagerPodMissing"), ""),
        ("KubernetesNodeNotReady", two().node("node2", "False", "KubernetesNodeNotReady"), ""),
        ("ManagerPodDown", two().node("node2", "False", "ManagerPodDown"), ""),
        ("unknown", two().node("node2", "Unknown", "x"), ""),
        ("ready", two(), "node2"),
    ];
    for (name, mut world, target) in rows {
        let report = world.step();
        assert_eq!(
            (world.node_id(), world.volume.spec.migration_node_id.as_str()),
            ("node1", target),
            "{name}\n{report}"
        );
        assert_eq!(world.told_of("a"), "satisfied", "{name}");
        assert_eq!(world.told_of("b"), "waits | the volume is currently attached to different node node1 ", "{name}");
    }
}

#[test]
fn both_pods_have_the_volume_until_one_lets_go() {
    let world = moving();
    assert_eq!((world.told_of("a").as_str(), world.told_of("b").as_str()), ("satisfied", MIGRATED));
    let mut confirmed = world.clone().without_ticket("a");
    let report = confirmed.step();
    assert!(report.contains("Confirming migration"), "{report}");
    confirmed.settle();
    assert_eq!((confirmed.node_id(), confirmed.volume.status.current_node_id.as_str()), ("node2", "node2"));
    assert_eq!(confirmed.told_of("b"), "satisfied");
    let mut rolled_back = world.without_ticket("b");
    let report = rolled_back.step();
    assert!(report.contains("Rolling back migration"), "{report}");
    rolled_back.settle();
    assert_eq!((rolled_back.node_id(), rolled_back.volume.status.current_migration_node_id.as_str()), ("node1", ""));
    assert_eq!(rolled_back.told_of("a"), "satisfied");
}

#[test]
fn a_confirmation_waits_for_the_new_engine() {
    let mut starting = moving().without_ticket("a");
    starting.engines.retain(|engine| engine.spec.node_id == "node1");
    let report = starting.step();
    assert!(report.contains("Waiting to confirm migration until migration engine is ready"), "{report}");
    assert_eq!(starting.node_id(), "node1");
    assert_eq!(starting.told_of("b"), "waits | waiting for volume to migrate to node node2");
}

/// One set of replicas has one set of snapshots, whoever lists them.
#[test]
fn a_confirmation_does_not_wait_for_the_new_engine_to_list_snapshots() {
    let mut world = moving().without_ticket("a");
    world.engines[0].status.snapshots.insert("s1".to_owned(), SnapshotInfo::default());
    assert!(world.step().contains("Confirming migration"));
}

#[test]
fn a_confirmation_for_a_node_that_is_down_detaches() {
    for world in [moving().node("node2", "False", "KubernetesNodeNotReady"), moving().without_node("node2")] {
        let mut world = world.without_ticket("a");
        let report = world.step();
        assert!(report.contains("Detaching volume for attempted migration to down node"), "{report}");
        assert_eq!((world.node_id(), world.volume.spec.migration_node_id.as_str()), ("", ""));
    }
    // An agent that does not run is not a node that is down.
    let mut world = moving().node("node2", "False", "ManagerPodDown").without_ticket("a");
    assert!(world.step().contains("Confirming migration"));
}

/// 2.26: what both let go of ends detached, by way of whichever engine is ready.
#[test]
fn when_both_let_go_the_volume_ends_detached() {
    let mut ready = moving().without_ticket("a").without_ticket("b");
    assert!(ready.step().contains("Confirming migration"));
    ready.settle();
    assert_eq!((ready.node_id(), ready.volume.status.state.as_str()), ("", "detached"));
    let mut starting = moving().without_ticket("a").without_ticket("b");
    starting.engines.retain(|engine| engine.spec.node_id == "node1");
    assert!(starting.step().contains("Rolling back migration"));
    starting.settle();
    assert_eq!((starting.node_id(), starting.volume.status.state.as_str()), ("", "detached"));
}

#[test]
fn a_faulted_volume_is_detached_and_its_migration_cancelled() {
    let mut world = moving().faulted();
    let report = world.step();
    assert!(report.contains("Cancelling migration for detached volume"), "{report}");
    assert_eq!((world.node_id(), world.volume.spec.migration_node_id.as_str()), ("", ""));
}

/// 2.19: nobody but the pods knows which of the two is right.
#[test]
fn two_pods_of_a_detached_volume_have_to_agree() {
    let mut world = detached().migratable().ticket("a", CSI, "node1").ticket("b", CSI, "node2");
    let report = world.step();
    let words = "Volume migration between node1 and node2 failed; detach volume from extra node to resume";
    assert!(report.contains(words), "{report}");
    assert_eq!(world.node_id(), "");
    let waiting = world.status("a").waiting.clone().unwrap();
    assert_eq!((waiting.reason.as_str(), waiting.message.as_str()), ("MigrationUnresolved", words));
    let mut world = world.without_ticket("a");
    world.settle();
    assert_eq!(world.node_id(), "node2");
}
