//! Namespaces: the `kubernetes` finalizer in the spec, and the label that carries the name.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Strategy;
use super::edit::{child, fill_zero, keep, set, text};
use crate::names::NameRule;

/// Held in `spec.finalizers` until the namespace controller has emptied the namespace.
pub const FINALIZER: &str = "kubernetes";
/// Every namespace carries its own name as a label, so that selectors can name it.
pub const NAME_LABEL: &str = "kubernetes.io/metadata.name";

pub(super) const STRATEGY: Strategy = Strategy {
    default,
    prepare_create,
    prepare_update,
    prepare_status: Some(prepare_status),
    name: NameRule::Label,
    ..Strategy::PLAIN
};

fn default(namespace: &mut Value) {
    let name = text(namespace, "/metadata/name").to_owned();
    if !name.is_empty()
        && let Some(metadata) = namespace.get_mut("metadata")
        && let Some(labels) = child(metadata, "labels")
    {
        labels.insert(NAME_LABEL.to_owned(), name.into());
    }
    if let Some(status) = child(namespace, "status") {
        fill_zero(status, "phase", "Active");
    }
}

/// The name may have been generated after defaults were set, hence the label once more.
fn prepare_create(namespace: &mut Value, _now: Timestamp) {
    set(namespace, "status", json!({"phase": "Active"}));
    default(namespace);
    if let Some(spec) = child(namespace, "spec") {
        fill_zero(spec, "finalizers", json!([]));
        if let Some(finalizers) = spec.get_mut("finalizers").and_then(Value::as_array_mut)
            && !finalizers.iter().any(|f| f == FINALIZER)
        {
            finalizers.push(FINALIZER.into());
        }
    }
}

/// Finalizers change through `finalize` only.
fn prepare_update(new: &mut Value, old: &Value) {
    if let Some(spec) = child(new, "spec") {
        match old.pointer("/spec/finalizers") {
            Some(finalizers) => spec.insert("finalizers".to_owned(), finalizers.clone()),
            None => spec.remove("finalizers"),
        };
    }
    keep(new, old, "status");
}

fn prepare_status(new: &mut Value, old: &Value, _now: Timestamp) {
    keep(new, old, "spec");
}

/// Readies an update through `finalize`: everything but the status may change.
pub fn prepare_finalize(new: &mut Value, old: &Value) {
    keep(new, old, "status");
}
