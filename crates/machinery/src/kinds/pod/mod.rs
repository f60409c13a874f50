//! Pods: defaults, admission, what each endpoint may change, deletion with grace.

mod binding;
mod containers;
mod defaults;
mod lifecycle;
mod resources;
mod scheduling;
mod spec;
mod update;
mod volumes;

pub use binding::{BindError, bind};
pub(super) use defaults::default_source;
pub use lifecycle::{admit_service_account, deletion_grace, eviction_ignores_budgets, mark_evicted, set_condition};
pub(super) use scheduling::TAINT_EFFECTS;
pub(super) use volumes::shared_source;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Strategy;
use super::checks::Problems;
use super::edit::{
    bump_generation, child, fill_zero, is_zero, items, items_mut, keep, present, same_at, set, set_in, text,
};
use crate::field::{FieldError, Path};

pub(super) const STRATEGY: Strategy = Strategy {
    refuse_create: defaults::refuse_create,
    default: defaults::default,
    admit_create: defaults::admit,
    admit_update: defaults::add_tolerations,
    prepare_create,
    prepare_update,
    prepare_status: Some(prepare_status),
    validate_create,
    validate_update: update::validate_update,
    validate_status: update::validate_status,
    warnings: super::warnings::pod,
    ..Strategy::PLAIN
};

fn validate_create(pod: &Value) -> Vec<FieldError> {
    let mut problems = Problems(spec::validate(pod));
    let path = Path::new("spec");
    if !items(pod, "/spec/ephemeralContainers").is_empty() {
        problems.forbidden(&path.child("ephemeralContainers"), "cannot be set on create");
    }
    if !text(pod, "/spec/nodeName").is_empty() && !items(pod, "/spec/schedulingGates").is_empty() {
        problems.forbidden(&path.child("nodeName"), "cannot be set until all schedulingGates have been cleared");
    }
    problems.0
}

fn prepare_create(pod: &mut Value, now: Timestamp) {
    scheduling::apply_label_keys(pod);
    let status = json!({"phase": "Pending", "qosClass": resources::qos_class(pod)});
    set(pod, "status", status);
    if !items(pod, "/spec/schedulingGates").is_empty() {
        let condition = json!({
            "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        });
        set_condition(pod, condition, now);
    }
    set_in(pod, "metadata", "generation", 1.into());
}

fn prepare_update(new: &mut Value, old: &Value) {
    keep(new, old, "status");
    // Computed once, when the pod is made; a client that leaves them out does not mean to change them.
    for field in ["priority", "preemptionPolicy"] {
        let before = old.pointer(&format!("/spec/{field}")).cloned().unwrap_or_default();
        if present(new, &format!("/spec/{field}")).is_none() {
            set_in(new, "spec", field, before);
        }
    }
    if !same_at(new, old, "/spec") {
        bump_generation(new, old);
    }
}

/// Labels and annotations may change with the status; owners and deletion may not.
fn prepare_status(new: &mut Value, old: &Value, _now: Timestamp) {
    keep(new, old, "spec");
    for field in ["deletionTimestamp", "ownerReferences"] {
        let before = old.pointer(&format!("/metadata/{field}")).cloned().unwrap_or_default();
        set_in(new, "metadata", field, before);
    }
    if let Some(before) = old.pointer("/status/qosClass").cloned()
        && let Some(status) = child(new, "status")
    {
        fill_zero(status, "qosClass", before);
    }
    keep_observed_generations(new, old);
}

/// A client that does not know `observedGeneration` does not mean to clear it.
fn keep_observed_generations(new: &mut Value, old: &Value) {
    let before = |pointer: &str| old.pointer(pointer).filter(|v| !is_zero(v)).cloned();
    if let Some(generation) = before("/status/observedGeneration")
        && let Some(status) = child(new, "status")
    {
        fill_zero(status, "observedGeneration", generation);
    }
    let conditions = items(old, "/status/conditions");
    for condition in items_mut(new, "/status/conditions") {
        let same_type = conditions.iter().find(|c| text(c, "/type") == text(condition, "/type"));
        let generation = same_type.and_then(|c| c.get("observedGeneration")).filter(|v| !is_zero(v));
        if let (Some(generation), Some(condition)) = (generation.cloned(), condition.as_object_mut()) {
            fill_zero(condition, "observedGeneration", generation);
        }
    }
}

#[cfg(test)]
mod tests;
