//! The instance manager of a node: its object, its pod, and what the pod says about it.
//!
//! ```text
//!   no pod ──► pod pending ──► pod runs, ready ──► pod fails or is deleted
//!   stopped     starting          running              error ──► a new pod, unless the node is cordoned
//!                    └── node down: unknown ──┘
//! ```
//!
//! A disruption budget of the same name keeps the pod from being evicted; it goes while the node is cordoned and nothing would
//! be lost ([`crate::drain`]).
//!
//! Killing the process ends the pod, for good (`restartPolicy: Never`); a new one is made at once the first time and
//! after growing pauses if it fails again soon. What ran in it is gone with it: engines and replicas are started again
//! where they are wanted.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node as KubeNode, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde_json::json;
use tether_crd::condition;
use tether_crd::instance_manager::{
    InstanceManagerSpec, InstanceManagerState, InstanceManagerStatus, InstanceManagerType, POD_READY,
};
use tether_crd::volume::DataEngine;
use tether_crd::{API_VERSION, InstanceManager, NAMESPACE, Node, labels, names};
use tether_model::reason::Reason;
use tether_model::report::Rule;

use crate::Plan;
use crate::amount::milli;
use crate::event::Event;
use crate::node::{is_ready, is_unschedulable};
use crate::object::{Target, annotation, is_deleting, name, subject, uid};
use crate::pod::phase;

const OBJECT: Rule = Rule("instance-manager-object");
const POD: Rule = Rule("instance-manager-pod");
const STATE: Rule = Rule("instance-manager-state");
const BUDGET: Rule = Rule("instance-manager-budget");

/// The image of a pod that runs the binary that runs the cluster.
pub const IMAGE: &str = "tether";
/// Where the pauses between pods are counted.
pub const FAILURES: &str = "tether.io/pod-failures";
const FIRST_PAUSE: SignedDuration = SignedDuration::from_secs(1);
const LAST_PAUSE: SignedDuration = SignedDuration::from_secs(120);
/// A pod that lived this long could run, longer than any start that fails takes: the pauses start over. Engines and replicas
/// of a whole node wait for it, so that one that was killed is not kept away for its past.
const FORGIVEN: SignedDuration = SignedDuration::from_secs(10);
/// Engines flush and release their volumes before they end; then replicas close their directories.
const GRACE_S: i64 = 20;
/// The most that the setting may say, as Longhorn's: pods of others want to run as well.
const GUARANTEED_CPU_MAX: i64 = 40;

/// What is known of the instance manager of one node.
#[derive(Clone, Debug)]
pub struct Observed<'a> {
    pub node: &'a Node,
    pub kube: Option<&'a KubeNode>,
    pub manager: Option<&'a InstanceManager>,
    pub pod: Option<&'a Pod>,
    pub budget: Option<&'a PodDisruptionBudget>,
    /// Why the pod must not be evicted although the node is cordoned; none: it may be.
    pub kept_for: Option<String>,
    /// Percent of the node's processors that the pod asks for, so that volumes do not wait behind everybody who computes.
    pub guaranteed_cpu: i64,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    CreateManager(Box<InstanceManager>),
    CreatePod(Box<Pod>),
    /// A pod that has ended makes room for the next; `failures` is how many in a row did so soon.
    ReplacePod {
        pod: Target,
        manager: Target,
        failures: u32,
    },
    SetStatus {
        manager: Target,
        status: Box<InstanceManagerStatus>,
    },
    CreateBudget(Box<PodDisruptionBudget>),
    DeleteBudget(Target),
}

/// Decides about the instance manager of one node.
pub fn decide(observed: &Observed<'_>, now: Timestamp) -> Plan<Change> {
    let mut plan = Plan::default();
    let Some(manager) = observed.manager else {
        if !is_deleting(observed.node) {
            let change = Change::CreateManager(Box::new(object(observed.node)));
            let words = "The node has no instance manager.";
            plan.acts(OBJECT, subject(observed.node), Reason::ObjectMissing, words, change);
        }
        return plan;
    };
    pods(&mut plan, observed, manager, now);
    budget(&mut plan, observed, manager);
    let status = status(observed, manager, now);
    if status == manager.status {
        plan.rests(STATE, subject(manager), Reason::UpToDate, "The status tells how it is.");
    } else {
        let change = Change::SetStatus { manager: Target::of(manager), status: Box::new(status) };
        plan.acts(STATE, subject(manager), Reason::StatusFollows, "The state follows the pod.", change);
    }
    plan
}

fn pods(plan: &mut Plan<Change>, observed: &Observed<'_>, manager: &InstanceManager, now: Timestamp) {
    let failures = failures(manager);
    match observed.pod {
        Some(pod) if is_deleting(pod) => {
            plan.blocked(POD, subject(manager), Reason::BeingDeleted, "The pod is being deleted.");
        }
        Some(pod) if matches!(phase(pod), "Succeeded" | "Failed") => {
            let lived = |created: Timestamp| created.duration_until(now) >= FORGIVEN;
            let forgiven = pod.metadata.creation_timestamp.as_ref().is_some_and(|time| lived(time.0));
            let failures = if forgiven { 0 } else { failures + 1 };
            let change = Change::ReplacePod { pod: Target::of(pod), manager: Target::of(manager), failures };
            plan.acts(POD, subject(manager), Reason::PodCompleted, "The pod has ended; it makes room.", change);
        }
        Some(_) => plan.rests(POD, subject(manager), Reason::UpToDate, "The pod is there."),
        None if is_deleting(manager) => {}
        None if observed.kube.is_none_or(is_unschedulable) => {
            let words = "The node is cordoned or gone: no new pod is made.";
            plan.blocked(POD, subject(manager), Reason::NodeUnavailable, words);
        }
        None => {
            let until = ended_at(manager).filter(|_| failures > 1).map(|ended| ended + pause(failures));
            if let Some(until) = until.filter(|until| now < *until) {
                let words = format!("The pod failed {failures} times in a row.");
                plan.waits(POD, subject(manager), Reason::BackOff, words, until);
            } else {
                let change = Change::CreatePod(Box::new(pod(manager, requested_cpu(observed))));
                plan.acts(POD, subject(manager), Reason::ObjectMissing, "There is no pod.", change);
            }
        }
    }
}

/// Evictions are refused, but for those from a cordoned node that lose nothing.
fn budget(plan: &mut Plan<Change>, observed: &Observed<'_>, manager: &InstanceManager) {
    if is_deleting(manager) {
        return;
    }
    let cordoned = observed.kube.is_some_and(is_unschedulable);
    let about = subject(manager);
    match (observed.budget, &observed.kept_for) {
        (Some(_), Some(why)) if cordoned => {
            let words = format!("The node cannot be drained: {why}.");
            if let Some(kube) = observed.kube {
                plan.tells(Event::warning(kube, Reason::DrainBlocked, words.clone()));
            }
            plan.blocked(BUDGET, about, Reason::DrainBlocked, words);
        }
        (Some(held), None) if cordoned => {
            if !is_deleting(held) {
                let words = "The node is cordoned, and nothing would be lost with it.";
                plan.acts(BUDGET, about, Reason::DrainAllowed, words, Change::DeleteBudget(Target::of(held)));
            }
        }
        (None, None) if cordoned => plan.rests(BUDGET, about, Reason::DrainAllowed, "The pod may be evicted."),
        (Some(_), _) => plan.rests(BUDGET, about, Reason::UpToDate, "The pod cannot be evicted."),
        (None, _) => {
            let change = Change::CreateBudget(Box::new(budget_of(manager)));
            plan.acts(BUDGET, about, Reason::ObjectMissing, "The pod could be evicted.", change);
        }
    }
}

fn budget_of(manager: &InstanceManager) -> PodDisruptionBudget {
    let selector = json!({
        "minAvailable": 1,
        "selector": {"matchLabels": {labels::INSTANCE_MANAGER: name(manager)}},
        // One whose processes do not run protects nothing.
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    });
    PodDisruptionBudget {
        metadata: ObjectMeta {
            name: manager.metadata.name.clone(),
            namespace: Some(NAMESPACE.to_owned()),
            labels: manager.metadata.labels.clone(),
            owner_references: Some(vec![owner("InstanceManager", name(manager), uid(manager))]),
            ..ObjectMeta::default()
        },
        spec: Some(serde_json::from_value(selector).expect("this must be the specification of a budget")),
        ..PodDisruptionBudget::default()
    }
}

fn failures(manager: &InstanceManager) -> u32 {
    annotation(manager, FAILURES).and_then(|text| text.parse().ok()).unwrap_or_default()
}

fn pause(failures: u32) -> SignedDuration {
    let doubled = 1_i32.checked_shl(failures.saturating_sub(2)).filter(|factor| *factor > 0 && *factor < 1_000);
    doubled.map_or(LAST_PAUSE, |factor| (FIRST_PAUSE * factor).min(LAST_PAUSE))
}

fn ended_at(manager: &InstanceManager) -> Option<Timestamp> {
    let ready = condition::find(&manager.status.conditions, POD_READY)?;
    condition::time(&ready.last_transition_time).filter(|_| ready.status == condition::FALSE)
}

fn status(observed: &Observed<'_>, manager: &InstanceManager, now: Timestamp) -> InstanceManagerStatus {
    let old = &manager.status;
    let state = state(observed, old.current_state);
    let mut status = InstanceManagerStatus {
        owner_id: manager.spec.node_id.clone(),
        current_state: state,
        api_version: 1,
        api_min_version: 1,
        ..old.clone()
    };
    match state {
        InstanceManagerState::Running => {
            let address = observed.pod.and_then(|pod| pod.status.as_ref()?.pod_ip.clone());
            status.ip = address.unwrap_or_default();
        }
        InstanceManagerState::Unknown => {}
        _ => status.ip.clear(),
    }
    let ready = if state == InstanceManagerState::Running { condition::TRUE } else { condition::FALSE };
    condition::set(&mut status.conditions, POD_READY, ready, "", "", now);
    let (node, reason) =
        if observed.kube.is_some_and(is_ready) { (condition::TRUE, "") } else { (condition::FALSE, "Down") };
    condition::set(&mut status.conditions, "NodeReady", node, reason, "", now);
    status
}

fn state(observed: &Observed<'_>, old: InstanceManagerState) -> InstanceManagerState {
    let state = match observed.pod {
        // One that never had a pod is not broken; the default of a new object is unknown.
        None if matches!(old, InstanceManagerState::Stopped | InstanceManagerState::Unknown) => {
            InstanceManagerState::Stopped
        }
        None => InstanceManagerState::Error,
        Some(pod) if is_deleting(pod) => InstanceManagerState::Error,
        Some(pod) => match phase(pod) {
            "Running" if is_pod_ready(pod) => InstanceManagerState::Running,
            "Pending" | "Running" => InstanceManagerState::Starting,
            _ => InstanceManagerState::Error,
        },
    };
    let is_down = !observed.kube.is_some_and(is_ready);
    if is_down && state != InstanceManagerState::Error { InstanceManagerState::Unknown } else { state }
}

/// Its containers are; a pod of a node that was silent is marked not ready as a whole.
fn is_pod_ready(pod: &Pod) -> bool {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref()).unwrap_or_default();
    let ready = crate::pod::condition(pod, "Ready").is_some_and(|ready| ready.status == "True");
    ready || (!statuses.is_empty() && statuses.iter().all(|status| status.ready))
}

/// The object for a node.
fn object(node: &Node) -> InstanceManager {
    let name_of_node = name(node);
    let object = names::instance_manager(name_of_node, IMAGE, "v1");
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let labels = [
        label(labels::MANAGED_BY, labels::MANAGER),
        label(labels::COMPONENT, "instance-manager"),
        label(labels::INSTANCE_MANAGER_TYPE, "aio"),
        label(labels::COMPONENT_NODE, name_of_node),
        label(labels::INSTANCE_MANAGER_IMAGE, IMAGE),
        label(labels::DATA_ENGINE, "v1"),
    ];
    InstanceManager {
        metadata: ObjectMeta {
            name: Some(object),
            namespace: Some(NAMESPACE.to_owned()),
            labels: Some(labels.into()),
            owner_references: Some(vec![owner("Node", name_of_node, uid(node))]),
            ..ObjectMeta::default()
        },
        spec: InstanceManagerSpec {
            image: IMAGE.to_owned(),
            node_id: name_of_node.to_owned(),
            kind: InstanceManagerType::AllInOne,
            data_engine: DataEngine::V1,
        },
        ..InstanceManager::default()
    }
}

fn owner(kind: &str, name: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: API_VERSION.to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// What a pod that is made now asks for, in thousandths of a processor; Longhorn's share of what the node can give. The pod
/// keeps what it asked for when it was made: a setting that changes concerns the next one.
fn requested_cpu(observed: &Observed<'_>) -> i64 {
    let allocatable = observed.kube.and_then(|node| node.status.as_ref()?.allocatable.as_ref()?.get("cpu"));
    (milli(allocatable).saturating_mul(observed.guaranteed_cpu.clamp(0, GUARANTEED_CPU_MAX)) + 99) / 100
}

/// The pod of an instance manager. Where its socket, its disks and its credentials are, its node knows: the agent gives
/// that to the environment of pods that act on the node.
fn pod(manager: &InstanceManager, cpu_milli: i64) -> Pod {
    let mut labels = manager.metadata.labels.clone().unwrap_or_default();
    labels.insert(labels::INSTANCE_MANAGER.to_owned(), name(manager).to_owned());
    let mut container = json!({
        "name": "instance-manager",
        "image": manager.spec.image,
        "command": ["tether", "instance-manager"],
        "args": ["--address", "$(NODE_ADDRESS)", "--nbd-address", "$(NODE_ADDRESS)"],
        "env": [{"name": "NODE_ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}],
        "securityContext": {"privileged": true},
    });
    if cpu_milli > 0 {
        container["resources"] = json!({"requests": {"cpu": format!("{cpu_milli}m")}});
    }
    let spec = json!({
        "nodeName": manager.spec.node_id,
        "hostNetwork": true,
        "hostPID": true,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_S,
        "automountServiceAccountToken": false,
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
    });
    Pod {
        metadata: ObjectMeta {
            name: manager.metadata.name.clone(),
            namespace: Some(NAMESPACE.to_owned()),
            labels: Some(labels),
            owner_references: Some(vec![owner("InstanceManager", name(manager), uid(manager))]),
            ..ObjectMeta::default()
        },
        spec: Some(serde_json::from_value(spec).expect("this must be the specification of a pod")),
        ..Pod::default()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn kube(ready: &str, cordoned: bool) -> KubeNode {
        let node = json!({"metadata": {"name": "node-1"}, "spec": {"unschedulable": cordoned},
            "status": {"allocatable": {"cpu": "1950m"}, "conditions": [{"type": "Ready", "status": ready}]}});
        serde_json::from_value(node).unwrap()
    }

    /// A node, its instance manager and its pod, with somebody who does what is decided.
    struct Lab {
        node: Node,
        kube: KubeNode,
        manager: Option<InstanceManager>,
        pod: Option<Pod>,
        budget: Option<PodDisruptionBudget>,
        kept_for: Option<String>,
        now: Timestamp,
    }

    impl Lab {
        fn new() -> Self {
            let mut node = Node::default();
            node.metadata.name = Some("node-1".into());
            Self { node, kube: kube("True", false), manager: None, pod: None, budget: None, kept_for: None, now: at(0) }
        }

        fn settle(&mut self) -> Option<Timestamp> {
            for _ in 0..9 {
                let (manager, pod, budget) = (self.manager.clone(), self.pod.clone(), self.budget.clone());
                let observed = Observed {
                    node: &self.node,
                    kube: Some(&self.kube),
                    manager: manager.as_ref(),
                    pod: pod.as_ref(),
                    budget: budget.as_ref(),
                    kept_for: self.kept_for.clone(),
                    guaranteed_cpu: 12,
                };
                let plan = decide(&observed, self.now);
                if plan.changes.is_empty() {
                    return plan.wake_at();
                }
                for change in plan.changes {
                    match change {
                        Change::CreateManager(made) => self.manager = Some(*made),
                        Change::CreatePod(mut made) => {
                            made.metadata.creation_timestamp = Some(Time(self.now));
                            self.pod = Some(*made);
                        }
                        Change::ReplacePod { failures, .. } => {
                            let annotations = &mut self.manager.as_mut().unwrap().metadata.annotations;
                            *annotations = Some([(FAILURES.to_owned(), failures.to_string())].into());
                            self.pod = None;
                        }
                        Change::CreateBudget(made) => self.budget = Some(*made),
                        Change::DeleteBudget(_) => self.budget = None,
                        Change::SetStatus { status, .. } => self.manager.as_mut().unwrap().status = *status,
                    }
                }
            }
            panic!("deciding never rests");
        }

        fn phase(&mut self, phase: &str) {
            let ready = phase == "Running";
            let status = json!({"phase": phase, "podIP": "127.1.0.1",
                "containerStatuses": [{"name": "x", "image": "", "imageID": "", "restartCount": 0, "ready": ready}]});
            self.pod.as_mut().unwrap().status = Some(serde_json::from_value(status).unwrap());
            self.settle();
        }

        fn state(&self) -> InstanceManagerState {
            self.manager.as_ref().unwrap().status.current_state
        }
    }

    /// Rows of Longhorn's tests of its instance manager controller.
    #[test]
    fn the_state_follows_the_pod() {
        let mut lab = Lab::new();
        lab.settle();
        assert_eq!(lab.state(), InstanceManagerState::Starting);
        lab.phase("Running");
        assert_eq!(lab.state(), InstanceManagerState::Running);
        assert_eq!(lab.manager.as_ref().unwrap().status.ip, "127.1.0.1");
        lab.kube = kube("Unknown", false);
        lab.settle();
        assert_eq!(lab.state(), InstanceManagerState::Unknown);
        assert_eq!(lab.manager.as_ref().unwrap().status.ip, "127.1.0.1", "what was known stays");
        lab.kube = kube("True", false);
        lab.settle();
        assert_eq!(lab.state(), InstanceManagerState::Running);
        lab.pod.as_mut().unwrap().metadata.deletion_timestamp = Some(Time(lab.now));
        lab.settle();
        assert_eq!(lab.state(), InstanceManagerState::Error);
        lab.pod = None;
        lab.settle();
        assert_eq!(lab.state(), InstanceManagerState::Starting, "a new pod was made");
    }

    #[test]
    fn a_cordoned_node_gets_no_new_pod() {
        let mut lab = Lab::new();
        lab.settle();
        lab.phase("Running");
        lab.kube = kube("True", true);
        lab.pod = None;
        lab.settle();
        assert!(lab.pod.is_none());
        assert_eq!(lab.state(), InstanceManagerState::Error);
        lab.kube = kube("True", false);
        lab.settle();
        assert!(lab.pod.is_some());
    }

    #[test]
    fn a_pod_that_keeps_failing_is_made_less_and_less_often() {
        let mut lab = Lab::new();
        lab.settle();
        let mut pauses = Vec::new();
        for _ in 0..10 {
            lab.phase("Running");
            lab.phase("Failed");
            let until = lab.settle().unwrap_or(lab.now);
            pauses.push(until.duration_since(lab.now).as_secs());
            lab.now = until;
            lab.settle();
            assert!(lab.pod.is_some());
        }
        assert_eq!(pauses, [0, 1, 2, 4, 8, 16, 32, 64, 120, 120]);
        lab.phase("Running");
        lab.now += FORGIVEN;
        lab.phase("Failed");
        assert!(lab.pod.is_some(), "one that lived long is replaced at once");
    }

    #[test]
    fn evictions_are_refused_until_the_node_is_cordoned_and_nothing_would_be_lost() {
        let mut lab = Lab::new();
        lab.settle();
        let budget = lab.budget.clone().unwrap();
        assert_eq!(budget.metadata.name, lab.manager.as_ref().unwrap().metadata.name);
        lab.kube = kube("True", true);
        lab.kept_for = Some("replica r1 is the last good one of volume v1".into());
        lab.settle();
        assert!(lab.budget.is_some());
        lab.kept_for = None;
        lab.settle();
        assert!(lab.budget.is_none());
        lab.kube = kube("True", false);
        lab.settle();
        assert!(lab.budget.is_some(), "and so it is again when the node is back");
    }

    #[test]
    fn the_pod_acts_on_its_node_and_belongs_to_its_manager() {
        let mut lab = Lab::new();
        lab.settle();
        let pod = lab.pod.unwrap();
        let spec = pod.spec.as_ref().unwrap();
        assert_eq!(
            (spec.node_name.as_deref(), spec.host_pid, spec.host_network),
            (Some("node-1"), Some(true), Some(true))
        );
        assert_eq!(pod.metadata.name, lab.manager.unwrap().metadata.name);
    }

    #[test]
    fn the_pod_asks_for_its_share_of_the_node() {
        let mut lab = Lab::new();
        lab.settle();
        let asked = |pod: &Pod| {
            let resources = pod.spec.as_ref()?.containers[0].resources.clone()?;
            Some(resources.requests?.get("cpu")?.0.clone())
        };
        assert_eq!(asked(lab.pod.as_ref().unwrap()).as_deref(), Some("234m"), "12 percent");
        let of = |percent: i64, kube: Option<&KubeNode>| {
            let observed = Observed {
                node: &lab.node,
                kube,
                manager: None,
                pod: None,
                budget: None,
                kept_for: None,
                guaranteed_cpu: percent,
            };
            asked(&pod(lab.manager.as_ref().unwrap(), requested_cpu(&observed)))
        };
        assert_eq!(of(0, Some(&lab.kube)), None, "switched off");
        assert_eq!(of(400, Some(&lab.kube)).as_deref(), Some("780m"), "never more than 40 percent");
        assert_eq!(of(12, None), None, "nothing is known of the node");
    }
}
