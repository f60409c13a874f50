//! What a stock server warns of, though it takes the object: fields that are on their way out or do not do what they seem to.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::edit::{entries, integer, items, present, same_at, text};
use crate::field::Path;
use crate::names;
use crate::quantity::Quantity;

/// Labels of nodes that were renamed: old, since, new.
const RENAMED_NODE_LABELS: [(&str, &str, &str); 5] = [
    ("beta.kubernetes.io/arch", "v1.14", "kubernetes.io/arch"),
    ("beta.kubernetes.io/instance-type", "v1.17", "node.kubernetes.io/instance-type"),
    ("beta.kubernetes.io/os", "v1.14", "kubernetes.io/os"),
    ("failure-domain.beta.kubernetes.io/region", "v1.17", "topology.kubernetes.io/region"),
    ("failure-domain.beta.kubernetes.io/zone", "v1.17", "topology.kubernetes.io/zone"),
];

/// Annotations of pods that once did something: key, since when not, field.
const DEAD_POD_ANNOTATIONS: [(&str, &str, &str); 3] = [
    ("scheduler.alpha.kubernetes.io/critical-pod", "v1.16", "priorityClassName"),
    ("security.alpha.kubernetes.io/sysctls", "v1.11", "sysctls"),
    ("security.alpha.kubernetes.io/unsafe-sysctls", "v1.11", "sysctls"),
];

/// Volume plugins that are gone: field, what became of it. Those of pods; of persistent volumes all but the repository.
const DEAD_PLUGINS: [(&str, &str); 9] = [
    ("photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"),
    ("scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageOS", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

const SECRET_TOKENS: &str = "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to \
                             prevent possible logging of tokens in volume attributes";
const MOUNTABLE_SECRETS: &str = "kubernetes.io/enforce-mountable-secrets";
const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";
const MOUNT_ANNOTATION: &str = "volume.beta.kubernetes.io/mount-options";

fn renamed_label(key: &str) -> Option<String> {
    let (_, since, new) = RENAMED_NODE_LABELS.iter().find(|(old, ..)| *old == key)?;
    Some(format!("deprecated since {since}; use {new:?} instead"))
}

fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a Value> {
    object.pointer("/metadata/annotations")?.get(key)
}

fn at_annotation(key: &str) -> Path {
    Path::new("metadata.annotations").key(key)
}

fn node_term(warnings: &mut Vec<String>, path: &Path, term: &Value) {
    for (index, expression) in items(term, "/matchExpressions").iter().enumerate() {
        let key = text(expression, "/key");
        if let Some(why) = renamed_label(key) {
            let path = path.child("matchExpressions").index(index).child("key");
            warnings.push(format!("{path}: {key} is {why}"));
        }
    }
}

/// Bytes come in whole numbers.
fn whole_bytes(warnings: &mut Vec<String>, path: &Path, amounts: &Value, resource: &str) {
    let Some(amount) = amounts.get(resource).and_then(|v| Quantity::from_json(v).ok()) else { return };
    if amount.milli_value() % 1000 != 0 {
        let amount = amount.to_string();
        warnings
            .push(format!("{}: fractional byte value {amount:?} is invalid, must be an integer", path.key(resource)));
    }
}

/// Pods are warned of when they are made; updates come from machines.
pub(super) fn pod(pod: &Value, old: Option<&Value>) -> Vec<String> {
    let mut warnings = Vec::new();
    if old.is_some() {
        return warnings;
    }
    let messages = names::dns1123_label(text(pod, "/metadata/name"));
    if !messages.is_empty() {
        warnings.push(format!(
            "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label \
             is recommended: [{}]",
            messages.join(" ")
        ));
    }
    scheduling(&mut warnings, pod);
    for (key, since, field) in DEAD_POD_ANNOTATIONS {
        if annotation(pod, key).is_some() {
            let path = at_annotation(key);
            warnings.push(format!("{path}: non-functional in {since}+; use the {field:?} field instead"));
        }
    }
    for (index, volume) in items(pod, "/spec/volumes").iter().enumerate() {
        let path = Path::new("spec.volumes").index(index);
        for (plugin, fate) in DEAD_PLUGINS.iter().filter(|(plugin, _)| volume.get(plugin).is_some()) {
            warnings.push(format!("{}: {fate}", path.child(plugin)));
        }
    }
    unique(&mut warnings, pod, "hostAliases", "ip");
    unique(&mut warnings, pod, "imagePullSecrets", "name");
    containers(&mut warnings, pod);
    ports(&mut warnings, pod);
    if integer(pod, "/spec/terminationGracePeriodSeconds").is_some_and(|seconds| seconds < 0) {
        let path = "spec.terminationGracePeriodSeconds";
        warnings.push(format!("{path}: must be >= 0; negative values are invalid and will be treated as 1"));
    }
    warnings
}

fn scheduling(warnings: &mut Vec<String>, pod: &Value) {
    for (key, _) in entries(pod, "/spec/nodeSelector") {
        if let Some(why) = renamed_label(key) {
            warnings.push(format!("{}: {why}", Path::new("spec.nodeSelector").key(key)));
        }
    }
    let affinity = Path::new("spec.affinity.nodeAffinity");
    let required = affinity.child("requiredDuringSchedulingIgnoredDuringExecution").child("nodeSelectorTerms");
    let node = "/spec/affinity/nodeAffinity";
    let terms = items(pod, &format!("{node}/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms"));
    for (index, term) in terms.iter().enumerate() {
        node_term(warnings, &required.index(index), term);
    }
    let preferred = affinity.child("preferredDuringSchedulingIgnoredDuringExecution");
    let terms = items(pod, &format!("{node}/preferredDuringSchedulingIgnoredDuringExecution"));
    for (index, term) in terms.iter().enumerate() {
        node_term(warnings, &preferred.index(index).child("preference"), &term["preference"]);
    }
}

fn unique(warnings: &mut Vec<String>, pod: &Value, list: &str, field: &str) {
    let mut seen = BTreeSet::new();
    for (index, item) in items(pod, &format!("/spec/{list}")).iter().enumerate() {
        let value = text(item, &format!("/{field}"));
        if !seen.insert(value) {
            let path = Path::new("spec").child(list).index(index).child(field);
            warnings.push(format!("{path}: duplicate {field} {value:?}"));
        }
    }
}

/// All containers of a pod, in the order in which they are looked at.
fn every_container(pod: &Value) -> impl Iterator<Item = (Path, &Value)> {
    ["initContainers", "containers", "ephemeralContainers"].into_iter().flat_map(move |list| {
        let found = items(pod, &format!("/spec/{list}")).iter().enumerate();
        found.map(move |(index, container)| (Path::new("spec").child(list).index(index), container))
    })
}

fn containers(warnings: &mut Vec<String>, pod: &Value) {
    for (path, container) in every_container(pod) {
        for (resource, section) in [
            ("memory", "limits"),
            ("memory", "requests"),
            ("ephemeral-storage", "limits"),
            ("ephemeral-storage", "requests"),
        ] {
            let amounts = container.pointer(&format!("/resources/{section}")).unwrap_or(&Value::Null);
            whole_bytes(warnings, &path.child("resources").child(section), amounts, resource);
        }
        let mut seen = BTreeSet::new();
        for (index, variable) in items(container, "/env").iter().enumerate() {
            let (name, value) = (text(variable, "/name"), text(variable, "/value"));
            let itself = format!("$({name})");
            let extends = variable.get("valueFrom").is_none() && value != itself && value.contains(&itself);
            if !seen.insert(name) && !extends {
                let path = path.child("env").index(index);
                warnings.push(format!(
                    "{path}: hides previous definition of {name:?}, which may be dropped when using apply"
                ));
            }
        }
    }
}

fn ports(warnings: &mut Vec<String>, pod: &Value) {
    let every_port = || {
        every_container(pod).flat_map(|(path, container)| {
            let found = items(container, "/ports").iter().enumerate();
            found.map(move |(index, port)| (path.child("ports").index(index), port))
        })
    };
    let mut taken: BTreeMap<(i64, &str), Vec<(Path, &Value)>> = BTreeMap::new();
    for (path, port) in every_port() {
        let others = taken.entry((integer(port, "/containerPort").unwrap_or(0), text(port, "/protocol"))).or_default();
        for (elsewhere, other) in others.iter() {
            let (ip, other_ip) = (text(port, "/hostIP"), text(other, "/hostIP"));
            let number = |port: &Value| integer(port, "/hostPort").unwrap_or(0);
            let (host, other_host) = (number(port), number(other));
            let words = if ip == other_ip && host == other_host {
                "duplicate"
            } else if host == 0 || other_host == 0 {
                "overlapping"
            } else if host == other_host && ip.is_empty() != other_ip.is_empty() {
                "dangerously ambiguous"
            } else {
                continue;
            };
            warnings.push(format!("{path}: {words} port definition with {elsewhere}"));
        }
        others.push((path, port));
    }
    let mut named: BTreeMap<&str, Path> = BTreeMap::new();
    for (path, port) in every_port().filter(|(_, port)| !text(port, "/name").is_empty()) {
        let name = text(port, "/name");
        match named.get(name) {
            Some(other) => warnings.push(format!(
                "{path}: duplicate port name {name:?} with {other}, services and probes that select ports by name \
                 will use {other}"
            )),
            None => drop(named.insert(name, path)),
        }
    }
}

pub(super) fn claim(claim: &Value, _old: Option<&Value>) -> Vec<String> {
    let mut warnings = Vec::new();
    if annotation(claim, CLASS_ANNOTATION).is_some() {
        let path = at_annotation(CLASS_ANNOTATION);
        warnings.push(format!("{path}: deprecated since v1.8; use \"storageClassName\" attribute instead"));
    }
    for section in ["requests", "limits"] {
        let amounts = claim.pointer(&format!("/spec/resources/{section}")).unwrap_or(&Value::Null);
        whole_bytes(&mut warnings, &Path::new("spec.resources").child(section), amounts, "storage");
    }
    warnings
}

pub(super) fn volume(volume: &Value, _old: Option<&Value>) -> Vec<String> {
    let mut warnings = Vec::new();
    for (key, since, field) in
        [(CLASS_ANNOTATION, "v1.8", "storageClassName"), (MOUNT_ANNOTATION, "v1.31", "mountOptions")]
    {
        if annotation(volume, key).is_some() {
            let path = at_annotation(key);
            warnings.push(format!("{path}: deprecated since {since}; use {field:?} attribute instead"));
        }
    }
    if text(volume, "/spec/persistentVolumeReclaimPolicy") == "Recycle" {
        let advice = "Instead, the recommended approach is to use dynamic provisioning.";
        let path = "spec.persistentVolumeReclaimPolicy";
        warnings.push(format!("{path}: The Recycle reclaim policy is deprecated. {advice}"));
    }
    let terms = items(volume, "/spec/nodeAffinity/required/nodeSelectorTerms");
    for (index, term) in terms.iter().enumerate() {
        node_term(&mut warnings, &Path::new("spec.nodeAffinity.required.nodeSelectorTerms").index(index), term);
    }
    for plugin in ["cephfs", "photonPersistentDisk", "scaleIO", "storageOS", "glusterfs", "rbd"] {
        let fate = DEAD_PLUGINS.iter().find(|(name, _)| *name == plugin).map(|(_, fate)| fate);
        if let Some(fate) = fate.filter(|_| present(volume, &format!("/spec/{plugin}")).is_some()) {
            warnings.push(format!("spec.{plugin}: {fate}"));
        }
    }
    warnings
}

pub(super) fn class(class: &Value, _old: Option<&Value>) -> Vec<String> {
    let mut warnings = Vec::new();
    for (index, topology) in items(class, "/allowedTopologies").iter().enumerate() {
        let path = Path::new("allowedTopologies").index(index).child("matchLabelExpressions");
        for (at, expression) in items(topology, "/matchLabelExpressions").iter().enumerate() {
            if let Some(why) = renamed_label(text(expression, "/key")) {
                warnings.push(format!("{}: {why}", path.index(at).child("key")));
            }
        }
    }
    warnings
}

pub(super) fn driver(driver: &Value, old: Option<&Value>) -> Vec<String> {
    let asks = !items(driver, "/spec/tokenRequests").is_empty();
    let new = old.is_none_or(|old| !same_at(driver, old, "/spec/tokenRequests"));
    if asks && new && present(driver, "/spec/serviceAccountTokenInSecrets").is_none() {
        return vec![SECRET_TOKENS.to_owned()];
    }
    Vec::new()
}

pub(super) fn node(node: &Value, _old: Option<&Value>) -> Vec<String> {
    if text(node, "/spec/externalID").is_empty() {
        return Vec::new();
    }
    vec!["spec.externalID: this field is deprecated, and is unused by Kubernetes".to_owned()]
}

pub(super) fn service_account(account: &Value, old: Option<&Value>) -> Vec<String> {
    let asks = |account: &Value| annotation(account, MOUNTABLE_SECRETS).is_some();
    if !asks(account) || old.is_some_and(asks) {
        return Vec::new();
    }
    let advice = "prefer separate namespaces to isolate access to mounted secrets";
    vec![format!("{}: deprecated in v1.32+; {advice}", at_annotation(MOUNTABLE_SECRETS))]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_are_warned_of_once() {
        let odd = json!({
            "metadata": {"name": "a.b"},
            "spec": {
                "nodeSelector": {"beta.kubernetes.io/os": "linux"},
                "terminationGracePeriodSeconds": -1,
                "volumes": [{"name": "v", "gitRepo": {}}],
                "imagePullSecrets": [{"name": "s"}, {"name": "s"}],
                "containers": [{
                    "resources": {"limits": {"memory": "100m"}},
                    "env": [{"name": "A", "value": "1"}, {"name": "A", "value": "$(A)2"}, {"name": "A", "value": "3"}],
                    "ports": [
                        {"name": "web", "containerPort": 80, "protocol": "TCP"},
                        {"name": "web", "containerPort": 80, "protocol": "TCP", "hostPort": 80},
                    ],
                }],
            },
        });
        let warnings = pod(&odd, None);
        let expected = [
            "metadata.name: this is used in the Pod's hostname",
            "spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use \"kubernetes.io/os\" instead",
            "spec.volumes[0].gitRepo: deprecated in v1.11, and disabled by default in v1.33+",
            "spec.imagePullSecrets[1].name: duplicate name \"s\"",
            "spec.containers[0].resources.limits[memory]: fractional byte value \"100m\" is invalid, must be an integer",
            "spec.containers[0].env[2]: hides previous definition of \"A\", which may be dropped when using apply",
            "spec.containers[0].ports[1]: overlapping port definition with spec.containers[0].ports[0]",
            "spec.containers[0].ports[1]: duplicate port name \"web\" with spec.containers[0].ports[0], services",
            "spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1",
        ];
        assert_eq!(warnings.len(), expected.len(), "{warnings:#?}");
        for (warning, expected) in warnings.iter().zip(expected) {
            assert!(warning.starts_with(expected), "{warning} does not begin with {expected}");
        }
        assert!(pod(&odd, Some(&odd)).is_empty());
        assert!(pod(&json!({"metadata": {"name": "web"}, "spec": {"containers": [{}]}}), None).is_empty());
    }

    #[test]
    fn a_driver_that_asks_for_tokens_is_told_where_they_go() {
        let asks = json!({"spec": {"tokenRequests": [{"audience": "a"}]}});
        assert_eq!(driver(&asks, None).len(), 1);
        assert!(driver(&asks, Some(&asks)).is_empty());
        assert_eq!(driver(&asks, Some(&json!({"spec": {}}))).len(), 1);
        let settled = json!({"spec": {"tokenRequests": [{"audience": "a"}], "serviceAccountTokenInSecrets": false}});
        assert!(driver(&settled, None).is_empty());
    }

    #[test]
    fn storage_is_warned_of_what_is_on_its_way_out() {
        let old = json!({
            "metadata": {"annotations": {CLASS_ANNOTATION: "fast"}},
            "spec": {"persistentVolumeReclaimPolicy": "Recycle", "rbd": {}, "resources": {"requests": {"storage": "1500m"}}},
        });
        assert_eq!(volume(&old, None).len(), 3);
        assert_eq!(
            claim(&old, None),
            [
                "metadata.annotations[volume.beta.kubernetes.io/storage-class]: deprecated since v1.8; use \
                 \"storageClassName\" attribute instead",
                "spec.resources.requests[storage]: fractional byte value \"1500m\" is invalid, must be an integer",
            ]
        );
    }
}
