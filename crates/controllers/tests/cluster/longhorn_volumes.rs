//! Volumes through the API: what the controller makes of wishes, with agents that only pretend.

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, DeleteParams, ListParams};
use serde_json::json;
use tether_crd::volume::{Robustness, State};
use tether_crd::{Engine, NAMESPACE, Replica, Volume, VolumeAttachment};

use crate::agents;
use crate::harness::*;

const GIB: i64 = 1 << 30;

async fn storage(nodes: &[&str]) -> (Cluster, Api<Volume>) {
    let mut cluster = Cluster::start().await;
    for node in nodes {
        agents::add_storage_node(&cluster, node).await;
    }
    let all = nodes.iter().map(|node| (*node).to_owned()).collect();
    cluster.spawn(agents::run(cluster.client.clone(), all));
    let volumes = Api::namespaced(cluster.client.clone(), NAMESPACE);
    (cluster, volumes)
}

fn body(name: &str, replicas: i64) -> serde_json::Value {
    let spec = json!({ "size": GIB.to_string(), "numberOfReplicas": replicas, "frontend": "blockdev" });
    json!({ "metadata": { "name": name, "namespace": NAMESPACE }, "spec": spec })
}

fn is(state: State) -> impl Fn(&Volume) -> bool {
    move |volume| volume.status.state == state
}

/// Somebody wants the volume on a node, or nobody does any more.
async fn want(cluster: &Cluster, name: &str, node: &str) {
    let attachments: Api<VolumeAttachment> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    until(&attachments, name, "there", |_| true).await;
    let parameters = json!({ "disableFrontend": "false" });
    let ticket = json!({ "id": "by-hand", "type": "longhorn-api", "nodeID": node, "parameters": parameters });
    let ticket = if node.is_empty() { json!(null) } else { ticket };
    patch(&attachments, name, json!({ "spec": { "attachmentTickets": { "by-hand": ticket } } })).await;
}

async fn is_satisfied(cluster: &Cluster, name: &str) {
    let attachments: Api<VolumeAttachment> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    until(&attachments, name, "satisfied", |attachment| attachment.is_satisfied("by-hand")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_is_made_attached_detached_and_deleted() {
    let (cluster, volumes) = storage(&["a", "b", "c"]).await;
    let client = || cluster.client.clone();
    create(&volumes, body("v1", 3)).await;
    let made = until(&volumes, "v1", "detached", is(State::Detached)).await;
    assert_eq!(made.condition("Scheduled"), "True");
    let attachments: Api<VolumeAttachment> = Api::namespaced(client(), NAMESPACE);
    let attachment = until(&attachments, "v1", "there", |_| true).await;
    assert_eq!(attachment.metadata.owner_references.unwrap()[0].uid, made.metadata.uid.clone().unwrap());
    let secrets: Api<Secret> = Api::namespaced(client(), NAMESPACE);
    let key = secrets.get("v1-data-key").await.unwrap();
    assert_eq!(key.data.unwrap()["key"].0.len(), 32);
    let replicas: Api<Replica> = Api::namespaced(client(), NAMESPACE);
    let all = replicas.list(&ListParams::default().labels("longhornvolume=v1")).await.unwrap();
    let mut nodes: Vec<_> = all.items.iter().map(|replica| replica.spec.node_id.clone()).collect();
    nodes.sort();
    assert_eq!(nodes, ["a", "b", "c"]);

    want(&cluster, "v1", "a").await;
    let attached = until(&volumes, "v1", "attached", is(State::Attached)).await;
    assert_eq!((attached.status.robustness, attached.status.current_node_id.as_str()), (Robustness::Healthy, "a"));
    assert_eq!(attached.status.record.as_ref().unwrap().in_sync.len(), 3, "the record is left alone");
    assert_eq!(cluster.event("Attached", "v1").await, "volume v1 has been attached to a");
    let engines: Api<Engine> = Api::namespaced(client(), NAMESPACE);
    let engine = engines.get("v1-e-0").await.unwrap();
    assert_eq!((engine.spec.node_id.as_str(), engine.spec.replica_address_map.len()), ("a", 3));

    want(&cluster, "v1", "").await;
    until(&volumes, "v1", "detached", is(State::Detached)).await;
    assert_eq!(cluster.event("Detached", "v1").await, "volume v1 has been detached");

    delete(&volumes, "v1", DeleteParams::default()).await;
    until_gone(&volumes, "v1").await;
    until_gone(&attachments, "v1").await;
    until_gone(&secrets, "v1-data-key").await;
    assert!(replicas.list(&ListParams::default()).await.unwrap().items.is_empty());
}

/// From ticket to satisfied: ticket, nodeID, two statuses of the volume, three replica specs and three replica statuses, the
/// engine's spec, its status, the record, the ticket's status.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attach_costs_fourteen_writes_the_first_one_too() {
    let (cluster, volumes) = storage(&["a", "b", "c"]).await;
    create(&volumes, body("v1", 3)).await;
    until(&volumes, "v1", "detached", is(State::Detached)).await;
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let told = async || u64::try_from(events.list(&ListParams::default()).await.unwrap().items.len()).unwrap();
    for (round, node) in [("first", "a"), ("later", "b")] {
        let before = settled(&cluster).await - told().await;
        want(&cluster, "v1", node).await;
        until(&volumes, "v1", "attached", is(State::Attached)).await;
        is_satisfied(&cluster, "v1").await;
        let after = settled(&cluster).await - told().await;
        assert_eq!(after - before, 14, "{round}");
        want(&cluster, "v1", "").await;
        until(&volumes, "v1", "detached", is(State::Detached)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_dies_costs_a_replica_and_its_return_brings_it_back() {
    let (cluster, volumes) = storage(&["a", "b", "c"]).await;
    create(&volumes, body("v1", 3)).await;
    until(&volumes, "v1", "detached", is(State::Detached)).await;
    agents::set_ready(&cluster, "c", "False", "KubernetesNodeNotReady").await;
    want(&cluster, "v1", "a").await;
    let attached = until(&volumes, "v1", "attached", is(State::Attached)).await;
    assert_eq!(attached.status.robustness, Robustness::Degraded);
    let replicas: Api<Replica> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let all = replicas.list(&ListParams::default()).await.unwrap().items;
    let away = all.iter().find(|replica| replica.spec.node_id == "c").unwrap();
    assert!(!away.spec.failed_at.is_empty());

    agents::set_ready(&cluster, "c", "True", "").await;
    until(&volumes, "v1", "healthy", |volume| volume.status.robustness == Robustness::Healthy).await;
    let back = replicas.get(away.metadata.name.as_deref().unwrap()).await.unwrap();
    assert_eq!((back.spec.failed_at.as_str(), back.spec.rebuild_retry_count), ("", 0));
    assert_eq!(cluster.event("Healthy", "v1").await, "volume v1 became healthy");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_place_for_a_replica_is_said_per_node_and_found_when_there_is_one() {
    let (cluster, volumes) = storage(&[]).await;
    create(&volumes, body("v1", 2)).await;
    let failed = until(&volumes, "v1", "refused", |v| v.condition("Scheduled") == "False").await;
    assert_eq!(failed.status.conditions[0].message, "precheck new replica failed: nodes are unavailable");
    agents::add_storage_node(&cluster, "a").await;
    agents::add_storage_node(&cluster, "b").await;
    let found = |v: &Volume| v.condition("Scheduled") == "True" && v.status.state == State::Detached;
    until(&volumes, "v1", "placed", found).await;
}

/// Two pods, one after the other, and the volume between them: it moves without being detached, or stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migratable_volume_moves_and_never_leaves() {
    let (cluster, volumes) = storage(&["a", "b", "c"]).await;
    let mut made = body("v1", 3);
    made["spec"]["accessMode"] = json!("rwx");
    made["spec"]["migratable"] = json!(true);
    create(&volumes, made).await;
    until(&volumes, "v1", "detached", is(State::Detached)).await;
    let attachments: Api<VolumeAttachment> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let ticket = async |id: &str, node: Option<&str>| {
        let parameters = json!({ "disableFrontend": "false" });
        let wish =
            node.map(|node| json!({ "id": id, "type": "csi-attacher", "nodeID": node, "parameters": parameters }));
        patch(&attachments, "v1", json!({ "spec": { "attachmentTickets": { id: wish } } })).await;
    };
    ticket("csi-a", Some("a")).await;
    until(&volumes, "v1", "attached", is(State::Attached)).await;
    for (target, stays) in [("b", false), ("b", true)] {
        ticket("csi-b", Some(target)).await;
        let both = |found: &VolumeAttachment| found.is_satisfied("csi-a") && found.is_satisfied("csi-b");
        let found = until(&attachments, "v1", "on both nodes", both).await;
        let told = &found.status.attachment_ticket_statuses["csi-b"].conditions[0];
        assert_eq!(told.message, "The migrating attachment ticket is satisfied");
        ticket(if stays { "csi-a" } else { "csi-b" }, None).await;
        let node = if stays { "b" } else { "a" };
        let settled = |volume: &Volume| {
            volume.status.current_node_id == node && volume.status.current_migration_node_id.is_empty()
        };
        until(&volumes, "v1", "on one node", settled).await;
    }
    let engines: Api<Engine> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    until_gone(&engines, "v1-e-0").await;
    let engine = engines.get("v1-e-1").await.unwrap();
    assert_eq!((engine.spec.node_id.as_str(), engine.spec.active), ("b", true));
    let volume = volumes.get("v1").await.unwrap();
    assert_eq!((volume.status.state, volume.status.robustness), (State::Attached, Robustness::Healthy));
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let told = events.list(&ListParams::default()).await.unwrap().items;
    let of = |reason: &str| told.iter().filter(|event| event.reason.as_deref() == Some(reason)).count();
    assert_eq!((of("Attached"), of("Detached"), of("MigrationFailed")), (1, 0, 0), "it never left");
}
