//! The scenarios of Longhorn's own tests, and those of its documentation.

use tether_crd::volume::{CloneState, ShareState};

use crate::world::*;

const WAITS: &str = "waits";
const SATISFIED: &str = "satisfied";
const ELSEWHERE: &str = "waits | the volume is currently attached to different node node1 ";
const INCOMPATIBLE: &str = "waits | AttachedWithIncompatibleParameters | volume v1 has already attached to node node1 with incompatible parameters";

/// Name of the scenario, given, node that the volume is to be on, what each ticket is told.
type Row = (&'static str, World, &'static str, &'static [(&'static str, &'static str)]);

#[track_caller]
fn check(rows: Vec<Row>) {
    for (name, mut world, node, told) in rows {
        let report = world.step();
        assert_eq!(world.node_id(), node, "{name}\n{report}");
        let tickets: Vec<&String> = world.attachment.status.attachment_ticket_statuses.keys().collect();
        assert_eq!(tickets, told.iter().map(|(id, _)| *id).collect::<Vec<_>>(), "{name}\n{report}");
        for (ticket, words) in told {
            assert_eq!(world.told_of(ticket), *words, "{name}: {ticket}\n{report}");
        }
        let again = world.plan();
        assert!(again.changes.is_empty(), "{name}: deciding again changes nothing\n{again}");
    }
}

#[test]
fn a_detached_volume_follows_one_ticket() {
    check(vec![
        ("8.2.1", detached().ticket("a", CSI, "node1"), "node1", &[("a", WAITS)]),
        (
            "8.2.2 the higher priority",
            detached().ticket("a", SNAPSHOT, "node1").ticket("b", CSI, "node2"),
            "node2",
            &[("a", WAITS), ("b", WAITS)],
        ),
        (
            "8.2.3 the smaller id",
            detached().ticket("b", CSI, "node2").ticket("a", CSI, "node1"),
            "node1",
            &[("a", WAITS), ("b", WAITS)],
        ),
        (
            "restore beats the API",
            detached().ticket("a", API, "node1").ticket_with("b", RESTORE, "node2", Some("true")),
            "node2",
            &[("a", WAITS), ("b", WAITS)],
        ),
        ("no ticket", detached(), "", &[]),
        ("faulted", detached().faulted().ticket("a", CSI, "node1"), "", &[("a", WAITS)]),
        (
            "not detached yet",
            detached().with(|v| v.status.state = tether_crd::volume::State::Detaching).ticket("a", CSI, "node1"),
            "",
            &[("a", WAITS)],
        ),
    ]);
}

#[test]
fn an_attached_volume_stays_while_it_is_wanted() {
    check(vec![
        ("8.2.4", attached("node1").ticket("a", CSI, "node1"), "node1", &[("a", SATISFIED)]),
        (
            "8.2.5 the other frontend",
            attached("node1").ticket("a", CSI, "node1").ticket_with("b", RESTORE, "node1", Some("true")),
            "node1",
            &[("a", SATISFIED), ("b", INCOMPATIBLE)],
        ),
        ("8.2.6 nobody", attached("node1").told("a"), "", &[]),
        (
            "8.2.7 one of two has left",
            attached("node1").ticket("a", CSI, "node1").told("a").told("b"),
            "node1",
            &[("a", SATISFIED)],
        ),
        (
            // Longhorn's own test pins that the ticket is called satisfied while the volume leaves.
            "8.2.8 the frontend is wanted",
            attached("node1").with(|v| v.spec.disable_frontend = true).ticket("a", CSI, "node1"),
            "",
            &[("a", SATISFIED)],
        ),
        ("8.2.9 the ticket moved", attached("node1").ticket("a", CSI, "node2").told("a"), "", &[("a", ELSEWHERE)]),
        (
            "8.2.10 a workload interrupts",
            attached("node1").ticket("a", SNAPSHOT, "node1").told("a").ticket("b", CSI, "node2"),
            "",
            &[("a", SATISFIED), ("b", ELSEWHERE)],
        ),
        (
            "any frontend",
            attached("node1").ticket_with("a", BACKUP, "node1", Some("any")).ticket("b", CSI, "node1"),
            "node1",
            &[("a", SATISFIED), ("b", SATISFIED)],
        ),
        (
            "no parameter means with a frontend",
            attached("node1").ticket_with("a", CSI, "node1", None),
            "node1",
            &[("a", SATISFIED)],
        ),
        ("faulted leaves", attached("node1").faulted().ticket("a", CSI, "node1"), "", &[("a", SATISFIED)]),
    ]);
}

#[test]
fn only_a_workload_interrupts_and_only_what_can_be_interrupted() {
    let cloning = |state| {
        attached("node1")
            .with(|volume| volume.status.clone_status.state = state)
            .ticket_with("a", CLONE, "node1", Some("any"))
            .ticket("b", CSI, "node2")
    };
    let beside = |kind: &'static str, other: &'static str| {
        attached("node1").ticket_with("a", kind, "node1", Some("any")).ticket("b", other, "node2")
    };
    let stays: &[(&str, &str)] = &[("a", SATISFIED), ("b", ELSEWHERE)];
    check(vec![
        ("backup, then a person", beside(BACKUP, API), "", stays),
        ("2.42 backup, then a snapshot", beside(BACKUP, SNAPSHOT), "node1", stays),
        ("2.44 eviction", beside(EVICTION, CSI), "node1", stays),
        ("2.45 a pod, then an expansion", beside(CSI, EXPANSION), "node1", stays),
        ("2.43 cloning", cloning(CloneState::Initiated), "node1", stays),
        ("2.43 copied", cloning(CloneState::CopyCompletedAwaitingHealthy), "", stays),
        (
            "one of two holders cannot be interrupted",
            beside(SNAPSHOT, CSI).ticket_with("c", EVICTION, "node1", Some("any")),
            "node1",
            &[("a", SATISFIED), ("b", ELSEWHERE), ("c", SATISFIED)],
        ),
    ]);
}

#[test]
fn pods_of_a_shared_volume_get_it_through_the_share() {
    let share = |world: World| {
        world.shared().with(|volume| {
            volume.status.share_state = ShareState::Running;
            volume.status.share_endpoint = "nfs://10.0.0.1/v1".to_owned();
        })
    };
    check(vec![
        (
            "not shared yet",
            detached().shared().ticket("a", CSI, "node1"),
            "",
            &[("a", "waits | Waiting for volume share to be available")],
        ),
        (
            "the share decides",
            share(detached()).ticket("a", CSI, "node1").ticket("b", SHARE, "node2"),
            "node2",
            &[("a", "satisfied | The attachment ticket is satisfied"), ("b", WAITS)],
        ),
        (
            "pods do not hold it",
            share(attached("node1")).ticket("a", CSI, "node1"),
            "",
            &[("a", "satisfied | The attachment ticket is satisfied")],
        ),
    ]);
}

#[test]
fn a_ticket_says_how_the_volume_is_shown_and_for_whom() {
    let mut world = detached().ticket_with("a", RESTORE, "node1", Some("true"));
    let ticket = world.attachment.spec.attachment_tickets.get_mut("a").unwrap();
    ticket.parameters.insert("lastAttachedBy".to_owned(), "ana".to_owned());
    ticket.generation = 4;
    world.step();
    let spec = &world.volume.spec;
    assert_eq!((spec.disable_frontend, spec.last_attached_by.as_str()), (true, "ana"));
    assert_eq!(world.status("a").generation, 4);
    world.settle();
    assert_eq!(world.told_of("a"), SATISFIED);
    let mut world = world.without_ticket("a");
    world.step();
    let spec = &world.volume.spec;
    assert_eq!((spec.node_id.as_str(), spec.disable_frontend, spec.last_attached_by.as_str()), ("", false, ""));
    // A ticket that takes either leaves it as it is.
    let mut any = detached().with(|v| v.spec.disable_frontend = true).ticket_with("a", SNAPSHOT, "node1", Some("any"));
    any.step();
    assert!(any.volume.spec.disable_frontend);
}

#[test]
fn a_manual_attachment_to_a_cordoned_node() {
    const SETTING: &str = "detach-manually-attached-volumes-when-cordoned";
    let mut kept = attached("node1").ticket("a", API, "node1").cordon("node1");
    let report = kept.step();
    assert_eq!(kept.node_id(), "node1");
    let event = format!(
        "!! Warning DetachedUnexpectedly Volume/v1: Failed to detach manually attached volume due to {SETTING} is set to false"
    );
    assert!(report.contains(&event), "{report}");
    let mut gone = attached("node1").ticket("a", API, "node1").cordon("node1").setting(SETTING, "true");
    let report = gone.step();
    assert!(report.contains("Deleting manual attachment ticket \"a\" due to node is unschedulable"), "{report}");
    assert!(gone.attachment.spec.attachment_tickets.is_empty() && gone.node_id().is_empty());
    let mut pod = attached("node1").ticket("a", CSI, "node1").cordon("node1").setting(SETTING, "true");
    pod.step();
    assert_eq!(pod.node_id(), "node1", "pods are drained, not their volumes");
}

/// Scenario 1 of the documentation: a backup beside a pod on one node.
#[test]
fn a_backup_beside_a_pod_moves_nothing() {
    let mut world = attached("node1").ticket("csi", CSI, "node1").ticket_with("backup", BACKUP, "node1", Some("any"));
    world.settle();
    assert_eq!((world.told_of("csi"), world.told_of("backup")), (SATISFIED.to_owned(), SATISFIED.to_owned()));
    assert_eq!(world.node_id(), "node1");
}

/// Scenario 2: a backup is interrupted by a pod on another node, and goes on there.
#[test]
fn a_backup_gives_way_to_a_pod_and_follows_it() {
    let mut world = attached("node1").ticket_with("backup", BACKUP, "node1", Some("any"));
    world.settle();
    let mut world = world.ticket("csi", CSI, "node2");
    let report = world.step();
    assert!(report.contains("Volume v1 is selected to detach from node node1"), "{report}");
    world.settle();
    assert_eq!((world.node_id(), world.told_of("csi")), ("node2", SATISFIED.to_owned()));
    assert_eq!(world.told_of("backup"), "waits | the volume is currently attached to different node node2 ");
    world.attachment.spec.attachment_tickets.get_mut("backup").unwrap().node_id = "node2".to_owned();
    world.settle();
    assert_eq!((world.node_id(), world.told_of("backup")), ("node2", SATISFIED.to_owned()));
}

/// Scenario 3: a snapshot of a detached volume attaches it, and lets it go.
#[test]
fn a_snapshot_attaches_a_volume_for_as_long_as_it_takes() {
    let mut world = detached().ticket_with("snapshot-controller-s1", SNAPSHOT, "node3", Some("any"));
    world.settle();
    assert_eq!((world.node_id(), world.told_of("snapshot-controller-s1")), ("node3", SATISFIED.to_owned()));
    let mut world = world.without_ticket("snapshot-controller-s1");
    world.settle();
    assert_eq!((world.node_id(), world.volume.status.state.as_str()), ("", "detached"));
    assert!(world.attachment.status.attachment_ticket_statuses.is_empty());
}
