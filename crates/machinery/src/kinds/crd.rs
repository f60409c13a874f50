//! CustomResourceDefinitions: names that follow from the kind, versions that were ever stored. Whether a
//! definition is right is judged where schemas are compiled.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Strategy;
use super::edit::{bump_generation, child, fill, fill_zero, flag, items, keep, same_at, set, set_in, text};

pub(super) const STRATEGY: Strategy = Strategy {
    default,
    prepare_create,
    prepare_update,
    prepare_status: Some(|new, old, _now| keep(new, old, "spec")),
    ..Strategy::PLAIN
};

const HTTPS_PORT: i64 = 443;

fn default(crd: &mut Value) {
    let kind = text(crd, "/spec/names/kind").to_owned();
    if let Some(spec) = child(crd, "spec") {
        fill(spec, "conversion", json!({"strategy": "None"}));
    }
    if let Some(names) = crd.pointer_mut("/spec/names").and_then(Value::as_object_mut)
        && !kind.is_empty()
    {
        fill_zero(names, "singular", kind.to_lowercase());
        fill_zero(names, "listKind", format!("{kind}List"));
    }
    let service = crd.pointer_mut("/spec/conversion/webhook/clientConfig/service");
    if let Some(service) = service.and_then(Value::as_object_mut) {
        fill(service, "port", HTTPS_PORT);
    }
    if items(crd, "/status/storedVersions").is_empty() {
        add_stored_version(crd);
    }
}

fn prepare_create(crd: &mut Value, _now: Timestamp) {
    set(crd, "status", json!({"acceptedNames": {"plural": "", "kind": ""}}));
    set_in(crd, "metadata", "generation", 1.into());
    add_stored_version(crd);
}

fn prepare_update(new: &mut Value, old: &Value) {
    keep(new, old, "status");
    if !same_at(new, old, "/spec") {
        bump_generation(new, old);
    }
    add_stored_version(new);
}

/// Objects may exist in every version that was ever the storage version; the list only grows.
fn add_stored_version(crd: &mut Value) {
    let storage =
        items(crd, "/spec/versions").iter().find(|v| flag(v, "/storage")).map(|v| text(v, "/name").to_owned());
    let Some(name) = storage else { return };
    if items(crd, "/status/storedVersions").iter().any(|v| *v == name) {
        return;
    }
    if let Some(status) = child(crd, "status") {
        fill(status, "storedVersions", json!([]));
    }
    if let Some(versions) = crd.pointer_mut("/status/storedVersions").and_then(Value::as_array_mut) {
        versions.push(name.into());
    }
}
