//! Why a volume is as it is: the chain from the wish to the first condition that is not met.
//!
//! Nothing here knows better than the decisions. They are made on what was observed, exactly as a controller makes them, and
//! their reports are put in the order of cause and effect:
//!
//! ```text
//!   a ticket wants it ─► replicas have places ─► some of them hold everything ─► it is this ticket's turn
//!                     ─► replicas run ─► the engine serves ─► as many replicas as wanted hold everything
//! ```
//!
//! The first link that does not hold is what everything after it waits for; [`remedy`] says what will change that.

pub mod remedy;

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::Serialize;
use tether_crd::attachment::{SATISFIED, Ticket, TicketStatus};
use tether_crd::condition;
use tether_crd::engine::{InstanceState, ReplicaMode};
use tether_crd::volume::{Robustness, State, conditions};
use tether_model::reason::Reason;
use tether_model::report::{Finding, Verdict};

pub use self::remedy::Remedy;
use crate::object::{is_deleting, name};
use crate::{tickets, volume};

/// Why a volume is as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    pub volume: String,
    /// State, robustness and place in one line.
    pub summary: String,
    /// From the wish on; all but the last are met, and the last may be.
    pub chain: Vec<Link>,
    /// What will change the last link; none: nothing has to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<Remedy>,
}

/// One condition on the way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Link {
    pub is_met: bool,
    /// What is the case, in words.
    pub words: String,
    /// Why it is not met.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// Since when, as the objects say.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub since: String,
    /// One line for each object that has to do with it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<String>,
}

impl Link {
    fn met(words: impl Into<String>) -> Self {
        Self { is_met: true, words: words.into(), reason: None, since: String::new(), details: Vec::new() }
    }

    fn unmet(reason: Reason, words: impl Into<String>) -> Self {
        Self { is_met: false, reason: Some(reason), ..Self::met(words) }
    }

    fn since(mut self, since: &str) -> Self {
        since.clone_into(&mut self.since);
        self
    }

    fn with(mut self, details: Vec<String>) -> Self {
        self.details = details;
        self
    }
}

/// What a person reads.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.summary)?;
        for link in &self.chain {
            let mark = if link.is_met { "✓" } else { "✗" };
            write!(f, "  {mark} {}", link.words)?;
            if !link.since.is_empty() {
                write!(f, " (since {})", link.since)?;
            }
            writeln!(f)?;
            for detail in &link.details {
                writeln!(f, "      {detail}")?;
            }
        }
        if let Some(remedy) = &self.remedy {
            writeln!(f, "What will change it: {}", remedy.change)?;
            if let Some(command) = &remedy.command {
                writeln!(f, "Safe to run:         {command}")?;
            }
        }
        Ok(())
    }
}

/// Explains a volume.
pub fn explain(observed: &volume::Observed<'_>, wishes: Option<&tickets::Observed<'_>>, now: Timestamp) -> Explanation {
    let look = Look {
        observed,
        findings: volume::decide(observed, now).report.findings,
        tickets: wishes.map(|wishes| ranked(wishes, now)).unwrap_or_default(),
    };
    let steps = [deletion, wish, places, basis, turn, replicas, engine, closing, moving, redundancy, growth];
    let mut chain: Vec<Link> = Vec::new();
    for step in steps {
        chain.extend(step(&look));
        if chain.last().is_some_and(|link| !link.is_met) {
            break;
        }
    }
    let remedy = chain.last().filter(|link| !link.is_met).map(|link| remedy::of(&look, link));
    Explanation { volume: name(observed.volume).to_owned(), summary: summary(&look), chain, remedy }
}

/// What the steps look at.
pub(crate) struct Look<'a> {
    pub(crate) observed: &'a volume::Observed<'a>,
    pub(crate) findings: Vec<Finding>,
    /// First comes whose turn it is first.
    pub(crate) tickets: Vec<(&'a Ticket, Option<TicketStatus>)>,
}

impl Look<'_> {
    /// What a rule of the volume's decision found that stands in the way, or is about to be done.
    fn obstacles<'b>(&'b self, rule: &'b str) -> impl Iterator<Item = &'b Finding> {
        let stands = |finding: &Finding| finding.verdict != Verdict::Rests && finding.reason != Reason::ReplicaPlaced;
        self.findings.iter().filter(move |finding| finding.rule.0 == rule && stands(finding))
    }

    /// The replicas that count; a migration's twins stand for the same data.
    fn replicas(&self) -> impl Iterator<Item = &tether_crd::Replica> {
        self.observed.replicas.iter().copied().filter(|replica| replica.spec.active)
    }

    fn status(&self) -> &tether_crd::volume::VolumeStatus {
        &self.observed.volume.status
    }
}

/// The tickets as a decision made now would leave them.
fn ranked<'a>(wishes: &tickets::Observed<'a>, now: Timestamp) -> Vec<(&'a Ticket, Option<TicketStatus>)> {
    let told = &wishes.attachment.status.attachment_ticket_statuses;
    let mut statuses: BTreeMap<&str, TicketStatus> = told.iter().map(|(id, s)| (id.as_str(), s.clone())).collect();
    let plan = tickets::decide(wishes, now);
    for change in &plan.changes {
        if let tickets::Change::SetStatus { statuses: fresh, .. } = change {
            for (id, status) in fresh {
                if let Some(status) = status {
                    statuses.insert(id, status.clone());
                }
            }
        }
    }
    let mut all: Vec<&Ticket> = wishes.attachment.spec.attachment_tickets.values().collect();
    all.sort_by_key(|ticket| (std::cmp::Reverse(ticket.kind.priority()), &ticket.id));
    all.into_iter().map(|ticket| (ticket, statuses.get(ticket.id.as_str()).cloned())).collect()
}

fn summary(look: &Look<'_>) -> String {
    let (volume, status) = (name(look.observed.volume), look.status());
    let place = match status.current_node_id.as_str() {
        "" => String::new(),
        node => format!(" on node {node}"),
    };
    let state = if status.state == State::Unset { "new" } else { status.state.as_str() };
    let robustness = match status.robustness {
        Robustness::Unknown if status.state == State::Attached => ", and how it is is not known",
        Robustness::Unknown => "",
        Robustness::Healthy => ", healthy",
        Robustness::Degraded => ", degraded",
        Robustness::Faulted => ", faulted",
    };
    format!("Volume {volume} is {state}{place}{robustness}.")
}

fn deletion(look: &Look<'_>) -> Option<Link> {
    if !is_deleting(look.observed.volume) {
        return None;
    }
    let words = look.obstacles("volume-deletion").map(|finding| finding.words.clone()).next();
    let words = format!("The volume is being deleted. {}", words.unwrap_or_default());
    Some(Link::unmet(Reason::BeingDeleted, words.trim_end()).since(&look.status().state_changed_at))
}

/// Who wants the volume, and where.
// One of several steps, which may have nothing to say; this one always has.
#[allow(clippy::unnecessary_wraps)]
fn wish(look: &Look<'_>) -> Option<Link> {
    let details = look.tickets.iter().map(|(ticket, status)| describe(ticket, status.as_ref())).collect();
    Some(match look.tickets.as_slice() {
        [] => Link::met("No ticket wants the volume attached."),
        [(ticket, _)] => Link::met(format!("A ticket wants the volume on node {}.", ticket.node_id)).with(details),
        many => Link::met(format!("{} tickets want the volume, in this order:", many.len())).with(details),
    })
}

/// `ticket csi-1 of type csi-attacher for node a: satisfied since …`
fn describe(ticket: &Ticket, status: Option<&TicketStatus>) -> String {
    let Ticket { id, kind, node_id, .. } = ticket;
    let frontend = if ticket.disable_frontend() == Some(true) { " without a frontend" } else { "" };
    let owner = ticket.owner.as_ref().map(|o| format!(", of {} {}", o.kind, o.name)).unwrap_or_default();
    let state = match status {
        None => "is new".to_owned(),
        Some(status) if status.satisfied => {
            let since = condition::find(&status.conditions, SATISFIED).map(|c| c.last_transition_time.as_str());
            format!("is satisfied since {}", since.unwrap_or_default())
        }
        Some(status) => match &status.waiting {
            Some(waiting) => format!("waits since {}: {}", waiting.since, waiting.message),
            None => "waits".to_owned(),
        },
    };
    format!("ticket {id} of type {kind} for node {node_id}{frontend}{owner} {state}")
}

/// Whether replicas have places. Fewer than wanted are enough to begin; none are not.
fn places(look: &Look<'_>) -> Option<Link> {
    let scheduled = condition::find(&look.status().conditions, conditions::SCHEDULED);
    let has_one = look.replicas().any(tether_crd::Replica::is_scheduled);
    let refused: Vec<&Finding> = look.obstacles("replica-placement").collect();
    if has_one || refused.is_empty() {
        return has_one.then(|| Link::met(format!("{} replicas have places.", look.replicas().count())));
    }
    let since = scheduled.map(|found| found.last_transition_time.clone()).unwrap_or_default();
    let message = scheduled.map_or("no place was found", |found| found.message.as_str());
    let words = format!("No replica could be placed: {message}.");
    Some(Link::unmet(Reason::ReplicaSchedulingFailure, words).since(&since).with(refusals(look)))
}

/// Why not, per node.
fn refusals(look: &Look<'_>) -> Vec<String> {
    let of_nodes = look.obstacles("replica-placement").filter(|finding| finding.subject.kind == "Node");
    of_nodes.map(|finding| format!("node {}: {}", finding.subject.name, finding.words)).collect()
}

/// Whether a replica that holds everything could be used.
fn basis(look: &Look<'_>) -> Option<Link> {
    let in_sync = look.status().record.as_ref().map(|record| record.in_sync.len());
    if look.status().robustness != Robustness::Faulted {
        return in_sync.map(|count| Link::met(format!("The record names {count} replicas that hold every write.")));
    }
    let found = look.obstacles("volume-robustness").next();
    let reason = found.map_or(Reason::Faulted, |finding| finding.reason);
    let words = found.map_or("The volume is faulted.", |finding| finding.words.as_str());
    let replicas = look.obstacles("auto-salvage");
    let mut details: Vec<String> = replicas
        .map(|finding| format!("{} {}: {}", finding.subject.kind.to_lowercase(), finding.subject.name, finding.words))
        .collect();
    details.extend(look.obstacles("volume-close").map(|finding| finding.words.clone()));
    Some(Link::unmet(reason, words).since(&look.status().state_changed_at).with(details))
}

/// Whose turn it is, if several want the volume or somebody wants it otherwise than it is.
fn turn(look: &Look<'_>) -> Option<Link> {
    if look.tickets.is_empty() {
        return None;
    }
    let waiting = look.tickets.iter().find_map(|(ticket, status)| {
        let waiting = status.as_ref().filter(|status| !status.satisfied)?.waiting.as_ref()?;
        // These are about the volume's own way, which comes next.
        let reason: Reason = waiting.reason.parse().ok()?;
        let own = [Reason::Attaching, Reason::Detaching, Reason::NotDetached, Reason::Faulted];
        (!own.contains(&reason)).then_some((*ticket, reason, waiting))
    });
    match waiting {
        Some((ticket, reason, waiting)) => {
            let words = format!("Ticket {} waits: {}", ticket.id, waiting.message);
            let moving = look.obstacles("volume-migration").map(|finding| finding.words.clone()).collect();
            Some(Link::unmet(reason, words).since(&waiting.since).with(moving))
        }
        None if look.observed.volume.spec.node_id.is_empty() => None,
        None => Some(Link::met(format!("The volume is to be on node {}.", look.observed.volume.spec.node_id))),
    }
}

/// Whether replicas run, for a volume that is to be attached.
fn replicas(look: &Look<'_>) -> Option<Link> {
    if look.observed.volume.spec.node_id.is_empty() || look.status().state == State::Detaching {
        return None;
    }
    let details: Vec<String> = look.replicas().map(|replica| describe_replica(look, replica)).collect();
    let waits = look.obstacles("engine-start").find(|finding| {
        [Reason::ReplicasStarting, Reason::NoInSyncReplica, Reason::ReplicaStartTooSlow].contains(&finding.reason)
    });
    if let Some(found) = waits {
        let link = Link::unmet(found.reason, &found.words);
        return Some(link.since(&look.status().state_changed_at).with(details));
    }
    let runs = |r: &&tether_crd::Replica| r.status.current_state == InstanceState::Running;
    let (running, all) = (look.replicas().filter(runs).count(), look.replicas().count());
    Some(Link::met(format!("{running} of {all} replicas run.")))
}

/// `replica r1 on node a: running, RW`
fn describe_replica(look: &Look<'_>, replica: &tether_crd::Replica) -> String {
    let node = &replica.spec.node_id;
    let host = look.observed.hosts.get(node);
    let state = match host {
        _ if !replica.spec.failed_at.is_empty() => format!("failed at {}", replica.spec.failed_at),
        None => "its node does not exist".to_owned(),
        Some(host) if host.is_down => {
            format!("its node is down ({})", host.not_ready.as_deref().unwrap_or("not ready"))
        }
        Some(host) if !host.manager.can_launch() => format!("the instance manager there is {}", host.manager.word()),
        Some(_) => replica.status.current_state.to_string(),
    };
    let record = look.status().record.as_ref();
    let in_sync = record.is_none_or(|record| record.in_sync.contains(&replica.spec.data_directory_name));
    let missed = if in_sync { "" } else { ", missed writes" };
    format!("replica {} on node {node}: {state}{missed}", name(replica))
}

/// Whether the engine serves, for a volume that is to be attached.
fn engine(look: &Look<'_>) -> Option<Link> {
    let node = &look.observed.volume.spec.node_id;
    if node.is_empty() || look.status().state == State::Detaching {
        return None;
    }
    let unknown = look.obstacles("volume-robustness").find(|finding| finding.reason == Reason::Unknown);
    if let Some(found) = unknown {
        return Some(Link::unmet(Reason::Unknown, &found.words).since(&look.status().state_changed_at));
    }
    if let Some(found) = look.obstacles("engine-start").next() {
        return Some(Link::unmet(found.reason, &found.words).since(&look.status().state_changed_at));
    }
    // A volume that moves is served by the target from its first write on, whatever is decided.
    let promoted = look.findings.iter().any(|finding| finding.reason == Reason::MigrationPromoted);
    let node = if promoted { &look.status().current_migration_node_id } else { node };
    let here = look.observed.engines.iter().filter(|engine| engine.spec.node_id == *node);
    let endpoints = here.map(|engine| engine.status.endpoint.as_str());
    let at = endpoints.filter(|e| !e.is_empty()).map(|endpoint| format!(" as {endpoint}")).next().unwrap_or_default();
    Some(Link::met(format!("The engine serves on node {node}{at}.")))
}

/// What is left to stop, for a volume that is not wanted where it is.
fn closing(look: &Look<'_>) -> Option<Link> {
    let state = look.status().state;
    if state == State::Detached && look.observed.volume.spec.node_id.is_empty() {
        return Some(Link::met("Nothing of the volume runs, as it should be."));
    }
    let found = look.obstacles("volume-close").next()?;
    Some(Link::unmet(found.reason, &found.words).since(&look.status().state_changed_at))
}

/// How far a migration is, and what decides it.
fn moving(look: &Look<'_>) -> Option<Link> {
    let volume = look.observed.volume;
    let (from, to) = (&volume.spec.node_id, &look.status().current_migration_node_id);
    if !volume.is_migratable() || to.is_empty() {
        return None;
    }
    if volume.spec.migration_node_id.is_empty() {
        let source = &look.status().current_node_id;
        return Some(Link::met(if from == to {
            format!("The move from node {source} to node {to} is confirmed, and about to be finished.")
        } else {
            format!("The move to node {to} is rolled back; what it needed is about to go.")
        }));
    }
    let found = look.findings.iter().find(|finding| finding.rule.0 == "volume-migration");
    let words = found.map_or("It is being decided.", |finding| finding.words.as_str());
    if found.is_some_and(|finding| finding.verdict == Verdict::Blocked) {
        return Some(Link::unmet(
            Reason::Migrating,
            format!("The volume moves from node {from} to node {to}. {words}"),
        ));
    }
    let decides = format!(
        "It is confirmed when the attachment to node {from} goes, and rolled back when the one to node {to} does."
    );
    Some(Link::met(format!("The volume moves from node {from} to node {to}. {words}")).with(vec![decides]))
}

/// Whether as many replicas as wanted hold everything.
fn redundancy(look: &Look<'_>) -> Option<Link> {
    let status = look.status();
    if status.state != State::Attached {
        return None;
    }
    // Who holds every write, the record says; what an engine last said of it may be from before its node went down.
    let recorded = status.record.as_ref().map(|record| record.in_sync.len());
    let modes = look.observed.engines.iter().map(|engine| engine.status.replica_mode_map.values());
    let writable = modes.map(|modes| modes.filter(|mode| **mode == ReplicaMode::ReadWrite).count());
    let good = recorded.or_else(|| writable.max()).unwrap_or(0);
    let wanted = look.observed.volume.spec.number_of_replicas;
    let words = format!("{good} of {wanted} replicas hold every write.");
    // The record may be newer than what was concluded from it; a replica that died may still be in it for a moment.
    let enough = i64::try_from(good).is_ok_and(|good| good >= wanted);
    let all_run =
        || look.replicas().all(|r| r.spec.failed_at.is_empty() && r.status.current_state == InstanceState::Running);
    if status.robustness == Robustness::Healthy || (enough && all_run()) {
        return Some(Link::met(words));
    }
    let rules = ["replica-replenish", "replica-reuse", "replica-placement", "replica-health"];
    let obstacles: Vec<&Finding> = rules.into_iter().flat_map(|rule| look.obstacles(rule)).collect();
    let reason = obstacles.first().map_or(Reason::Degraded, |finding| finding.reason);
    let mut details: Vec<String> = look.replicas().map(|r| describe_replica(look, r)).collect();
    details
        .extend(obstacles.iter().map(|f| format!("{} {}: {}", f.subject.kind.to_lowercase(), f.subject.name, f.words)));
    Some(Link::unmet(reason, words).since(&status.last_degraded_at).with(details))
}

fn growth(look: &Look<'_>) -> Option<Link> {
    let found = look.obstacles("volume-expansion").next()?;
    Some(Link::unmet(found.reason, &found.words))
}
