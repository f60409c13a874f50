//! A volume that begins as a copy of another one: a snapshot of the source is copied into it before anybody may use it.
//!
//! ```text
//!   source attached, its snapshot there    both attached             copied
//!   "" ─────────────────────────────────► initiated ──────────────────────► awaiting healthy ──► completed
//!    ▲                                        │ could not be copied
//!    └───── after 30 s, 1 min, 2 min … ── failed
//! ```
//!
//! The engine of the new volume runs, without showing it to anybody, on a node that holds a good replica of the source;
//! the agent there reads the snapshot from that replica and writes it through the engine, which stores it in every
//! replica. A snapshot does not change: a copy that was interrupted is made again from its beginning and ends the same.
//! Tickets on both volumes keep them where they are needed; until the copy is complete no other ticket counts.

mod incomplete;
mod place;
mod source;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use tether_crd::attachment::{ANY, DISABLE_FRONTEND, Owner, Ticket, TicketType};
use tether_crd::condition::rfc3339;
use tether_crd::engine::CloneProgress;
use tether_crd::volume::{CloneState, CloneStatus, Robustness, State};
use tether_crd::{API_VERSION, Engine, Node, Replica, Snapshot, Volume, VolumeAttachment, names};
use tether_model::reason::Reason;
use tether_model::report::{Rule, Subject};

pub use self::incomplete::{incomplete, is_own_ticket};
pub use self::source::Source;
use crate::Plan;
use crate::event::Event;
use crate::object::{Target, is_deleting, name, namespace, subject, uid};

const CLONE: Rule = Rule("clone");
const TICKET: Rule = Rule("clone-ticket");
const SNAPSHOT: Rule = Rule("clone-snapshot");

/// How often a copy is tried.
pub(crate) const ATTEMPTS: i64 = 10;
/// Before the second attempt; doubled for each further one.
const FIRST_PAUSE: SignedDuration = SignedDuration::from_secs(30);
/// What an agent says of a copy that is done.
pub const COMPLETE: &str = "complete";
/// What an agent says of a copy that failed.
pub const FAILED: &str = "error";
/// What an agent says of a copy that goes on.
pub const IN_PROGRESS: &str = "in_progress";
/// On a snapshot that was made for a clone: the clone.
pub const FOR_CLONE: &str = "longhorn.io/for-cloning-volume";

/// A volume that is or is to be a clone, and its source.
#[derive(Clone, Debug)]
pub struct Observed<'a> {
    pub volume: &'a Volume,
    pub attachment: Option<&'a VolumeAttachment>,
    pub engines: Vec<&'a Engine>,
    /// None: it does not exist.
    pub source: Option<&'a Volume>,
    pub source_attachment: Option<&'a VolumeAttachment>,
    pub source_engines: Vec<&'a Engine>,
    pub source_replicas: Vec<&'a Replica>,
    pub source_snapshots: Vec<&'a Snapshot>,
    pub nodes: BTreeMap<&'a str, &'a Node>,
    /// Nodes whose instance manager runs.
    pub running_managers: BTreeSet<&'a str>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Of the source, for the clone.
    CreateSnapshot {
        name: String,
        volume: String,
        clone: String,
    },
    DeleteSnapshot {
        snapshot: Target,
    },
    SetTicket {
        attachment: Target,
        id: String,
        ticket: Option<Box<Ticket>>,
    },
    /// What the engine of the clone is to be filled with; empty: nothing.
    Request {
        engine: Target,
        source: String,
    },
    SetStatus {
        volume: Target,
        status: CloneStatus,
    },
}

/// Whether the volume may not be used yet, because it is to be a copy of something and is not.
pub fn is_pending(volume: &Volume) -> bool {
    let done = [CloneState::CopyCompletedAwaitingHealthy, CloneState::Completed];
    Source::of(volume).is_some() && !done.contains(&volume.status.clone_status.state)
}

/// Decides what is to be done for a clone.
pub fn decide(observed: &Observed<'_>, now: Timestamp) -> Plan<Change> {
    let mut plan = Plan::default();
    let volume = observed.volume;
    let Some(source) = Source::of(volume) else { return plan };
    if is_deleting(volume) {
        return plan;
    }
    let look = Look { observed, source, now };
    match volume.status.clone_status.state {
        CloneState::Unset | CloneState::Initiated => copy(&mut plan, &look),
        CloneState::Failed => retry(&mut plan, &look),
        CloneState::CopyCompletedAwaitingHealthy => finish(&mut plan, &look),
        CloneState::Completed => withdraw(&mut plan, &look),
    }
    plan
}

struct Look<'a> {
    observed: &'a Observed<'a>,
    source: Source,
    now: Timestamp,
}

impl<'a> Look<'a> {
    fn about(&self) -> Subject {
        subject(self.observed.volume)
    }

    fn status(&self) -> &'a CloneStatus {
        &self.observed.volume.status.clone_status
    }

    /// The snapshot that is copied: the one that was asked for, or one that is made for it.
    fn snapshot_name(&self) -> String {
        let source = self.observed.source.map_or("", uid);
        self.source.snapshot.clone().unwrap_or_else(|| names::clone_snapshot(source, uid(self.observed.volume)))
    }

    fn snapshot(&self, name: &str) -> Option<&'a Snapshot> {
        self.observed.source_snapshots.iter().copied().find(|snapshot| crate::object::name(*snapshot) == name)
    }

    fn engine(&self) -> Option<&'a Engine> {
        let mut engines = self.observed.engines.iter().copied().filter(|engine| !is_deleting(*engine));
        engines.clone().find(|engine| engine.spec.active).or_else(|| engines.next())
    }
}

/// Towards a copy: source attached, its snapshot there, clone attached beside a good replica of the source.
fn copy(plan: &mut Plan<Change>, look: &Look<'_>) {
    let observed = look.observed;
    let Some(source) = observed.source.filter(|source| !is_deleting(*source)) else {
        let words = format!("the source volume {} does not exist", look.source.volume);
        return fail(plan, look, &words);
    };
    place::source_ticket(plan, look, source);
    let called = look.snapshot_name();
    let snapshot = look.snapshot(&called);
    if snapshot.is_none() {
        if look.source.snapshot.is_some() {
            let words = format!("the source volume {} has no snapshot {called}", look.source.volume);
            return fail(plan, look, &words);
        }
        let change = Change::CreateSnapshot {
            name: called.clone(),
            volume: name(source).to_owned(),
            clone: name(observed.volume).to_owned(),
        };
        let words = format!("Snapshot {called} of volume {} is made for it.", name(source));
        plan.acts(SNAPSHOT, look.about(), Reason::SnapshotWanted, words, change);
    }
    let ready = snapshot.is_some_and(|snapshot| snapshot.status.ready_to_use && !is_deleting(snapshot));
    if !ready || source.status.state != State::Attached {
        let words = format!("Volume {} has to be attached, and its snapshot to be there.", name(source));
        return plan.blocked(CLONE, look.about(), Reason::VolumeCloneWaits, words);
    }
    let Some(node) = place::copy_node(look) else {
        let words = "No node that is ready holds a good replica of the source.";
        return plan.blocked(CLONE, look.about(), Reason::VolumeCloneWaits, words);
    };
    place::ticket(plan, look, Some(&node));
    let Some(engine) = look.engine() else { return };
    let wanted = format!("snap://{}/{called}", name(source));
    if engine.spec.requested_data_source != wanted {
        let change = Change::Request { engine: Target::of(engine), source: wanted };
        let words = "The engine of the clone is told what to copy.";
        plan.acts(CLONE, look.about(), Reason::VolumeCloneInitiated, words, change);
    }
    if look.status().state != CloneState::Initiated {
        let status = CloneStatus {
            source_volume: name(source).to_owned(),
            snapshot: called,
            state: CloneState::Initiated,
            next_allowed_attempt_at: String::new(),
            error: String::new(),
            ..look.status().clone()
        };
        let note = format!("source volume {}, snapshot {}", status.source_volume, status.snapshot);
        return set(plan, look, status, Reason::VolumeCloneInitiated, note);
    }
    follow(plan, look, engine, &called);
}

/// What the agent says of the copy.
fn follow(plan: &mut Plan<Change>, look: &Look<'_>, engine: &Engine, snapshot: &str) {
    let ours = |progress: &&CloneProgress| progress.snapshot_name == snapshot;
    let told: Vec<&CloneProgress> = engine.status.clone_status.values().filter(ours).collect();
    if let Some(failed) = told.iter().find(|progress| progress.state == FAILED) {
        return fail(plan, look, &failed.error);
    }
    if told.is_empty() || told.iter().any(|progress| progress.state != COMPLETE) {
        return plan.blocked(CLONE, look.about(), Reason::VolumeCloneInitiated, "The data is being copied.");
    }
    let status = CloneStatus { state: CloneState::CopyCompletedAwaitingHealthy, ..look.status().clone() };
    let note = format!("source volume {}, snapshot {}", status.source_volume, status.snapshot);
    set(plan, look, status, Reason::VolumeCloneCopyCompletedAwaitingHealthy, note);
}

/// The data is there: what was needed for it is given back, and the clone is complete when every replica has it.
fn finish(plan: &mut Plan<Change>, look: &Look<'_>) {
    let volume = look.observed.volume;
    if volume.status.robustness == Robustness::Healthy {
        let status = CloneStatus { state: CloneState::Completed, ..look.status().clone() };
        let note = format!("source volume {}, snapshot {}", status.source_volume, status.snapshot);
        return set(plan, look, status, Reason::VolumeCloneCompleted, note);
    }
    plan.rests(CLONE, look.about(), Reason::VolumeCloneCopyCompletedAwaitingHealthy, "Not every replica has it yet.");
    withdraw(plan, look);
}

/// Gives back what was needed: tickets, the engine's order, a snapshot that was made for the copy.
fn withdraw(plan: &mut Plan<Change>, look: &Look<'_>) {
    // The order goes before the ticket that keeps the volume from everybody else: nothing may be left then that would
    // have another run of the engine filled.
    if let Some(engine) = look.engine().filter(|engine| !engine.spec.requested_data_source.is_empty()) {
        let change = Change::Request { engine: Target::of(engine), source: String::new() };
        plan.acts(CLONE, look.about(), Reason::UpToDate, "The copy is done.", change);
    }
    place::ticket(plan, look, None);
    place::remove_source_ticket(plan, look);
    if look.source.snapshot.is_none()
        && let Some(snapshot) = look.snapshot(&look.status().snapshot).filter(|snapshot| !is_deleting(*snapshot))
        && snapshot.spec.labels.get(FOR_CLONE).map(String::as_str) == Some(name(look.observed.volume))
    {
        let change = Change::DeleteSnapshot { snapshot: Target::of(snapshot) };
        plan.acts(SNAPSHOT, look.about(), Reason::NotInUse, "The snapshot that was made for it has served.", change);
    }
}

fn fail(plan: &mut Plan<Change>, look: &Look<'_>, why: &str) {
    let old = look.status();
    let attempts = old.attempt_count + 1;
    let pause = FIRST_PAUSE * (1_i32 << u32::try_from(attempts - 1).unwrap_or(0).min(9));
    let status = CloneStatus {
        source_volume: look.source.volume.clone(),
        state: CloneState::Failed,
        attempt_count: attempts,
        next_allowed_attempt_at: rfc3339(look.now + pause),
        error: why.to_owned(),
        ..old.clone()
    };
    plan.fires(CLONE, look.about(), Reason::VolumeCloneFailed, format!("The copy failed: {why}."));
    plan.tells(Event::warning(look.observed.volume, Reason::VolumeCloneFailed, why));
    plan.changes.push(Change::SetStatus { volume: Target::of(look.observed.volume), status });
}

fn retry(plan: &mut Plan<Change>, look: &Look<'_>) {
    let status = look.status();
    if status.attempt_count >= ATTEMPTS {
        let words = format!("It was tried {ATTEMPTS} times; delete the volume and make it again.");
        withdraw(plan, look);
        return plan.rests(CLONE, look.about(), Reason::VolumeCloneFailed, words);
    }
    let due = status.next_allowed_attempt_at.parse::<Timestamp>().unwrap_or(look.now);
    if look.now < due {
        // The order is taken back meanwhile, so that the next one is heard as a new one.
        if let Some(engine) = look.engine().filter(|engine| !engine.spec.requested_data_source.is_empty()) {
            let change = Change::Request { engine: Target::of(engine), source: String::new() };
            plan.acts(
                CLONE,
                look.about(),
                Reason::VolumeCloneFailed,
                "The engine is to forget the last attempt.",
                change,
            );
        }
        return plan.waits(CLONE, look.about(), Reason::VolumeCloneFailed, "The copy is tried again.", due);
    }
    let status = CloneStatus { state: CloneState::Unset, ..status.clone() };
    set(plan, look, status, Reason::VolumeCloneWaits, "the copy is tried again".to_owned());
}

fn set(plan: &mut Plan<Change>, look: &Look<'_>, status: CloneStatus, reason: Reason, note: String) {
    plan.tells(Event::normal(look.observed.volume, reason, note.clone()));
    let change = Change::SetStatus { volume: Target::of(look.observed.volume), status };
    plan.acts(CLONE, look.about(), reason, note, change);
}

/// The ticket of a clone; the same id on both volumes.
fn ticket_id(clone: &Volume) -> String {
    names::ticket(TicketType::Clone.as_str(), name(clone))
}

fn wish(clone: &Volume, node: &str, disable_frontend: &str) -> Ticket {
    Ticket {
        id: ticket_id(clone),
        kind: TicketType::Clone,
        node_id: node.to_owned(),
        parameters: [(DISABLE_FRONTEND.to_owned(), disable_frontend.to_owned())].into(),
        owner: Some(Owner {
            api_version: API_VERSION.to_owned(),
            kind: "Volume".to_owned(),
            namespace: namespace(clone).to_owned(),
            name: name(clone).to_owned(),
            uid: uid(clone).to_owned(),
        }),
        ..Default::default()
    }
}
