//! Which nodes a pod can go to, and why not to the others. Filters run in Kubernetes' order, the first that says no
//! speaks for the node, and their texts are Kubernetes' own, for people know them from `kubectl describe pod`.

use k8s_openapi::api::core::v1::{Pod, Taint};
use tether_model::reason::Reason;
use tether_model::report::Rule;

use super::NodeView;
use super::resources::{self, Amounts};
use super::volumes::{Claims, Volumes};
use crate::node::{NO_EXECUTE, NO_SCHEDULE, TAINT_UNSCHEDULABLE, is_unschedulable, taints, tolerates};
use crate::selector::matches_node_selector;

/// Why a node, or every node, is not possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub rule: Rule,
    pub reason: Reason,
    /// As it is counted in the pod's condition.
    pub text: String,
    /// What it is in this case, where the text does not say.
    pub detail: Option<String>,
}

impl Rejection {
    pub fn new(rule: &'static str, reason: Reason, text: impl Into<String>) -> Self {
        Self { rule: Rule(rule), reason, text: text.into(), detail: None }
    }

    fn detail(self, detail: impl Into<String>) -> Self {
        Self { detail: Some(detail.into()), ..self }
    }
}

/// Whether the pod can go to the node.
pub fn check(
    pod: &Pod,
    wanted: &Amounts,
    claims: &Claims<'_>,
    view: &NodeView<'_>,
    volumes: &Volumes<'_>,
) -> Result<(), Vec<Rejection>> {
    let one = |rejection: Option<Rejection>| rejection.map_or(Ok(()), |rejection| Err(vec![rejection]));
    one(cordon(pod, view))?;
    one(taint(pod, view))?;
    one(affinity(pod, view))?;
    let short = resources::shortages(wanted, view);
    if !short.is_empty() {
        return Err(short);
    }
    one(volumes.exclusive_use(claims))?;
    one(volumes.attach_limit(claims, view))?;
    volumes.steps(claims, view.node).map(drop).map_err(|rejection| vec![rejection])
}

fn tolerated(pod: &Pod, taint: &Taint) -> bool {
    let tolerations = pod.spec.as_ref().and_then(|s| s.tolerations.as_deref()).unwrap_or_default();
    tolerations.iter().any(|toleration| tolerates(toleration, taint))
}

fn cordon(pod: &Pod, view: &NodeView<'_>) -> Option<Rejection> {
    let taint = Taint { key: TAINT_UNSCHEDULABLE.into(), effect: NO_SCHEDULE.into(), value: None, time_added: None };
    let rejected = is_unschedulable(view.node) && !tolerated(pod, &taint);
    rejected.then(|| Rejection::new("node-cordon", Reason::NodeUnschedulable, "node(s) were unschedulable"))
}

fn taint(pod: &Pod, view: &NodeView<'_>) -> Option<Rejection> {
    let hard = |taint: &&Taint| taint.effect == NO_SCHEDULE || taint.effect == NO_EXECUTE;
    let taint = taints(view.node).iter().filter(hard).find(|taint| !tolerated(pod, taint))?;
    let value = taint.value.as_deref().unwrap_or_default();
    let rejection = Rejection::new("node-taints", Reason::UntoleratedTaint, "node(s) had untolerated taint(s)");
    Some(rejection.detail(format!("Untolerated taint {{{}: {value}}}.", taint.key)))
}

fn affinity(pod: &Pod, view: &NodeView<'_>) -> Option<Rejection> {
    let spec = pod.spec.as_ref()?;
    let labels = view.node.metadata.labels.as_ref();
    let mut selector = spec.node_selector.iter().flatten();
    let selected = selector.all(|(key, value)| labels.and_then(|l| l.get(key)) == Some(value));
    let affinity = spec.affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
    let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    let admitted = required.is_none_or(|required| matches_node_selector(required, view.node));
    (!selected || !admitted).then(|| {
        let text = "node(s) didn't match Pod's node affinity/selector";
        Rejection::new("node-affinity", Reason::NodeAffinityMismatch, text)
    })
}
