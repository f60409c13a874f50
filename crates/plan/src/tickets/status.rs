//! What each ticket is told: whether it is satisfied, and if not, what it waits for.
//!
//! The condition has Longhorn's words, some of which are no words at all; `waiting` says the rest: why, behind how many others, since when.
//!
//! A ticket that is about to be satisfied is told nothing in between. An attachment takes a fraction of a second, and a status that says "not
//! yet" would double its writes; one that takes longer says so.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use tether_crd::attachment::{REASON_INCOMPATIBLE, SATISFIED, Ticket, TicketStatus, TicketType, Waiting};
use tether_crd::condition;
use tether_crd::volume::{Robustness, ShareState, State};
use tether_model::reason::Reason;
use tether_model::report::{Rule, Subject};

use super::migrate::not_ready;
use super::select::{Choice, choose, unresolved};
use super::{Change, Look, named, rank};
use crate::Plan;
use crate::object::subject;

const STATUS: Rule = Rule("ticket-status");
/// How long a ticket that is being satisfied is told nothing: several times what an attachment takes, and still before a person looks.
const PATIENCE: SignedDuration = SignedDuration::from_secs(2);

/// What is the case with one ticket.
struct Verdict {
    satisfied: bool,
    /// Reason and message of the condition.
    reason: &'static str,
    message: String,
    /// Why it is not satisfied.
    waits: Option<(Reason, String)>,
}

impl Verdict {
    fn satisfied(message: &str) -> Self {
        Self { satisfied: true, reason: "", message: message.to_owned(), waits: None }
    }

    fn waiting(reason: &'static str, message: impl Into<String>, why: Reason, words: String) -> Self {
        Self { satisfied: false, reason, message: message.into(), waits: Some((why, words)) }
    }
}

/// The statuses that have to be written.
pub(super) fn step(plan: &mut Plan<Change>, look: &Look<'_>, now: Timestamp) -> BTreeMap<String, Option<TicketStatus>> {
    let attachment = look.observed.attachment;
    let told = &attachment.status.attachment_ticket_statuses;
    let about = Subject { name: attachment.metadata.name.clone().unwrap_or_default(), ..subject(attachment) };
    let verdicts: Vec<(&Ticket, Verdict)> = look.tickets.iter().map(|ticket| (*ticket, judge(look, ticket))).collect();
    let mut statuses = BTreeMap::new();
    for (ticket, verdict) in &verdicts {
        let before = told.get(&ticket.id);
        let position = verdicts.iter().filter(|(other, v)| !v.satisfied && rank(other) < rank(ticket)).count();
        let noticed = look.observed.noticed.get(ticket.id.as_str()).copied().unwrap_or(now);
        let status = status(ticket, verdict, before, position as i64, noticed, now);
        match &verdict.waits {
            None => {
                let words = format!("The {} is satisfied on node {}.", named(ticket), ticket.node_id);
                plan.rests(STATUS, about.clone(), Reason::TicketSatisfied, words);
            }
            Some((reason, words)) => {
                let words = format!("The {} waits: {words}", named(ticket));
                let until = noticed + PATIENCE;
                let expected = matches!(reason, Reason::Attaching | Reason::Detaching);
                if expected && now < until && !before.is_some_and(|before| before.satisfied) {
                    plan.waits(STATUS, about.clone(), *reason, words, until);
                    continue;
                }
                plan.blocked(STATUS, about.clone(), *reason, words);
            }
        }
        if before != Some(&status) {
            statuses.insert(ticket.id.clone(), Some(status));
        }
    }
    let left = told.keys().filter(|id| !look.tickets.iter().any(|ticket| ticket.id == **id));
    statuses.extend(left.map(|id| (id.clone(), None)));
    statuses
}

fn status(
    ticket: &Ticket,
    verdict: &Verdict,
    before: Option<&TicketStatus>,
    position: i64,
    noticed: Timestamp,
    now: Timestamp,
) -> TicketStatus {
    let mut conditions = before.map(|before| before.conditions.clone()).unwrap_or_default();
    let word = if verdict.satisfied { condition::TRUE } else { condition::FALSE };
    condition::set(&mut conditions, SATISFIED, word, verdict.reason, &verdict.message, now);
    let waiting = verdict.waits.as_ref().map(|(reason, words)| {
        let same_wish = before.filter(|before| before.generation == ticket.generation);
        let before = same_wish.and_then(|before| before.waiting.as_ref());
        Waiting {
            reason: reason.code().to_owned(),
            message: words.clone(),
            position,
            since: before.map_or_else(|| condition::rfc3339(noticed), |before| before.since.clone()),
        }
    });
    let (id, generation) = (ticket.id.clone(), ticket.generation);
    TicketStatus { id, satisfied: verdict.satisfied, conditions, generation, waiting }
}

/// Longhorn's table: the first case that matches counts.
fn judge(look: &Look<'_>, ticket: &Ticket) -> Verdict {
    let (name, status) = (look.name(), &look.volume.status);
    if let Some((reason, words)) = look.waits_for_copy(ticket) {
        return Verdict::waiting(reason.code(), words.clone(), *reason, words.clone());
    }
    if look.is_through_share(ticket) {
        if status.share_state == ShareState::Running && !status.share_endpoint.is_empty() {
            return Verdict::satisfied("The attachment ticket is satisfied");
        }
        let message = "Waiting for volume share to be available";
        let words = format!("Volume {name} is shared, and its share is not available yet.");
        return Verdict::waiting("", message, Reason::ShareNotReady, words);
    }
    let target = &status.current_migration_node_id;
    let migrates = look.volume.is_migratable() && look.is_migrating() && !target.is_empty();
    if migrates && ticket.kind == TicketType::Csi && ticket.node_id == *target {
        if look.is_available_on(target) {
            return Verdict::satisfied("The migrating attachment ticket is satisfied");
        }
        let message = format!("waiting for volume to migrate to node {target}");
        let words = format!("Volume {name} is migrating; its engine on node {target} is not ready yet.");
        return Verdict::waiting("", message, Reason::MigrationEngineNotReady, words);
    }
    let current = &status.current_node_id;
    if current.is_empty() || status.state != State::Attached {
        let (reason, words) = not_attached(look, ticket);
        return Verdict::waiting("", "", reason, words);
    }
    if ticket.node_id != *current {
        let message = format!("the volume is currently attached to different node {current} ");
        let (reason, words) = elsewhere(look, ticket, current);
        return Verdict::waiting("", message, reason, words);
    }
    if !ticket.fits_frontend(look.wish.disable_frontend) {
        let message = format!("volume {name} has already attached to node {current} with incompatible parameters");
        let (with, wants) = if look.wish.disable_frontend { ("without", "with") } else { ("with", "without") };
        let words = format!(
            "Volume {name} is attached to node {current} {with} a frontend, and this ticket wants it {wants} one; {}",
            until_released(look)
        );
        return Verdict::waiting(REASON_INCOMPATIBLE, message, Reason::AttachedWithIncompatibleParameters, words);
    }
    Verdict::satisfied("")
}

/// Why a ticket waits while the volume is attached nowhere.
fn not_attached(look: &Look<'_>, ticket: &Ticket) -> (Reason, String) {
    let (name, node) = (look.name(), &look.wish.node);
    if look.volume.status.robustness == Robustness::Faulted {
        return (Reason::Faulted, format!("volume {name} is faulted; it is attached when a replica can serve."));
    }
    if !node.is_empty() {
        if look.fits(ticket, node) {
            return (Reason::Attaching, format!("volume {name} is being attached to node {node}."));
        }
        return (Reason::BehindOtherTicket, format!("volume {name} is going to node {node}; {}", until_released(look)));
    }
    match choose(look) {
        Choice::Unresolved(a, b) => (Reason::MigrationUnresolved, unresolved(a, b)),
        Choice::Ticket(first) if look.fits(ticket, &first.node_id) => {
            (Reason::Detaching, format!("volume {name} is not detached yet; this ticket is next."))
        }
        Choice::Ticket(first) => (Reason::BehindOtherTicket, format!("the {} comes first.", named(first))),
        Choice::Nobody => (Reason::NotDetached, format!("volume {name} is not attached.")),
    }
}

/// Why a ticket waits while the volume is on another node.
fn elsewhere(look: &Look<'_>, ticket: &Ticket, current: &str) -> (Reason, String) {
    let name = look.name();
    if look.wish.node.is_empty() {
        if matches!(choose(look), Choice::Ticket(first) if first.id == ticket.id) {
            return (
                Reason::Detaching,
                format!("volume {name} is being detached from node {current}; this ticket is next."),
            );
        }
        return (Reason::BehindOtherTicket, format!("volume {name} is being detached from node {current}."));
    }
    let pods = look.volume.is_migratable() && ticket.kind == TicketType::Csi;
    if pods && look.wish.migration_node == ticket.node_id {
        return (
            Reason::MigrationEngineNotReady,
            format!("volume {name} begins to migrate to node {}.", ticket.node_id),
        );
    }
    if pods && look.wish.migration_node.is_empty() && look.wish.node == current {
        // The second attachment of a volume that can move is a wish to move it.
        if let Some(why) = not_ready(look, &ticket.node_id) {
            let node = &ticket.node_id;
            let words = format!("volume {name} moves from node {current} to node {node} when that is ready ({why}).");
            return (Reason::MigrationTargetNotReady, words);
        }
    }
    (Reason::AttachedElsewhere, format!("volume {name} is attached to node {current}; {}", until_released(look)))
}

/// Who has to let go of the volume.
fn until_released(look: &Look<'_>) -> String {
    let holders: Vec<String> = look.holders().map(named).collect();
    match holders.as_slice() {
        [] => "nobody holds it there.".to_owned(),
        [one] => format!("the {one} holds it there until it is removed."),
        many => format!("{} hold it there until they are removed.", many.join(", ")),
    }
}
