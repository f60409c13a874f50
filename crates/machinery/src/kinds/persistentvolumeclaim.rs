//! PersistentVolumeClaims.

use std::cmp::Reverse;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::checks::{self, IMMUTABLE, NOT_POSITIVE, Problems};
use super::edit::{
    add_finalizer, child, entries, fill, fill_zero, is_zero, items, keep, present, same, same_at, set, set_in, text,
};
use super::{Strategy, diff, storage};
use crate::field::{FieldError, Path};
use crate::names;

/// Keeps a claim until no pod uses it.
pub const PROTECTION_FINALIZER: &str = "kubernetes.io/pvc-protection";

pub(super) const STRATEGY: Strategy = Strategy {
    default,
    admit_create: |claim| add_finalizer(claim, PROTECTION_FINALIZER),
    prepare_create,
    prepare_update,
    prepare_status: Some(|new, old, _now| keep(new, old, "spec")),
    validate_create,
    validate_update,
    validate_status,
    warnings: super::warnings::claim,
    ..Strategy::PLAIN
};

fn default(claim: &mut Value) {
    if let Some(spec) = child(claim, "spec") {
        fill(spec, "volumeMode", "Filesystem");
    }
    if let Some(status) = child(claim, "status") {
        fill_zero(status, "phase", "Pending");
    }
}

fn prepare_create(claim: &mut Value, _now: Timestamp) {
    set(claim, "status", json!({"phase": "Pending"}));
    drop_foreign_source(claim, &Value::Null);
    align_sources(claim);
}

fn prepare_update(new: &mut Value, old: &Value) {
    keep(new, old, "status");
    drop_foreign_source(new, old);
    align_sources(new);
}

/// `dataSource` names a claim or a snapshot; anything else in it has always been dropped silently. Newer
/// clients say `dataSourceRef` and get an error instead.
fn drop_foreign_source(new: &mut Value, old: &Value) {
    let known = match text(new, "/spec/dataSource/kind") {
        "PersistentVolumeClaim" => text(new, "/spec/dataSource/apiGroup").is_empty(),
        "VolumeSnapshot" => text(new, "/spec/dataSource/apiGroup") == "snapshot.storage.k8s.io",
        _ => false,
    };
    let in_use = present(old, "/spec/dataSource").is_some() || present(old, "/spec/dataSourceRef").is_some();
    if !in_use && !known && present(new, "/spec/dataSourceRef").is_none() {
        set_in(new, "spec", "dataSource", Value::Null);
    }
}

/// The two ways to name a source say the same, unless the source is in another namespace.
pub(super) fn align_sources(claim: &mut Value) {
    let old_way = present(claim, "/spec/dataSource").cloned();
    let new_way = present(claim, "/spec/dataSourceRef").cloned();
    let copy = |from: &Value| {
        let mut to = json!({"kind": text(from, "/kind"), "name": text(from, "/name")});
        set(&mut to, "apiGroup", present(from, "/apiGroup").cloned().unwrap_or_default());
        to
    };
    match (old_way, new_way) {
        (Some(source), None) => set_in(claim, "spec", "dataSourceRef", copy(&source)),
        (None, Some(source)) if present(&source, "/namespace").is_none_or(is_zero) => {
            set_in(claim, "spec", "dataSource", copy(&source));
        }
        _ => {}
    }
}

/// The storage class that a claim without one gets: the newest of those marked as default. Set by
/// admission, which knows the classes.
pub fn default_class<'a>(claim: &Value, classes: &'a [Value]) -> Option<&'a str> {
    let asked = present(claim, "/spec/storageClassName").is_some() || present(claim, BETA_CLASS).is_some();
    let marked = classes.iter().filter(|class| !asked && storage::is_default_class(class));
    marked
        .map(|class| (text(class, "/metadata/creationTimestamp"), Reverse(text(class, "/metadata/name"))))
        .max()
        .map(|(_, Reverse(name))| name)
}

const BETA_CLASS: &str = "/metadata/annotations/volume.beta.kubernetes.io~1storage-class";

fn validate_create(claim: &Value) -> Vec<FieldError> {
    let mut problems = Problems::new();
    spec(&mut problems, &Path::new("spec"), claim.get("spec").unwrap_or(&Value::Null));
    problems.0
}

/// The spec of a claim, or of a template for one.
pub(super) fn spec(problems: &mut Problems, path: &Path, spec: &Value) {
    if items(spec, "/accessModes").is_empty() {
        problems.required(&path.child("accessModes"), "at least 1 access mode is required");
    }
    if let Some(selector) = present(spec, "/selector") {
        checks::label_selector(problems, &path.child("selector"), selector);
    }
    checks::access_modes(problems, &path.child("accessModes"), spec);
    let size = path.child("resources").key("storage");
    match present(spec, "/resources/requests/storage").map(checks::quantity) {
        None => problems.required(&size, ""),
        Some(amount) if amount.signum() <= 0 => problems.invalid(&size, amount.to_string(), NOT_POSITIVE),
        Some(_) => {}
    }
    for field in ["storageClassName", "volumeAttributesClassName"] {
        if let Some(class) = spec.get(field).and_then(Value::as_str).filter(|c| !c.is_empty()) {
            problems.messages(&path.child(field), class, names::dns1123_subdomain(class));
        }
    }
    problems.optional_choice(spec, "volumeMode", path, &["Block", "Filesystem"]);
    sources(problems, path, spec);
}

fn sources(problems: &mut Problems, path: &Path, spec: &Value) {
    let (old_way, new_way) = (present(spec, "/dataSource"), present(spec, "/dataSourceRef"));
    for (field, source) in [("dataSource", old_way), ("dataSourceRef", new_way)] {
        let Some(source) = source else { continue };
        let path = path.child(field);
        problems.present(source, "name", &path);
        problems.present(source, "kind", &path);
        let (group, kind) = (text(source, "/apiGroup"), text(source, "/kind"));
        if group.is_empty() && kind != "PersistentVolumeClaim" {
            let detail = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
            problems.invalid(&path, kind, detail);
        }
        if !group.is_empty() {
            problems.messages(&path.child("apiGroup"), group, names::dns1123_subdomain(group));
        }
    }
    let (Some(old_way), Some(new_way)) = (old_way, new_way) else { return };
    // The server reports a path where a value belongs, and paths have no JSON.
    let value = json!({});
    if !text(new_way, "/namespace").is_empty() {
        problems.invalid(path, value, "may not be specified when dataSourceRef.namespace is specified");
    } else if !["/apiGroup", "/kind", "/name"].iter().all(|field| same_at(old_way, new_way, field)) {
        problems.invalid(path, value, "must match dataSourceRef");
    }
}

/// A bound claim may ask for more and change its attributes; an unbound one gets a volume and, once, a
/// class. Everything else stays.
fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut problems = Problems(validate_create(new));
    let bound = text(new, "/status/phase") == "Bound";
    let mut before = old.clone();
    align_sources(&mut before);
    let mut now = new.clone();
    if text(old, "/spec/volumeName").is_empty() {
        set_in(&mut before, "spec", "volumeName", new.pointer("/spec/volumeName").cloned().unwrap_or_default());
    }
    class_change(&mut problems, &mut now, &before);
    if bound {
        let size = old.pointer("/spec/resources/requests/storage").cloned().unwrap_or_default();
        if let Some(requests) = now.pointer_mut("/spec/resources/requests") {
            set(requests, "storage", size);
        }
        let attributes = before.pointer("/spec/volumeAttributesClassName").cloned().unwrap_or_default();
        set_in(&mut now, "spec", "volumeAttributesClassName", attributes);
    }
    let (now, before) = (now.get("spec").unwrap_or(&Value::Null), before.get("spec").unwrap_or(&Value::Null));
    if !same(now, before) {
        let detail =
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        problems.forbidden(&Path::new("spec"), format!("{detail}\n{}", diff::unified(before, now)));
    }
    let size = |object: &Value, pointer: &str| object.pointer(pointer).map(checks::quantity).unwrap_or_default();
    let (asked, had) = (size(new, "/spec/resources/requests/storage"), size(old, "/spec/resources/requests/storage"));
    if asked < had && asked <= size(old, "/status/capacity/storage") {
        let path = Path::new("spec.resources.requests.storage");
        problems.forbidden(&path, "field can not be less than status.capacity");
    }
    problems.immutable(new, old, "/spec/volumeMode", &Path::new("volumeMode"));
    attributes_change(&mut problems, new, old);
    problems.0
}

/// A class may be given to a claim that had none; the annotation of old may become the field.
fn class_change(problems: &mut Problems, now: &mut Value, before: &Value) {
    let annotation = |object: &Value| present(object, BETA_CLASS).and_then(Value::as_str).map(str::to_owned);
    let class = |object: &Value| present(object, "/spec/storageClassName").and_then(Value::as_str).map(str::to_owned);
    let (old_annotation, new_annotation) = (annotation(before), annotation(now));
    let (old_class, new_class) = (class(before), class(now));
    let moved = old_annotation.is_some()
        && old_class.is_none()
        && new_class == old_annotation
        && (new_annotation.is_none() || new_annotation == old_annotation);
    if moved {
        set_in(now, "spec", "storageClassName", Value::Null);
        return;
    }
    if old_annotation != new_annotation {
        let path = Path::new("metadata.annotations.volume.beta.kubernetes.io/storage-class");
        problems.invalid(&path, new_annotation.unwrap_or_default(), IMMUTABLE);
    }
    if old_class.is_none() && new_class.is_some() && (old_annotation.is_none() || new_class == old_annotation) {
        set_in(now, "spec", "storageClassName", Value::Null);
    }
}

fn attributes_change(problems: &mut Problems, new: &Value, old: &Value) {
    let pointer = "/spec/volumeAttributesClassName";
    if same_at(new, old, pointer) || present(old, "/status/currentVolumeAttributesClassName").is_none() {
        return;
    }
    let path = Path::new("spec.volumeAttributesClassName");
    match present(new, pointer).and_then(Value::as_str) {
        None => {
            let detail = "update to nil is forbidden when status.currentVolumeAttributesClassName is not nil";
            problems.forbidden(&path, detail);
        }
        Some("") => {
            let detail = "update to empty string is forbidden when status.currentVolumeAttributesClassName is not nil";
            problems.forbidden(&path, detail);
        }
        Some(_) => {}
    }
}

fn validate_status(new: &Value, _old: &Value) -> Vec<FieldError> {
    let mut problems = Problems::new();
    if items(new, "/spec/accessModes").is_empty() {
        problems.required(&Path::new("Spec.accessModes"), "");
    }
    for section in ["capacity", "allocatedResources"] {
        for (resource, amount) in entries(new, &format!("/status/{section}")) {
            let value = checks::quantity(amount).value();
            if value < 0 {
                let path = Path::new("status").child(section).key(resource);
                problems.invalid(&path, value, "must be a valid resource quantity");
            }
        }
    }
    problems.0
}

#[cfg(test)]
mod tests;
