//! The `storage.k8s.io` group: classes, attachments, drivers and what nodes know of them.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::checks::{self, Problems};
use super::edit::{
    bump_generation, child, entries, fill, fill_zero, integer, items, keep, keep_metadata, present, same, same_at, set,
    text,
};
use super::{Strategy, persistentvolume, warnings};
use crate::field::{ErrorKind, FieldError, Path};
use crate::names;

pub(super) const STORAGE_CLASS: Strategy = Strategy {
    default: default_class,
    validate_create: validate_class,
    validate_update: validate_class_update,
    warnings: warnings::class,
    ..Strategy::PLAIN
};

pub(super) const VOLUME_ATTACHMENT: Strategy = Strategy {
    prepare_create: |attachment, _now| set(attachment, "status", json!({"attached": false})),
    prepare_update: |new, old| keep(new, old, "status"),
    prepare_status: Some(prepare_attachment_status),
    validate_create: validate_new_attachment,
    validate_update: validate_attachment_update,
    validate_status: validate_attachment_update,
    ..Strategy::PLAIN
};

pub(super) const CSI_DRIVER: Strategy = Strategy {
    default: default_driver,
    prepare_update: prepare_driver_update,
    validate_create: validate_driver,
    validate_update: validate_driver_update,
    warnings: warnings::driver,
    ..Strategy::PLAIN
};

pub(super) const CSI_NODE: Strategy =
    Strategy { validate_create: validate_node, validate_update: validate_node_update, ..Strategy::PLAIN };

pub(super) const CSI_STORAGE_CAPACITY: Strategy =
    Strategy { validate_create: validate_capacity, validate_update: validate_capacity_update, ..Strategy::PLAIN };

/// All parameters of a class together.
const MAX_PARAMETER_BYTES: usize = 256 * 1024;
const MAX_PARAMETERS: usize = 512;
/// What a driver may say about an attachment.
const MAX_ATTACHMENT_METADATA_BYTES: usize = 256 * 1024;
const MAX_ERROR_BYTES: usize = 1024;
const MAX_NODE_ID_BYTES: usize = 256;
/// How often a node may be asked how many volumes it takes.
const MIN_UPDATE_PERIOD_SECONDS: i64 = 10;
/// Tokens live at least ten minutes and at most about a century.
const TOKEN_SECONDS: std::ops::RangeInclusive<i64> = 600..=1 << 32;

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

/// Whether claims without a class get this one.
pub(super) fn is_default_class(class: &Value) -> bool {
    let annotations = class.pointer("/metadata/annotations");
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"]
        .iter()
        .any(|key| annotations.and_then(|a| a.get(key)).is_some_and(|v| v == "true"))
}

fn validate_class(class: &Value) -> Vec<FieldError> {
    let mut problems = Problems::new();
    let provisioner = text(class, "/provisioner");
    let path = Path::new("provisioner");
    if provisioner.is_empty() {
        problems.required(&path, "");
    } else {
        let lower = provisioner.to_lowercase();
        problems.messages(&path, &lower, names::qualified_name(&lower));
    }
    let path = Path::new("parameters");
    let parameters: Vec<_> = entries(class, "/parameters").collect();
    if parameters.len() > MAX_PARAMETERS {
        problems.too_long(&path, MAX_PARAMETERS);
    }
    if parameters.iter().any(|(key, _)| key.is_empty()) {
        problems.invalid(&path, "", "field can not be empty.");
    }
    if parameters.iter().map(|(k, v)| k.len() + v.as_str().map_or(0, str::len)).sum::<usize>() > MAX_PARAMETER_BYTES {
        problems.too_long(&path, MAX_PARAMETER_BYTES);
    }
    let root = Path::root();
    if !text(class, "/reclaimPolicy").is_empty() {
        problems.optional_choice(class, "reclaimPolicy", &root, &["Delete", "Retain"]);
    }
    problems.optional_choice(class, "volumeBindingMode", &root, &["Immediate", "WaitForFirstConsumer"]);
    let terms = items(class, "/allowedTopologies");
    for (index, term) in terms.iter().enumerate() {
        let path = Path::new("allowedTopologies").index(index);
        checks::topology_term(&mut problems, &path, term);
        // A term without expressions counts as a duplicate of nothing at all.
        if terms[..index].contains(term) || items(term, "/matchLabelExpressions").is_empty() {
            problems.duplicate(&path.child("matchLabelExpressions"), "");
        }
    }
    problems.0
}

fn validate_class_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut problems = Problems(validate_class(new));
    for field in ["parameters", "provisioner", "reclaimPolicy"] {
        if !same_at(new, old, &format!("/{field}")) {
            problems.forbidden(&Path::new(field), format!("updates to {field} are forbidden."));
        }
    }
    problems.immutable(new, old, "/volumeBindingMode", &Path::new("volumeBindingMode"));
    problems.0
}

fn validate_attachment(attachment: &Value) -> Vec<FieldError> {
    let mut problems = Problems::new();
    let path = Path::new("spec");
    let spec = attachment.get("spec").unwrap_or(&Value::Null);
    problems.present(spec, "attacher", &path);
    let source = path.child("source");
    let both = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    match (present(spec, "/source/inlineVolumeSpec"), present(spec, "/source/persistentVolumeName")) {
        (None, None) => problems.required(&source, both),
        (Some(_), Some(_)) => problems.forbidden(&source, both),
        (None, Some(name)) if name == "" => {
            let detail = "must specify non empty persistentVolumeName";
            problems.required(&source.child("persistentVolumeName"), detail);
        }
        (None, Some(_)) => {}
        (Some(inline), None) => {
            persistentvolume::spec(&mut problems, &source.child("inlineVolumeSpec"), inline, true);
        }
    }
    let node = text(spec, "/nodeName");
    problems.messages(&path.child("nodeName"), node, names::dns1123_subdomain(node));
    attachment_status(&mut problems, attachment);
    problems.0
}

fn attachment_status(problems: &mut Problems, attachment: &Value) {
    let path = Path::new("status");
    let metadata = entries(attachment, "/status/attachmentMetadata");
    if metadata.map(|(k, v)| k.len() + v.as_str().map_or(0, str::len)).sum::<usize>() > MAX_ATTACHMENT_METADATA_BYTES {
        problems.too_long(&path.child("attachmentMetadata"), MAX_ATTACHMENT_METADATA_BYTES);
    }
    for field in ["attachError", "detachError"] {
        let error = attachment.pointer(&format!("/status/{field}")).unwrap_or(&Value::Null);
        if text(error, "/message").len() > MAX_ERROR_BYTES {
            problems.too_long(&path.child(field).child("message"), MAX_ATTACHMENT_METADATA_BYTES);
        }
        if let Some(code) = integer(error, "/errorCode").filter(|c| *c < 0) {
            problems.invalid(&path.child(field).child("errorCode"), code, checks::range(0, i32::MAX.into()));
        }
    }
}

fn validate_new_attachment(attachment: &Value) -> Vec<FieldError> {
    let mut problems = Problems(validate_attachment(attachment));
    checks::driver_name(&mut problems, &Path::new("spec.attacher"), text(attachment, "/spec/attacher"));
    let volume = present(attachment, "/spec/source/persistentVolumeName").and_then(Value::as_str);
    if let Some(volume) = volume {
        let path = Path::new("spec.source.persistentVolumeName");
        problems.messages(&path, volume, names::dns1123_subdomain(volume));
    }
    problems.0
}

fn validate_attachment_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut problems = Problems(validate_attachment(new));
    if !same_at(new, old, "/spec") {
        immutable(&mut problems, "spec", &attachment_in_go(new));
    }
    problems.0
}

/// `shown` is the value as Kubernetes' Go types print it: their names, in their order.
fn immutable(problems: &mut Problems, field: &str, shown: &str) {
    let detail = format!("{shown}: {}", checks::IMMUTABLE);
    problems.0.push(FieldError { kind: ErrorKind::Invalid, path: Path::new(field), value: None, detail });
}

fn attachment_in_go(attachment: &Value) -> String {
    let part = |pointer: &str| attachment.pointer(pointer).cloned().unwrap_or_default();
    format!(
        "{{\"Attacher\":{},\"Source\":{{\"PersistentVolumeName\":{},\"InlineVolumeSpec\":{}}},\"NodeName\":{}}}",
        part("/spec/attacher"),
        part("/spec/source/persistentVolumeName"),
        part("/spec/source/inlineVolumeSpec"),
        part("/spec/nodeName"),
    )
}

fn validate_driver(driver: &Value) -> Vec<FieldError> {
    let mut problems = Problems::new();
    let path = Path::new("spec");
    let spec = driver.get("spec").unwrap_or(&Value::Null);
    for (field, shown) in [
        ("attachRequired", "attachedRequired"),
        ("podInfoOnMount", "podInfoOnMount"),
        ("storageCapacity", "storageCapacity"),
    ] {
        if present(spec, &format!("/{field}")).is_none() {
            problems.required(&path.child(shown), "");
        }
    }
    problems.optional_choice(spec, "fsGroupPolicy", &path, &["File", "None", "ReadWriteOnceWithFSType"]);
    let requests = items(spec, "/tokenRequests");
    for (index, request) in requests.iter().enumerate() {
        let path = path.child("tokenRequests").index(index);
        let audience = text(request, "/audience");
        if requests[..index].iter().any(|r| text(r, "/audience") == audience) {
            problems.duplicate(&path.child("audience"), audience);
            continue;
        }
        if let Some(seconds) = integer(request, "/expirationSeconds").filter(|s| !TOKEN_SECONDS.contains(s)) {
            let short = seconds < *TOKEN_SECONDS.start();
            let detail = if short {
                "may not specify a duration less than 10 minutes"
            } else {
                "may not specify a duration larger than 2^32 seconds"
            };
            problems.invalid(&path.child("expirationSeconds"), seconds, detail);
        }
    }
    for mode in items(spec, "/volumeLifecycleModes").iter().filter_map(Value::as_str) {
        if !matches!(mode, "Persistent" | "Ephemeral") {
            problems.not_supported(&path.child("volumeLifecycleModes"), mode, &["Persistent", "Ephemeral"]);
        }
    }
    if present(spec, "/seLinuxMount").is_none() {
        problems.required(&path.child("seLinuxMount"), "");
    }
    let period = integer(spec, "/nodeAllocatableUpdatePeriodSeconds");
    if let Some(seconds) = period.filter(|s| *s < MIN_UPDATE_PERIOD_SECONDS) {
        let detail = "must be greater than or equal to 10 seconds";
        problems.invalid(&path.child("nodeAllocatableUpdatePeriodSeconds"), seconds, detail);
    }
    if let Some(value) = present(spec, "/serviceAccountTokenInSecrets").filter(|_| requests.is_empty()) {
        let detail = "serviceAccountTokenInSecrets is set but no tokenRequests are specified";
        problems.invalid(&path.child("serviceAccountTokenInSecrets"), value.clone(), detail);
    }
    problems.0
}

fn validate_driver_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut problems = Problems(validate_driver(new));
    problems.immutable(new, old, "/spec/attachRequired", &Path::new("spec.attachedRequired"));
    problems.immutable(new, old, "/spec/volumeLifecycleModes", &Path::new("spec.volumeLifecycleModes"));
    problems.0
}

fn validate_node(node: &Value) -> Vec<FieldError> {
    let mut problems = Problems::new();
    let drivers = items(node, "/spec/drivers");
    for (index, driver) in drivers.iter().enumerate() {
        let path = Path::new("spec.drivers").index(index);
        let (name, id) = (text(driver, "/name"), text(driver, "/nodeID"));
        checks::driver_name(&mut problems, &path.child("name"), name);
        problems.present(driver, "nodeID", &path);
        if id.len() > MAX_NODE_ID_BYTES {
            let detail = format!("must be {MAX_NODE_ID_BYTES} characters or less");
            problems.invalid(&path.child("nodeID"), id, detail);
        }
        if let Some(allocatable) = present(driver, "/allocatable") {
            checks::non_negative(&mut problems, &path.child("allocatable"), allocatable, "count");
        }
        if drivers[..index].iter().any(|d| text(d, "/name") == name) {
            problems.duplicate(&path.child("name"), name);
        }
        let keys = items(driver, "/topologyKeys");
        for (at, key) in keys.iter().enumerate() {
            let text = key.as_str().unwrap_or_default();
            if text.is_empty() {
                problems.required(&path, "");
            }
            if keys[..at].contains(key) {
                problems.duplicate(&path, text);
            }
            problems.messages(&path, text, names::qualified_name(text));
        }
    }
    problems.0
}

/// A driver on a node may change how many volumes it takes, and nothing else.
fn validate_node_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut problems = Problems(validate_node(new));
    let without_limit = |driver: &Value| {
        let mut rest = driver.clone();
        set(&mut rest, "allocatable", Value::Null);
        rest
    };
    for before in items(old, "/spec/drivers") {
        let now = items(new, "/spec/drivers").iter().find(|d| text(d, "/name") == text(before, "/name"));
        let Some(now) = now.map(without_limit) else { continue };
        if !same(&now, &without_limit(before)) {
            let part = |field: &str| now.get(field).cloned().unwrap_or_default();
            let shown = format!(
                "{{\"Name\":{},\"NodeID\":{},\"TopologyKeys\":{},\"Allocatable\":null}}",
                part("name"),
                part("nodeID"),
                json!(items(&now, "/topologyKeys")),
            );
            immutable(&mut problems, "spec.drivers", &shown);
        }
    }
    problems.0
}

fn validate_capacity(capacity: &Value) -> Vec<FieldError> {
    let mut problems = Problems::new();
    if let Some(selector) = present(capacity, "/nodeTopology") {
        checks::label_selector(&mut problems, &Path::new("nodeTopology"), selector);
    }
    let class = text(capacity, "/storageClassName");
    problems.messages(&Path::new("storageClassName"), class, names::dns1123_subdomain(class));
    if let Some(amount) = present(capacity, "/capacity").map(checks::quantity).filter(|amount| amount.signum() < 0) {
        problems.invalid(&Path::new("capacity"), amount.to_string(), checks::NEGATIVE);
    }
    problems.0
}

/// What a driver was asked does not change; what it answered does.
fn validate_capacity_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut problems = Problems(validate_capacity(new));
    for field in ["nodeTopology", "storageClassName"] {
        problems.immutable(new, old, &format!("/{field}"), &Path::new(field));
    }
    problems.0
}

#[cfg(test)]
mod tests;
