//! Pods: defaults, admission, what each endpoint may change, deletion with grace.

mod binding;
mod defaults;

pub use binding::{BindError, bind};

pub(super) use defaults::default_source;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Strategy;
use super::edit::{bump_generation, child, fill, integer, items, keep, same_at, set, set_in, text};

pub(super) const STRATEGY: Strategy = Strategy {
    default: defaults::default,
    admit_create: defaults::admit,
    admit_update: defaults::add_tolerations,
    prepare_create,
    prepare_update,
    prepare_status: Some(prepare_status),
    ..Strategy::PLAIN
};

fn prepare_create(pod: &mut Value, _now: Timestamp) {
    let mut status = json!({"phase": "Pending", "qosClass": qos_class(pod)});
    if !items(pod, "/spec/schedulingGates").is_empty() {
        set(
            &mut status,
            "conditions",
            json!([{
                "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
            }]),
        );
    }
    set(pod, "status", status);
    set_in(pod, "metadata", "generation", 1.into());
}

fn prepare_update(new: &mut Value, old: &Value) {
    keep(new, old, "status");
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
        fill(status, "qosClass", before);
    }
}

fn qos_class(_pod: &Value) -> &'static str {
    "BestEffort"
}

/// How long a pod gets to end, in seconds: what the client asked for, or what the pod says, and nothing
/// for a pod that no kubelet runs or that has ended already.
pub fn deletion_grace(pod: &Value, asked: Option<i64>) -> i64 {
    let running =
        !text(pod, "/spec/nodeName").is_empty() && !matches!(text(pod, "/status/phase"), "Failed" | "Succeeded");
    let grace = asked.or_else(|| integer(pod, "/spec/terminationGracePeriodSeconds")).unwrap_or(0);
    match grace {
        _ if !running => 0,
        grace if grace < 0 => 1,
        grace => grace,
    }
}
