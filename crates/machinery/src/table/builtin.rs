//! Columns and cells of the built-in kinds.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::duration::{UNKNOWN, since};
use super::{Column, Row, pod};
use crate::kinds::Kind;
use crate::kinds::edit::{entries, flag, integer, items, present, text};

pub(super) const NAME_DESCRIPTION: &str = "Name of the object, unique within its namespace and kind.";
pub(super) const AGE_DESCRIPTION: &str = "Time since the object was created.";

/// The annotations that make a storage class the default, today's and yesterday's.
const DEFAULT_CLASS: [&str; 2] = [
    "/metadata/annotations/storageclass.kubernetes.io~1is-default-class",
    "/metadata/annotations/storageclass.beta.kubernetes.io~1is-default-class",
];
const BETA_CLASS: &str = "/metadata/annotations/volume.beta.kubernetes.io~1storage-class";

type CellsFn = fn(&Value, Timestamp) -> Row;

/// Name, type, format, description, priority.
type Definition = (&'static str, &'static str, &'static str, &'static str, i64);

const NAME: Definition = ("Name", "string", "name", NAME_DESCRIPTION, 0);
const AGE: Definition = ("Age", "string", "", AGE_DESCRIPTION, 0);

const fn shown(name: &'static str, description: &'static str) -> Definition {
    (name, "string", "", description, 0)
}

const fn typed(name: &'static str, ty: &'static str, description: &'static str) -> Definition {
    (name, ty, "", description, 0)
}

const fn wide(name: &'static str, description: &'static str) -> Definition {
    (name, "string", "", description, 1)
}

pub(super) fn name_column() -> Column {
    column(NAME)
}

fn column((name, ty, format, description, priority): Definition) -> Column {
    Column {
        name: name.to_owned(),
        ty: ty.to_owned(),
        format: format.to_owned(),
        description: description.to_owned(),
        priority,
    }
}

/// Columns and cells of `kind`. A kind without a printer of its own shows name and time of creation.
pub(super) fn printer(kind: &Kind) -> (Vec<Column>, CellsFn) {
    let (columns, cells): (&[Definition], CellsFn) = match kind.kind {
        "Pod" => (POD, pod::row),
        "Node" => (NODE, node),
        "Namespace" => (NAMESPACE, namespace),
        "PersistentVolume" => (PERSISTENT_VOLUME, persistent_volume),
        "PersistentVolumeClaim" => (PERSISTENT_VOLUME_CLAIM, persistent_volume_claim),
        "Secret" => (SECRET, secret),
        "ConfigMap" => (CONFIG_MAP, config_map),
        "ServiceAccount" => (&[NAME, AGE], |o, now| Row::new(vec![name(o), age(o, now)])),
        "Event" if kind.group.is_empty() => (EVENT, |o, now| event(o, now, false)),
        "Event" => (EVENT, |o, now| event(o, now, true)),
        "Lease" => (LEASE, lease),
        "PodDisruptionBudget" => (BUDGET, budget),
        "StorageClass" => (STORAGE_CLASS, storage_class),
        "VolumeAttachment" => (VOLUME_ATTACHMENT, volume_attachment),
        "CSIDriver" => (CSI_DRIVER, csi_driver),
        "CSINode" => (CSI_NODE, csi_node),
        "CSIStorageCapacity" => (CSI_STORAGE_CAPACITY, |o, _| {
            let capacity = present(o, "/capacity").and_then(Value::as_str).unwrap_or("<unset>");
            Row::new(vec![name(o), text(o, "/storageClassName").into(), capacity.into()])
        }),
        "RoleBinding" | "ClusterRoleBinding" => (BINDING, role_binding),
        "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" => (WEBHOOKS, webhooks),
        _ => (PLAIN, plain),
    };
    (columns.iter().copied().map(column).collect(), cells)
}

const PLAIN: &[Definition] = &[NAME, typed("Created At", "date", "When the object was created.")];

const POD: &[Definition] = &[
    NAME,
    shown("Ready", "Containers that accept traffic, of all."),
    shown("Status", "What the pod's containers do, in one word."),
    shown("Restarts", "How often containers were restarted, and when last."),
    AGE,
    wide("IP", "Address of the pod."),
    wide("Node", "Node that the pod is bound to."),
    wide("Nominated Node", "Node on which room is being made for the pod."),
    wide("Readiness Gates", "Readiness gates that are true, of all."),
];

const NODE: &[Definition] = &[
    NAME,
    shown("Status", "Whether the node is ready and takes pods."),
    shown("Roles", "Roles of the node, from its labels."),
    AGE,
    shown("Version", "Version of the kubelet."),
    wide("Internal-IP", "Address within the cluster."),
    wide("External-IP", "Address from outside."),
    wide("OS-Image", "Operating system of the node."),
    wide("Kernel-Version", "Kernel of the node."),
    wide("Container-Runtime", "Container runtime and its version."),
];

const NAMESPACE: &[Definition] = &[NAME, shown("Status", "Whether the namespace is in use or ending."), AGE];

const PERSISTENT_VOLUME: &[Definition] = &[
    NAME,
    shown("Capacity", "Size of the volume."),
    shown("Access Modes", "How the volume can be mounted."),
    shown("Reclaim Policy", "What happens when the claim is gone."),
    shown("Status", "Phase of the volume."),
    shown("Claim", "Claim that the volume is bound to."),
    shown("StorageClass", "Storage class of the volume."),
    shown("VolumeAttributesClass", "Volume attributes class of the volume."),
    shown("Reason", "Why the volume failed."),
    AGE,
    wide("VolumeMode", "File system or raw block device."),
];

const PERSISTENT_VOLUME_CLAIM: &[Definition] = &[
    NAME,
    shown("Status", "Phase of the claim."),
    shown("Volume", "Volume that the claim is bound to."),
    shown("Capacity", "Size of the bound volume."),
    shown("Access Modes", "How the bound volume can be mounted."),
    shown("StorageClass", "Storage class of the claim."),
    shown("VolumeAttributesClass", "Volume attributes class of the claim."),
    AGE,
    wide("VolumeMode", "File system or raw block device."),
];

const SECRET: &[Definition] =
    &[NAME, shown("Type", "What the secret is for."), shown("Data", "Number of entries."), AGE];

const CONFIG_MAP: &[Definition] = &[NAME, shown("Data", "Number of entries."), AGE];

const EVENT: &[Definition] = &[
    shown("Last Seen", "Time since the event was last seen."),
    shown("Type", "Normal or Warning."),
    shown("Reason", "Why it happened, in one word."),
    shown("Object", "What the event is about."),
    wide("Subobject", "Which part of the object."),
    wide("Source", "Who reported the event."),
    shown("Message", "What happened."),
    wide("First Seen", "Time since the event was first seen."),
    wide("Count", "How often it happened."),
    ("Name", "string", "name", NAME_DESCRIPTION, 1),
];

const LEASE: &[Definition] = &[NAME, shown("Holder", "Who holds the lease."), AGE];

const BUDGET: &[Definition] = &[
    NAME,
    shown("Min Available", "How many pods have to stay."),
    shown("Max Unavailable", "How many pods may be missing."),
    typed("Allowed Disruptions", "integer", "How many pods may be evicted now."),
    AGE,
];

const STORAGE_CLASS: &[Definition] = &[
    NAME,
    shown("Provisioner", "Who makes the volumes."),
    shown("ReclaimPolicy", "What happens to a volume when its claim is gone."),
    shown("VolumeBindingMode", "When volumes are made and bound."),
    shown("AllowVolumeExpansion", "Whether volumes can grow."),
    AGE,
];

const VOLUME_ATTACHMENT: &[Definition] = &[
    NAME,
    ("Attacher", "string", "name", "Driver that attaches.", 0),
    shown("PV", "Volume to attach."),
    shown("Node", "Node to attach it to."),
    typed("Attached", "boolean", "Whether it is attached."),
    AGE,
];

const CSI_DRIVER: &[Definition] = &[
    NAME,
    typed("AttachRequired", "boolean", "Whether volumes are attached before they are mounted."),
    typed("PodInfoOnMount", "boolean", "Whether the driver is told about the pod."),
    typed("StorageCapacity", "boolean", "Whether the scheduler looks at capacity."),
    shown("TokenRequests", "Audiences of the tokens that the driver gets."),
    typed("RequiresRepublish", "boolean", "Whether volumes are published again and again."),
    shown("Modes", "Kinds of volumes that the driver offers."),
    AGE,
];

const CSI_NODE: &[Definition] = &[NAME, typed("Drivers", "integer", "Number of CSI drivers on the node."), AGE];

const CSI_STORAGE_CAPACITY: &[Definition] = &[
    NAME,
    shown("StorageClassName", "Class that the capacity is for."),
    shown("Capacity", "How much the driver can still provide."),
];

const BINDING: &[Definition] = &[
    NAME,
    shown("Role", "Role that is granted."),
    AGE,
    wide("Users", "Users that get it."),
    wide("Groups", "Groups that get it."),
    wide("ServiceAccounts", "Service accounts that get it."),
];

const WEBHOOKS: &[Definition] = &[NAME, typed("Webhooks", "integer", "Number of webhooks in this configuration."), AGE];

fn name(object: &Value) -> Value {
    text(object, "/metadata/name").into()
}

fn age(object: &Value, now: Timestamp) -> Value {
    since(object, "/metadata/creationTimestamp", now).into()
}

fn count(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).map_or(0, |v| match v {
        Value::Array(list) => list.len() as i64,
        Value::Object(map) => map.len() as i64,
        _ => 0,
    })
}

/// The string at `pointer`, or `other` where there is none.
fn text_or<'a>(object: &'a Value, pointer: &str, other: &'a str) -> &'a str {
    let text = text(object, pointer);
    if text.is_empty() { other } else { text }
}

fn plain(object: &Value, _now: Timestamp) -> Row {
    let created = text_or(object, "/metadata/creationTimestamp", "0001-01-01T00:00:00Z");
    Row::new(vec![name(object), created.into()])
}

fn node(node: &Value, now: Timestamp) -> Row {
    let ready = items(node, "/status/conditions").iter().rfind(|c| text(c, "/type") == "Ready");
    let mut status = match ready.map(|c| text(c, "/status")) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if flag(node, "/spec/unschedulable") {
        status.push_str(",SchedulingDisabled");
    }
    let info = |field: &str| text_or(node, &format!("/status/nodeInfo/{field}"), UNKNOWN).to_owned();
    let address = |ty: &str| {
        let found = items(node, "/status/addresses").iter().find(|a| text(a, "/type") == ty);
        found.map_or("<none>", |a| text(a, "/address")).to_owned()
    };
    Row::new(vec![
        name(node),
        status.into(),
        roles(node).into(),
        age(node, now),
        text(node, "/status/nodeInfo/kubeletVersion").into(),
        address("InternalIP").into(),
        address("ExternalIP").into(),
        info("osImage").into(),
        info("kernelVersion").into(),
        info("containerRuntimeVersion").into(),
    ])
}

fn roles(node: &Value) -> String {
    let mut roles: Vec<&str> = entries(node, "/metadata/labels")
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None if key == "kubernetes.io/role" => value.as_str(),
            None => None,
        })
        .filter(|role| !role.is_empty())
        .collect();
    roles.sort_unstable();
    roles.dedup();
    if roles.is_empty() { "<none>".to_owned() } else { roles.join(",") }
}

fn namespace(namespace: &Value, now: Timestamp) -> Row {
    Row::new(vec![name(namespace), text(namespace, "/status/phase").into(), age(namespace, now)])
}

/// Access modes in the short form that everybody reads, in a fixed order.
fn access_modes(object: &Value, pointer: &str) -> String {
    let modes = items(object, pointer);
    [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")]
        .into_iter()
        .filter(|(long, _)| modes.iter().any(|m| m == long))
        .map(|(_, short)| short)
        .collect::<Vec<_>>()
        .join(",")
}

/// The phase, unless the object is being deleted.
fn phase(object: &Value) -> Value {
    let deleting = present(object, "/metadata/deletionTimestamp").is_some();
    if deleting { "Terminating".into() } else { text(object, "/status/phase").into() }
}

/// The storage class; the annotation of old wins over the field.
fn class(object: &Value) -> Value {
    present(object, BETA_CLASS)
        .or_else(|| present(object, "/spec/storageClassName"))
        .cloned()
        .unwrap_or_else(|| "".into())
}

fn optional(object: &Value, pointer: &str) -> Value {
    present(object, pointer).cloned().unwrap_or_else(|| "<unset>".into())
}

/// A quantity as it is written; a missing one is zero.
fn quantity(object: &Value, pointer: &str) -> Value {
    match present(object, pointer) {
        Some(Value::String(text)) => text.as_str().into(),
        Some(number) => number.to_string().into(),
        None => "0".into(),
    }
}

fn persistent_volume(pv: &Value, now: Timestamp) -> Row {
    let claim = match present(pv, "/spec/claimRef") {
        Some(claim) => format!("{}/{}", text(claim, "/namespace"), text(claim, "/name")),
        None => String::new(),
    };
    Row::new(vec![
        name(pv),
        quantity(pv, "/spec/capacity/storage"),
        access_modes(pv, "/spec/accessModes").into(),
        text(pv, "/spec/persistentVolumeReclaimPolicy").into(),
        phase(pv),
        claim.into(),
        class(pv),
        optional(pv, "/spec/volumeAttributesClassName"),
        text(pv, "/status/reason").into(),
        age(pv, now),
        optional(pv, "/spec/volumeMode"),
    ])
}

fn persistent_volume_claim(pvc: &Value, now: Timestamp) -> Row {
    let volume = text(pvc, "/spec/volumeName");
    let (capacity, modes) = match volume {
        "" => ("".into(), String::new()),
        _ => (quantity(pvc, "/status/capacity/storage"), access_modes(pvc, "/status/accessModes")),
    };
    Row::new(vec![
        name(pvc),
        phase(pvc),
        volume.into(),
        capacity,
        modes.into(),
        class(pvc),
        optional(pvc, "/spec/volumeAttributesClassName"),
        age(pvc, now),
        optional(pvc, "/spec/volumeMode"),
    ])
}

fn secret(secret: &Value, now: Timestamp) -> Row {
    Row::new(vec![name(secret), text(secret, "/type").into(), count(secret, "/data").into(), age(secret, now)])
}

fn config_map(map: &Value, now: Timestamp) -> Row {
    Row::new(vec![name(map), (count(map, "/data") + count(map, "/binaryData")).into(), age(map, now)])
}

/// Either face of an event: the same facts under two sets of names.
fn event(event: &Value, now: Timestamp, newer: bool) -> Row {
    let at = |core: &'static str, new: &'static str| if newer { new } else { core };
    let regarding = at("/involvedObject", "/regarding");
    let source = at("/source", "/deprecatedSource");

    let mut first = since(event, at("/firstTimestamp", "/deprecatedFirstTimestamp"), now);
    if first == UNKNOWN {
        first = since(event, "/eventTime", now);
    }
    let mut last = since(event, at("/lastTimestamp", "/deprecatedLastTimestamp"), now);
    if last == UNKNOWN {
        last.clone_from(&first);
    }
    let mut count = integer(event, at("/count", "/deprecatedCount")).unwrap_or_default().max(1);
    if present(event, "/series").is_some() {
        last = since(event, "/series/lastObservedTime", now);
        count = integer(event, "/series/count").unwrap_or_default();
    }
    let about = |field: &str| text(event, &format!("{regarding}/{field}"));
    let target = match (about("kind").to_lowercase(), about("name")) {
        (kind, "") => kind,
        (kind, name) => format!("{kind}/{name}"),
    };
    let component =
        text_or(event, &format!("{source}/component"), text(event, at("/reportingComponent", "/reportingController")))
            .to_owned();
    let host = text_or(event, &format!("{source}/host"), text(event, "/reportingInstance")).to_owned();
    let reporter = if host.is_empty() { component } else { format!("{component}, {host}") };
    Row::new(vec![
        last.into(),
        text(event, "/type").into(),
        text(event, "/reason").into(),
        target.into(),
        about("fieldPath").into(),
        reporter.into(),
        text(event, at("/message", "/note")).trim().into(),
        first.into(),
        count.into(),
        name(event),
    ])
}

fn budget(budget: &Value, now: Timestamp) -> Row {
    let amount = |pointer: &str| match present(budget, pointer) {
        Some(Value::String(text)) => text.clone(),
        Some(number) => number.to_string(),
        None => "N/A".to_owned(),
    };
    Row::new(vec![
        name(budget),
        amount("/spec/minAvailable").into(),
        amount("/spec/maxUnavailable").into(),
        integer(budget, "/status/disruptionsAllowed").unwrap_or_default().into(),
        age(budget, now),
    ])
}

fn lease(lease: &Value, now: Timestamp) -> Row {
    Row::new(vec![name(lease), text(lease, "/spec/holderIdentity").into(), age(lease, now)])
}

fn storage_class(class: &Value, now: Timestamp) -> Row {
    let default = DEFAULT_CLASS.iter().any(|annotation| text(class, annotation) == "true");
    let mut name = text(class, "/metadata/name").to_owned();
    if default {
        name.push_str(" (default)");
    }
    Row::new(vec![
        name.into(),
        text(class, "/provisioner").into(),
        text_or(class, "/reclaimPolicy", "Delete").into(),
        text_or(class, "/volumeBindingMode", "Immediate").into(),
        flag(class, "/allowVolumeExpansion").into(),
        age(class, now),
    ])
}

fn volume_attachment(attachment: &Value, now: Timestamp) -> Row {
    Row::new(vec![
        name(attachment),
        text(attachment, "/spec/attacher").into(),
        text(attachment, "/spec/source/persistentVolumeName").into(),
        text(attachment, "/spec/nodeName").into(),
        flag(attachment, "/status/attached").into(),
        age(attachment, now),
    ])
}

fn csi_driver(driver: &Value, now: Timestamp) -> Row {
    let list = |pointer: &str, field: &str| {
        let words: Vec<&str> = items(driver, pointer).iter().map(|v| text(v, field)).collect();
        words.join(",")
    };
    let tokens = match present(driver, "/spec/tokenRequests") {
        Some(_) => list("/spec/tokenRequests", "/audience"),
        None => "<unset>".to_owned(),
    };
    let modes = match list("/spec/volumeLifecycleModes", "") {
        modes if modes.is_empty() => "<none>".to_owned(),
        modes => modes,
    };
    let attach = present(driver, "/spec/attachRequired").is_none_or(|v| v == &json!(true));
    Row::new(vec![
        name(driver),
        attach.into(),
        flag(driver, "/spec/podInfoOnMount").into(),
        flag(driver, "/spec/storageCapacity").into(),
        tokens.into(),
        flag(driver, "/spec/requiresRepublish").into(),
        modes.into(),
        age(driver, now),
    ])
}

fn csi_node(node: &Value, now: Timestamp) -> Row {
    Row::new(vec![name(node), count(node, "/spec/drivers").into(), age(node, now)])
}

fn role_binding(binding: &Value, now: Timestamp) -> Row {
    let subjects = |kind: &str| {
        let names: Vec<String> = items(binding, "/subjects")
            .iter()
            .filter(|s| text(s, "/kind") == kind)
            .map(|s| match kind {
                "ServiceAccount" => format!("{}/{}", text(s, "/namespace"), text(s, "/name")),
                _ => text(s, "/name").to_owned(),
            })
            .collect();
        Value::from(names.join(", "))
    };
    let role = format!("{}/{}", text(binding, "/roleRef/kind"), text(binding, "/roleRef/name"));
    Row::new(vec![
        name(binding),
        role.into(),
        age(binding, now),
        subjects("User"),
        subjects("Group"),
        subjects("ServiceAccount"),
    ])
}

fn webhooks(configuration: &Value, now: Timestamp) -> Row {
    Row::new(vec![name(configuration), count(configuration, "/webhooks").into(), age(configuration, now)])
}
