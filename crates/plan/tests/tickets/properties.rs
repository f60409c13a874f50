//! What holds whatever the tickets are.

use proptest::prelude::*;
use tether_crd::volume::{CloneState, Robustness, State};

use crate::world::*;

const KINDS: [&str; 9] = [CSI, API, SNAPSHOT, BACKUP, CLONE, RESTORE, EXPANSION, EVICTION, SHARE];
const NODES: [&str; 3] = ["node1", "node2", "node3"];

fn tickets() -> impl Strategy<Value = Vec<(&'static str, &'static str, Option<&'static str>)>> {
    let frontend = prop::sample::select(vec![None, Some("true"), Some("false"), Some("any")]);
    let ticket = (prop::sample::select(&KINDS[..]), prop::sample::select(&NODES[..]), frontend);
    prop::collection::vec(ticket, 0..5)
}

/// A volume in any state, with any tickets.
pub(crate) fn any_world() -> impl Strategy<Value = World> {
    let node = || prop::sample::select(vec!["", "node1", "node2"]);
    let place = (node(), node(), node(), node());
    let state = prop::sample::select(State::ALL);
    let robustness = prop::sample::select(Robustness::ALL);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (tickets(), place, state, robustness, flags, 0_usize..3).prop_map(
        |(tickets, place, state, robustness, (rwx, migratable, disabled, cloned), engines)| {
            let mut world = detached();
            for (index, (kind, node, frontend)) in tickets.into_iter().enumerate() {
                world = world.ticket_with(&format!("t{index}"), kind, node, frontend);
            }
            for node in &NODES[..engines] {
                world.run_engine(node);
            }
            if rwx {
                world = world.shared();
            }
            world.with(|volume| {
                place.0.clone_into(&mut volume.spec.node_id);
                place.1.clone_into(&mut volume.spec.migration_node_id);
                place.2.clone_into(&mut volume.status.current_node_id);
                place.3.clone_into(&mut volume.status.current_migration_node_id);
                volume.status.state = state;
                volume.status.robustness = robustness;
                volume.spec.migratable = migratable;
                volume.spec.disable_frontend = disabled;
                if cloned {
                    volume.status.clone_status.state = CloneState::CopyCompletedAwaitingHealthy;
                }
            })
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn deciding_twice_changes_nothing(mut world in any_world()) {
        world.step();
        let again = world.plan();
        prop_assert!(again.changes.is_empty(), "{again}");
    }

    #[test]
    fn what_cannot_be_interrupted_is_not(mut world in any_world()) {
        let node = world.node_id().to_owned();
        let disabled = world.volume.spec.disable_frontend;
        let shared = world.volume.is_regular_rwx();
        let holds = world.attachment.spec.attachment_tickets.values().any(|ticket| {
            let kind = ticket.kind.as_str();
            let interruptible = [SNAPSHOT, BACKUP, CLONE].contains(&kind);
            ticket.node_id == node && ticket.fits_frontend(disabled) && !interruptible && !(shared && kind == CSI)
        });
        let migrates = world.volume.is_migratable() && world.volume.is_migrating();
        let faulted = world.volume.status.robustness == Robustness::Faulted;
        let report = world.step();
        if !node.is_empty() && holds && !migrates && !faulted {
            prop_assert_eq!(world.node_id(), node, "{}", report);
        }
    }

    #[test]
    fn a_volume_goes_from_node_to_node_only_when_detached_or_migrating(mut world in any_world()) {
        let (before, state) = (world.node_id().to_owned(), world.volume.status.state);
        let target = world.volume.status.current_migration_node_id.clone();
        let report = world.step();
        let after = world.node_id();
        if !after.is_empty() && after != before {
            prop_assert!(state == State::Detached || (world.volume.is_migratable() && after == target), "{}", report);
        }
    }

    #[test]
    fn every_ticket_is_told_and_nobody_else(mut world in any_world()) {
        world.step();
        let told: Vec<&String> = world.attachment.status.attachment_ticket_statuses.keys().collect();
        let tickets: Vec<&String> = world.attachment.spec.attachment_tickets.keys().collect();
        prop_assert_eq!(told, tickets);
        for id in world.attachment.spec.attachment_tickets.keys() {
            world.told_of(id);
        }
    }

    /// With all nodes up, the tickets of a detached volume come to an end, and the first of them has what it wants.
    #[test]
    fn the_chosen_ticket_ends_satisfied(tickets in tickets()) {
        let mut world = detached();
        for (index, (kind, node, frontend)) in tickets.into_iter().enumerate() {
            world = world.ticket_with(&format!("t{index}"), kind, node, frontend);
        }
        let first = world.attachment.spec.attachment_tickets.values()
            .min_by_key(|ticket| (std::cmp::Reverse(ticket.kind.priority()), ticket.id.clone()))
            .map(|ticket| (ticket.id.clone(), ticket.node_id.clone()));
        world.settle();
        if let Some((id, node)) = first {
            prop_assert!(world.attachment.is_satisfied(&id), "{:?}", world.status(&id));
            prop_assert_eq!(world.node_id(), node);
        } else {
            prop_assert_eq!(world.volume.status.state, State::Detached);
        }
    }
}
