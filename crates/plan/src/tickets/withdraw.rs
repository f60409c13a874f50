//! Tickets that nobody wants any more: their owner is gone, or a person's volume is on a node that is being emptied.

use std::collections::BTreeSet;

use tether_crd::Volume;
use tether_crd::attachment::{Ticket, TicketType};
use tether_crd::settings::DETACH_MANUALLY_ATTACHED_VOLUMES_WHEN_CORDONED as WHEN_CORDONED;
use tether_model::reason::Reason;
use tether_model::report::Rule;

use super::{Change, Observed, OwnerSeen, named};
use crate::Plan;
use crate::event::Event;
use crate::object::subject;

const OWNER: Rule = Rule("ticket-owner");
const CORDON: Rule = Rule("cordoned-manual-ticket");

/// The tickets that go.
pub(super) fn step(plan: &mut Plan<Change>, observed: &Observed<'_>, volume: &Volume) -> BTreeSet<String> {
    let tickets = observed.attachment.spec.attachment_tickets.values();
    let gone = |ticket: &&Ticket| owner_is_gone(plan, observed, ticket);
    let mut withdrawn: BTreeSet<String> = tickets.clone().filter(gone).map(|ticket| ticket.id.clone()).collect();
    let manual = tickets.filter(|ticket| ticket.kind == TicketType::Api && !withdrawn.contains(&ticket.id));
    let cordoned: Vec<&Ticket> = manual.filter(|ticket| observed.cordoned.contains(ticket.node_id.as_str())).collect();
    let detach = observed.settings.flag(WHEN_CORDONED);
    for ticket in cordoned {
        let about = subject(observed.attachment);
        if detach {
            let words = format!("Deleting manual attachment ticket {:?} due to node is unschedulable", ticket.id);
            plan.fires(CORDON, about, Reason::NodeUnschedulable, words);
            withdrawn.insert(ticket.id.clone());
        } else {
            let words = format!("Failed to detach manually attached volume due to {WHEN_CORDONED} is set to false");
            plan.blocked(CORDON, about, Reason::NodeUnschedulable, words.clone());
            plan.tells(Event::warning(volume, Reason::DetachedUnexpectedly, words));
        }
    }
    withdrawn
}

fn owner_is_gone(plan: &mut Plan<Change>, observed: &Observed<'_>, ticket: &Ticket) -> bool {
    let Some(owner) = &ticket.owner else { return false };
    let about = subject(observed.attachment);
    let place = if owner.namespace.is_empty() { String::new() } else { format!("{}/", owner.namespace) };
    let object = format!("{} {place}{}", owner.kind, owner.name);
    match observed.owners.get(owner.uid.as_str()).copied().unwrap_or(OwnerSeen::Unknown) {
        OwnerSeen::Exists => false,
        OwnerSeen::Gone => {
            let words = format!("The {} goes with its owner: {object} is gone.", named(ticket));
            plan.fires(OWNER, about, Reason::OwnerGone, words);
            true
        }
        OwnerSeen::Unknown => {
            let words =
                format!("Whether {object}, the owner of the {}, exists is not known; the ticket stays.", named(ticket));
            plan.blocked(OWNER, about, Reason::OwnerNotSeen, words);
            false
        }
    }
}
