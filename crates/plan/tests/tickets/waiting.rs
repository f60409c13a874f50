//! What Longhorn does not have: owners that take their tickets with them, and tickets that say what they wait for.

use jiff::SignedDuration;
use tether_plan::tickets::OwnerSeen;

use crate::world::*;

#[test]
fn a_ticket_goes_with_its_owner() {
    let world =
        |seen| attached("node1").ticket_with("s", SNAPSHOT, "node1", Some("any")).told("s").owned("s", "u7", seen);
    for (seen, stays) in [
        (Some(OwnerSeen::Exists), true),
        (None, true),
        (Some(OwnerSeen::Unknown), true),
        (Some(OwnerSeen::Gone), false),
    ] {
        let mut world = world(seen);
        let report = world.step();
        assert_eq!(world.attachment.spec.attachment_tickets.contains_key("s"), stays, "{seen:?}\n{report}");
        assert_eq!(world.attachment.status.attachment_ticket_statuses.contains_key("s"), stays);
        assert_eq!(world.node_id() == "node1", stays, "and the volume with it");
    }
}

#[test]
fn a_ticket_says_what_it_waits_for() {
    let mut world = attached("node1").ticket("a", CSI, "node1").ticket("b", CSI, "node2").ticket("c", API, "node3");
    world.step();
    let waiting = |ticket: &str| world.status(ticket).waiting.clone().unwrap();
    assert_eq!(
        (waiting("c").reason.as_str(), waiting("c").message.as_str(), waiting("c").position),
        (
            "AttachedElsewhere",
            "volume v1 is attached to node node1; the csi-attacher ticket \"a\" holds it there until it is removed.",
            0
        )
    );
    assert_eq!(waiting("b").position, 1, "behind the ticket of a higher priority");
    assert_eq!(waiting("b").since, "1970-01-01T00:00:00Z", "since it was seen, not since it was looked at");
    let mut world = world.without_ticket("a").without_ticket("c");
    world.step();
    let waiting = world.status("b").waiting.clone().unwrap();
    assert_eq!((waiting.reason.as_str(), waiting.position), ("Detaching", 0));
    world.settle();
    assert_eq!(world.status("b").waiting, None);
}

/// An attachment costs one write of its status, not two.
#[test]
fn a_ticket_that_is_about_to_be_satisfied_is_told_nothing_in_between() {
    let mut world = detached().ticket("a", CSI, "node1");
    world.new.insert("a".to_owned());
    let plan = world.plan();
    assert_eq!(plan.changes.len(), 1, "only the volume: {plan}");
    assert_eq!(plan.wake_at(), Some(world.now + SignedDuration::from_secs(2)));
    world.step();
    world.volume_controller();
    assert!(world.plan().changes.is_empty(), "still on its way");
    let slow = {
        let mut slow = world.clone();
        slow.new.clear();
        slow.plan()
    };
    assert_eq!(slow.changes.len(), 1, "what takes longer is told: {slow}");
    world.settle();
    assert_eq!(world.told_of("a"), "satisfied");
}

#[test]
fn a_ticket_that_cannot_be_satisfied_soon_is_told_at_once() {
    let mut world = attached("node1").ticket("a", CSI, "node1").told("a").ticket("b", CSI, "node2");
    world.new.insert("b".to_owned());
    world.step();
    assert_eq!(world.status("b").waiting.clone().unwrap().reason, "AttachedElsewhere");
}

/// A volume that is gone lets its attachment go, and nothing else is done.
#[test]
fn an_attachment_goes_with_its_volume() {
    use std::collections::{BTreeMap, BTreeSet};
    use tether_plan::tickets::{Change, Observed, decide};

    let mut world = detached().ticket("a", CSI, "node1");
    let look = |world: &World| {
        let observed = Observed {
            attachment: &world.attachment,
            volume: None,
            engines: Vec::new(),
            nodes: BTreeMap::new(),
            cordoned: BTreeSet::new(),
            owners: BTreeMap::new(),
            noticed: BTreeMap::new(),
            settings: &world.settings,
        };
        decide(&observed, world.now).changes
    };
    world.attachment.metadata.finalizers = Some(vec!["longhorn.io".to_owned()]);
    assert!(look(&world).is_empty(), "it is not being deleted");
    world.attachment.metadata.deletion_timestamp =
        serde_json::from_value(serde_json::json!("2026-01-01T00:00:00Z")).unwrap();
    assert!(matches!(look(&world).as_slice(), [Change::Release { .. }]));
}
