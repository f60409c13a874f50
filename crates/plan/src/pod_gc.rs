//! Pod garbage collection: pods that no kubelet will ever finish are failed and deleted.
//!
//! Four rules, in Kubernetes' order: finished pods above a threshold; terminating pods on a node that an
//! administrator declared out of service; pods whose node is gone; terminating pods that never had a node.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tether_model::reason::Reason;
use tether_model::report::{Rule, Subject};

use crate::Plan;
use crate::node::{TAINT_OUT_OF_SERVICE, is_ready};
use crate::object::{Target, is_deleting, name, subject};
use crate::pod::{is_finished, node_name, phase, with_condition};

const TERMINATED: Rule = Rule("terminated-pods");
const OUT_OF_SERVICE: Rule = Rule("terminating-pods-on-out-of-service-nodes");
const ORPHANED: Rule = Rule("orphaned-pods");
const UNSCHEDULED: Rule = Rule("unscheduled-terminating-pods");

/// What may be set.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How many finished pods may stay; 0 keeps them all.
    pub terminated_threshold: usize,
    /// How long a node must be missing before its absence is checked and its pods go: a pod may be seen before
    /// its node is.
    pub quarantine: SignedDuration,
}

impl Default for Settings {
    /// Kubernetes' defaults.
    fn default() -> Self {
        Self { terminated_threshold: 12_500, quarantine: SignedDuration::from_secs(40) }
    }
}

/// What is known of a node that pods name but the cache does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Not in the cache since then; it may exist all the same.
    Since(Timestamp),
    /// The API server was asked, and has no such node.
    Gone,
}

/// What the decision looks at.
#[derive(Clone, Debug, Default)]
pub struct Observed<'a> {
    pub pods: Vec<&'a Pod>,
    pub nodes: BTreeMap<&'a str, &'a Node>,
    /// Nodes that pods name and `nodes` lacks. One that is not here either was not missed before now.
    pub missing: BTreeMap<String, Missing>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Ask the API server whether the node exists.
    CheckNode { node: String },
    /// Set phase Failed, unless the pod is finished, and delete it without grace.
    Remove {
        pod: Target,
        /// Set phase Failed first.
        fail: bool,
        /// The conditions that it gets with that, if there is something new to say.
        conditions: Option<Vec<PodCondition>>,
    },
}

/// Decides which pods go.
pub fn decide(observed: &Observed<'_>, settings: &Settings, now: Timestamp) -> Plan<Change> {
    let mut plan = Plan::default();
    terminated(&mut plan, observed, settings);
    for pod in &observed.pods {
        let node = node_name(pod);
        if node.is_empty() {
            unscheduled(&mut plan, pod);
        } else if let Some(node) = observed.nodes.get(node) {
            out_of_service(&mut plan, pod, node);
        }
    }
    orphaned(&mut plan, observed, settings, now);
    // A pod may be found by two rules; it is removed once, for the first of them.
    let mut seen = std::collections::BTreeSet::new();
    plan.changes.retain(|change| match change {
        Change::Remove { pod, .. } => seen.insert(pod.uid.clone()),
        Change::CheckNode { .. } => true,
    });
    plan
}

fn terminated(plan: &mut Plan<Change>, observed: &Observed<'_>, settings: &Settings) {
    if settings.terminated_threshold == 0 {
        return;
    }
    let mut finished: Vec<&Pod> = observed.pods.iter().copied().filter(|pod| is_finished(pod)).collect();
    let excess = finished.len().saturating_sub(settings.terminated_threshold);
    if excess == 0 {
        let words = format!("{} finished pods, {} may stay.", finished.len(), settings.terminated_threshold);
        plan.rests(TERMINATED, Subject::new("Cluster", "", "pods"), Reason::BelowThreshold, words);
        return;
    }
    // Evicted pods first, then the oldest.
    finished.sort_by_key(|pod| {
        let evicted = pod.status.as_ref().and_then(|s| s.reason.as_deref()) == Some("Evicted");
        (!evicted, pod.metadata.creation_timestamp.as_ref().map(|t| t.0), name(*pod).to_owned())
    });
    for pod in finished.into_iter().take(excess) {
        let words = format!("More than {} finished pods are kept.", settings.terminated_threshold);
        plan.acts(TERMINATED, subject(pod), Reason::TooManyTerminatedPods, words, remove(pod, None));
    }
}

fn out_of_service(plan: &mut Plan<Change>, pod: &Pod, node: &Node) {
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_deref()).unwrap_or_default();
    if !is_deleting(pod) || !taints.iter().any(|t| t.key == TAINT_OUT_OF_SERVICE) {
        return;
    }
    let node_name = name(node);
    if is_ready(node) {
        let words = format!("Node {node_name:?} is tainted {TAINT_OUT_OF_SERVICE} but Ready: its kubelet will finish.");
        plan.rests(OUT_OF_SERVICE, subject(pod), Reason::NodeStillReady, words);
    } else {
        let words = format!("The pod is terminating and node {node_name:?} is out of service.");
        plan.acts(OUT_OF_SERVICE, subject(pod), Reason::NodeOutOfService, words, remove(pod, None));
    }
}

fn orphaned(plan: &mut Plan<Change>, observed: &Observed<'_>, settings: &Settings, now: Timestamp) {
    let mut orphans: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
    for pod in &observed.pods {
        let node = node_name(pod);
        if !node.is_empty() && !observed.nodes.contains_key(node) {
            orphans.entry(node).or_default().push(pod);
        }
    }
    for (node, pods) in orphans {
        let about = Subject::new("Node", "", node);
        match observed.missing.get(node).copied().unwrap_or(Missing::Since(now)) {
            Missing::Gone => {
                for pod in pods {
                    let words = format!("Node {node:?} no longer exists.");
                    let change = remove(pod, disruption(pod, now));
                    plan.acts(ORPHANED, subject(pod), Reason::DeletionByPodGC, words, change);
                }
            }
            Missing::Since(since) if now >= since + settings.quarantine => {
                let words = format!("{} pods name it; it has been missing since {since}.", pods.len());
                plan.asks(ORPHANED, about, Reason::NodeNotSeen, words, Change::CheckNode { node: node.to_owned() });
            }
            Missing::Since(since) => {
                let words = format!("{} pods name it; it has been missing since {since}.", pods.len());
                plan.waits(ORPHANED, about, Reason::NodeNotSeen, words, since + settings.quarantine);
            }
        }
    }
}

fn unscheduled(plan: &mut Plan<Change>, pod: &Pod) {
    if is_deleting(pod) {
        let words = "The pod is terminating and was never given to a node.";
        plan.acts(UNSCHEDULED, subject(pod), Reason::NeverScheduled, words, remove(pod, None));
    }
}

fn disruption(pod: &Pod, now: Timestamp) -> Option<Vec<PodCondition>> {
    let condition = PodCondition {
        type_: "DisruptionTarget".into(),
        status: "True".into(),
        reason: Some(Reason::DeletionByPodGC.code().into()),
        message: Some("PodGC: node no longer exists".into()),
        ..Default::default()
    };
    with_condition(pod, condition, &Time(now))
}

fn remove(pod: &Pod, conditions: Option<Vec<PodCondition>>) -> Change {
    let fail = !matches!(phase(pod), "Succeeded" | "Failed");
    Change::Remove { pod: Target::of(pod), fail, conditions: conditions.filter(|_| fail) }
}
