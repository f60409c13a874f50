//! What happens to a node that nobody hears of, and to its pods.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams};
use serde_json::json;

use crate::harness::*;

fn taints(node: &Node) -> Vec<String> {
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_deref()).unwrap_or_default();
    taints.iter().map(|t| format!("{}:{}", t.key.trim_start_matches("node.kubernetes.io/"), t.effect)).collect()
}

fn ready(node: &Node) -> (&str, &str) {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    let ready = conditions.iter().find(|c| c.type_ == "Ready");
    ready.map(|c| (c.status.as_str(), c.message.as_deref().unwrap_or_default())).unwrap_or_default()
}

async fn running_on(cluster: &Cluster, name: &str, node: &str) {
    let pods: Api<Pod> = cluster.in_default();
    let mut body = pod(name);
    body["spec"]["nodeName"] = json!(node);
    create(&pods, body).await;
    let conditions = json!([{ "type": "Ready", "status": "True" }]);
    patch_status(&pods, name, json!({ "status": { "phase": "Running", "conditions": conditions } })).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_node_becomes_unknown_is_tainted_loses_its_pods_and_comes_back() {
    let cluster = Cluster::start().await;
    let (nodes, pods): (Api<Node>, Api<Pod>) = (cluster.all(), cluster.in_default());
    for name in ["a", "b"] {
        cluster.add_node(name).await;
    }
    until(&nodes, "a", "free of taints", |n| taints(n).is_empty()).await;
    running_on(&cluster, "web", "a").await;

    cluster.pass(60, &["b"]).await;
    let lost = until(&nodes, "a", "Unknown", |n| ready(n).0 == "Unknown").await;
    assert_eq!(ready(&lost).1, "Kubelet stopped posting node status.");
    assert_eq!(cluster.event("NodeNotReady", "a").await, "Node a status is now: NodeNotReady");
    let tainted = until(&nodes, "a", "tainted", |n| taints(n).len() == 2).await;
    assert_eq!(taints(&tainted), ["unreachable:NoSchedule", "unreachable:NoExecute"]);
    let not_ready = |p: &Pod| {
        let conditions = p.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
        conditions.iter().any(|c| c.type_ == "Ready" && c.status == "False")
    };
    until(&pods, "web", "not ready", not_ready).await;
    assert_eq!(ready(&nodes.get("b").await.unwrap()).0, "True");

    // Pods tolerate the taint for 300 s unless they say otherwise.
    cluster.pass(240, &["b"]).await;
    assert!(pods.get("web").await.unwrap().metadata.deletion_timestamp.is_none());
    cluster.pass(70, &["b"]).await;
    let leaving = until(&pods, "web", "deleted", |p| p.metadata.deletion_timestamp.is_some()).await;
    let conditions = leaving.status.unwrap().conditions.unwrap();
    let target = conditions.iter().find(|c| c.type_ == "DisruptionTarget").unwrap();
    assert_eq!(target.reason.as_deref(), Some("DeletionByTaintManager"));
    assert_eq!(cluster.event("TaintManagerEviction", "web").await, "Marking for deletion Pod default/web");

    cluster.beat("a").await;
    cluster.post_ready("a", "True").await;
    until(&nodes, "a", "free of taints", |n| taints(n).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cordon_is_a_taint() {
    let cluster = Cluster::start().await;
    let nodes: Api<Node> = cluster.all();
    cluster.add_node("a").await;
    patch(&nodes, "a", json!({ "spec": { "unschedulable": true } })).await;
    until(&nodes, "a", "tainted", |n| taints(n) == ["unschedulable:NoSchedule"]).await;
    patch(&nodes, "a", json!({ "spec": { "unschedulable": null } })).await;
    until(&nodes, "a", "free of taints", |n| taints(n).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_of_a_deleted_node_go_after_the_quarantine_and_unscheduled_ones_at_once() {
    let cluster = Cluster::start().await;
    let (nodes, pods): (Api<Node>, Api<Pod>) = (cluster.all(), cluster.in_default());
    cluster.add_node("a").await;
    running_on(&cluster, "web", "a").await;
    delete(&nodes, "a", DeleteParams::default()).await;

    let mut never = pod("never");
    never["metadata"]["finalizers"] = json!(["example.com/hold"]);
    create(&pods, never).await;
    delete(&pods, "never", DeleteParams::default()).await;
    until(&pods, "never", "Failed", |p| p.status.as_ref().unwrap().phase.as_deref() == Some("Failed")).await;

    assert!(pods.get("web").await.is_ok(), "the node may yet turn up");
    // The quarantine begins when the missing node is noticed, so time has to pass after that too.
    for _ in 0..5 {
        cluster.pass(41, &[]).await;
        tokio::task::yield_now().await;
    }
    until_gone(&pods, "web").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terminating_pods_of_an_out_of_service_node_are_let_go() {
    let cluster = Cluster::start().await;
    let (nodes, pods): (Api<Node>, Api<Pod>) = (cluster.all(), cluster.in_default());
    for name in ["a", "b"] {
        cluster.add_node(name).await;
    }
    running_on(&cluster, "web", "a").await;
    delete(&pods, "web", DeleteParams::default()).await;
    cluster.pass(60, &["b"]).await;
    until(&nodes, "a", "Unknown and tainted", |n| ready(n).0 == "Unknown" && taints(n).len() == 2).await;
    assert!(pods.get("web").await.is_ok(), "its kubelet is not there to finish it");
    let mut taints = json!(nodes.get("a").await.unwrap().spec.unwrap().taints);
    let taint = json!({ "key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute" });
    taints.as_array_mut().unwrap().push(taint);
    patch(&nodes, "a", json!({ "spec": { "taints": taints } })).await;
    until_gone(&pods, "web").await;
}
