//! The `storage.k8s.io` group: classes, attachments, drivers and what nodes know of them.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Strategy;
use super::edit::{bump_generation, child, fill, fill_zero, keep, keep_metadata, same_at, set};

pub(super) const STORAGE_CLASS: Strategy = Strategy { default: default_class, ..Strategy::PLAIN };

pub(super) const VOLUME_ATTACHMENT: Strategy = Strategy {
    prepare_create: |attachment, _now| set(attachment, "status", json!({"attached": false})),
    prepare_update: |new, old| keep(new, old, "status"),
    prepare_status: Some(prepare_attachment_status),
    ..Strategy::PLAIN
};

pub(super) const CSI_DRIVER: Strategy =
    Strategy { default: default_driver, prepare_update: prepare_driver_update, ..Strategy::PLAIN };

pub(super) const CSI_NODE: Strategy = Strategy::PLAIN;

fn default_class(class: &mut Value) {
    if let Some(class) = class.as_object_mut() {
        fill(class, "reclaimPolicy", "Delete");
        fill(class, "volumeBindingMode", "Immediate");
    }
}

/// The status endpoint changes the status and nothing else, labels included.
fn prepare_attachment_status(new: &mut Value, old: &Value, _now: Timestamp) {
    keep(new, old, "spec");
    keep_metadata(new, old);
}

fn default_driver(driver: &mut Value) {
    if let Some(spec) = child(driver, "spec") {
        fill(spec, "attachRequired", true);
        fill(spec, "podInfoOnMount", false);
        fill(spec, "storageCapacity", false);
        fill(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
        fill_zero(spec, "volumeLifecycleModes", json!(["Persistent"]));
        fill(spec, "requiresRepublish", false);
        fill(spec, "seLinuxMount", false);
    }
}

fn prepare_driver_update(new: &mut Value, old: &Value) {
    if !same_at(new, old, "/spec") {
        bump_generation(new, old);
    }
}
