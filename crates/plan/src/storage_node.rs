//! A Longhorn Node as its Kubernetes node lets it be: conditions, zone, region.
//!
//! This is decided by the controllers, not by the node's own agent: a node that is down cannot say so. What its disks
//! are like only the agent can tell ([`crate::disk`]); both write parts of one status that do not overlap.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node as KubeNode;
use tether_crd::condition::{self, Condition};
use tether_crd::node::{conditions, reasons};
use tether_crd::settings::{self, Settings};
use tether_crd::{FINALIZER, Node};
use tether_model::reason::Reason;
use tether_model::report::Rule;

use crate::Plan;
use crate::event::Event;
use crate::node::{is_unschedulable, readiness};
use crate::object::{Target, has_finalizer, is_deleting, name, subject};

const READY: Rule = Rule("storage-node-ready");
const SCHEDULABLE: Rule = Rule("storage-node-schedulable");
const STATUS: Rule = Rule("storage-node-status");
const REMOVAL: Rule = Rule("storage-node-removal");

/// A kubelet that restarts says for a moment that it is not ready; only one that stays so counts.
const NOT_READY_GRACE: SignedDuration = SignedDuration::from_secs(15);
/// A node of the embedded cluster says by this condition whether its agent runs.
const AGENT_RUNNING: &str = "AgentRunning";
const PRESSURES: [&str; 4] = ["DiskPressure", "PIDPressure", "MemoryPressure", "NetworkUnavailable"];

/// One Longhorn Node and its Kubernetes node.
#[derive(Clone, Debug)]
pub struct Observed<'a> {
    pub node: &'a Node,
    /// `None`: there is no such node.
    pub kube: Option<&'a KubeNode>,
    pub settings: &'a Settings,
    /// Engines and replicas that are on it.
    pub instances: usize,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Write this part of the status; disks are the agent's.
    SetStatus { node: Target, conditions: Vec<Condition>, zone: String, region: String },
    /// Its Kubernetes node is gone, and nothing is on it.
    Delete { node: Target },
    /// Let go of one that is being deleted.
    RemoveFinalizer { node: Target },
}

/// A condition without its times.
struct Verdict {
    status: &'static str,
    reason: &'static str,
    message: String,
}

impl Verdict {
    fn holds(message: String) -> Self {
        Self { status: condition::TRUE, reason: "", message }
    }

    fn fails(reason: &'static str, message: String) -> Self {
        Self { status: condition::FALSE, reason, message }
    }
}

/// Decides about one node.
pub fn decide(observed: &Observed<'_>, now: Timestamp) -> Plan<Change> {
    let node = observed.node;
    let mut plan = Plan::default();
    if is_deleting(node) || observed.kube.is_none() {
        remove(&mut plan, observed);
    }
    let (ready, wake_at) = ready(observed, now);
    let schedulable = schedulable(observed);
    let mut all = node.status.conditions.clone();
    let mut changed = false;
    for (rule, kind, verdict) in
        [(READY, conditions::READY, &ready), (SCHEDULABLE, conditions::SCHEDULABLE, &schedulable)]
    {
        let before = condition::status(&node.status.conditions, kind).to_owned();
        if condition::set(&mut all, kind, verdict.status, verdict.reason, &verdict.message, now) {
            changed = true;
            plan.fires(rule, subject(node), Reason::StatusFollows, verdict.message.clone());
            if before != verdict.status {
                let reason = Reason::StatusFollows;
                plan.tells(match verdict.status == condition::TRUE {
                    true => Event::normal(node, reason, verdict.message.clone()),
                    false => Event::warning(node, reason, verdict.message.clone()),
                });
            }
        } else {
            plan.rests(rule, subject(node), Reason::UpToDate, verdict.message.clone());
        }
    }
    if let Some(until) = wake_at {
        plan.waits(READY, subject(node), Reason::NodeNotReady, "The node may only be restarting.", until);
    }
    let label = |key: &str| {
        let labels = observed.kube.and_then(|kube| kube.metadata.labels.as_ref());
        labels.and_then(|labels| labels.get(key)).cloned()
    };
    let zone = label("topology.kubernetes.io/zone").unwrap_or_else(|| node.status.zone.clone());
    let region = label("topology.kubernetes.io/region").unwrap_or_else(|| node.status.region.clone());
    changed |= zone != node.status.zone || region != node.status.region;
    if changed {
        let change = Change::SetStatus { node: Target::of(node), conditions: all, zone, region };
        plan.acts(STATUS, subject(node), Reason::StatusFollows, "The status follows the Kubernetes node.", change);
    }
    plan
}

fn remove(plan: &mut Plan<Change>, observed: &Observed<'_>) {
    let node = observed.node;
    if observed.instances > 0 {
        let words = format!("{} engines and replicas are on the node.", observed.instances);
        plan.blocked(REMOVAL, subject(node), Reason::DependentsRemain, words);
    } else if !is_deleting(node) {
        let change = Change::Delete { node: Target::of(node) };
        plan.acts(REMOVAL, subject(node), Reason::ObjectMissing, "Its Kubernetes node does not exist.", change);
    } else if has_finalizer(node, FINALIZER) {
        let change = Change::RemoveFinalizer { node: Target::of(node) };
        plan.acts(REMOVAL, subject(node), Reason::BeingDeleted, "Nothing is on the node.", change);
    }
}

/// The worst that is known; a node that does not answer is worse than one that is short of something.
fn ready(observed: &Observed<'_>, now: Timestamp) -> (Verdict, Option<Timestamp>) {
    let name = name(observed.node);
    let Some(kube) = observed.kube else {
        let words = format!(
            "Kubernetes node missing: node {name} has been removed from the cluster and there is no manager pod running on it"
        );
        return (Verdict::fails(reasons::KUBERNETES_NODE_GONE, words), None);
    };
    let found = |kind: &str| crate::node::condition(kube, kind);
    let mut wake_at = None;
    if readiness(kube) != "True" {
        let words = format!("Kubernetes node {name} not ready: {}", why(found("Ready")));
        let since = found("Ready").and_then(|ready| ready.last_transition_time.as_ref()).map(|time| time.0);
        let until = since.filter(|_| readiness(kube) == "False").map(|since| since + NOT_READY_GRACE);
        match until {
            Some(until) if now < until => wake_at = Some(until),
            _ => return (Verdict::fails(reasons::KUBERNETES_NODE_NOT_READY, words), None),
        }
    }
    if let Some(pressure) = PRESSURES.iter().filter_map(|kind| found(kind)).find(|found| found.status == "True") {
        let words = format!("Kubernetes node {name} has pressure: {}, {}", pressure.type_, why(Some(pressure)));
        return (Verdict::fails(reasons::KUBERNETES_NODE_PRESSURE, words), wake_at);
    }
    if let Some(agent) = found(AGENT_RUNNING).filter(|agent| agent.status == "False") {
        let words = format!("manager pod {name} is not running: {}", why(Some(agent)));
        return (Verdict::fails(reasons::MANAGER_POD_DOWN, words), wake_at);
    }
    (Verdict::holds(format!("Node {name} is ready")), wake_at)
}

fn why(found: Option<&k8s_openapi::api::core::v1::NodeCondition>) -> String {
    let text = found.and_then(|found| found.message.clone().or_else(|| found.reason.clone()));
    text.unwrap_or_else(|| "it never said how it is".to_owned())
}

fn schedulable(observed: &Observed<'_>) -> Verdict {
    let name = name(observed.node);
    let cordoned = observed.kube.is_some_and(is_unschedulable);
    if cordoned && observed.settings.flag(settings::DISABLE_SCHEDULING_ON_CORDONED_NODE) {
        return Verdict::fails(reasons::KUBERNETES_NODE_CORDONED, format!("Node {name} is cordoned"));
    }
    Verdict::holds(String::new())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn node() -> Node {
        let mut node = Node::default();
        node.metadata.name = Some("node-1".into());
        node
    }

    fn kube(conditions: &[(&str, &str)], cordoned: bool) -> KubeNode {
        let condition = |(kind, status): &(&str, &str)| json!({"type": kind, "status": status, "message": "as it is", "lastTransitionTime": "1970-01-01T00:00:00Z"});
        let conditions: Vec<Value> = conditions.iter().map(condition).collect();
        let labels = json!({"topology.kubernetes.io/zone": "a", "topology.kubernetes.io/region": "r"});
        let node = json!({
            "metadata": {"name": "node-1", "labels": labels},
            "spec": {"unschedulable": cordoned}, "status": {"conditions": conditions},
        });
        serde_json::from_value(node).unwrap()
    }

    fn step(node: &mut Node, kube: Option<&KubeNode>, now: i64) -> Plan<Change> {
        let settings = Settings::default();
        let plan = decide(&Observed { node, kube, settings: &settings, instances: 0 }, at(now));
        for change in &plan.changes {
            if let Change::SetStatus { conditions, zone, region, .. } = change {
                node.status.conditions.clone_from(conditions);
                (node.status.zone, node.status.region) = (zone.clone(), region.clone());
            }
        }
        plan
    }

    fn summary(node: &Node) -> String {
        let words = node.status.conditions.iter().map(|c| format!("{}={}/{}", c.kind, c.status, c.reason));
        words.collect::<Vec<_>>().join(" ")
    }

    /// Rows of Longhorn's tests of its node controller, as far as Kubernetes' node goes.
    #[test]
    fn conditions_follow_the_kubernetes_node() {
        /// Conditions of the Kubernetes node, whether it is cordoned, and what follows.
        type Row = (&'static [(&'static str, &'static str)], bool, &'static str);
        let table: [Row; 8] = [
            (&[("Ready", "True")], false, "Ready=True/ Schedulable=True/"),
            (&[("Ready", "True"), ("AgentRunning", "False")], false, "Ready=False/ManagerPodDown Schedulable=True/"),
            (&[("Ready", "False")], false, "Ready=False/KubernetesNodeNotReady Schedulable=True/"),
            (&[("Ready", "Unknown")], false, "Ready=False/KubernetesNodeNotReady Schedulable=True/"),
            (&[], false, "Ready=False/KubernetesNodeNotReady Schedulable=True/"),
            (
                &[("Ready", "True"), ("DiskPressure", "True")],
                false,
                "Ready=False/KubernetesNodePressure Schedulable=True/",
            ),
            (&[("Ready", "True"), ("Whatever", "True")], false, "Ready=True/ Schedulable=True/"),
            (&[("Ready", "True")], true, "Ready=True/ Schedulable=False/KubernetesNodeCordoned"),
        ];
        for (conditions, cordoned, expected) in table {
            let mut node = node();
            let kube = kube(conditions, cordoned);
            step(&mut node, Some(&kube), 60);
            assert_eq!(summary(&node), expected, "{conditions:?}");
            assert_eq!((node.status.zone.as_str(), node.status.region.as_str()), ("a", "r"));
            let again = step(&mut node, Some(&kube), 70);
            assert_eq!(again.changes, [], "deciding twice changes nothing: {again}");
        }
    }

    #[test]
    fn a_node_that_is_not_ready_for_a_moment_is_waited_for() {
        let mut node = node();
        let plan = step(&mut node, Some(&kube(&[("Ready", "False")], false)), 5);
        assert_eq!(summary(&node), "Ready=True/ Schedulable=True/");
        assert_eq!(plan.wake_at(), Some(at(15)));
        step(&mut node, Some(&kube(&[("Ready", "Unknown")], false)), 5);
        assert!(node.is_down(), "one that says nothing is not");
    }

    #[test]
    fn a_node_that_is_gone_goes_when_nothing_is_on_it() {
        let mut node = node();
        let plan = step(&mut node, None, 0);
        assert!(plan.changes.contains(&Change::Delete { node: Target::of(&node) }), "{plan}");
        assert!(node.is_down());
        let settings = Settings::default();
        let held = decide(&Observed { node: &node, kube: None, settings: &settings, instances: 1 }, at(0));
        assert_eq!(held.changes, [], "{held}");
    }
}
