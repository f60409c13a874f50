//! The resources of volumes: what the cluster is given for them, and the rules at admission.

mod common;

use common::Api;
use serde_json::json;
use tether_apiserver::auth::User;

const ROOT: &str = "/apis/longhorn.io/v1beta2/namespaces/longhorn-system";

async fn cluster() -> Api {
    let api = Api::start().await;
    tether_apiserver::install(&api.server, &tether_crd::install::objects()).await.expect("a cluster for volumes");
    api
}

#[tokio::test]
async fn a_cluster_for_volumes_is_made_once() {
    let api = cluster().await;
    let setting = format!("{ROOT}/settings/auto-salvage");
    let made = api.get(&setting).await.ok();
    assert_eq!((&made["value"], &made["status"]["applied"]), (&json!("true"), &json!(true)));
    api.patch(&setting, "merge", json!({"value": "false"})).await.ok();
    let before = api.server.store().revision();
    tether_apiserver::install(&api.server, &tether_crd::install::objects()).await.expect("again");
    assert_eq!(api.server.store().revision(), before, "what is there already is not written again");
    assert_eq!(api.get(&setting).await.ok()["value"], "false", "a choice of the user stays");
}

#[tokio::test]
async fn a_definition_of_an_older_version_is_brought_up_to_date() {
    let api = cluster().await;
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/volumes.longhorn.io";
    let mut old = api.get(path).await.ok();
    let fields = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties";
    old.pointer_mut(fields).expect("fields").as_object_mut().expect("fields").remove("record");
    api.put(path, old).await.ok();
    tether_apiserver::install(&api.server, &tether_crd::install::objects()).await.expect("an upgrade");
    let now = api.get(path).await.ok();
    assert!(now.pointer(&format!("{fields}/record")).is_some());
}

#[tokio::test]
async fn a_node_reports_and_does_not_rule() {
    let api = cluster().await;
    let volume = json!({"apiVersion": "longhorn.io/v1beta2", "kind": "Volume", "metadata": {"name": "v1"}, "spec": {"size": "2097152"}});
    api.post(&format!("{ROOT}/volumes"), volume.clone()).await.ok();
    let node = api.as_user(User::new("system:node:node-1", ["system:nodes", "system:authenticated"]));
    assert_eq!(node.get(&format!("{ROOT}/volumes")).await.ok()["items"][0]["metadata"]["name"], "v1");
    let record =
        json!([{"op": "add", "path": "/status", "value": {"record": {"version": 1, "epoch": 1, "inSync": []}}}]);
    let refused = node.patch(&format!("{ROOT}/volumes/v1/status"), "json", record.clone()).await.fails(403);
    assert!(refused.contains("has no engine of volume \"v1\""), "{refused}");
    let engine = json!({"apiVersion": "longhorn.io/v1beta2", "kind": "Engine", "metadata": {"name": "v1-e-0"},
        "spec": {"volumeName": "v1", "nodeID": "node-1"}});
    api.post(&format!("{ROOT}/engines"), engine).await.ok();
    node.patch(&format!("{ROOT}/volumes/v1/status"), "json", record).await.ok();
    node.patch(&format!("{ROOT}/volumes/v1"), "merge", json!({"spec": {"nodeID": "node-1"}})).await.fails(403);
    node.post(&format!("{ROOT}/volumes"), volume).await.fails(403);
}

#[tokio::test]
async fn a_volume_is_completed_and_checked_on_its_way_in() {
    let api = cluster().await;
    let volume = |name: &str, spec: serde_json::Value| json!({"apiVersion": "longhorn.io/v1beta2", "kind": "Volume", "metadata": {"name": name}, "spec": spec});
    let made = api.post(&format!("{ROOT}/volumes"), volume("v1", json!({"size": "1000"}))).await.ok();
    assert_eq!((&made["spec"]["size"], &made["spec"]["numberOfReplicas"]), (&json!("2097152"), &json!(3)));
    assert_eq!(made["metadata"]["finalizers"], json!(["longhorn.io"]));
    let refused = api
        .post(&format!("{ROOT}/volumes"), volume("v2", json!({"size": "1000", "migratable": true})))
        .await
        .fails(422);
    assert_eq!(
        refused,
        "Volume.longhorn.io \"v2\" is invalid: spec.migratable: Forbidden: only a volume with access mode rwx can be migratable, and this one has rwo"
    );
    let refused = api.patch(&format!("{ROOT}/volumes/v1"), "merge", json!({"spec": {"size": "1"}})).await;
    assert_eq!(refused.code, 200, "rounded up, it is what it was");
    api.patch(&format!("{ROOT}/settings/auto-salvage"), "merge", json!({"value": "perhaps"})).await.fails(422);
}

#[tokio::test]
async fn tickets_are_counted_and_compared_with_their_volume() {
    let api = cluster().await;
    let spec = json!({"size": "2097152", "accessMode": "rwx", "migratable": true});
    let volume =
        json!({"apiVersion": "longhorn.io/v1beta2", "kind": "Volume", "metadata": {"name": "v1"}, "spec": spec});
    api.post(&format!("{ROOT}/volumes"), volume).await.ok();
    let ticket = |id: &str, node: &str| json!({"id": id, "type": "csi-attacher", "nodeID": node});
    let attachment = json!({
        "apiVersion": "longhorn.io/v1beta2", "kind": "VolumeAttachment", "metadata": {"name": "v1"},
        "spec": {"volume": "v1", "attachmentTickets": {"a": ticket("a", "node-1")}},
    });
    let made = api.post(&format!("{ROOT}/volumeattachments"), attachment).await.ok();
    assert_eq!(made["metadata"]["ownerReferences"][0]["kind"], "Volume");
    let path = format!("{ROOT}/volumeattachments/v1");
    let set = |tickets: serde_json::Value| json!({"spec": {"attachmentTickets": tickets}});
    let moved = api.patch(&path, "merge", set(json!({"a": ticket("a", "node-2")}))).await.ok();
    assert_eq!(moved["spec"]["attachmentTickets"]["a"]["generation"], 1);
    let second = api.patch(&path, "merge", set(json!({"b": ticket("b", "node-3")}))).await.fails(422);
    assert!(
        second.ends_with("cannot have second CSI ticket for migratable volume v1 while it is in state "),
        "{second}"
    );
    let status = json!({"status": {"state": "attached"}});
    api.patch(&format!("{ROOT}/volumes/v1/status"), "merge", status).await.ok();
    api.patch(&path, "merge", set(json!({"b": ticket("b", "node-3")}))).await.ok();
    let third = api.patch(&path, "merge", set(json!({"c": ticket("c", "node-1")}))).await.fails(422);
    assert!(third.contains("cannot have more than 2 CSI tickets for migratable volume v1: ["), "{third}");
}

#[tokio::test]
async fn a_volume_keeps_one_engine_and_its_last_good_replica() {
    let api = cluster().await;
    let object = |kind: &str, name: &str, spec: serde_json::Value| json!({"apiVersion": "longhorn.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec});
    api.post(&format!("{ROOT}/volumes"), object("Volume", "v1", json!({"size": "2097152"}))).await.ok();
    // Another volume whose engines' names look alike.
    api.post(&format!("{ROOT}/engines"), object("Engine", "v1-e-e-0", json!({"volumeName": "v1-e"}))).await.ok();
    api.post(&format!("{ROOT}/engines"), object("Engine", "v1-e-0", json!({"volumeName": "v1"}))).await.ok();
    let second =
        api.post(&format!("{ROOT}/engines"), object("Engine", "v1-e-1", json!({"volumeName": "v1"}))).await.fails(422);
    assert!(second.contains("has 1 engines already"), "{second}");
    for number in 0..20 {
        let spec =
            json!({"volumeName": "v1", "dataDirectoryName": format!("d{number}"), "failedAt": "x", "healthyAt": "x"});
        api.post(&format!("{ROOT}/replicas"), object("Replica", &format!("v1-r-{number:08x}"), spec)).await.ok();
    }
    let good = |number: u32| format!("{ROOT}/replicas/v1-r-{number:08x}");
    let recover = json!({"spec": {"failedAt": ""}});
    api.patch(&good(3), "merge", recover.clone()).await.ok();
    let refused = api.delete(&good(3)).await.fails(403);
    assert!(refused.contains("it is the only healthy replica of volume v1"), "{refused}");
    api.patch(&good(19), "merge", recover).await.ok();
    api.delete(&good(3)).await.ok();
}
