//! Which ticket a detached volume follows: the one of the highest priority, of several the one with the smallest id.

use tether_crd::attachment::{LAST_ATTACHED_BY, Ticket, TicketType};
use tether_crd::volume::{Robustness, State};
use tether_model::reason::Reason;
use tether_model::report::Rule;

use super::{Change, Look, named, rank};
use crate::Plan;

pub(super) const ATTACH: Rule = Rule("attach");

/// What the tickets of a volume come down to.
pub(super) enum Choice<'a> {
    Nobody,
    Ticket(&'a Ticket),
    /// Two pods want a volume that was migrating and is now attached nowhere: which of them is right, only they know.
    Unresolved(&'a Ticket, &'a Ticket),
}

pub(super) fn step(plan: &mut Plan<Change>, look: &mut Look<'_>) {
    if !look.wish.node.is_empty() {
        return;
    }
    if let Some((reason, words)) = why_not(look) {
        return plan.blocked(ATTACH, look.about.clone(), reason, words);
    }
    match choose(look) {
        Choice::Nobody => {
            if let Some((reason, words)) = look.copy.as_ref().filter(|_| !look.tickets.is_empty()) {
                let words = format!("No ticket is followed yet: {words}");
                return plan.blocked(ATTACH, look.about.clone(), *reason, words);
            }
            let words = format!("No ticket wants volume {}.", look.name());
            plan.rests(ATTACH, look.about.clone(), Reason::NoTicket, words);
        }
        Choice::Unresolved(a, b) => {
            plan.blocked(ATTACH, look.about.clone(), Reason::MigrationUnresolved, unresolved(a, b));
        }
        Choice::Ticket(ticket) => {
            let node = &ticket.node_id;
            let words = format!("Volume {} is selected to attach to node {node}, {}", look.name(), named(ticket));
            plan.fires(ATTACH, look.about.clone(), Reason::TicketChosen, words);
            look.wish.node.clone_from(node);
            look.wish.disable_frontend = ticket.disable_frontend().unwrap_or(look.wish.disable_frontend);
            look.wish.last_attached_by = ticket.parameters.get(LAST_ATTACHED_BY).cloned().unwrap_or_default();
        }
    }
}

/// Why no ticket can be followed now.
fn why_not(look: &Look<'_>) -> Option<(Reason, String)> {
    let (name, status) = (look.name(), &look.volume.status);
    if status.state != State::Detached {
        let state = if status.state == State::Unset { "new" } else { status.state.as_str() };
        return Some((Reason::NotDetached, format!("Volume {name} is {state}; it is attached when it is detached.")));
    }
    if look.is_migrating() {
        return Some((Reason::Migrating, format!("A migration of volume {name} is not cleared up yet.")));
    }
    if status.robustness == Robustness::Faulted {
        let words = format!("Volume {name} is faulted; it is attached again when a replica can serve.");
        return Some((Reason::Faulted, words));
    }
    None
}

/// Which ticket the volume would follow if it were detached.
pub(super) fn choose<'a>(look: &Look<'a>) -> Choice<'a> {
    let candidates = || look.tickets.iter().copied().filter(|ticket| look.counts(ticket));
    let Some(first) = candidates().min_by_key(|ticket| rank(ticket)) else { return Choice::Nobody };
    let priority = first.kind.priority();
    let rival = candidates().find(|other| other.kind.priority() == priority && other.id != first.id);
    match rival {
        Some(rival) if look.volume.is_migratable() && priority == TicketType::Csi.priority() => {
            Choice::Unresolved(first, rival)
        }
        _ => Choice::Ticket(first),
    }
}

pub(super) fn unresolved(a: &Ticket, b: &Ticket) -> String {
    format!("Volume migration between {} and {} failed; detach volume from extra node to resume", a.node_id, b.node_id)
}
