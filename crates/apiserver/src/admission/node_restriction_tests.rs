//! What a node may write, and in which words it is refused the rest.

use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::admission::{GroupVersionKind, GroupVersionResource};
use crate::auth::User;
use crate::auth::tests::Memory;

fn pod(name: &str, node: &str) -> Value {
    json!({
        "metadata": {"namespace": "a", "name": name, "uid": format!("{name}-1")},
        "spec": {"nodeName": node, "serviceAccountName": "sa", "volumes": [
            {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"audience": "vault"}},
                                                     {"serviceAccountToken": {"path": "token"}}]}},
            {"name": "d", "persistentVolumeClaim": {"claimName": "data"}},
        ]},
    })
}

fn engine(volume: &str, node: &str) -> Value {
    json!({
        "metadata": {"namespace": "longhorn-system", "name": format!("{volume}-e-0")},
        "spec": {"volumeName": volume, "nodeID": node, "desireState": "running"},
    })
}

fn cluster() -> Arc<Memory> {
    Memory::with([
        ("nodes", json!({"metadata": {"name": "n1", "uid": "node-1"}})),
        ("pods", pod("mine", "n1")),
        ("pods", pod("theirs", "n2")),
        (
            "persistentvolumeclaims",
            json!({"metadata": {"namespace": "a", "name": "data"}, "spec": {"volumeName": "pv"}}),
        ),
        ("persistentvolumes", json!({"metadata": {"name": "pv"}, "spec": {"csi": {"driver": "d"}}})),
        ("engines.longhorn.io", engine("v1", "n1")),
        ("engines.longhorn.io", engine("v2", "n2")),
        (CSI_DRIVERS, json!({"metadata": {"name": "d"}, "spec": {"tokenRequests": [{"audience": "storage"}]}})),
    ])
}

/// `OPERATION GROUP/RESOURCE[:SUBRESOURCE] NAMESPACE/NAME` by node n1.
fn request(words: &str, object: Value, old: Option<Value>) -> Request {
    let words: Vec<&str> = words.split_whitespace().collect();
    let (group, resource) = words[1].split_once('/').unwrap();
    let (resource, subresource) = resource.split_once(':').unwrap_or((resource, ""));
    let (namespace, name) = words[2].split_once('/').unwrap();
    Request {
        user: User::node("n1"),
        operation: match words[0] {
            "create" => Operation::Create,
            "update" => Operation::Update,
            _ => Operation::Delete,
        },
        kind: GroupVersionKind::default(),
        resource: GroupVersionResource { group: group.into(), version: "v1".into(), resource: resource.into() },
        subresource: subresource.into(),
        namespace: namespace.into(),
        name: name.into(),
        object,
        old_object: old.map(Arc::new),
        dry_run: false,
        options: Value::Null,
    }
}

fn admit_one(request: &Request) -> Result<(), String> {
    let objects = cluster();
    let authorizer = Authorizer::new(objects.clone());
    admit(request, &*objects, &authorizer).map_err(|error| error.message)
}

fn admitted(words: &str, object: Value, old: Option<Value>) {
    admit_one(&request(words, object, old)).unwrap();
}

fn refused(words: &str, object: Value, old: Option<Value>, expected: &str) {
    let message = admit_one(&request(words, object, old)).unwrap_err();
    let (_, why) = message.split_once(" is forbidden: ").unwrap_or(("", &message));
    assert_eq!(why, expected);
}

fn labelled(labels: Value) -> Value {
    json!({"metadata": {"name": "n1", "labels": labels}})
}

#[test]
fn a_node_writes_itself_and_no_other() {
    admitted("create /nodes /n1", labelled(json!({"kubernetes.io/hostname": "n1", "mine": "x"})), None);
    refused("update /nodes /n2", json!({}), Some(json!({})), "node \"n1\" is not allowed to modify node \"n2\"");
    refused(
        "create /nodes /n1",
        labelled(json!({
            "node-restriction.kubernetes.io/a": "x", "x.node-restriction.kubernetes.io/b": "x",
            "node-role.kubernetes.io/control-plane": "", "k8s.io/c": "x", "fine.example.com/d": "x",
            "node.kubernetes.io/e": "x", "deep.kubelet.kubernetes.io/f": "x",
        })),
        None,
        "node \"n1\" is not allowed to set the following labels: k8s.io/c, node-restriction.kubernetes.io/a, \
         node-role.kubernetes.io/control-plane, x.node-restriction.kubernetes.io/b",
    );
}

#[test]
fn a_node_does_not_choose_its_workloads() {
    let old = || Some(labelled(json!({"node-restriction.kubernetes.io/a": "x", "zone": "1"})));
    admitted(
        "update /nodes:status /n1",
        labelled(json!({"node-restriction.kubernetes.io/a": "x", "zone": "2"})),
        old(),
    );
    refused(
        "update /nodes /n1",
        labelled(json!({"zone": "1"})),
        old(),
        "is not allowed to modify labels: node-restriction.kubernetes.io/a",
    );
    let tainted = json!({"metadata": {"name": "n1"}, "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}});
    let clean = json!({"metadata": {"name": "n1"}, "spec": {"taints": []}});
    admitted("update /nodes /n1", clean.clone(), Some(json!({"metadata": {"name": "n1"}, "spec": {}})));
    refused("update /nodes /n1", clean, Some(tainted), "node \"n1\" is not allowed to modify taints");
    let owned = json!({"metadata": {"name": "n1", "ownerReferences": [{"name": "x"}]}});
    refused(
        "update /nodes /n1",
        owned,
        Some(json!({"metadata": {"name": "n1"}})),
        "node \"n1\" is not allowed to modify ownerReferences",
    );
}

fn mirror() -> Value {
    json!({
        "metadata": {
            "namespace": "a", "name": "m", "annotations": {MIRROR_ANNOTATION: "x"},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "node-1", "controller": true},
            ],
        },
        "spec": {"nodeName": "n1", "volumes": [{"name": "h", "hostPath": {"path": "/x"}}]},
    })
}

#[test]
fn a_node_creates_mirror_pods_only() {
    type Edit = fn(&mut Value);
    admitted("create /pods a/m", mirror(), None);
    let cases: [(Edit, &str); 12] = [
        (
            |p| p["metadata"]["annotations"] = json!({}),
            "pod does not have \"kubernetes.io/config.mirror\" annotation, node \"n1\" can only create mirror pods",
        ),
        (|p| p["spec"]["nodeName"] = "n2".into(), "node \"n1\" can only create pods with spec.nodeName set to itself"),
        (
            |p| p["metadata"]["ownerReferences"] = json!([]),
            "node \"n1\" can only create pods with an owner reference set to itself",
        ),
        (
            |p| p["metadata"]["ownerReferences"] = json!([{}, {}]),
            "node \"n1\" can only create pods with a single owner reference set to itself",
        ),
        (
            |p| p["metadata"]["ownerReferences"][0]["controller"] = false.into(),
            "node \"n1\" can only create pods with a controller owner reference set to itself",
        ),
        (
            |p| p["metadata"]["ownerReferences"][0]["blockOwnerDeletion"] = true.into(),
            "node \"n1\" must not set blockOwnerDeletion on an owner reference",
        ),
        (
            |p| p["metadata"]["ownerReferences"][0]["uid"] = "old".into(),
            "node n1 UID mismatch: expected old got node-1",
        ),
        (
            |p| p["spec"]["serviceAccountName"] = "sa".into(),
            "node \"n1\" can not create pods that reference serviceaccounts",
        ),
        (
            |p| p["spec"]["volumes"] = json!([{"name": "s", "secret": {"secretName": "s"}}]),
            "node \"n1\" can not create pods that reference secrets",
        ),
        (
            |p| p["spec"]["volumes"] = json!([{"name": "d", "persistentVolumeClaim": {"claimName": "c"}}]),
            "node \"n1\" can not create pods that reference persistentvolumeclaims",
        ),
        (
            |p| p["spec"]["volumes"] = json!([{"name": "p", "projected": {"sources": [{"serviceAccountToken": {}}]}}]),
            "node \"n1\" can not create pods that reference serviceaccounts (via projected volumes)",
        ),
        (
            |p| p["spec"]["volumes"] = json!([{"name": "w", "warp": {}}]),
            "error checking mirror pod for API references: unknown volume type for volume  \"w\"",
        ),
    ];
    for (edit, expected) in cases {
        let mut pod = mirror();
        edit(&mut pod);
        refused("create /pods a/m", pod, None, expected);
    }
}

#[test]
fn a_node_acts_on_its_own_pods() {
    admitted("delete /pods a/mine", Value::Null, None);
    refused(
        "delete /pods a/theirs",
        Value::Null,
        None,
        "node \"n1\" can only delete pods with spec.nodeName set to itself",
    );
    assert_eq!(admit_one(&request("delete /pods a/gone", Value::Null, None)).unwrap_err(), "pods \"gone\" not found");
    refused(
        "update /pods a/mine",
        json!({}),
        Some(json!({})),
        "unexpected operation \"UPDATE\", node \"n1\" can only create and delete mirror pods",
    );
    admitted("create /pods:eviction a/mine", json!({}), None);
    admitted("create /pods:eviction a/", json!({"metadata": {"name": "mine"}}), None);
    refused(
        "create /pods:eviction a/theirs",
        json!({}),
        None,
        "node n1 can only evict pods with spec.nodeName set to itself",
    );
    refused(
        "create /pods:binding a/mine",
        json!({}),
        None,
        "unexpected pod subresource \"binding\", only 'status' and 'eviction' are allowed",
    );
    admitted("update /pods:status a/mine", pod("mine", "n1"), Some(pod("mine", "n1")));
    refused(
        "update /pods:status a/theirs",
        pod("theirs", "n2"),
        Some(pod("theirs", "n2")),
        "node \"n1\" can only update pod status for pods with spec.nodeName set to itself",
    );
    let mut relabelled = pod("mine", "n1");
    relabelled["metadata"]["labels"] = json!({"app": "other"});
    refused(
        "update /pods:status a/mine",
        relabelled,
        Some(pod("mine", "n1")),
        "node \"n1\" cannot update labels through pod status",
    );
}

#[test]
fn a_node_reports_sizes_of_claims_and_nothing_else() {
    let claim = |size: &str, label: &str| {
        json!({
            "metadata": {"name": "data", "resourceVersion": size, "labels": {"l": label}},
            "status": {"phase": "Bound", "capacity": {"storage": size}, "conditions": [{"type": size}]},
        })
    };
    admitted("update /persistentvolumeclaims:status a/data", claim("2", "a"), Some(claim("1", "a")));
    refused(
        "update /persistentvolumeclaims:status a/data",
        claim("2", "b"),
        Some(claim("1", "a")),
        "node \"n1\" is not allowed to update fields other than status.quantity and status.conditions",
    );
    refused("update /persistentvolumeclaims a/data", json!({}), Some(json!({})), "may only update PVC status");
}

#[test]
fn a_node_has_one_lease_and_one_csinode() {
    let named = |name: &str| json!({"metadata": {"name": name}});
    admitted("create coordination.k8s.io/leases kube-node-lease/n1", named("n1"), None);
    admitted("update coordination.k8s.io/leases kube-node-lease/n1", named("n1"), Some(named("n1")));
    refused(
        "create coordination.k8s.io/leases kube-node-lease/n2",
        named("n2"),
        None,
        "can only access node lease with the same name as the requesting node",
    );
    refused(
        "create coordination.k8s.io/leases default/n1",
        named("n1"),
        None,
        "can only access leases in the \"kube-node-lease\" system namespace",
    );
    admitted("create storage.k8s.io/csinodes /n1", named("n1"), None);
    refused(
        "delete storage.k8s.io/csinodes /n2",
        Value::Null,
        None,
        "can only access CSINode with the same name as the requesting node",
    );
}

#[test]
fn a_node_gets_the_tokens_that_its_pods_ask_for() {
    let ask = |pod: &str, uid: &str, audiences: &[&str]| {
        json!({"spec": {"audiences": audiences, "boundObjectRef":
            {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid}}})
    };
    let token = "create /serviceaccounts:token a/sa";
    admitted(token, ask("mine", "mine-1", &[]), None);
    admitted(token, ask("mine", "mine-1", &["vault"]), None);
    admitted(token, ask("mine", "mine-1", &["storage"]), None);
    refused(
        token,
        ask("mine", "mine-1", &["bank"]),
        None,
        "system:node:n1 is not authorized to request tokens for audience \"bank\"",
    );
    refused(token, ask("mine", "mine-1", &["vault", "bank"]), None, "node may only request 0 or 1 audiences");
    refused(token, json!({"spec": {}}), None, "node requested token not bound to a pod");
    refused(token, ask("mine", "", &[]), None, "node requested token with a pod binding without a uid");
    refused(
        token,
        ask("mine", "old", &[]),
        None,
        "the UID in the bound object reference (old) does not match the UID in record. The object might have been \
         deleted and then recreated",
    );
    refused(
        token,
        ask("theirs", "theirs-1", &[]),
        None,
        "node requested token bound to a pod scheduled on a different node",
    );
}

#[test]
fn others_are_not_restricted() {
    let mut request = request("update /nodes /n2", json!({}), Some(json!({})));
    request.user = User::new("ann", [""; 0]);
    assert!(admit_one(&request).is_ok());
    request.user = User::node("");
    let message = admit_one(&request).unwrap_err();
    assert_eq!(message, "nodes \"n2\" is forbidden: could not determine node from user \"system:node:\"");
}

#[test]
fn of_volumes_a_node_writes_what_is_about_itself() {
    let on = |node: &str| json!({"spec": {"nodeID": node, "desireState": "running"}, "status": {"ownerID": ""}});
    let ours = |what: &str| format!("node \"n1\" {what}");
    for kind in ["engines", "replicas"] {
        admitted(&format!("update longhorn.io/{kind}:status longhorn-system/x"), on("n1"), Some(on("n1")));
        admitted(&format!("update longhorn.io/{kind} longhorn-system/x"), on("n1"), Some(on("n1")));
        let why = ours(&format!("can only write {kind} that are on it"));
        refused(&format!("update longhorn.io/{kind}:status longhorn-system/x"), on("n1"), Some(on("n2")), &why);
        let stolen = json!({"spec": {"nodeID": "n1", "desireState": "stopped"}, "status": {"ownerID": ""}});
        let why = ours(&format!("cannot change what is wanted of {kind}"));
        refused(&format!("update longhorn.io/{kind} longhorn-system/x"), stolen, Some(on("n1")), &why);
    }
    // One that is to stop has no node any more; the one that runs it is in its status.
    let stopping = json!({"spec": {"nodeID": ""}, "status": {"ownerID": "n1"}});
    admitted("update longhorn.io/engines:status longhorn-system/x", stopping.clone(), Some(stopping));

    let volume = |epoch: u64, state: &str| json!({"status": {"state": state, "record": {"epoch": epoch}}});
    let new = json!({"status": {"state": "attached"}});
    admitted(
        "update longhorn.io/volumes:status longhorn-system/v1",
        volume(2, "attached"),
        Some(volume(1, "attached")),
    );
    admitted("update longhorn.io/volumes:status longhorn-system/v1", volume(1, "attached"), Some(new));
    let why = ours("can only change status.record of volumes");
    refused(
        "update longhorn.io/volumes:status longhorn-system/v1",
        volume(2, "detached"),
        Some(volume(1, "attached")),
        &why,
    );
    refused("update longhorn.io/volumes longhorn-system/v1", volume(1, "attached"), Some(volume(1, "attached")), &why);
    let why = ours("has no engine of volume \"v2\"");
    refused(
        "update longhorn.io/volumes:status longhorn-system/v2",
        volume(2, "attached"),
        Some(volume(1, "attached")),
        &why,
    );

    admitted("update longhorn.io/nodes:status longhorn-system/n1", json!({}), Some(json!({})));
    let why = ours("can only write the Node of its own name");
    refused("update longhorn.io/nodes longhorn-system/n2", json!({}), Some(json!({})), &why);
    admitted("update longhorn.io/instancemanagers:status longhorn-system/im", on("n1"), Some(on("n1")));
    let why = ours("can only write instance managers with spec.nodeID set to itself");
    refused("update longhorn.io/instancemanagers:status longhorn-system/im", on("n2"), Some(on("n2")), &why);
}
