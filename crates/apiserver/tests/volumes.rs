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
    assert_eq!(api.get(&setting).await.ok()["value"], "true");
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
    node.patch(&format!("{ROOT}/volumes/v1/status"), "json", record).await.ok();
    node.patch(&format!("{ROOT}/volumes/v1"), "merge", json!({"spec": {"nodeID": "node-1"}})).await.fails(403);
    node.post(&format!("{ROOT}/volumes"), volume).await.fails(403);
}
