//! PersistentVolumes.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::checks::{self, IMMUTABLE, NOT_POSITIVE, Problems};
use super::edit::{
    add_finalizer, child, entries, fill, fill_zero, flag, items, keep, present, rfc3339, same, same_at, set, set_in,
    text,
};
use super::pod::{default_source, shared_source};
use super::{Strategy, diff};
use crate::field::{FieldError, Path};
use crate::names;

/// Keeps a volume until no claim is bound to it.
pub const PROTECTION_FINALIZER: &str = "kubernetes.io/pv-protection";

pub(super) const STRATEGY: Strategy = Strategy {
    default,
    admit_create: |volume| add_finalizer(volume, PROTECTION_FINALIZER),
    prepare_create,
    prepare_update: |new, old| keep(new, old, "status"),
    prepare_status: Some(prepare_status),
    validate_create,
    validate_update,
    warnings: super::warnings::volume,
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

/// Volume sources in the order in which Kubernetes looks at them.
const SOURCES: &[&str] = &[
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "flocker",
    "nfs",
    "rbd",
    "quobyte",
    "cephfs",
    "iscsi",
    "cinder",
    "fc",
    "flexVolume",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "local",
    "storageos",
    "csi",
];

const RECLAIM_POLICIES: &[&str] = &["Delete", "Recycle", "Retain"];
const MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";
const INLINE: &str = "in the context of inline volumes";

fn validate_create(volume: &Value) -> Vec<FieldError> {
    let mut problems = Problems::new();
    spec(&mut problems, &Path::new("spec"), volume.get("spec").unwrap_or(&Value::Null), false);
    mount_options(&mut problems, volume);
    problems.0
}

/// The spec of a volume, or of one that is written into an attachment (`inline`), which has no claim, no
/// size of its own and comes from CSI.
pub(super) fn spec(problems: &mut Problems, path: &Path, spec: &Value, inline: bool) {
    if inline {
        inline_only(problems, path, spec);
    }
    if items(spec, "/accessModes").is_empty() {
        problems.required(&path.child("accessModes"), "");
    }
    checks::access_modes(problems, &path.child("accessModes"), spec);
    if !inline {
        capacity(problems, &path.child("capacity"), spec);
        let policy = text(spec, "/persistentVolumeReclaimPolicy");
        if !policy.is_empty() {
            problems.choice(&path.child("persistentVolumeReclaimPolicy"), policy, RECLAIM_POLICIES);
        }
        if let Some(affinity) = present(spec, "/nodeAffinity") {
            let path = path.child("nodeAffinity").child("required");
            if let Some(required) = present(affinity, "/required") {
                checks::node_selector(problems, &path, required);
            } else {
                problems.required(&path, "must specify required node constraints");
            }
        }
    }
    sources(problems, path, spec);
    if !inline {
        class(problems, path, spec);
        problems.optional_choice(spec, "volumeMode", path, &["Block", "Filesystem"]);
    }
}

fn inline_only(problems: &mut Problems, path: &Path, spec: &Value) {
    for field in ["claimRef", "capacity", "nodeAffinity", "storageClassName"] {
        if present(spec, &format!("/{field}")).is_some_and(|v| v != "") {
            problems.forbidden(&path.child(field), format!("may not be specified {INLINE}"));
        }
    }
    if present(spec, "/csi").is_none() {
        problems.required(&path.child("csi"), &format!("has to be specified {INLINE}"));
    }
    if !matches!(text(spec, "/persistentVolumeReclaimPolicy"), "" | "Retain") {
        problems.forbidden(&path.child("persistentVolumeReclaimPolicy"), format!("may only be Retain {INLINE}"));
    }
    if !matches!(text(spec, "/volumeMode"), "" | "Filesystem") {
        let detail = format!("may not specify volumeMode other than Filesystem {INLINE}");
        problems.forbidden(&path.child("volumeMode"), detail);
    }
}

fn capacity(problems: &mut Problems, path: &Path, spec: &Value) {
    let amounts: Vec<_> = entries(spec, "/capacity").collect();
    if amounts.is_empty() {
        problems.required(path, "");
    }
    if amounts.len() != 1 || amounts[0].0 != "storage" {
        problems.not_supported(path, spec.get("capacity").cloned().unwrap_or_default(), &["storage"]);
    }
    for (resource, amount) in amounts {
        let amount = checks::quantity(amount);
        if amount.value() < 0 {
            problems.invalid(&path.key(resource), amount.value(), "must be a valid resource quantity");
        }
        if amount.signum() <= 0 {
            problems.invalid(&path.key(resource), amount.to_string(), NOT_POSITIVE);
        }
    }
}

fn sources(problems: &mut Problems, path: &Path, spec: &Value) {
    checks::single_source(problems, path, spec, SOURCES, |problems, kind, found| {
        source(problems, path, spec, kind, found);
    });
    let root = text(spec, "/hostPath/path");
    if !root.is_empty() && root.chars().all(|c| c == '/') && text(spec, "/persistentVolumeReclaimPolicy") == "Recycle" {
        let detail = "may not be 'recycle' for a hostPath mount of '/'";
        problems.forbidden(&path.child("persistentVolumeReclaimPolicy"), detail);
    }
}

fn source(problems: &mut Problems, path: &Path, spec: &Value, kind: &str, source: &Value) {
    let at = path.child(kind);
    match kind {
        "csi" => {
            checks::driver_name(problems, &at.child("driver"), text(source, "/driver"));
            problems.present(source, "volumeHandle", &at);
            let secrets = [
                "controllerPublishSecretRef",
                "controllerExpandSecretRef",
                "nodePublishSecretRef",
                "nodeExpandSecretRef",
            ];
            for secret in secrets {
                if let Some(reference) = present(source, &format!("/{secret}")) {
                    checks::secret_reference(problems, &at.child(secret), reference);
                }
            }
        }
        "local" => match text(source, "/path") {
            "" => problems.required(&at.child("path"), ""),
            target => {
                checks::no_backsteps(problems, &at.child("path"), target);
                if present(spec, "/nodeAffinity").is_none() {
                    problems.required(&path.child("nodeAffinity"), "Local volume requires node affinity");
                }
            }
        },
        "iscsi" => iscsi(problems, &at, source),
        _ => shared_source(problems, path, kind, source),
    }
}

fn iscsi(problems: &mut Problems, path: &Path, source: &Value) {
    problems.present(source, "targetPortal", path);
    match text(source, "/iqn") {
        "" => problems.required(&path.child("iqn"), ""),
        iqn if !checks::is_iscsi_name(iqn) => problems.invalid(&path.child("iqn"), iqn, "must be valid format"),
        _ => {}
    }
    checks::lun(problems, path, source);
    let chap = flag(source, "/chapAuthDiscovery") || flag(source, "/chapAuthSession");
    match present(source, "/secretRef") {
        None if chap => problems.required(&path.child("secretRef"), ""),
        Some(secret) => problems.present(secret, "name", &path.child("secretRef")),
        None => {}
    }
    let initiator = present(source, "/initiatorName").and_then(Value::as_str);
    if let Some(name) = initiator.filter(|name| !checks::is_iscsi_name(name)) {
        problems.invalid(&path.child("initiatorname"), name, "must be valid format");
    }
}

fn class(problems: &mut Problems, path: &Path, spec: &Value) {
    let class = text(spec, "/storageClassName");
    if !class.is_empty() {
        problems.messages(&path.child("storageClassName"), class, names::dns1123_subdomain(class));
    }
    if let Some(attributes) = spec.get("volumeAttributesClassName").and_then(Value::as_str) {
        let at = path.child("volumeAttributesClassName");
        match attributes {
            "" => problems.required(&at, "an empty string is disallowed"),
            _ => problems.messages(&at, attributes, names::dns1123_subdomain(attributes)),
        }
        if present(spec, "/csi").is_none() {
            problems.required(&path.child("csi"), "has to be specified when using volumeAttributesClassName");
        }
    }
}

/// Options for `mount` make no sense for sources that are not mounted by kubelet itself.
fn mount_options(problems: &mut Problems, volume: &Value) {
    const WITHOUT: [&str; 9] =
        ["hostPath", "flocker", "fc", "flexVolume", "portworxVolume", "scaleIO", "local", "storageos", "csi"];
    let annotated = volume.pointer("/metadata/annotations").and_then(|a| a.get(MOUNT_OPTIONS)).is_some();
    let mounted = SOURCES.iter().any(|s| !WITHOUT.contains(s) && present(volume, &format!("/spec/{s}")).is_some());
    if annotated && !mounted {
        let path = Path::new("metadata.annotations").child(MOUNT_OPTIONS);
        problems.forbidden(&path, "may not specify mount options for this volume type");
    }
}

/// Size, class, reclaim policy and claim may change; what the volume is and where it can be reached may not.
fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut problems = Problems(validate_create(new));
    let source_of = |volume: &Value| {
        let mut spec = volume.get("spec").cloned().unwrap_or_default();
        if let Some(map) = spec.as_object_mut() {
            map.retain(|key, _| SOURCES.contains(&key.as_str()));
        }
        spec
    };
    let (mut now, before) = (source_of(new), source_of(old));
    // A volume made before expansion needed a secret may get one.
    if present(&before, "/csi").is_some()
        && present(&before, "/csi/controllerExpandSecretRef").is_none()
        && let Some(csi) = now.get_mut("csi")
    {
        set(csi, "controllerExpandSecretRef", Value::Null);
    }
    if !same(&now, &before) {
        let diff = diff::unified(&before, &now);
        let detail = format!("spec.persistentvolumesource is immutable after creation\n{diff}");
        problems.forbidden(&Path::new("spec.persistentvolumesource"), detail);
    }
    problems.immutable(new, old, "/spec/volumeMode", &Path::new("volumeMode"));
    if present(old, "/spec/nodeAffinity").is_some() && !same_at(new, old, "/spec/nodeAffinity") {
        let value = new.pointer("/spec/nodeAffinity").cloned().unwrap_or_default();
        let detail = format!("{IMMUTABLE}, except for updating from beta label to GA");
        problems.invalid(&Path::new("nodeAffinity"), value, detail);
    }
    let attributes = "/spec/volumeAttributesClassName";
    if present(old, attributes).is_some() && present(new, attributes).is_none() {
        let path = Path::new("spec.volumeAttributesClassName");
        problems.forbidden(&path, "update from non-nil value to nil is forbidden");
    }
    problems.0
}

#[cfg(test)]
mod tests;
