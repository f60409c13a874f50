//! A small scheduler: gives each pod a node that it fits on.
//!
//! Filters say which nodes are possible and why the others are not; a [`Score`] orders those that are. Volumes that wait
//! for their first consumer are bound before the pod is: the scheduler picks the node, points a volume or a provisioner
//! to the claim, and gives the pod its node when the claims are bound.

pub mod filter;
pub mod resources;
pub mod volumes;

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod, PodCondition, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tether_model::reason::Reason;
use tether_model::report::Rule;

use self::filter::Rejection;
use self::resources::Amounts;
use self::volumes::Volumes;
use crate::Plan;
use crate::event::Event;
use crate::node::{PREFER_NO_SCHEDULE, taints, tolerates};
use crate::object::{Target, is_deleting, key, name, subject};
use crate::pod::{is_finished, node_name, with_condition};
use crate::selector::matches_node_term;

const SCHEDULE: Rule = Rule("schedule-pod");
const SCORE: Rule = Rule("node-score");

/// The scheduler that a pod means when it says nothing; others' pods are left alone.
pub const SCHEDULER_NAME: &str = "default-scheduler";

/// A node, and what is on it.
#[derive(Clone, Debug)]
pub struct NodeView<'a> {
    pub node: &'a Node,
    /// Pods that were given to the node and have not ended.
    pub pods: Vec<&'a Pod>,
}

/// What the decision looks at.
#[derive(Clone, Debug, Default)]
pub struct Observed<'a> {
    pub nodes: Vec<NodeView<'a>>,
    pub volumes: Volumes<'a>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Point the volume to the claim, which makes them bind; `mark` it as a controller's doing.
    SetClaimRef { volume: Target, claim: ObjectReference, mark: bool },
    /// Tell the provisioner which node the claim's volume is for.
    SelectNode { claim: Target, node: String },
    /// Give the pod to the node.
    Bind { pod: Target, node: String },
    /// Replace the conditions in the pod's status.
    SetConditions { pod: Target, conditions: Vec<PodCondition> },
}

/// Decides where a pod goes.
pub fn decide(pod: &Pod, observed: &Observed<'_>, now: Timestamp) -> Plan<Change> {
    let mut plan = Plan::default();
    if let Some((reason, words)) = not_ours(pod) {
        plan.rests(SCHEDULE, subject(pod), reason, words);
        return plan;
    }
    if observed.nodes.is_empty() {
        let message = "no nodes available to schedule pods".to_owned();
        unschedulable(&mut plan, pod, Reason::Unschedulable, message, now);
        return plan;
    }
    let mut histogram: BTreeMap<String, usize> = BTreeMap::new();
    let mut feasible: Vec<(Score<'_>, &NodeView<'_>)> = Vec::new();
    let claims = match observed.volumes.claims_of(pod) {
        Ok(claims) => claims,
        Err(rejection) => {
            let all = observed.nodes.len();
            let message = format!("0/{all} nodes are available: {}.", rejection.text);
            unschedulable(&mut plan, pod, rejection.reason, message, now);
            return plan;
        }
    };
    let wanted = resources::requests(pod);
    let chosen = observed.volumes.chosen_for(pod, &claims);
    for view in &observed.nodes {
        match filter::check(pod, &wanted, &claims, view, &observed.volumes) {
            Ok(()) => feasible.push((Score::of(pod, &wanted, view, chosen), view)),
            Err(rejections) => reject(&mut plan, view, &rejections, &mut histogram),
        }
    }
    feasible.sort_by(|(a, _), (b, _)| a.cmp(b));
    for (score, view) in &feasible {
        plan.rests(SCORE, subject(view.node), Reason::NodeFits, score.words());
    }
    match feasible.first() {
        None => unschedulable(&mut plan, pod, Reason::Unschedulable, message(observed, &histogram), now),
        Some((_, view)) => place(&mut plan, pod, view, &claims, &observed.volumes),
    }
    plan
}

fn not_ours(pod: &Pod) -> Option<(Reason, &'static str)> {
    let spec = pod.spec.as_ref();
    let scheduler = spec.and_then(|s| s.scheduler_name.as_deref()).filter(|n| !n.is_empty()).unwrap_or(SCHEDULER_NAME);
    if !node_name(pod).is_empty() {
        Some((Reason::UpToDate, "The pod has its node."))
    } else if is_deleting(pod) {
        Some((Reason::BeingDeleted, "The pod is being deleted."))
    } else if is_finished(pod) {
        Some((Reason::UpToDate, "The pod has ended."))
    } else if scheduler != SCHEDULER_NAME {
        Some((Reason::OtherScheduler, "The pod wants another scheduler."))
    } else if spec.and_then(|s| s.scheduling_gates.as_ref()).is_some_and(|gates| !gates.is_empty()) {
        Some((Reason::SchedulingGated, "Scheduling is blocked due to non-empty scheduling gates"))
    } else {
        None
    }
}

fn reject(
    plan: &mut Plan<Change>,
    view: &NodeView<'_>,
    rejections: &[Rejection],
    histogram: &mut BTreeMap<String, usize>,
) {
    for rejection in rejections {
        *histogram.entry(rejection.text.clone()).or_default() += 1;
        let words = rejection.detail.clone().unwrap_or_else(|| rejection.text.clone());
        plan.blocked(rejection.rule, subject(view.node), rejection.reason, words);
    }
}

/// `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were unschedulable.`
fn message(observed: &Observed<'_>, histogram: &BTreeMap<String, usize>) -> String {
    let mut reasons: Vec<String> = histogram.iter().map(|(text, count)| format!("{count} {text}")).collect();
    reasons.sort();
    format!("0/{} nodes are available: {}.", observed.nodes.len(), reasons.join(", "))
}

fn unschedulable(plan: &mut Plan<Change>, pod: &Pod, reason: Reason, message: String, now: Timestamp) {
    let condition = PodCondition {
        type_: "PodScheduled".into(),
        status: "False".into(),
        reason: Some(Reason::Unschedulable.code().into()),
        message: Some(message.clone()),
        ..Default::default()
    };
    if let Some(conditions) = with_condition(pod, condition, &Time(now)) {
        plan.changes.push(Change::SetConditions { pod: Target::of(pod), conditions });
    }
    plan.blocked(SCHEDULE, subject(pod), reason, message.clone());
    plan.tells(Event::warning(pod, Reason::FailedScheduling, message));
}

/// Binds the pod to the node, or first its volumes.
fn place(plan: &mut Plan<Change>, pod: &Pod, view: &NodeView<'_>, claims: &volumes::Claims<'_>, volumes: &Volumes<'_>) {
    let node = name(view.node);
    let steps = volumes.steps(claims, view.node).expect("a node that passed the filters must have its volumes");
    if steps.is_complete {
        let change = Change::Bind { pod: Target::of(pod), node: node.to_owned() };
        let note = format!("Successfully assigned {} to {node}", key(pod));
        plan.acts(SCHEDULE, subject(pod), Reason::Scheduled, note.clone(), change);
        plan.tells(Event::normal(pod, Reason::Scheduled, note));
        return;
    }
    let words = format!("The pod's volumes are bound for node {node:?} first.");
    if steps.changes.is_empty() {
        plan.blocked(SCHEDULE, subject(pod), Reason::VolumesBinding, words);
    } else {
        plan.changes.extend(steps.changes);
        plan.fires(SCHEDULE, subject(pod), Reason::VolumesBinding, words);
    }
}

/// How good a node is for a pod; the smallest is the best, and what comes first weighs most.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Score<'a> {
    /// The pod's volumes were just made for another node.
    pub elsewhere: bool,
    /// Taints of effect PreferNoSchedule that the pod does not tolerate.
    pub soft_taints: usize,
    /// What the pod's preferred affinities miss: the sum of their weights, less what the node satisfies.
    pub unmet_preference: i64,
    /// The fullest of the node's resources with the pod on it, in percent.
    pub fullness_percent: i64,
    /// Pods that are there already.
    pub pods: usize,
    pub name: &'a str,
}

impl<'a> Score<'a> {
    fn of(pod: &Pod, wanted: &Amounts, view: &NodeView<'a>, chosen: Option<&str>) -> Self {
        let tolerations = pod.spec.as_ref().and_then(|s| s.tolerations.as_deref()).unwrap_or_default();
        let soft = |taint: &&Taint| {
            taint.effect == PREFER_NO_SCHEDULE && !tolerations.iter().any(|toleration| tolerates(toleration, taint))
        };
        let affinity = pod.spec.as_ref().and_then(|s| s.affinity.as_ref()).and_then(|a| a.node_affinity.as_ref());
        let preferred = affinity.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_deref());
        let unmet = preferred.unwrap_or_default().iter().filter(|p| !matches_node_term(&p.preference, view.node));
        Self {
            elsewhere: chosen.is_some_and(|chosen| chosen != name(view.node)),
            soft_taints: taints(view.node).iter().filter(soft).count(),
            unmet_preference: unmet.map(|p| i64::from(p.weight)).sum(),
            fullness_percent: resources::fullness_percent(wanted, view),
            pods: view.pods.len(),
            name: name(view.node),
        }
    }

    fn words(&self) -> String {
        let Self { soft_taints, unmet_preference, fullness_percent, pods, .. } = self;
        format!(
            "{soft_taints} soft taints, {unmet_preference} of preference unmet, {fullness_percent}% full, {pods} pods."
        )
    }
}
