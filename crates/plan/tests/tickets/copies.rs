//! A volume that is being made as a copy: nobody but the copy has it before it is complete.

use proptest::prelude::*;
use tether_crd::volume::CloneState;

use crate::world::*;

/// The ticket that the copy into v1 is made under.
const OWN: &str = "volume-clone-controller-v1";
const COPYING: &str = "volume v1 is made as a copy of snapshot s1 of volume v0, whose data is being copied; \
                       it is shown when it is complete.";

fn copy(world: World, state: CloneState) -> World {
    world.with(|volume| {
        "snap://v0/s1".clone_into(&mut volume.spec.data_source);
        volume.status.clone_status.state = state;
    })
}

fn with_own(world: World) -> World {
    world.ticket_with(OWN, CLONE, "node2", Some("true"))
}

fn completes(mut world: World) -> World {
    world.volume.status.clone_status.state = CloneState::CopyCompletedAwaitingHealthy;
    world.settle();
    let mut world = world.without_ticket(OWN);
    world.settle();
    world
}

#[test]
fn a_ticket_waits_for_the_copy_and_goes_on_by_itself() {
    // One is there before the copy begins, one comes while it goes on.
    let mut world = copy(detached().ticket("a", API, "node1"), CloneState::Unset);
    world.settle();
    assert_eq!((world.node_id(), world.volume.status.state.as_str()), ("", "detached"));
    let waiting = world.status("a").waiting.clone().unwrap();
    assert_eq!(waiting.reason, "CopyIncomplete");
    assert_eq!(
        waiting.message,
        "volume v1 is made as a copy of snapshot s1 of volume v0, which begins when volume v0 is attached and its \
         snapshot is there; it is shown when it is complete."
    );
    let mut world = with_own(copy(world, CloneState::Initiated)).ticket("b", CSI, "node2");
    world.settle();
    assert_eq!((world.node_id(), world.volume.spec.disable_frontend), ("node2", true), "where the copy is made");
    assert_eq!(world.told_of(OWN), "satisfied");
    for ticket in ["a", "b"] {
        assert_eq!(world.told_of(ticket), format!("waits | CopyIncomplete | {COPYING}"));
    }
    let world = completes(world);
    assert_eq!((world.node_id(), world.volume.spec.disable_frontend), ("node1", false));
    assert_eq!(world.told_of("a"), "satisfied");
}

#[test]
fn no_ticket_of_another_kind_or_without_a_frontend_gets_it_either() {
    let kinds = [SNAPSHOT, BACKUP, CLONE, RESTORE, EXPANSION, EVICTION, SHARE, API, CSI];
    for (kind, frontend) in kinds.iter().flat_map(|kind| [None, Some("true"), Some("any")].map(|f| (*kind, f))) {
        let mut world = copy(detached().ticket_with("a", kind, "node1", frontend), CloneState::Initiated);
        world.settle();
        assert_eq!(world.node_id(), "", "{kind} {frontend:?}");
        assert_eq!(world.told_of("a"), format!("waits | CopyIncomplete | {COPYING}"), "{kind} {frontend:?}");
    }
    // What is called like the copy's own and wants a frontend is not the copy's own.
    let mut false_friend = copy(detached().ticket(OWN, CLONE, "node1"), CloneState::Initiated);
    false_friend.settle();
    assert_eq!(false_friend.node_id(), "");
}

#[test]
fn a_copy_that_was_shown_is_taken_back() {
    let mut world = copy(attached("node1").ticket("a", API, "node1").told("a"), CloneState::Initiated);
    let report = world.step();
    assert!(report.contains("because nobody may use it yet: volume v1 is made as a copy"), "{report}");
    assert_eq!((world.node_id(), world.status("a").satisfied), ("", false));
    let mut world = with_own(world);
    world.settle();
    assert_eq!((world.node_id(), world.volume.spec.disable_frontend), ("node2", true));
    assert_eq!(completes(world).told_of("a"), "satisfied");
}

#[test]
fn a_copy_that_failed_says_so_and_whether_it_is_tried_again() {
    let failed = |attempts: i64, error: &str| {
        let mut world = copy(detached().ticket("a", API, "node1"), CloneState::Failed).with(|volume| {
            let status = &mut volume.status.clone_status;
            status.attempt_count = attempts;
            error.clone_into(&mut status.error);
            "2026-01-01T12:00:30Z".clone_into(&mut status.next_allowed_attempt_at);
        });
        world.settle();
        assert_eq!(world.node_id(), "");
        world.told_of("a")
    };
    assert_eq!(
        failed(1, "the source volume v0 does not exist"),
        "waits | VolumeCloneFailed | volume v1 is to be a copy of snapshot s1 of volume v0, which failed at attempt 1 of 10 \
         (the source volume v0 does not exist) and is tried again at 2026-01-01T12:00:30Z; it is shown when it is complete."
    );
    assert_eq!(
        failed(10, ""),
        "waits | VolumeCloneFailed | volume v1 is to be a copy of snapshot s1 of volume v0, which failed 10 times and is not \
         tried again; delete the volume and make it again."
    );
}

#[test]
fn a_volume_that_can_move_does_not_before_it_is_complete() {
    let pods =
        |world: World| world.ticket_with("a", CSI, "node2", Some("any")).ticket_with("b", CSI, "node1", Some("any"));
    let mut world = pods(with_own(copy(detached().migratable(), CloneState::Initiated)));
    world.settle();
    assert_eq!((world.node_id(), world.volume.spec.migration_node_id.as_str()), ("node2", ""));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Whatever the tickets are and wherever the volume was, it ends where only the copy has it; and when the copy is
    /// complete, everybody else is served as if there had been none.
    #[test]
    fn nobody_has_an_incomplete_copy(
        world in crate::properties::any_world(),
        state in prop::sample::select(vec![CloneState::Unset, CloneState::Initiated, CloneState::Failed]),
        begun in any::<bool>(),
    ) {
        let mut world = copy(world, state);
        if begun {
            world = with_own(world);
        }
        let report = world.step();
        let spec = &world.volume.spec;
        let leaves_later = world.volume.is_migratable() && world.volume.is_migrating();
        prop_assert!(spec.node_id.is_empty() || spec.disable_frontend || leaves_later, "{}", report);
        for (id, status) in &world.attachment.status.attachment_ticket_statuses {
            prop_assert!(!status.satisfied || id == OWN, "{}: {}", id, report);
        }
    }
}
