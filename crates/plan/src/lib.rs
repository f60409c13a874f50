//! Decisions, as pure functions: `fn(observed, now) -> Plan`.
//!
//! A [`Plan`] is the changes *and* the report of every rule that was looked at. Nothing here reads a clock,
//! calls an API or remembers anything: what a decision needs to know comes in as a value, and not knowing is
//! one of the values. Deciding again on what a plan has brought about changes nothing.
//!
//! The first decisions are those of the cluster that Kubernetes would bring along, and that the embedded
//! cluster needs: the life of nodes, garbage, namespaces, the binding of claims, scheduling. They follow
//! Kubernetes in names, times and texts.

pub mod amount;
pub mod attach_detach;
pub mod attacher;
pub mod binding;
pub mod clone;
pub mod crd_cleanup;
pub mod disk;
pub mod disruption;
pub mod drain;
pub mod event;
pub mod explain;
pub mod garbage;
pub mod instance;
pub mod instance_manager;
pub mod kubelet;
pub mod namespace;
pub mod node;
pub mod object;
pub mod placement;
pub mod pod;
pub mod pod_gc;
pub mod provisioner;
pub mod recorder;
pub mod resizer;
pub mod schedule;
pub mod secret;
pub mod selector;
pub mod service_account;
pub mod snapshot;
pub mod storage_node;
pub mod tickets;
pub mod volume;
pub mod volume_snapshot;

use std::fmt;

use jiff::Timestamp;
use tether_model::reason::Reason;
use tether_model::report::{Finding, Report, Rule, Subject, Verdict};

use crate::event::Event;

/// What is to be done, and why; and what is not to be done, and why not.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan<C> {
    /// In the order in which they are to be made.
    pub changes: Vec<C>,
    /// To be published when the changes are made.
    pub events: Vec<Event>,
    pub report: Report,
}

impl<C> Default for Plan<C> {
    fn default() -> Self {
        Self { changes: Vec::new(), events: Vec::new(), report: Report::default() }
    }
}

impl<C> Plan<C> {
    /// The rule fires.
    pub fn acts(&mut self, rule: Rule, subject: Subject, reason: Reason, words: impl Into<String>, change: C) {
        self.changes.push(change);
        self.find(rule, subject, Verdict::Acts, reason, words);
    }

    /// The rule fires, and its change is made together with those of other rules.
    pub fn fires(&mut self, rule: Rule, subject: Subject, reason: Reason, words: impl Into<String>) {
        self.find(rule, subject, Verdict::Acts, reason, words);
    }

    /// Somebody is to be told.
    pub fn tells(&mut self, event: Event) {
        self.events.push(event);
    }

    /// The rule must know something first; `question` is how to learn it.
    pub fn asks(&mut self, rule: Rule, subject: Subject, reason: Reason, words: impl Into<String>, question: C) {
        self.changes.push(question);
        self.find(rule, subject, Verdict::Asks, reason, words);
    }

    /// The rule will fire at `until`.
    pub fn waits(&mut self, rule: Rule, subject: Subject, reason: Reason, words: impl Into<String>, until: Timestamp) {
        self.find(rule, subject, Verdict::Waits { until }, reason, words);
    }

    /// The rule would fire, but something else has to change first.
    pub fn blocked(&mut self, rule: Rule, subject: Subject, reason: Reason, words: impl Into<String>) {
        self.find(rule, subject, Verdict::Blocked, reason, words);
    }

    /// The rule has nothing to do.
    pub fn rests(&mut self, rule: Rule, subject: Subject, reason: Reason, words: impl Into<String>) {
        self.find(rule, subject, Verdict::Rests, reason, words);
    }

    fn find(&mut self, rule: Rule, subject: Subject, verdict: Verdict, reason: Reason, words: impl Into<String>) {
        self.report.findings.push(Finding { rule, subject, verdict, reason, words: words.into() });
    }

    /// When to decide again if nothing is heard until then.
    pub fn wake_at(&self) -> Option<Timestamp> {
        self.report.wake_at()
    }
}

/// The report, then the changes, then the events: what golden tests compare.
impl<C: fmt::Debug> fmt::Display for Plan<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.report)?;
        for change in &self.changes {
            writeln!(f, "=> {change:?}")?;
        }
        for event in &self.events {
            writeln!(f, "!! {event:?}")?;
        }
        Ok(())
    }
}
