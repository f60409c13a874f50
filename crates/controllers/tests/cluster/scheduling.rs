//! Pods get nodes, or are told why not.

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{Api, DeleteParams, ListParams};
use serde_json::json;

use crate::harness::*;

fn told(pod: &Pod) -> Option<(&str, &str)> {
    let conditions = pod.status.as_ref()?.conditions.as_deref()?;
    let scheduled = conditions.iter().find(|c| c.type_ == "PodScheduled" && c.status == "False")?;
    Some((scheduled.reason.as_deref()?, scheduled.message.as_deref()?))
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref().and_then(|s| s.node_name.as_deref())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_waits_for_a_node_and_gets_it_when_one_is_free() {
    let cluster = Cluster::start().await;
    let (nodes, pods): (Api<Node>, Api<Pod>) = (cluster.all(), cluster.in_default());
    for name in ["a", "b"] {
        cluster.add_node(name).await;
        patch(&nodes, name, json!({ "spec": { "unschedulable": true } })).await;
    }
    let cordoned = |n: &Node| n.spec.as_ref().and_then(|s| s.taints.as_ref()).is_some_and(|t| t.len() == 1);
    for name in ["a", "b"] {
        until(&nodes, name, "tainted", cordoned).await;
    }
    create(&pods, pod("web")).await;
    let expected = "0/2 nodes are available: 2 node(s) were unschedulable.";
    until(&pods, "web", "told", |p| told(p) == Some(("Unschedulable", expected))).await;
    assert_eq!(cluster.event("FailedScheduling", "web").await, expected);
    patch(&nodes, "b", json!({ "spec": { "unschedulable": null } })).await;
    let placed = until(&pods, "web", "scheduled", |p| node_of(p).is_some()).await;
    assert_eq!(node_of(&placed), Some("b"));
    assert_eq!(cluster.event("Scheduled", "web").await, "Successfully assigned default/web to b");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_node_gets_more_than_it_has_and_a_pod_that_leaves_makes_room() {
    let cluster = Cluster::start().await;
    let pods: Api<Pod> = cluster.in_default();
    for name in ["a", "b", "c"] {
        cluster.add_node(name).await;
    }
    // Each node has 4 cpus: three nodes take twelve pods of one cpu, and no thirteenth.
    for i in 0..12 {
        let mut body = pod(&format!("p{i}"));
        body["spec"]["containers"][0]["resources"] = json!({ "requests": { "cpu": "1" } });
        create(&pods, body).await;
    }
    let mut count = std::collections::BTreeMap::<String, usize>::new();
    for i in 0..12 {
        let name = format!("p{i}");
        let placed = until(&pods, &name, "scheduled", |p| node_of(p).is_some()).await;
        *count.entry(node_of(&placed).unwrap().to_owned()).or_default() += 1;
    }
    assert_eq!(count.into_values().collect::<Vec<_>>(), [4, 4, 4]);
    let mut body = pod("late");
    body["spec"]["containers"][0]["resources"] = json!({ "requests": { "cpu": "1" } });
    create(&pods, body).await;
    until(&pods, "late", "told", |p| told(p).is_some_and(|(_, m)| m == "0/3 nodes are available: 3 Insufficient cpu."))
        .await;
    let first = pods.get("p0").await.unwrap();
    delete(&pods, "p0", DeleteParams::default().grace_period(0)).await;
    let placed = until(&pods, "late", "scheduled", |p| node_of(p).is_some()).await;
    assert_eq!(node_of(&placed), node_of(&first));
}

/// As Kubernetes' recorders do it: one object, a count, and few writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_that_repeats_is_counted() {
    let cluster = Cluster::start().await;
    create(&cluster.in_default::<Pod>(), pod("nowhere")).await;
    cluster.event("FailedScheduling", "nowhere").await;
    for number in 0..3 {
        // What comes may help the pod: it is looked at again, in vain.
        let class = json!({ "metadata": { "name": format!("class-{number}") }, "provisioner": "driver.example.com" });
        create(&cluster.all::<StorageClass>(), class).await;
        settled(&cluster).await;
    }
    let told = async || {
        let api: Api<Event> = cluster.all();
        let events = api.list(&ListParams::default()).await.unwrap().items;
        let about = |event: &Event| event.regarding.as_ref().and_then(|about| about.name.clone());
        let is_it = |event: &Event| event.reason.as_deref() == Some("FailedScheduling");
        events
            .into_iter()
            .filter(|event| is_it(event) && about(event).as_deref() == Some("nowhere"))
            .collect::<Vec<_>>()
    };
    assert!(told().await[0].series.is_none(), "the count comes later");
    cluster.pass(60, &[]).await;
    settled(&cluster).await;
    let events = told().await;
    assert_eq!(events.len(), 1, "{events:?}");
    let count = events[0].series.as_ref().map(|series| series.count);
    assert!(count.is_some_and(|count| count >= 4), "{events:?}");
}
