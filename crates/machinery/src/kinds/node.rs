//! Nodes.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Strategy;
use super::edit::{child, fill, fill_zero, items, keep, present, set_in, text};

/// Keeps pods away until the node has been seen ready.
pub const NOT_READY_TAINT: &str = "node.kubernetes.io/not-ready";

pub(super) const STRATEGY: Strategy = Strategy {
    default,
    admit_create,
    prepare_create,
    prepare_update,
    prepare_status: Some(prepare_status),
    ..Strategy::PLAIN
};

fn default(node: &mut Value) {
    if let Some(capacity) = present(node, "/status/capacity").cloned()
        && let Some(status) = child(node, "status")
    {
        fill(status, "allocatable", capacity);
    }
}

/// A node joins with the not-ready taint: otherwise pods could land on it before it is judged.
fn admit_create(node: &mut Value) {
    let tainted = items(node, "/spec/taints")
        .iter()
        .any(|t| text(t, "/key") == NOT_READY_TAINT && text(t, "/effect") == "NoSchedule");
    if !tainted && let Some(spec) = child(node, "spec") {
        fill_zero(spec, "taints", json!([]));
        if let Some(taints) = spec.get_mut("taints").and_then(Value::as_array_mut) {
            taints.push(json!({"key": NOT_READY_TAINT, "effect": "NoSchedule"}));
        }
    }
}

/// The status stays: kubelets register with it.
fn prepare_create(node: &mut Value, _now: Timestamp) {
    set_in(node, "spec", "configSource", Value::Null);
    set_in(node, "status", "config", Value::Null);
}

fn prepare_update(new: &mut Value, old: &Value) {
    keep(new, old, "status");
    if present(old, "/spec/configSource").is_none() {
        set_in(new, "spec", "configSource", Value::Null);
    }
}

fn prepare_status(new: &mut Value, old: &Value, _now: Timestamp) {
    keep(new, old, "spec");
    if present(old, "/status/config").is_none() {
        set_in(new, "status", "config", Value::Null);
    }
}
