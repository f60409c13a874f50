//! Namespaces: the `kubernetes` finalizer in the spec, and the label that carries the name.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Strategy;
use super::checks::{self, Problems};
use super::edit::{child, fill_zero, items, keep, present, set, text};
use crate::field::{FieldError, Path};
use crate::names;
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
    validate_create: validate,
    validate_update: |new, _old| validate(new),
    validate_status: |new, _old| validate_status(new),
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

fn validate(namespace: &Value) -> Vec<FieldError> {
    let mut problems = Problems::new();
    for finalizer in items(namespace, "/spec/finalizers") {
        finalizer_name(&mut problems, &Path::new("spec.finalizers"), finalizer);
    }
    problems.0
}

/// A name with a domain, or one of those that Kubernetes made up before there were domains.
fn finalizer_name(problems: &mut Problems, path: &Path, finalizer: &Value) {
    let name = finalizer.as_str().unwrap_or_default();
    problems.messages(path, name, names::qualified_name(name));
    checks::finalizer_domain(problems, path, name);
}

/// What is wrong with an update through `finalize`, besides its metadata.
pub fn validate_finalize(namespace: &Value) -> Vec<FieldError> {
    let mut problems = Problems::new();
    for (index, finalizer) in items(namespace, "/spec/finalizers").iter().enumerate() {
        finalizer_name(&mut problems, &Path::new("spec.finalizers").index(index), finalizer);
    }
    problems.0
}

fn validate_status(namespace: &Value) -> Vec<FieldError> {
    let mut problems = Problems::new();
    let phase = text(namespace, "/status/phase");
    let (wanted, detail) = match present(namespace, "/metadata/deletionTimestamp") {
        None => ("Active", "may only be 'Active' if `deletionTimestamp` is empty"),
        Some(_) => ("Terminating", "may only be 'Terminating' if `deletionTimestamp` is not empty"),
    };
    if phase != wanted {
        problems.invalid(&Path::new("status.Phase"), phase, detail);
    }
    problems.0
}
