//! Volumes that lost a replica while nobody uses them: attached by a ticket of their own until they are whole again.
//!
//! Only where it is switched on, and never in the way of anybody: the ticket goes when one of higher priority comes.

use tether_crd::attachment::{ANY, TicketType};
use tether_crd::condition;
use tether_crd::volume::{Choice, Robustness, State, conditions};
use tether_model::reason::Reason;
use tether_model::report::Rule;

use super::create::place;
use super::draft::Draft;
use super::rebuild::{is_potentially_reusable, is_usable};
use super::tickets::{self, Wish};

const OFFLINE: Rule = Rule("offline-rebuild");

pub(super) fn rebuild(draft: &mut Draft<'_>) {
    let wish = wish(draft);
    if wish == Wish::Hold {
        draft.fires(OFFLINE, Reason::RebuildInProgress, "The volume is attached to get back a replica that it lost.");
    }
    tickets::set(draft, TicketType::Rebuilding, wish, ANY);
    let held = condition::find(&draft.status.conditions, conditions::OFFLINE_REBUILDING).is_some();
    if wish == Wish::Hold || held {
        let (word, reason) = match wish {
            Wish::Hold => (condition::TRUE, "OfflineRebuildingInProgress"),
            _ => (condition::FALSE, ""),
        };
        condition::set(&mut draft.status.conditions, conditions::OFFLINE_REBUILDING, word, reason, "", draft.now);
    }
}

fn wish(draft: &Draft<'_>) -> Wish {
    let volume = draft.volume();
    let enabled = match volume.spec.offline_rebuilding {
        Choice::Ignored => draft.observed.settings.offline_rebuilding,
        Choice::Enabled => true,
        Choice::Disabled => false,
    };
    let others = draft.observed.attachment.into_iter().flat_map(|held| held.spec.attachment_tickets.values());
    let mine = TicketType::Rebuilding.priority();
    let is_wanted = others.into_iter().any(|ticket| ticket.kind.priority() > mine);
    if !enabled || is_wanted || draft.record().is_none() || draft.status.robustness == Robustness::Faulted {
        return Wish::Drop;
    }
    let wanted = usize::try_from(volume.spec.number_of_replicas).unwrap_or(0);
    let usable = draft.replicas.iter().filter(|replica| is_usable(replica)).count();
    match draft.status.state {
        State::Detached if usable < wanted => {
            let possible = draft.replicas.iter().any(is_potentially_reusable) || place(draft, None).is_ok();
            if possible { Wish::Hold } else { Wish::Drop }
        }
        State::Detached => Wish::Drop,
        State::Attached if draft.status.robustness == Robustness::Healthy => Wish::Drop,
        State::Attached if condition::status(&draft.status.conditions, conditions::SCHEDULED) == condition::FALSE => {
            Wish::Drop
        }
        _ => Wish::Leave,
    }
}
