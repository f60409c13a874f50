//! How lists and maps of built-in types merge.
//!
//! The schemas of `k8s-openapi` do not say which lists are sets or maps, nor what strategic merge patch does
//! with them. These are the facts of the Kubernetes API, one line for each field that is not the default:
//! lists are atomic and maps are granular unless they are listed here.

use std::sync::Arc;

use crate::schema::{ListType, PatchMeta, Schema, Type};

/// One field: definition, field, keys of a map list (`set` for sets, `-` for atomic lists), strategy, merge key.
///
/// Patches and server-side apply do not always agree: container ports are one by number for the former,
/// by number and protocol for the latter.
type Row = (&'static str, &'static str, &'static str, &'static str);

pub(super) const CORE: &str = "io.k8s.api.core.v1.";
pub(super) const ADMISSION: &str = "io.k8s.api.admissionregistration.v1.";
pub(super) const STORAGE: &str = "io.k8s.api.storage.v1.";
pub(super) const EXTENSIONS: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.";
const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";
const RBAC: &str = "io.k8s.api.rbac.v1.";

/// `(type, field, list type, patch)`: a list type is `set` or the keys of a map; a patch is a strategy and
/// a merge key.
const LISTS: &[(&str, &[Row])] = &[
    (
        ADMISSION,
        &[
            ("MutatingWebhook", "matchConditions", "name", "merge name"),
            ("MutatingWebhookConfiguration", "webhooks", "name", "merge name"),
            ("ValidatingWebhook", "matchConditions", "name", "merge name"),
            ("ValidatingWebhookConfiguration", "webhooks", "name", "merge name"),
        ],
    ),
    (
        CORE,
        &[
            ("Container", "env", "name", "merge name"),
            ("Container", "ports", "containerPort protocol", "merge containerPort"),
            ("Container", "volumeDevices", "devicePath", "merge devicePath"),
            ("Container", "volumeMounts", "mountPath", "merge mountPath"),
            ("ContainerRestartRuleOnExitCodes", "values", "set", ""),
            ("ContainerStatus", "allocatedResourcesStatus", "name", "merge name"),
            ("ContainerStatus", "volumeMounts", "mountPath", "merge mountPath"),
            ("EphemeralContainer", "env", "name", "merge name"),
            ("EphemeralContainer", "ports", "containerPort protocol", "merge containerPort"),
            ("EphemeralContainer", "volumeDevices", "devicePath", "merge devicePath"),
            ("EphemeralContainer", "volumeMounts", "mountPath", "merge mountPath"),
            ("NamespaceStatus", "conditions", "type", "merge type"),
            ("NodeSpec", "podCIDRs", "set", "merge"),
            ("NodeStatus", "addresses", "type", "merge type"),
            ("NodeStatus", "conditions", "type", "merge type"),
            ("PersistentVolumeClaimStatus", "conditions", "type", "merge type"),
            ("PodSpec", "containers", "name", "merge name"),
            ("PodSpec", "ephemeralContainers", "name", "merge name"),
            ("PodSpec", "hostAliases", "ip", "merge ip"),
            ("PodSpec", "imagePullSecrets", "name", "merge name"),
            ("PodSpec", "initContainers", "name", "merge name"),
            ("PodSpec", "resourceClaims", "name", "merge,retainKeys name"),
            ("PodSpec", "schedulingGates", "name", "merge name"),
            ("PodSpec", "topologySpreadConstraints", "topologyKey whenUnsatisfiable", "merge topologyKey"),
            ("PodSpec", "volumes", "name", "merge,retainKeys name"),
            ("PodStatus", "conditions", "type", "merge type"),
            ("PodStatus", "hostIPs", "", "merge ip"),
            ("PodStatus", "podIPs", "ip", "merge ip"),
            ("PodStatus", "resourceClaimStatuses", "name", "merge,retainKeys name"),
            ("ResourceRequirements", "claims", "name", ""),
            ("ResourceStatus", "resources", "resourceID", ""),
            ("ServiceAccount", "secrets", "name", "merge name"),
        ],
    ),
    (
        STORAGE,
        &[("CSIDriverSpec", "volumeLifecycleModes", "set", ""), ("CSINodeSpec", "drivers", "name", "merge name")],
    ),
    (
        EXTENSIONS,
        &[
            ("CustomResourceDefinitionStatus", "conditions", "type", ""),
            ("JSONSchemaProps", "x-kubernetes-validations", "rule", "merge rule"),
        ],
    ),
    (META, &[("ObjectMeta", "finalizers", "set", "merge"), ("ObjectMeta", "ownerReferences", "uid", "merge uid")]),
];

/// Types that are replaced as a whole.
const ATOMIC_TYPES: &[(&str, &[&str])] = &[
    (
        CORE,
        &[
            "ConfigMapKeySelector",
            "FileKeySelector",
            "LocalObjectReference",
            "NodeSelector",
            "NodeSelectorTerm",
            "ObjectFieldSelector",
            "ObjectReference",
            "ResourceFieldSelector",
            "SecretKeySelector",
            "SecretReference",
            "TopologySelectorTerm",
            "TypedLocalObjectReference",
        ],
    ),
    (RBAC, &["RoleRef", "Subject"]),
    (META, &["LabelSelector", "OwnerReference"]),
];

/// Fields that differ from their type: `(type, field, atomic)`.
const MAPS: &[(&str, &str, bool)] = &[("PodSpec", "nodeSelector", true), ("PersistentVolumeSpec", "claimRef", false)];

/// Defaults of fields that are keys of map lists: an element without the field has this key.
const KEY_DEFAULTS: &[(&str, &str, &str)] = &[("ContainerPort", "protocol", "TCP")];

/// Fields that `k8s-openapi` calls required because its types hold them by value; the API does not.
const OPTIONAL: &[(&str, &str)] = &[
    ("ConfigMapEnvSource", "name"),
    ("ConfigMapKeySelector", "name"),
    ("ConfigMapProjection", "name"),
    ("ConfigMapVolumeSource", "name"),
    ("LocalObjectReference", "name"),
    ("SecretEnvSource", "name"),
    ("SecretKeySelector", "name"),
    ("SecretProjection", "name"),
];

/// Adds what is known about the fields of `definition`.
pub(super) fn apply(definition: &str, schema: &mut Schema) {
    let in_package = |package: &str| definition.strip_prefix(package);
    schema.atomic_map =
        ATOMIC_TYPES.iter().any(|(package, types)| in_package(package).is_some_and(|t| types.contains(&t)));
    for (package, rows) in LISTS {
        let Some(ty) = in_package(package) else { continue };
        for (_, field, list, patch) in rows.iter().filter(|row| row.0 == ty) {
            change(schema, field, |field| {
                field.list = list_type(list);
                field.patch = patch_meta(patch);
                default_keys(field);
            });
        }
    }
    // Metadata may be missing, but for that of core events; what it must say is checked where names are.
    schema.required.retain(|field| field != "metadata" || in_package(CORE) == Some("Event"));
    if definition == "io.k8s.api.events.v1.Event" {
        schema.required.push("eventTime".to_owned());
    }
    if let Some(ty) = in_package(CORE) {
        schema.required.retain(|field| !OPTIONAL.contains(&(ty, field.as_str())));
        for (_, field, atomic) in MAPS.iter().filter(|row| row.0 == ty) {
            change(schema, field, |field| field.atomic_map = *atomic);
        }
        for (_, field, default) in KEY_DEFAULTS.iter().filter(|row| row.0 == ty) {
            change(schema, field, |field| field.default = Some((*default).into()));
        }
    }
}

/// A key that a Go struct always has is there even if it is not written: an element without it has an empty one.
fn default_keys(list: &mut Schema) {
    let (ListType::Map(keys), Some(items)) = (&list.list, &mut list.items) else { return };
    // The one type whose name may be absent.
    if items.definition.as_deref().is_some_and(|name| name.ends_with(".ObjectReference")) {
        return;
    }
    for key in keys {
        change(Arc::make_mut(items), key, |field| {
            field.default = field.default.take().or(match field.ty {
                Type::String => Some("".into()),
                Type::Integer => Some(0.into()),
                _ => None,
            });
        });
    }
}

fn change(schema: &mut Schema, field: &str, edit: impl FnOnce(&mut Schema)) {
    if let Some(field) = schema.properties.get_mut(field) {
        edit(Arc::make_mut(field));
    }
}

fn list_type(words: &str) -> ListType {
    match words {
        "" => ListType::Atomic,
        "set" => ListType::Set,
        keys => ListType::Map(keys.split(' ').map(str::to_owned).collect()),
    }
}

fn patch_meta(words: &str) -> PatchMeta {
    let (strategy, key) = words.split_once(' ').unwrap_or((words, ""));
    PatchMeta {
        merge: strategy.split(',').any(|s| s == "merge"),
        retain_keys: strategy.split(',').any(|s| s == "retainKeys"),
        merge_key: Some(key).filter(|key| !key.is_empty()).map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin;

    #[test]
    fn every_line_names_a_field_that_exists() {
        for (package, rows) in LISTS {
            for (ty, field, list, patch) in *rows {
                let definition = builtin::definition(&format!("{package}{ty}")).unwrap_or_else(|| panic!("{ty}"));
                let node = definition.properties.get(*field).unwrap_or_else(|| panic!("{ty}.{field}"));
                assert_eq!(node.list, list_type(list), "{ty}.{field}");
                let items = node.items.as_ref().unwrap_or_else(|| panic!("{ty}.{field} is no list"));
                let merge_key = patch.split_once(' ').map(|(_, key)| key);
                let keys = list.split(' ').filter(|key| !key.is_empty() && *key != "set").chain(merge_key);
                for key in keys {
                    assert!(items.properties.contains_key(key), "{ty}.{field} has no {key}");
                }
            }
        }
        for (package, types) in ATOMIC_TYPES {
            for ty in *types {
                assert!(builtin::definition(&format!("{package}{ty}")).is_some_and(|d| d.atomic_map), "{ty}");
            }
        }
        let pod = builtin::schema("", "v1", "Pod").unwrap();
        let containers = pod.properties["spec"].properties["containers"].items.as_ref().unwrap();
        assert_eq!(containers.properties["name"].default, Some("".into()), "a key is always there");
        let ports = containers.properties["ports"].items.as_ref().unwrap();
        assert_eq!(ports.properties["containerPort"].default, Some(0.into()));
        assert_eq!(ports.properties["protocol"].default, Some("TCP".into()));
        for (ty, field, atomic) in MAPS {
            let definition = builtin::definition(&format!("{CORE}{ty}")).unwrap_or_else(|| panic!("{ty}"));
            assert_eq!(definition.properties[*field].atomic_map, *atomic, "{ty}.{field}");
        }
    }
}
