//! The defaults of a pod, and what admission adds to it.

use serde_json::{Map, Value, json};

use super::super::edit::{child, entries, fill, fill_zero, flag, integer, items, items_mut, set, set_in, text};

/// Seconds that a pod stays on a node which is not ready or not reachable, unless it says otherwise.
const NODE_PROBLEM_TOLERATION_SECONDS: i64 = 300;
/// Mode of projected files, 0644.
const FILE_MODE: i64 = 0o644;
/// Lifetime of a projected token.
const TOKEN_SECONDS: i64 = 3600;

const CONTAINER_LISTS: [&str; 3] = ["/spec/containers", "/spec/initContainers", "/spec/ephemeralContainers"];

/// Defaults of decoding.
pub(super) fn default(pod: &mut Value) {
    if integer(pod, "/spec/terminationGracePeriodSeconds").is_some_and(|s| s < 0) {
        set_in(pod, "spec", "terminationGracePeriodSeconds", 1.into());
    }
    for list in ["/spec/containers", "/spec/initContainers"] {
        items_mut(pod, list).iter_mut().for_each(requests_from_limits);
    }
    if flag(pod, "/spec/hostNetwork") {
        for list in ["/spec/containers", "/spec/initContainers"] {
            items_mut(pod, list).iter_mut().for_each(host_ports);
        }
    }
    if let Some(spec) = child(pod, "spec") {
        default_spec(spec);
    }
    items_mut(pod, "/spec/volumes").iter_mut().for_each(default_volume);
    for list in CONTAINER_LISTS {
        items_mut(pod, list).iter_mut().for_each(default_container);
    }
    default_status(pod);
}

fn default_spec(spec: &mut Map<String, Value>) {
    let account = [spec.get("serviceAccountName"), spec.get("serviceAccount")]
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .find(|name| !name.is_empty())
        .map(str::to_owned);
    if let Some(account) = account {
        spec.insert("serviceAccountName".to_owned(), account.clone().into());
        spec.insert("serviceAccount".to_owned(), account.into());
    }
    fill(spec, "enableServiceLinks", true);
    fill_zero(spec, "dnsPolicy", "ClusterFirst");
    fill_zero(spec, "restartPolicy", "Always");
    fill(spec, "securityContext", json!({}));
    fill(spec, "terminationGracePeriodSeconds", 30);
    fill_zero(spec, "schedulerName", "default-scheduler");
}

/// A limit without a request is a request as well.
fn requests_from_limits(container: &mut Value) {
    let limits: Vec<(String, Value)> =
        entries(container, "/resources/limits").map(|(k, v)| (k.clone(), v.clone())).collect();
    if let Some(resources) = container.get_mut("resources")
        && !limits.is_empty()
        && let Some(requests) = child(resources, "requests")
    {
        for (name, quantity) in limits {
            requests.entry(name).or_insert(quantity);
        }
    }
}

/// On the host's network a container's port is the host's port.
fn host_ports(container: &mut Value) {
    for port in items_mut(container, "/ports") {
        let number = port.get("containerPort").cloned().unwrap_or_default();
        if let Some(port) = port.as_object_mut()
            && !number.is_null()
        {
            fill_zero(port, "hostPort", number);
        }
    }
}

fn default_container(container: &mut Value) {
    let pull = pull_policy(text(container, "/image"));
    if let Some(container) = container.as_object_mut() {
        fill_zero(container, "imagePullPolicy", pull);
        fill_zero(container, "terminationMessagePath", "/dev/termination-log");
        fill_zero(container, "terminationMessagePolicy", "File");
        fill(container, "resources", json!({}));
    }
    for port in items_mut(container, "/ports").iter_mut().filter_map(Value::as_object_mut) {
        fill_zero(port, "protocol", "TCP");
    }
    for env in items_mut(container, "/env") {
        default_field_ref(env.pointer_mut("/valueFrom/fieldRef"));
        if let Some(file) = env.pointer_mut("/valueFrom/fileKeyRef").and_then(Value::as_object_mut) {
            fill(file, "optional", false);
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = container.get_mut(probe) {
            default_probe(probe);
        }
    }
    for hook in ["/lifecycle/postStart/httpGet", "/lifecycle/preStop/httpGet"] {
        default_http_get(container.pointer_mut(hook));
    }
}

/// `Always` for the tag `latest`, spelled out or implied; a digest names one image for good, and what is no
/// image has no tag.
pub(super) fn pull_policy(image: &str) -> &'static str {
    if image_tag(image) == Some("latest") { "Always" } else { "IfNotPresent" }
}

/// Longest name of an image, registry included.
const MAX_IMAGE_NAME_BYTES: usize = 255;

/// The tag of an image reference; `latest` without tag and digest. `None` if the reference is malformed.
fn image_tag(image: &str) -> Option<&str> {
    let (rest, digest) = match image.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (image, None),
    };
    let slash = rest.rfind('/').map_or(0, |at| at + 1);
    let (name, tag) = match rest[slash..].find(':') {
        Some(colon) => (&rest[..slash + colon], Some(&rest[slash + colon + 1..])),
        None => (rest, None),
    };
    let is_registry = |part: &str| part.contains(['.', ':']) || part == "localhost" || part.to_lowercase() != part;
    let (registry, path) = match name.split_once('/') {
        Some((registry, path)) if is_registry(registry) => (registry, path),
        _ => ("", name),
    };
    let tag_ok = |tag: &str| {
        let word = |b: u8| b == b'_' || b.is_ascii_alphanumeric();
        let mut bytes = tag.bytes();
        bytes.next().is_some_and(word) && tag.len() <= 128 && bytes.all(|b| word(b) || b == b'.' || b == b'-')
    };
    let well_formed = name.len() <= MAX_IMAGE_NAME_BYTES
        && (registry.is_empty() || is_registry_name(registry))
        && path.split('/').all(is_path_component)
        && tag.is_none_or(tag_ok);
    match (tag, digest) {
        _ if !well_formed => None,
        (Some(tag), _) => Some(tag),
        (None, Some(_)) => None,
        (None, None) => Some("latest"),
    }
}

/// A host name or address, and possibly a port.
fn is_registry_name(registry: &str) -> bool {
    let (host, port) = registry.split_once(':').unwrap_or((registry, "0"));
    let is_label = |label: &str| {
        let inner = |b: u8| b == b'-' || b.is_ascii_alphanumeric();
        !label.is_empty() && label.bytes().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    host.split('.').all(is_label) && !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit())
}

/// Lower-case letters and digits, separated by a dot, one or two underscores, or dashes.
fn is_path_component(component: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let separators = component.split(|c: char| c.is_ascii() && alphanumeric(c as u8)).filter(|s| !s.is_empty());
    let ends = component.bytes().next().is_some_and(alphanumeric) && component.bytes().last().is_some_and(alphanumeric);
    ends && separators.into_iter().all(|s| matches!(s, "." | "_" | "__") || s.bytes().all(|b| b == b'-'))
}

fn default_probe(probe: &mut Value) {
    if let Some(probe) = probe.as_object_mut() {
        fill_zero(probe, "timeoutSeconds", 1);
        fill_zero(probe, "periodSeconds", 10);
        fill_zero(probe, "successThreshold", 1);
        fill_zero(probe, "failureThreshold", 3);
    }
    default_http_get(probe.pointer_mut("/httpGet"));
    if let Some(grpc) = probe.get_mut("grpc").and_then(Value::as_object_mut) {
        fill(grpc, "service", "");
    }
}

fn default_http_get(action: Option<&mut Value>) {
    if let Some(action) = action.and_then(Value::as_object_mut) {
        fill_zero(action, "path", "/");
        fill_zero(action, "scheme", "HTTP");
    }
}

fn default_field_ref(selector: Option<&mut Value>) {
    if let Some(selector) = selector.and_then(Value::as_object_mut) {
        fill_zero(selector, "apiVersion", "v1");
    }
}

/// Plain fields of volume sources that have a constant default.
const SOURCE_DEFAULTS: &[(&str, &str, &str)] = &[
    ("iscsi", "iscsiInterface", "default"),
    ("rbd", "pool", "rbd"),
    ("rbd", "user", "admin"),
    ("rbd", "keyring", "/etc/ceph/keyring"),
    ("azureDisk", "cachingMode", "ReadWrite"),
    ("azureDisk", "fsType", "ext4"),
    ("azureDisk", "kind", "Shared"),
    ("scaleIO", "storageMode", "ThinProvisioned"),
    ("scaleIO", "fsType", "xfs"),
];

/// Defaults that the sources of pod volumes and of persistent volumes share.
pub(in super::super) fn default_source(source: &mut Value) {
    for (name, field, default) in SOURCE_DEFAULTS {
        if let Some(map) = source.get_mut(*name).and_then(Value::as_object_mut) {
            fill_zero(map, field, *default);
        }
    }
    if let Some(disk) = source.get_mut("azureDisk").and_then(Value::as_object_mut) {
        fill(disk, "readOnly", false);
    }
    if let Some(path) = source.get_mut("hostPath").and_then(Value::as_object_mut) {
        fill(path, "type", "");
    }
}

fn default_volume(volume: &mut Value) {
    let sourceless = volume.as_object().is_some_and(|v| v.iter().all(|(k, v)| k == "name" || v.is_null()));
    if sourceless {
        set(volume, "emptyDir", json!({}));
    }
    default_source(volume);
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = volume.get_mut(source).and_then(Value::as_object_mut) {
            fill(source, "defaultMode", FILE_MODE);
        }
    }
    for item in items_mut(volume, "/downwardAPI/items") {
        default_field_ref(item.get_mut("fieldRef"));
    }
    for source in items_mut(volume, "/projected/sources") {
        for item in items_mut(source, "/downwardAPI/items") {
            default_field_ref(item.get_mut("fieldRef"));
        }
        if let Some(token) = source.get_mut("serviceAccountToken").and_then(Value::as_object_mut) {
            fill(token, "expirationSeconds", TOKEN_SECONDS);
        }
    }
    let pull = pull_policy(text(volume, "/image/reference"));
    if let Some(image) = volume.get_mut("image").and_then(Value::as_object_mut) {
        fill_zero(image, "pullPolicy", pull);
    }
    if let Some(spec) = volume.pointer_mut("/ephemeral/volumeClaimTemplate/spec").and_then(Value::as_object_mut) {
        fill(spec, "volumeMode", "Filesystem");
    }
}

/// Keeps the single address and the list of addresses in step; the single one wins.
fn default_status(pod: &mut Value) {
    let ip = text(pod, "/status/podIP").to_owned();
    let first = text(pod, "/status/podIPs/0/ip").to_owned();
    if !ip.is_empty() && ip != first {
        set_in(pod, "status", "podIPs", json!([{"ip": ip}]));
    } else if ip.is_empty() && !first.is_empty() {
        set_in(pod, "status", "podIP", first.into());
    }
}

/// What the stock admission plugins add to a new pod: a service account, a priority, tolerations.
pub(super) fn admit(pod: &mut Value) {
    if let Some(spec) = child(pod, "spec") {
        fill_zero(spec, "serviceAccountName", "default");
        if let Some(account) = spec.get("serviceAccountName").cloned() {
            spec.insert("serviceAccount".to_owned(), account);
        }
        let class = spec.get("priorityClassName").and_then(Value::as_str).unwrap_or_default();
        fill(spec, "priority", system_priority(class).unwrap_or_default());
        fill(spec, "preemptionPolicy", "PreemptLowerPriority");
    }
    add_tolerations(pod);
}

/// No priority class is served but those that every cluster has.
pub(super) fn refuse_create(pod: &Value) -> Option<String> {
    let class = text(pod, "/spec/priorityClassName");
    let unknown = !class.is_empty() && system_priority(class).is_none();
    unknown.then(|| format!("no PriorityClass with name {class} was found"))
}

/// The priority of the classes that every cluster has.
pub(super) fn system_priority(class: &str) -> Option<i64> {
    match class {
        "system-cluster-critical" => Some(2_000_000_000),
        "system-node-critical" => Some(2_000_001_000),
        _ => None,
    }
}

/// Without a word about it, a pod leaves a node that is not ready or not reachable after five minutes.
pub(super) fn add_tolerations(pod: &mut Value) {
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let tolerated = items(pod, "/spec/tolerations").iter().any(|t| {
            matches!(text(t, "/effect"), "" | "NoExecute") && (text(t, "/key") == key || text(t, "/key").is_empty())
        });
        if tolerated {
            continue;
        }
        if let Some(spec) = child(pod, "spec") {
            fill_zero(spec, "tolerations", json!([]));
            if let Some(list) = spec.get_mut("tolerations").and_then(Value::as_array_mut) {
                list.push(json!({
                    "key": key, "operator": "Exists", "effect": "NoExecute",
                    "tolerationSeconds": NODE_PROBLEM_TOLERATION_SECONDS,
                }));
            }
        }
    }
}
