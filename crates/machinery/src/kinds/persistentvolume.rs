//! PersistentVolumes.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Strategy;
use super::edit::{add_finalizer, child, fill, fill_zero, keep, present, rfc3339, same_at, set, set_in};
use super::pod::default_source;

/// Keeps a volume until no claim is bound to it.
pub const PROTECTION_FINALIZER: &str = "kubernetes.io/pv-protection";

pub(super) const STRATEGY: Strategy = Strategy {
    default,
    admit_create: |volume| add_finalizer(volume, PROTECTION_FINALIZER),
    prepare_create,
    prepare_update: |new, old| keep(new, old, "status"),
    prepare_status: Some(prepare_status),
    ..Strategy::PLAIN
};

fn default(volume: &mut Value) {
    if let Some(spec) = child(volume, "spec") {
        fill_zero(spec, "persistentVolumeReclaimPolicy", "Retain");
        fill(spec, "volumeMode", "Filesystem");
    }
    if let Some(spec) = volume.get_mut("spec") {
        default_source(spec);
    }
    if let Some(status) = child(volume, "status") {
        fill_zero(status, "phase", "Pending");
    }
}

fn prepare_create(volume: &mut Value, now: Timestamp) {
    set(volume, "status", json!({"phase": "Pending", "lastPhaseTransitionTime": rfc3339(now)}));
}

/// A phase that changes carries the time at which it did, whether the client says so or not.
fn prepare_status(new: &mut Value, old: &Value, now: Timestamp) {
    keep(new, old, "spec");
    let changed = !same_at(new, old, "/status/phase");
    let told = present(new, "/status/lastPhaseTransitionTime").is_some();
    if !changed && !told {
        let before = old.pointer("/status/lastPhaseTransitionTime").cloned().unwrap_or_default();
        set_in(new, "status", "lastPhaseTransitionTime", before);
    } else if changed && (!told || same_at(new, old, "/status/lastPhaseTransitionTime")) {
        set_in(new, "status", "lastPhaseTransitionTime", rfc3339(now));
    }
}
