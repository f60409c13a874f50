//! Whether a pod's volumes are right.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::super::checks::{self, Problems};
use super::super::edit::{integer, items, present, text};
use super::super::persistentvolumeclaim;
use super::resources;
use crate::field::Path;
use crate::names;

/// Volumes that containers can mount: those without errors, by name.
pub(super) type Usable<'a> = BTreeMap<&'a str, &'a Value>;

/// Volume sources in the order in which Kubernetes looks at them.
const SOURCES: &[&str] = &[
    "emptyDir",
    "hostPath",
    "gitRepo",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "secret",
    "nfs",
    "iscsi",
    "glusterfs",
    "flocker",
    "persistentVolumeClaim",
    "rbd",
    "cinder",
    "cephfs",
    "quobyte",
    "downwardAPI",
    "fc",
    "flexVolume",
    "configMap",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "storageos",
    "projected",
    "scaleIO",
    "csi",
    "ephemeral",
    "image",
];

/// Projected tokens live at least ten minutes and at most about a century.
const TOKEN_SECONDS: std::ops::RangeInclusive<i64> = 600..=1 << 32;

pub(super) fn validate<'a>(problems: &mut Problems, path: &Path, pod: &'a Value) -> Usable<'a> {
    let mut usable = Usable::new();
    let volumes = items(pod, "/spec/volumes");
    let pod_name = text(pod, "/metadata/name");
    for (index, volume) in volumes.iter().enumerate() {
        let path = path.index(index);
        let name = text(volume, "/name");
        let before = problems.0.len();
        checks::single_source(problems, &path, volume, SOURCES, |problems, kind, source| {
            validate_source(problems, &path, kind, source);
            if kind == "ephemeral" && !pod_name.is_empty() && !name.is_empty() {
                let claim = format!("{pod_name}-{name}");
                for message in names::dns1123_subdomain(&claim) {
                    problems.invalid(&path.child("name"), name, format!("PVC name {claim:?}: {message}"));
                }
            }
        });
        match name {
            "" => problems.required(&path.child("name"), ""),
            name => problems.messages(&path.child("name"), name, names::dns1123_label(name)),
        }
        if usable.contains_key(name) {
            problems.duplicate(&path.child("name"), name);
        }
        if problems.0.len() == before {
            usable.insert(name, volume);
        }
        let claim = text(volume, "/persistentVolumeClaim/claimName");
        let ephemeral =
            |v: &&Value| v.get("ephemeral").is_some() && claim == format!("{pod_name}-{}", text(v, "/name"));
        if !claim.is_empty() && !pod_name.is_empty() && volumes.iter().any(|v| ephemeral(&v)) {
            let detail = "must not reference a PVC that gets created for an ephemeral volume";
            problems.invalid(&path.child("persistentVolumeClaim").child("claimName"), claim, detail);
        }
    }
    usable
}

fn validate_source(problems: &mut Problems, path: &Path, kind: &str, source: &Value) {
    let at = path.child(kind);
    match kind {
        "emptyDir" => {
            if source.get("sizeLimit").is_some_and(|limit| checks::quantity(limit).signum() < 0) {
                problems.forbidden(&at.child("sizeLimit"), "SizeLimit field must be a valid resource quantity");
            }
        }
        "secret" => {
            problems.present(source, "secretName", &at);
            keys_to_paths(problems, &at, source, None);
        }
        "configMap" => {
            problems.present(source, "name", &at);
            keys_to_paths(problems, &at, source, None);
        }
        "persistentVolumeClaim" => problems.present(source, "claimName", &at),
        "downwardAPI" => {
            checks::file_mode(problems, &at, source, "defaultMode");
            for file in items(source, "/items") {
                downward_file(problems, &at, file);
            }
        }
        "projected" => projected(problems, &at, source),
        "csi" => {
            checks::driver_name(problems, &at.child("driver"), text(source, "/driver"));
            if let Some(secret) = present(source, "/nodePublishSecretRef") {
                match text(secret, "/name") {
                    "" => problems.required(&at.child("nodePublishSecretRef").child("name"), ""),
                    name => problems.messages(&at.child("name"), name, names::dns1123_subdomain(name)),
                }
            }
        }
        "ephemeral" => match present(source, "/volumeClaimTemplate/spec") {
            None => problems.required(&at.child("volumeClaimTemplate"), ""),
            Some(spec) => {
                persistentvolumeclaim::spec(problems, &at.child("volumeClaimTemplate").child("spec"), spec);
            }
        },
        "image" => problems.optional_choice(source, "pullPolicy", &at, &["Always", "IfNotPresent", "Never"]),
        _ => shared_source(problems, path, kind, source),
    }
}

/// Fields that sources of pod volumes and of persistent volumes must have.
const REQUIRED: &[(&str, &[&str])] = &[
    ("gitRepo", &["repository"]),
    ("gcePersistentDisk", &["pdName"]),
    ("awsElasticBlockStore", &["volumeID"]),
    ("nfs", &["server", "path"]),
    ("iscsi", &["targetPortal", "iqn"]),
    ("glusterfs", &["endpoints", "path"]),
    ("rbd", &["image"]),
    ("cinder", &["volumeID"]),
    ("quobyte", &["registry", "volume"]),
    ("flexVolume", &["driver"]),
    ("azureFile", &["secretName", "shareName"]),
    ("vsphereVolume", &["volumePath"]),
    ("photonPersistentDisk", &["pdID"]),
    ("portworxVolume", &["volumeID"]),
    ("azureDisk", &["diskName", "diskURI"]),
    ("scaleIO", &["gateway", "system", "volumeName"]),
];

const HOST_PATH_TYPES: &[&str] =
    &["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];

/// Sources that pods and persistent volumes share.
pub(in super::super) fn shared_source(problems: &mut Problems, path: &Path, kind: &str, source: &Value) {
    let at = path.child(kind);
    if matches!(kind, "rbd" | "cephfs") && items(source, "/monitors").is_empty() {
        problems.required(&at.child("monitors"), "");
    }
    let required = REQUIRED.iter().find(|(name, _)| *name == kind).map_or(&[][..], |(_, fields)| fields);
    for field in required {
        problems.present(source, field, &at);
    }
    match kind {
        "hostPath" => match text(source, "/path") {
            "" => problems.required(&at.child("path"), ""),
            target => {
                checks::no_backsteps(problems, &at.child("path"), target);
                problems.optional_choice(source, "type", &at, HOST_PATH_TYPES);
            }
        },
        "nfs" if !text(source, "/path").starts_with('/') => {
            problems.invalid(&at.child("path"), text(source, "/path"), "must be an absolute path");
        }
        "iscsi" => {
            let iqn = text(source, "/iqn");
            if !iqn.is_empty() && !["iqn", "eui", "naa"].iter().any(|prefix| iqn.starts_with(prefix)) {
                problems.invalid(&at.child("iqn"), iqn, "must be valid format starting with iqn, eui, or naa");
            } else if !iqn.is_empty() && !checks::is_iscsi_name(iqn) {
                problems.invalid(&at.child("iqn"), iqn, "must be valid format");
            }
            checks::lun(problems, &at, source);
        }
        _ => {}
    }
}

/// Which keys become which files. `taken` collects paths that several sources of a volume share.
fn keys_to_paths<'a>(
    problems: &mut Problems,
    path: &Path,
    source: &'a Value,
    mut taken: Option<(&mut BTreeSet<&'a str>, &Path)>,
) {
    checks::file_mode(problems, path, source, "defaultMode");
    for (index, item) in items(source, "/items").iter().enumerate() {
        let path = path.child("items").index(index);
        let target = text(item, "/path");
        problems.present(item, "key", &path);
        problems.present(item, "path", &path);
        checks::unreserved_path(problems, &path.child("path"), target);
        checks::file_mode(problems, &path, item, "mode");
        if let Some((taken, volume)) = &mut taken
            && !target.is_empty()
            && !taken.insert(target)
        {
            problems.invalid(volume, text(source, "/name"), "conflicting duplicate paths");
        }
    }
}

fn downward_file(problems: &mut Problems, path: &Path, file: &Value) {
    problems.present(file, "path", path);
    checks::unreserved_path(problems, &path.child("path"), text(file, "/path"));
    match (present(file, "/fieldRef"), present(file, "/resourceFieldRef")) {
        (Some(field), resource) => {
            resources::field_selector(problems, &path.child("fieldRef"), field, resources::VOLUME_FIELDS);
            if resource.is_some() {
                let detail = "fieldRef and resourceFieldRef can not be specified simultaneously";
                problems.invalid(path, "resource", detail);
            }
        }
        (None, Some(resource)) => {
            resources::resource_selector(problems, &path.child("resourceFieldRef"), resource, true);
        }
        (None, None) => problems.required(path, "one of fieldRef and resourceFieldRef is required"),
    }
    checks::file_mode(problems, path, file, "mode");
}

fn projected(problems: &mut Problems, path: &Path, volume: &Value) {
    checks::file_mode(problems, path, volume, "defaultMode");
    let mut taken = BTreeSet::new();
    for (index, source) in items(volume, "/sources").iter().enumerate() {
        let at = path.child("sources").index(index);
        let kinds =
            ["secret", "configMap", "downwardAPI", "serviceAccountToken", "clusterTrustBundle", "podCertificate"];
        let mut count = 0;
        for kind in kinds {
            let Some(part) = present(source, &format!("/{kind}")) else { continue };
            count += 1;
            let at = at.child(kind);
            match kind {
                "secret" | "configMap" => {
                    problems.present(part, "name", &at);
                    keys_to_paths(problems, &at, part, Some((&mut taken, path)));
                }
                "downwardAPI" => {
                    for file in items(part, "/items") {
                        downward_file(problems, &at, file);
                        let target = text(file, "/path");
                        if !target.is_empty() && !taken.insert(target) {
                            problems.invalid(path, target, "conflicting duplicate paths");
                        }
                    }
                }
                "serviceAccountToken" => token(problems, path, &at, part),
                _ => {}
            }
        }
        if count > 1 {
            problems.forbidden(&at, "may not specify more than 1 volume type per source");
        }
    }
}

fn token(problems: &mut Problems, volume: &Path, path: &Path, token: &Value) {
    let seconds = integer(token, "/expirationSeconds").unwrap_or_default();
    if !TOKEN_SECONDS.contains(&seconds) {
        let detail = if seconds < *TOKEN_SECONDS.start() {
            "may not specify a duration less than 10 minutes"
        } else {
            "may not specify a duration larger than 2^32 seconds"
        };
        problems.invalid(&path.child("expirationSeconds"), seconds, detail);
    }
    match text(token, "/path") {
        "" => problems.required(&volume.child("path"), ""),
        target => checks::unreserved_path(problems, &volume.child("path"), target),
    }
}
