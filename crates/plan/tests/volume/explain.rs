//! What `tether explain` says, in the cases that people ask about.

use std::collections::{BTreeMap, BTreeSet};

use tether_crd::attachment::{DISABLE_FRONTEND, Ticket, TicketType};
use tether_crd::volume::{CloneState, Robustness, State};
use tether_plan::explain::{Explanation, explain};
use tether_plan::placement::Promised;
use tether_plan::{tickets, volume};

use crate::build::*;
use crate::world::World;

/// A cluster whose tickets are decided on, too.
fn explained(world: &World) -> Explanation {
    let settings = tether_crd::settings::Settings::default();
    let promised = Promised::new();
    let observed = volume::Observed {
        volume: world.volume.as_ref().unwrap(),
        attachment: world.attachment.as_ref(),
        engines: world.engines.values().collect(),
        replicas: world.replicas.values().collect(),
        hosts: &world.hosts,
        promised: &promised,
        settings: &world.settings,
        seed: 1,
    };
    let wishes = world.attachment.as_ref().map(|attachment| tickets::Observed {
        attachment,
        volume: world.volume.as_ref(),
        engines: world.engines.values().collect(),
        nodes: BTreeMap::new(),
        cordoned: BTreeSet::new(),
        owners: BTreeMap::new(),
        noticed: BTreeMap::new(),
        settings: &settings,
    });
    explain(&observed, wishes.as_ref(), world.now)
}

/// Compares with the expected text, line by line, without the names and times that vary.
#[track_caller]
fn says(world: &World, expected: &str) {
    let found = explained(world).to_string();
    let mut plain = found.clone();
    let mut replicas: Vec<_> = world.replicas.values().collect();
    replicas.sort_by(|a, b| a.spec.node_id.cmp(&b.spec.node_id));
    for replica in replicas {
        let stable = format!("r-{}", replica.spec.node_id);
        plain = plain.replace(replica.metadata.name.as_deref().unwrap(), &stable);
        plain = plain.replace(&replica.spec.data_directory_name, &format!("member-{}", replica.spec.node_id));
    }
    let lines =
        |text: &str| -> Vec<String> { text.lines().map(|l| l.trim().to_owned()).filter(|l| !l.is_empty()).collect() };
    let (mut plain, mut expected) = (lines(&plain), lines(expected));
    // Replicas come in the order of their random names.
    plain.sort();
    expected.sort();
    assert_eq!(plain, expected, "it says:\n{found}");
}

fn wanted(world: &mut World, id: &str, kind: TicketType, node: &str, disable_frontend: &str) {
    let parameters = [(DISABLE_FRONTEND.to_owned(), disable_frontend.to_owned())].into();
    let ticket = Ticket { id: id.into(), kind, node_id: node.into(), parameters, ..Default::default() };
    world.attachment.as_mut().unwrap().spec.attachment_tickets.insert(id.into(), ticket);
}

fn attached() -> World {
    let mut world = new_volume(3, &["a", "b", "c"]);
    world.settle("a");
    wanted(&mut world, "csi-1", TicketType::Csi, "a", "false");
    world
}

#[test]
fn healthy() {
    says(
        &attached(),
        "Volume v1 is attached on node a, healthy.
         ✓ A ticket wants the volume on node a.
             ticket csi-1 of type csi-attacher for node a is satisfied since 2027-01-15T08:00:00Z
         ✓ 3 replicas have places.
         ✓ The record names 3 replicas that hold every write.
         ✓ The volume is to be on node a.
         ✓ 3 of 3 replicas run.
         ✓ The engine serves on node a as /dev/longhorn/v1.
         ✓ 3 of 3 replicas hold every write.",
    );
}

#[test]
fn nobody_wants_it() {
    let mut world = attached();
    world.attachment.as_mut().unwrap().spec.attachment_tickets.clear();
    world.settle("");
    says(
        &world,
        "Volume v1 is detached.
         ✓ No ticket wants the volume attached.
         ✓ 3 replicas have places.
         ✓ The record names 3 replicas that hold every write.
         ✓ Nothing of the volume runs, as it should be.",
    );
}

#[test]
fn the_node_is_down() {
    let mut world = attached();
    world.crash("a");
    world.step();
    says(
        &world,
        "Volume v1 is attached on node a, and how it is is not known.
         ✓ A ticket wants the volume on node a.
             ticket csi-1 of type csi-attacher for node a is satisfied since 2027-01-15T08:00:00Z
         ✓ 3 replicas have places.
         ✓ The record names 3 replicas that hold every write.
         ✓ The volume is to be on node a.
         ✓ 3 of 3 replicas run.
         ✗ Node \"a\", where the engine runs, is not heard of. (since 2027-01-15T08:00:00Z)
         What will change it: Node a comes back; or the ticket goes to another node, which is safe: an engine there fences this one.
         Safe to run:         kubectl describe node a",
    );
}

#[test]
fn no_replica_could_be_placed() {
    let mut world = new_volume(3, &["a", "b", "c"]);
    world.hosts.get_mut("a").unwrap().unschedulable = Some("KubernetesNodeCordoned".into());
    world.hosts.get_mut("b").unwrap().disks[0].available = 20 * GIB;
    world.hosts.get_mut("c").unwrap().not_ready = Some("ManagerPodDown".into());
    world = world.decided();
    wanted(&mut world, "csi-1", TicketType::Csi, "a", "false");
    says(
        &world,
        "Volume v1 is detached, faulted.
         ✓ A ticket wants the volume on node a.
             ticket csi-1 of type csi-attacher for node a waits since 2027-01-15T08:00:00Z: volume v1 is faulted; it is attached when a replica can serve.
         ✗ No replica could be placed: precheck new replica failed: nodes are unavailable; insufficient storage. (since 2027-01-15T08:00:00Z)
             node a: The node is not possible: nothing may be scheduled to it: KubernetesNodeCordoned.
             node b: Disk default: 21474836480 of 107374182400 bytes are available, and more than 25 % must stay so with 0 bytes on it.
             node c: The node is not possible: it is not ready: ManagerPodDown.
         What will change it: A node or disk that can take a replica; each says above why it cannot. A cordoned node can when it is uncordoned.
         Safe to run:         kubectl uncordon a",
    );
}

#[test]
fn the_frontend_is_not_the_one_that_a_ticket_wants() {
    let mut world = attached();
    wanted(&mut world, "restore-1", TicketType::Restore, "a", "true");
    let text = explained(&world).to_string();
    assert!(text.contains("✗ Ticket restore-1 waits: Volume v1 is attached to node a with a frontend"), "{text}");
    assert!(text.contains("csi-1"), "{text}");
    assert!(text.contains("What will change it: The ticket that holds the volume is removed"), "{text}");
}

#[test]
fn behind_another_ticket() {
    let mut world = attached();
    world.attachment.as_mut().unwrap().spec.attachment_tickets.clear();
    wanted(&mut world, "longhorn-api", TicketType::Api, "a", "false");
    wanted(&mut world, "csi-2", TicketType::Csi, "b", "false");
    let text = explained(&world).to_string();
    assert!(text.contains("2 tickets want the volume, in this order:\n      ticket longhorn-api"), "{text}");
    assert!(text.contains("✗ Ticket csi-2 waits: volume v1 is attached to node a;"), "{text}");
    assert!(text.contains("Safe to run:         tether volume detach v1 --ticket longhorn-api"), "{text}");
}

#[test]
fn faulted() {
    let mut world = new_volume(2, &["a", "b"]);
    world.settle("a");
    world.settle("");
    world.crash("a");
    world.crash("b");
    world.settle("b");
    wanted(&mut world, "csi-1", TicketType::Csi, "b", "false");
    assert_eq!(world.status(), (State::Detached, Robustness::Faulted, ""));
    says(
        &world,
        "Volume v1 is detached, faulted.
         ✓ A ticket wants the volume on node b.
             ticket csi-1 of type csi-attacher for node b waits since 2027-01-15T08:00:00Z: volume v1 is faulted; it is attached when a replica can serve.
         ✓ 2 replicas have places.
         ✗ All replicas that hold every write failed or are gone; these are member-a, member-b. (since 2027-01-15T08:00:00Z)
             replica r-a: Its node \"a\" is down or gone.
             replica r-b: Its node \"b\" is down or gone.
         What will change it: One of the nodes that hold every write comes back with its disk (a, b); the volume is then attached by itself.
         Safe to run:         kubectl describe node a",
    );
}

#[test]
fn degraded_and_waiting_for_a_node() {
    let mut world = attached();
    world.crash("c");
    world.settle("a");
    let text = explained(&world).to_string();
    assert!(text.contains("✗ 2 of 3 replicas hold every write. (since 2027-01-15T08:00:00Z)"), "{text}");
    assert!(text.contains("on node c: failed at 2027-01-15T08:00:00Z, missed writes"), "{text}");
    assert!(text.contains("What will change it: The replica's node comes back; else a new replica is made"), "{text}");
}

/// Attached to node a, and wanted on node b too.
fn wanted_on_two_nodes() -> World {
    let mut world = new_volume(3, &["a", "b", "c"]);
    world.volume().spec.access_mode = tether_crd::volume::AccessMode::ReadWriteMany;
    world.volume().spec.migratable = true;
    world.settle("a");
    wanted(&mut world, "csi-1", TicketType::Csi, "a", "false");
    wanted(&mut world, "csi-2", TicketType::Csi, "b", "false");
    world
}

/// The same, with an engine that stands by.
fn moving() -> World {
    let mut world = wanted_on_two_nodes();
    world.volume().spec.migration_node_id = "b".into();
    while world.step() | world.agents() {}
    world
}

#[track_caller]
fn contains(world: &World, wanted: &[&str], unwanted: &[&str]) {
    let text = explained(world).to_string();
    for words in wanted {
        assert!(text.contains(words), "it does not say {words:?}:\n{text}");
    }
    for words in unwanted {
        assert!(!text.contains(words), "it says {words:?}:\n{text}");
    }
}

#[test]
fn a_migration_whose_target_is_not_ready() {
    contains(
        &wanted_on_two_nodes(),
        &[
            "✗ Ticket csi-2 waits: volume v1 moves from node a to node b when that is ready (the node does not exist).",
            "What will change it: Node b gets ready; then the migration begins by itself.",
            "kubectl describe node b",
        ],
        &["until it is removed"],
    );
}

#[test]
fn a_migration_that_is_ready_and_decided() {
    let mut world = moving();
    let ready = "✓ The volume moves from node a to node b. Volume migration engine is ready";
    contains(&world, &[ready, "It is confirmed when", "✓ The engine serves on node a"], &["✗"]);
    world.volume().spec.migration_node_id.clear();
    contains(&world, &["✓ The move to node b is rolled back"], &["It is confirmed when", "✗"]);
    world.volume().spec.node_id = "b".into();
    contains(&world, &["✓ The move from node a to node b is confirmed"], &["It is confirmed when"]);
}

#[test]
fn a_migration_whose_target_has_written() {
    let mut world = moving();
    world.write_at("v1-e-1");
    while world.step() | world.agents() {}
    contains(&world, &["✓ The engine serves on node b", "has written"], &["The engine serves on node a", "✗"]);
}

#[test]
fn degraded_while_it_moves() {
    let mut world = moving();
    world.crash("c");
    while world.step() | world.agents() {}
    contains(
        &world,
        &[
            "✗ 2 of 3 replicas hold every write.",
            "What will change it: The migration is confirmed or rolled back; then",
        ],
        &["if its node is down"],
    );
}

#[test]
fn migrating() {
    let mut world = wanted_on_two_nodes();
    world.volume().spec.migration_node_id = "b".into();
    world.step();
    let text = explained(&world).to_string();
    assert!(
        text.contains("✗ Ticket csi-2 waits: Volume v1 is migrating; its engine on node b is not ready yet."),
        "{text}"
    );
    assert!(text.contains("The engine on node \"b\" does not stand by yet."), "{text}");
    world.agents();
    let text = explained(&world).to_string();
    assert!(text.contains("✓ 3 of 3 replicas hold every write."), "{text}");
}

#[test]
fn a_copy_that_is_not_complete() {
    let mut world = new_volume(3, &["a", "b", "c"]);
    world.settle("");
    world.volume.as_mut().unwrap().spec.data_source = "snap://v0/s1".into();
    world.volume.as_mut().unwrap().status.clone_status.state = CloneState::Initiated;
    wanted(&mut world, "longhorn-ui", TicketType::Api, "a", "false");
    contains(
        &world,
        &[
            "✗ Ticket longhorn-ui waits: volume v1 is made as a copy of snapshot s1 of volume v0, whose data is being copied; \
             it is shown when it is complete.",
            "What will change it: The copy is completed; the volume is then attached by itself.",
            "Safe to run:         tether explain volume v0",
        ],
        &[],
    );
    let status = &mut world.volume.as_mut().unwrap().status.clone_status;
    (status.state, status.attempt_count) = (CloneState::Failed, 10);
    contains(&world, &["failed 10 times and is not tried again", "The volume is deleted and made again"], &[]);
}
