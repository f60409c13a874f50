//! Pods as decisions read them.

use k8s_openapi::api::core::v1::{Pod, PodCondition, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// The node that the pod was given to, empty if none.
pub fn node_name(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or_default()
}

/// The phase; a pod that says none is pending.
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).filter(|p| !p.is_empty()).unwrap_or("Pending")
}

/// Its containers have ended for good.
pub fn is_finished(pod: &Pod) -> bool {
    !matches!(phase(pod), "Pending" | "Running" | "Unknown")
}

pub fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_deref()?.iter().find(|c| c.type_ == kind)
}

/// The names of the claims that the pod's volumes use. A generic ephemeral volume uses the claim that is named
/// after the pod and the volume.
pub fn claim_names(pod: &Pod) -> Vec<String> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let spec: Option<&PodSpec> = pod.spec.as_ref();
    let volumes = spec.and_then(|s| s.volumes.as_deref()).unwrap_or_default();
    let claim = |volume: &k8s_openapi::api::core::v1::Volume| match (&volume.persistent_volume_claim, &volume.ephemeral)
    {
        (Some(source), _) => Some(source.claim_name.clone()),
        (None, Some(_)) => Some(format!("{name}-{}", volume.name)),
        (None, None) => None,
    };
    volumes.iter().filter_map(claim).collect()
}

/// The pod's conditions with `condition` in them, its transition time kept where the status is the same; `None`
/// if nothing but a time would change.
pub fn with_condition(pod: &Pod, mut condition: PodCondition, now: &Time) -> Option<Vec<PodCondition>> {
    let mut all = pod.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
    condition.last_transition_time = Some(now.clone());
    condition.observed_generation = pod.metadata.generation;
    match all.iter_mut().find(|c| c.type_ == condition.type_) {
        None => all.push(condition),
        Some(old) => {
            if old.status == condition.status {
                condition.last_transition_time = old.last_transition_time.clone();
            }
            let content = |c: &PodCondition| (c.status.clone(), c.reason.clone(), c.message.clone());
            if content(old) == content(&condition) {
                return None;
            }
            *old = condition;
        }
    }
    Some(all)
}
