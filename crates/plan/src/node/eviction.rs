//! Taint eviction: pods that do not, or no longer, tolerate a NoExecute taint of their node are deleted; and pods of a
//! node that nobody hears of are not ready, whatever they last said.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod, PodCondition, Taint, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tether_model::reason::Reason;
use tether_model::report::Rule;

use super::{NO_EXECUTE, readiness, taints, tolerates};
use crate::Plan;
use crate::event::Event;
use crate::object::{Target, is_deleting, key, subject};
use crate::pod::{condition, is_finished, with_condition};

const EVICTION: Rule = Rule("taint-eviction");
const NOT_READY: Rule = Rule("pods-of-unknown-nodes");

/// One node and its pods.
#[derive(Clone, Debug)]
pub struct Observed<'a> {
    pub node: &'a Node,
    pub pods: Vec<&'a Pod>,
    /// When a taint that does not say when it was added was first noticed, by its key and value.
    pub noticed: BTreeMap<(String, String), Timestamp>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Replace the conditions in the pod's status.
    SetConditions { pod: Target, conditions: Vec<PodCondition> },
    /// Replace the conditions, if there is something new to say, and delete the pod with its own grace period.
    Evict { pod: Target, conditions: Option<Vec<PodCondition>> },
}

/// Decides about the pods of one node.
pub fn decide(observed: &Observed<'_>, now: Timestamp) -> Plan<Change> {
    let mut plan = Plan::default();
    let no_execute: Vec<&Taint> = taints(observed.node).iter().filter(|t| t.effect == NO_EXECUTE).collect();
    for pod in observed.pods.iter().copied().filter(|pod| !is_deleting(*pod) && !is_finished(pod)) {
        let evicted = evict(&mut plan, observed, pod, &no_execute, now);
        if !evicted && readiness(observed.node) == "Unknown" {
            mark_not_ready(&mut plan, pod, now);
        }
    }
    plan
}

/// Returns whether the pod is evicted now.
fn evict(plan: &mut Plan<Change>, observed: &Observed<'_>, pod: &Pod, taints: &[&Taint], now: Timestamp) -> bool {
    if taints.is_empty() {
        return false;
    }
    let about = subject(pod);
    let deadline = match deadline(observed, pod, taints, now) {
        Deadline::Never => {
            plan.rests(EVICTION, about, Reason::TaintTolerated, "The pod tolerates its node's taints for ever.");
            return false;
        }
        Deadline::At(at, taint) if at > now => {
            let words = format!("The pod tolerates taint {} for a while.", taint.key);
            plan.waits(EVICTION, about, Reason::TaintTolerated, words, at);
            return false;
        }
        Deadline::At(_, taint) => taint,
    };
    let target = PodCondition {
        type_: "DisruptionTarget".into(),
        status: "True".into(),
        reason: Some(Reason::DeletionByTaintManager.code().into()),
        message: Some("Taint manager: deleting due to NoExecute taint".into()),
        ..Default::default()
    };
    let change = Change::Evict { pod: Target::of(pod), conditions: with_condition(pod, target, &Time(now)) };
    let words = format!("The pod does not, or no longer, tolerate taint {}:NoExecute of its node.", deadline.key);
    plan.acts(EVICTION, about, Reason::DeletionByTaintManager, words, change);
    let note = format!("Marking for deletion Pod {}", key(pod));
    plan.tells(Event::normal(pod, Reason::TaintManagerEviction, note));
    true
}

enum Deadline<'a> {
    Never,
    At(Timestamp, &'a Taint),
}

/// The earliest end of the pod's patience with any of the taints. The clock of a taint runs from when it was added or
/// the pod came to the node, whichever is later.
fn deadline<'a>(observed: &Observed<'_>, pod: &Pod, taints: &[&'a Taint], now: Timestamp) -> Deadline<'a> {
    let tolerations = pod.spec.as_ref().and_then(|s| s.tolerations.as_deref()).unwrap_or_default();
    let arrived = condition(pod, "PodScheduled").and_then(|c| c.last_transition_time.as_ref()).map(|t| t.0);
    let mut earliest = Deadline::Never;
    for taint in taints.iter().copied() {
        let value = taint.value.clone().unwrap_or_default();
        let added = taint.time_added.as_ref().map(|t| t.0);
        let added = added.or_else(|| observed.noticed.get(&(taint.key.clone(), value)).copied()).unwrap_or(now);
        let end = match patience(tolerations, taint) {
            Patience::ForEver => continue,
            Patience::None => now,
            Patience::For(time) => arrived.map_or(added, |arrived| arrived.max(added)) + time,
        };
        earliest = match earliest {
            Deadline::At(at, taint) if at <= end => Deadline::At(at, taint),
            _ => Deadline::At(end, taint),
        };
    }
    earliest
}

enum Patience {
    None,
    For(SignedDuration),
    ForEver,
}

/// How long the tolerations bear the taint: the shortest of those that match and give a time.
fn patience(tolerations: &[Toleration], taint: &Taint) -> Patience {
    let matching: Vec<&Toleration> = tolerations.iter().filter(|t| tolerates(t, taint)).collect();
    if matching.is_empty() {
        return Patience::None;
    }
    match matching.iter().filter_map(|t| t.toleration_seconds).min() {
        None => Patience::ForEver,
        Some(seconds) => Patience::For(SignedDuration::from_secs(seconds.clamp(0, LONGEST_TOLERATION_SECS))),
    }
}

/// A bound that keeps sums of times in range: a thousand years.
const LONGEST_TOLERATION_SECS: i64 = 1_000 * 366 * 24 * 3_600;

fn mark_not_ready(plan: &mut Plan<Change>, pod: &Pod, now: Timestamp) {
    let Some(ready) = condition(pod, "Ready").filter(|c| c.status == "True") else {
        return;
    };
    let not_ready = PodCondition { status: "False".into(), ..ready.clone() };
    if let Some(conditions) = with_condition(pod, not_ready, &Time(now)) {
        let change = Change::SetConditions { pod: Target::of(pod), conditions };
        plan.acts(NOT_READY, subject(pod), Reason::NodeNotReady, "The pod's node is Unknown.", change);
        plan.tells(Event::warning(pod, Reason::NodeNotReady, "Node is not ready"));
    }
}
