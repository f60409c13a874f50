//! Volumes through the API: what the controller makes of wishes, with agents that only pretend.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Secret;
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

async fn want(volumes: &Api<Volume>, name: &str, node: &str) {
    patch(volumes, name, json!({ "spec": { "nodeID": node } })).await;
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

    want(&volumes, "v1", "a").await;
    let attached = until(&volumes, "v1", "attached", is(State::Attached)).await;
    assert_eq!((attached.status.robustness, attached.status.current_node_id.as_str()), (Robustness::Healthy, "a"));
    assert_eq!(attached.status.record.as_ref().unwrap().in_sync.len(), 3, "the record is left alone");
    assert_eq!(cluster.event("Attached", "v1").await, "volume v1 has been attached to a");
    let engines: Api<Engine> = Api::namespaced(client(), NAMESPACE);
    let engine = engines.get("v1-e-0").await.unwrap();
    assert_eq!((engine.spec.node_id.as_str(), engine.spec.replica_address_map.len()), ("a", 3));

    want(&volumes, "v1", "").await;
    until(&volumes, "v1", "detached", is(State::Detached)).await;
    assert_eq!(cluster.event("Detached", "v1").await, "volume v1 has been detached");

    delete(&volumes, "v1", DeleteParams::default()).await;
    until_gone(&volumes, "v1").await;
    until_gone(&attachments, "v1").await;
    until_gone(&secrets, "v1-data-key").await;
    assert!(replicas.list(&ListParams::default()).await.unwrap().items.is_empty());
}

/// Three replica specs, the engine's spec, and two statuses of the volume; the agents' writes are theirs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attach_costs_six_writes() {
    let (cluster, volumes) = storage(&["a", "b", "c"]).await;
    create(&volumes, body("v1", 3)).await;
    until(&volumes, "v1", "detached", is(State::Detached)).await;
    for node in ["a", ""] {
        want(&volumes, "v1", node).await;
        let state = if node.is_empty() { State::Detached } else { State::Attached };
        until(&volumes, "v1", "there", is(state)).await;
    }
    settled(&cluster).await;
    let versions = async || {
        let client = || cluster.client.clone();
        let mut all: BTreeMap<String, i64> = BTreeMap::new();
        // A generation counts changes of the spec; statuses are told apart by what is in them.
        for replica in Api::<Replica>::namespaced(client(), NAMESPACE).list(&ListParams::default()).await.unwrap() {
            all.insert(replica.metadata.name.unwrap(), replica.metadata.generation.unwrap());
        }
        for engine in Api::<Engine>::namespaced(client(), NAMESPACE).list(&ListParams::default()).await.unwrap() {
            all.insert(engine.metadata.name.unwrap(), engine.metadata.generation.unwrap());
        }
        all.into_values().sum::<i64>()
    };
    let (before, revision) = (versions().await, cluster.server.store().revision());
    want(&volumes, "v1", "b").await;
    until(&volumes, "v1", "attached", is(State::Attached)).await;
    cluster.event("Attached", "v1").await;
    let after = settled(&cluster).await;
    assert_eq!(versions().await - before, 4, "three replicas and the engine were told once each");
    // nodeID, two statuses, four specs, three replica statuses, record, engine status, and the events that tell of it.
    let writes = after - revision;
    assert!((12..=14).contains(&writes), "{writes} writes, of which 12 are for objects");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_dies_costs_a_replica_and_its_return_brings_it_back() {
    let (cluster, volumes) = storage(&["a", "b", "c"]).await;
    create(&volumes, body("v1", 3)).await;
    until(&volumes, "v1", "detached", is(State::Detached)).await;
    agents::set_ready(&cluster, "c", "False", "KubernetesNodeNotReady").await;
    want(&volumes, "v1", "a").await;
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
