//! Attachment tickets: where a volume is to be, given everybody's wishes.
//!
//! A VolumeAttachment holds one ticket for each party that wants the volume somewhere. The volume says where it is and where it is going.
//! One look goes through five steps in this order, each seeing what the ones before it decided:
//!
//! ```text
//!   tickets ──► 1 withdraw   tickets whose owner is gone, manual ones on a cordoned node
//!               2 detach     faulted, nobody wants it where it is, or a workload interrupts
//!               3 attach     fully detached: highest priority, then smallest id
//!               4 migrate    start, confirm, roll back, cancel
//!               5 tell       the status of each ticket, and what it waits for
//! ```
//!
//! The steps, texts and priorities are Longhorn's. Three things are not: a ticket may name its owner and goes with it, a ticket that is not
//! satisfied says what it waits for, and while a volume is being made as a copy nobody's ticket counts but the copy's own.

mod detach;
mod migrate;
mod select;
mod status;
mod withdraw;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use tether_crd::attachment::{Ticket, TicketStatus, TicketType};
use tether_crd::settings::Settings;
use tether_crd::volume::CloneState;
use tether_crd::{Engine, FINALIZER, Node, Volume, VolumeAttachment};
use tether_model::reason::Reason;
use tether_model::report::{Rule, Subject};

use crate::Plan;
use crate::clone::{incomplete, is_own_ticket};
use crate::object::{Target, is_deleting, subject};

const VOLUME_GONE: Rule = Rule("volume-gone");

/// What a decision about the tickets of one volume rests on.
#[derive(Clone, Debug)]
pub struct Observed<'a> {
    pub attachment: &'a VolumeAttachment,
    /// None: it does not exist.
    pub volume: Option<&'a Volume>,
    /// The volume's engines.
    pub engines: Vec<&'a Engine>,
    /// The nodes that tickets and volume name, as far as they exist.
    pub nodes: BTreeMap<&'a str, &'a Node>,
    /// Those of them that are cordoned.
    pub cordoned: BTreeSet<&'a str>,
    /// Whether the owners of tickets exist, by uid; one that is not here is unknown.
    pub owners: BTreeMap<&'a str, OwnerSeen>,
    /// When each ticket was first seen as it is; one that is not here is seen now.
    pub noticed: BTreeMap<&'a str, Timestamp>,
    pub settings: &'a Settings,
}

/// What is known of the owner of a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerSeen {
    Exists,
    /// There is no such object, or it is another one of the same name.
    Gone,
    /// Its kind is not served, or the question was not answered.
    Unknown,
}

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The volume is gone, and with it the reason to keep its tickets.
    Release { attachment: Target },
    /// Where the volume is to be.
    SetVolume { volume: Target, wish: Wish },
    /// Tickets that nobody wants any more.
    Withdraw { attachment: Target, tickets: BTreeSet<String> },
    /// The statuses that changed, by ticket; none: it has no ticket any more.
    SetStatus { attachment: Target, statuses: BTreeMap<String, Option<TicketStatus>> },
}

/// The part of a volume's spec that tickets decide.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    pub node: String,
    pub migration_node: String,
    pub disable_frontend: bool,
    pub last_attached_by: String,
}

impl Wish {
    /// As the volume has it.
    pub fn of(volume: &Volume) -> Self {
        Self {
            node: volume.spec.node_id.clone(),
            migration_node: volume.spec.migration_node_id.clone(),
            disable_frontend: volume.spec.disable_frontend,
            last_attached_by: volume.spec.last_attached_by.clone(),
        }
    }
}

/// Decides where the volume is to be, and what its tickets are told.
pub fn decide(observed: &Observed<'_>, now: Timestamp) -> Plan<Change> {
    let mut plan = Plan::default();
    let Some(volume) = observed.volume else {
        without_volume(&mut plan, observed.attachment);
        return plan;
    };
    if is_deleting(volume) {
        let words = "The volume is being deleted; its tickets no longer count.";
        plan.rests(detach::DETACH, subject(volume), Reason::BeingDeleted, words);
        return plan;
    }
    let withdrawn = withdraw::step(&mut plan, observed, volume);
    let mut look = Look {
        observed,
        volume,
        about: subject(volume),
        tickets: Vec::new(),
        wish: Wish::of(volume),
        copy: incomplete(volume),
    };
    look.tickets =
        observed.attachment.spec.attachment_tickets.values().filter(|t| !withdrawn.contains(&t.id)).collect();
    detach::step(&mut plan, &mut look);
    select::step(&mut plan, &mut look);
    let was_migrating = look.is_migrating();
    migrate::step(&mut plan, &mut look);
    if was_migrating && !look.is_migrating() {
        // A migration that ends before it began no longer keeps the volume where it is.
        detach::step(&mut plan, &mut look);
        select::step(&mut plan, &mut look);
    }
    let mut changes = Vec::new();
    if look.wish != Wish::of(volume) {
        changes.push(Change::SetVolume { volume: Target::of(volume), wish: look.wish.clone() });
    }
    if !withdrawn.is_empty() {
        changes.push(Change::Withdraw { attachment: Target::of(observed.attachment), tickets: withdrawn });
    }
    let statuses = status::step(&mut plan, &look, now);
    if !statuses.is_empty() {
        changes.push(Change::SetStatus { attachment: Target::of(observed.attachment), statuses });
    }
    plan.changes = changes;
    plan
}

fn without_volume(plan: &mut Plan<Change>, attachment: &VolumeAttachment) {
    let about = subject(attachment);
    let held = attachment.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER);
    if !is_deleting(attachment) {
        let words = format!(
            "Volume {:?} does not exist; its tickets go when the attachment is deleted.",
            attachment.spec.volume
        );
        plan.rests(VOLUME_GONE, about, Reason::ObjectMissing, words);
    } else if held {
        let words = format!("Volume {:?} is gone.", attachment.spec.volume);
        let change = Change::Release { attachment: Target::of(attachment) };
        plan.acts(VOLUME_GONE, about, Reason::ObjectMissing, words, change);
    }
}

/// A volume, its tickets that count, and where it is to be as far as that is decided.
struct Look<'a> {
    observed: &'a Observed<'a>,
    volume: &'a Volume,
    about: Subject,
    /// In the order of their ids.
    tickets: Vec<&'a Ticket>,
    wish: Wish,
    /// Why it is shown to nobody: it is being made as a copy.
    copy: Option<(Reason, String)>,
}

impl<'a> Look<'a> {
    fn name(&self) -> &str {
        &self.about.name
    }

    /// Whether a ticket has a say in where the volume is.
    fn counts(&self, ticket: &Ticket) -> bool {
        !self.is_through_share(ticket) && self.waits_for_copy(ticket).is_none()
    }

    /// A pod that uses a shared volume gets it through the share.
    fn is_through_share(&self, ticket: &Ticket) -> bool {
        self.volume.is_regular_rwx() && ticket.kind == TicketType::Csi
    }

    /// Why a ticket has to wait until the volume is the copy that it is to be. That includes tickets that need no frontend:
    /// they would hold the volume where the copy cannot be made, or work on what is half copied.
    fn waits_for_copy(&self, ticket: &Ticket) -> Option<&(Reason, String)> {
        self.copy.as_ref().filter(|_| !is_own_ticket(self.volume, ticket))
    }

    /// Whether a ticket wants the volume on `node`, as it is shown there.
    fn fits(&self, ticket: &Ticket, node: &str) -> bool {
        ticket.node_id == node && ticket.fits_frontend(self.wish.disable_frontend)
    }

    /// The tickets that want the volume where it is to be.
    fn holders(&self) -> impl Iterator<Item = &'a Ticket> {
        self.tickets.iter().copied().filter(|ticket| self.counts(ticket) && self.fits(ticket, &self.wish.node))
    }

    /// Whether a ticket gives way to a workload on another node.
    fn is_interruptible(&self, ticket: &Ticket) -> bool {
        match ticket.kind {
            TicketType::Snapshot | TicketType::Backup => true,
            TicketType::Clone => self.volume.status.clone_status.state == CloneState::CopyCompletedAwaitingHealthy,
            _ => false,
        }
    }

    /// Whether a migration is wanted or under way, as far as is decided.
    fn is_migrating(&self) -> bool {
        !self.wish.migration_node.is_empty() || !self.volume.status.current_migration_node_id.is_empty()
    }

    /// Whether an engine serves the volume on `node`.
    fn is_available_on(&self, node: &str) -> bool {
        self.observed.engines.iter().any(|engine| engine.is_available_on(node))
    }
}

/// How a ticket is named in words.
fn named(ticket: &Ticket) -> String {
    format!("{} ticket {:?}", ticket.kind, ticket.id)
}

/// Which of several tickets a detached volume follows: the first.
fn rank(ticket: &Ticket) -> (std::cmp::Reverse<i32>, &str) {
    (std::cmp::Reverse(ticket.kind.priority()), &ticket.id)
}
