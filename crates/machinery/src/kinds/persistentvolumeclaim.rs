//! PersistentVolumeClaims.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Strategy;
use super::edit::{add_finalizer, child, fill, fill_zero, is_zero, keep, present, set, set_in, text};

/// Keeps a claim until no pod uses it.
pub const PROTECTION_FINALIZER: &str = "kubernetes.io/pvc-protection";

pub(super) const STRATEGY: Strategy = Strategy {
    default,
    admit_create: |claim| add_finalizer(claim, PROTECTION_FINALIZER),
    prepare_create,
    prepare_update,
    prepare_status: Some(|new, old, _now| keep(new, old, "spec")),
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
