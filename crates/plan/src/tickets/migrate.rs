//! A volume that may be on two nodes while it moves: a second ticket starts it, the loss of the first confirms it, the loss of the second
//! rolls it back.
//!
//! ```text
//!              second ticket             first ticket gone, target ready
//!    on O ───────────────────► O, to N ───────────────────────────────────► on N
//!      ▲                          │ │
//!      └── second ticket gone ────┘ └── faulted, or target down when confirmed ──► detached
//! ```

use tether_crd::attachment::{Ticket, TicketType};
use tether_crd::condition;
use tether_crd::node::conditions::READY;
use tether_crd::volume::State;
use tether_model::reason::Reason;
use tether_model::report::Rule;

use super::{Change, Look};
use crate::Plan;
use crate::event::Event;

pub(super) const MIGRATE: Rule = Rule("migration");

pub(super) fn step(plan: &mut Plan<Change>, look: &mut Look<'_>) {
    if !look.volume.is_migratable() {
        return;
    }
    if look.wish.node.is_empty() {
        if !look.wish.migration_node.is_empty() {
            look.wish.migration_node.clear();
            let words = "Cancelling migration for detached volume";
            tell(plan, look, Reason::MigrationCancelled, words.to_owned());
        }
        return;
    }
    if !look.is_migrating() {
        return start(plan, look);
    }
    if !confirm(plan, look) {
        roll_back(plan, look);
    }
}

/// A step of a migration, which whoever watches the volume should see.
fn tell(plan: &mut Plan<Change>, look: &Look<'_>, reason: Reason, words: String) {
    plan.tells(Event::normal(look.volume, reason, words.clone()));
    plan.fires(MIGRATE, look.about.clone(), reason, words);
}

/// A pod's ticket that wants the volume on `node` as it is shown.
fn pod_ticket<'a>(look: &Look<'a>, on: impl Fn(&str) -> bool) -> Option<&'a Ticket> {
    let frontend = look.wish.disable_frontend;
    let fits =
        |ticket: &&Ticket| ticket.kind == TicketType::Csi && on(&ticket.node_id) && ticket.fits_frontend(frontend);
    look.tickets.iter().copied().filter(|ticket| look.counts(ticket)).find(fits)
}

fn start(plan: &mut Plan<Change>, look: &mut Look<'_>) {
    let (spec_node, status) = (look.wish.node.as_str(), &look.volume.status);
    let settled = status.state == State::Attached && status.current_node_id == spec_node;
    if !settled || pod_ticket(look, |node| node == spec_node).is_none() {
        return;
    }
    let Some(ticket) = pod_ticket(look, |node| node != spec_node) else { return };
    let target = &ticket.node_id;
    if let Some(reason) = not_ready(look, target) {
        let words = format!(
            "Pending migration attachment ticket {:?}: target node {target} not ready (reason: {reason})",
            ticket.id
        );
        return plan.blocked(MIGRATE, look.about.clone(), Reason::MigrationTargetNotReady, words);
    }
    let words = format!("Starting migration from node {spec_node} to node {target}");
    tell(plan, look, Reason::MigrationStarted, words);
    look.wish.migration_node.clone_from(target);
}

/// Why a node cannot be a migration's target.
pub(super) fn not_ready(look: &Look<'_>, node: &str) -> Option<String> {
    let Some(object) = look.observed.nodes.get(node) else { return Some("the node does not exist".to_owned()) };
    if object.is_ready() {
        return None;
    }
    let ready = condition::find(&object.status.conditions, READY);
    Some(ready.map_or("Unknown".to_owned(), |ready| ready.reason.clone()))
}

/// True if the first node was given up, whether or not the second can take over yet.
fn confirm(plan: &mut Plan<Change>, look: &mut Look<'_>) -> bool {
    let (from, to) = (look.wish.node.clone(), look.volume.status.current_migration_node_id.clone());
    // What was rolled back is not confirmed, even while its engine is still there.
    let under_way = !to.is_empty() && look.wish.migration_node == to;
    if !under_way || pod_ticket(look, |node| node == from).is_some() {
        return false;
    }
    let about = look.about.clone();
    if look.observed.nodes.get(to.as_str()).is_none_or(|node| node.is_down()) {
        let words = format!("Detaching volume for attempted migration to down node {to}");
        tell(plan, look, Reason::MigrationTargetDown, words);
        look.wish.node.clear();
        look.wish.migration_node.clear();
        return true;
    }
    if !look.is_available_on(&to) {
        // If the second ticket is gone as well, there is nothing to wait for.
        if pod_ticket(look, |node| node == to).is_none() {
            return false;
        }
        let words = "Waiting to confirm migration until migration engine is ready";
        plan.blocked(MIGRATE, about, Reason::MigrationEngineNotReady, words);
        return true;
    }
    // Longhorn also compares the snapshots of both engines. Here both have the same replicas, which have one set of them.
    let words = format!("Confirming migration from node {from} to node {to}");
    tell(plan, look, Reason::MigrationConfirmed, words);
    look.wish.node = to;
    look.wish.migration_node.clear();
    true
}

fn roll_back(plan: &mut Plan<Change>, look: &mut Look<'_>) {
    let target = look.wish.migration_node.clone();
    if target.is_empty() || pod_ticket(look, |node| node == target).is_some() {
        return;
    }
    let words = format!("Rolling back migration to node {target}");
    tell(plan, look, Reason::MigrationRolledBack, words);
    look.wish.migration_node.clear();
}
