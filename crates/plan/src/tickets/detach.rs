//! When a volume leaves its node: it is faulted, nobody wants it there, or a workload interrupts what can be interrupted.

use tether_crd::volume::Robustness;
use tether_model::reason::Reason;
use tether_model::report::Rule;

use super::{Change, Look, Wish, named};
use crate::Plan;

pub(super) const DETACH: Rule = Rule("detach");

pub(super) fn step(plan: &mut Plan<Change>, look: &mut Look<'_>) {
    if look.wish.node.is_empty() {
        return;
    }
    let node = look.wish.node.clone();
    let why = match why(look) {
        Ok(why) => why,
        Err((reason, words)) => return plan.rests(DETACH, look.about.clone(), reason, words),
    };
    let (reason, because) = why;
    let words = format!("Volume {} is selected to detach from node {node}. {because}", look.name());
    plan.fires(DETACH, look.about.clone(), reason, words);
    // A migration's target is cleared by the step that owns it.
    look.wish = Wish { migration_node: std::mem::take(&mut look.wish.migration_node), ..Wish::default() };
}

/// Why the volume leaves; or why it stays.
fn why(look: &Look<'_>) -> Result<(Reason, String), (Reason, String)> {
    let (name, node) = (look.name(), &look.wish.node);
    if look.volume.status.robustness == Robustness::Faulted {
        return Ok((
            Reason::Faulted,
            format!("Volume {name} is faulted; it is attached again when a replica can serve."),
        ));
    }
    if look.volume.is_migratable() && look.is_migrating() {
        return Err((Reason::Migrating, format!("Volume {name} is migrating, which decides where it goes.")));
    }
    let mut holders = look.holders().peekable();
    let Some(first) = holders.peek() else {
        let kept_off = look.tickets.iter().find(|ticket| look.fits(ticket, node));
        if let Some((reason, words)) = kept_off.and_then(|ticket| look.waits_for_copy(ticket)) {
            return Ok((*reason, format!("Should detach volume {name} because nobody may use it yet: {words}")));
        }
        let words = format!("Should detach volume {name} because there is no matching attachment ticket");
        return Ok((Reason::NoMatchingTicket, words));
    };
    let stays = format!("The {} wants volume {name} on node {node}.", named(first));
    if !holders.all(|ticket| look.is_interruptible(ticket)) {
        return Err((Reason::TicketMatches, stays));
    }
    let workload =
        |ticket: &&&super::Ticket| look.counts(ticket) && ticket.node_id != *node && ticket.kind.is_workload();
    match look.tickets.iter().find(workload) {
        Some(workload) => {
            let words = format!(
                "Workload attachment ticket interrupted snapshot/backup attachment tickets: the {} wants it on node {}",
                named(workload),
                workload.node_id
            );
            Ok((Reason::WorkloadInterrupts, words))
        }
        None => Err((Reason::TicketMatches, stays)),
    }
}
