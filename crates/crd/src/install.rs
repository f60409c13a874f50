//! What a cluster is given before the first volume: namespace, definitions, roles, default settings.

use serde_json::{Value, json};

use crate::{GROUP, NAMESPACE, definitions, labels, names, policy, settings, volume_snapshot};

/// The user of the controllers of the embedded cluster.
const CONTROLLERS: &str = "system:kube-controller-manager";
/// The group of all nodes.
const NODES: &str = "system:nodes";
/// The account of scripts and pages that work with volumes: `kubectl -n longhorn-system create token longhorn-service-account`.
pub const SERVICE_ACCOUNT: &str = "longhorn-service-account";

/// Everything, in the order in which it is to be made.
pub fn objects() -> Vec<Value> {
    let mut objects = base();
    objects.extend(settings::defaults().iter().map(json));
    objects
}

/// What a cluster is given that is not the embedded one; it can be applied in one go. No settings: kubectl looks all kinds
/// up before it writes anything, and theirs comes with it. The controllers make them.
pub fn manifests() -> Vec<Value> {
    let mut objects = base();
    objects.extend(policy::nodes());
    objects
}

fn base() -> Vec<Value> {
    let mut objects = vec![namespace(), service_account(), csi_driver()];
    objects.extend(definitions());
    objects.extend(roles());
    objects
}

/// The definitions alone.
pub fn definitions() -> Vec<Value> {
    definitions::all().iter().chain(&definitions::volume_snapshots()).map(json).collect()
}

fn json(object: &impl serde::Serialize) -> Value {
    serde_json::to_value(object).expect("an object must be JSON")
}

fn namespace() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": NAMESPACE, "labels": {labels::MANAGED_BY: labels::MANAGER}},
    })
}

fn service_account() -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": SERVICE_ACCOUNT, "namespace": NAMESPACE}})
}

/// What Kubernetes has to know of the CSI driver: volumes are attached, the room for them is published, and files get the pod's group
/// where that is asked for.
fn csi_driver() -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIDriver",
        "metadata": {"name": names::CSI_DRIVER, "labels": {labels::MANAGED_BY: labels::MANAGER}},
        "spec": {
            "attachRequired": true,
            "storageCapacity": true,
            "podInfoOnMount": true,
            "volumeLifecycleModes": ["Persistent"],
            "fsGroupPolicy": "ReadWriteOnceWithFSType",
        },
    })
}

/// Controllers do everything with volumes; a node reads, and reports on what it runs; scripts do what people do.
fn roles() -> Vec<Value> {
    let all = ["*"];
    let volumes =
        |resources: &[&str], verbs: &[&str]| json!({"apiGroups": [GROUP], "resources": resources, "verbs": verbs});
    let core = |resources: &[&str], verbs: &[&str]| json!({"apiGroups": [""], "resources": resources, "verbs": verbs});
    let controller = [
        volumes(&all, &all),
        core(&["secrets"], &["get", "list", "watch", "create", "delete"]),
        core(&["pods"], &["get", "list", "watch", "create", "delete", "patch", "update"]),
        json!({"apiGroups": ["policy"], "resources": ["poddisruptionbudgets", "poddisruptionbudgets/status"], "verbs": all}),
        // Whoever asks for metrics is shown to the API server.
        json!({"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]}),
        json!({"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]}),
    ];
    // The CSI driver's controller half and its loops; in the embedded cluster they have the controllers' credentials.
    let storage = |resources: &[&str], verbs: &[&str]| json!({"apiGroups": ["storage.k8s.io"], "resources": resources, "verbs": verbs});
    let csi = [
        volumes(&all, &all),
        storage(&["volumeattachments"], &["get", "list", "watch", "patch"]),
        storage(&["volumeattachments/status"], &["patch"]),
        storage(&["csinodes", "csidrivers", "storageclasses"], &["get", "list", "watch"]),
        storage(&["csistoragecapacities"], &["get", "list", "watch", "create", "delete", "patch"]),
        core(&["persistentvolumes"], &["get", "list", "watch", "create", "delete", "patch"]),
        core(&["persistentvolumeclaims"], &["get", "list", "watch", "patch"]),
        core(&["nodes"], &["get", "list", "watch"]),
        core(&["persistentvolumeclaims/status"], &["patch"]),
        core(&["secrets"], &["get"]),
        json!({
            "apiGroups": [volume_snapshot::GROUP],
            "resources": [
                "volumesnapshots", "volumesnapshots/status", "volumesnapshotcontents", "volumesnapshotcontents/status",
                "volumesnapshotclasses",
            ],
            "verbs": ["get", "list", "watch", "create", "delete", "patch"],
        }),
        json!({"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]}),
    ];
    let node = [
        volumes(&all, &["get", "list", "watch"]),
        volumes(
            &[
                "engines",
                "engines/status",
                "replicas",
                "replicas/status",
                "volumes/status",
                "snapshots",
                "snapshots/status",
            ],
            &["update", "patch"],
        ),
        volumes(&["snapshots"], &["create", "delete"]),
        volumes(
            &["nodes", "nodes/status", "instancemanagers", "instancemanagers/status"],
            &["create", "update", "patch", "delete"],
        ),
    ];
    let manager = [
        volumes(&all, &all),
        core(&["nodes", "pods", "events"], &["get", "list", "watch"]),
        json!({"nonResourceURLs": ["/metrics"], "verbs": ["get"]}),
    ];
    vec![
        role("tether:manager", &manager),
        binding_of_account("tether:manager"),
        role("tether:controller", &controller),
        role("tether:csi", &csi),
        role("tether:node", &node),
        binding("tether:controller", "User", CONTROLLERS),
        binding("tether:csi", "User", CONTROLLERS),
        binding("tether:node", "Group", NODES),
        key_role(),
        key_binding(),
    ]
}

fn role(name: &str, rules: &[Value]) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name, "labels": {labels::MANAGED_BY: labels::MANAGER}},
        "rules": rules,
    })
}

fn binding_of_account(role: &str) -> Value {
    let mut binding = binding(role, "ServiceAccount", SERVICE_ACCOUNT);
    binding["subjects"] = json!([{"kind": "ServiceAccount", "name": SERVICE_ACCOUNT, "namespace": NAMESPACE}]);
    binding
}

/// A node reads the keys of volumes, which engines and replicas on it prove to each other; no other Secret.
fn key_role() -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "tether:volume-keys", "namespace": NAMESPACE, "labels": {labels::MANAGED_BY: labels::MANAGER}},
        "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}],
    })
}

fn key_binding() -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "tether:volume-keys", "namespace": NAMESPACE, "labels": {labels::MANAGED_BY: labels::MANAGER}},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "tether:volume-keys"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": NODES}],
    })
}

fn binding(role: &str, kind: &str, name: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": role, "labels": {labels::MANAGED_BY: labels::MANAGER}},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_need_no_kind_that_they_bring_along() {
        let manifests = manifests();
        let brought: Vec<&Value> = manifests.iter().map(|object| &object["spec"]["names"]["kind"]).collect();
        let needed = manifests.iter().map(|object| &object["kind"]);
        assert_eq!(needed.filter(|kind| brought.contains(kind)).count(), 0);
    }
}
