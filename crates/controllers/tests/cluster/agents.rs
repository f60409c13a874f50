//! Node agents that only pretend: they carry out the specs of replicas and engines without a process behind them.

use std::time::Duration;

use kube::Client;
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::json;
use tether_crd::engine::InstanceState;
use tether_crd::{Engine, InstanceManager, NAMESPACE, Node, Replica, Volume};

use crate::harness::{Cluster, create, patch_status};

/// How often pretended agents look; real ones are told.
const LOOK: Duration = Duration::from_millis(3);

/// A Longhorn node with one disk and an instance manager.
pub(crate) async fn add_storage_node(cluster: &Cluster, name: &str) {
    let nodes: Api<Node> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let disk = json!({ "path": "/var/lib/longhorn", "allowScheduling": true, "diskType": "filesystem" });
    let spec = json!({ "name": name, "allowScheduling": true, "disks": { "default": disk } });
    create(&nodes, json!({ "metadata": { "name": name, "namespace": NAMESPACE }, "spec": spec })).await;
    set_ready(cluster, name, "True", "").await;
    let managers: Api<InstanceManager> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let manager = format!("instance-manager-{name}");
    create(&managers, json!({ "metadata": { "name": manager, "namespace": NAMESPACE }, "spec": { "nodeID": name } }))
        .await;
    patch_status(&managers, &manager, json!({ "status": { "currentState": "running" } })).await;
}

pub(crate) async fn set_ready(cluster: &Cluster, name: &str, ready: &str, reason: &str) {
    let nodes: Api<Node> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let yes = |kind: &str| json!([{ "type": kind, "status": "True" }, { "type": "Schedulable", "status": "True" }]);
    let mut conditions = yes("Ready");
    conditions[0]["status"] = json!(ready);
    conditions[0]["reason"] = json!(reason);
    let disk = json!({ "diskUUID": format!("disk-{name}"), "storageAvailable": 90_i64 << 30, "storageMaximum": 100_i64 << 30,
                       "conditions": yes("Ready") });
    let status = json!({ "conditions": conditions, "diskStatus": { "default": disk } });
    patch_status(&nodes, name, json!({ "status": status })).await;
}

/// Carries out specs on these nodes until dropped.
pub(crate) async fn run(client: Client, nodes: Vec<String>) {
    let (replicas, engines): (Api<Replica>, Api<Engine>) =
        (Api::namespaced(client.clone(), NAMESPACE), Api::namespaced(client.clone(), NAMESPACE));
    let volumes: Api<Volume> = Api::namespaced(client, NAMESPACE);
    loop {
        tokio::time::sleep(LOOK).await;
        let Ok(all) = replicas.list(&ListParams::default()).await else { continue };
        for replica in all.items.iter().filter(|replica| nodes.contains(&replica.spec.node_id)) {
            carry_out_replica(&replicas, replica).await;
        }
        let Ok(found) = engines.list(&ListParams::default()).await else { continue };
        for engine in found.items.iter().filter(|engine| nodes.contains(&engine.spec.node_id)) {
            carry_out_engine(&engines, &volumes, engine, &all.items).await;
        }
    }
}

/// Failures are somebody else's change; the next look sees it.
async fn say<K>(api: &Api<K>, name: &str, status: serde_json::Value)
where
    K: kube::Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let _ = api.patch_status(name, &PatchParams::default(), &Patch::Merge(json!({ "status": status }))).await;
}

async fn let_go<K>(api: &Api<K>, name: &str)
where
    K: kube::Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let body = json!({ "metadata": { "finalizers": [] } });
    let _ = api.patch(name, &PatchParams::default(), &Patch::Merge(body)).await;
}

async fn carry_out_replica(api: &Api<Replica>, replica: &Replica) {
    let name = replica.metadata.name.as_deref().unwrap();
    let state = replica.status.current_state;
    if replica.metadata.deletion_timestamp.is_some() {
        let_go(api, name).await;
    } else if replica.spec.desire_state == InstanceState::Running && state == InstanceState::Stopped {
        let port = 10_000 + name.bytes().map(i64::from).sum::<i64>();
        let status = json!({ "currentState": "running", "started": true, "ip": "127.0.0.1", "port": port });
        say(api, name, status).await;
    } else if replica.spec.desire_state == InstanceState::Stopped && state != InstanceState::Stopped {
        say(api, name, json!({ "currentState": "stopped", "started": false, "ip": "", "port": 0 })).await;
    }
}

async fn carry_out_engine(api: &Api<Engine>, volumes: &Api<Volume>, engine: &Engine, replicas: &[Replica]) {
    let name = engine.metadata.name.as_deref().unwrap();
    let state = engine.status.current_state;
    if engine.metadata.deletion_timestamp.is_some() {
        let_go(api, name).await;
        return;
    }
    if engine.spec.desire_state == InstanceState::Stopped {
        if state != InstanceState::Stopped {
            let status = json!({ "currentState": "stopped", "started": false, "endpoint": "", "replicaModeMap": null });
            say(api, name, status).await;
        }
        return;
    }
    let map = &engine.spec.replica_address_map;
    if state == InstanceState::Running && engine.status.current_replica_address_map == *map {
        return;
    }
    if !engine.spec.active {
        stand_by(api, engine).await;
        return;
    }
    let member = |replica: &&Replica| map.contains_key(replica.metadata.name.as_deref().unwrap());
    let members: Vec<&str> = replicas.iter().filter(member).map(|r| r.spec.data_directory_name.as_str()).collect();
    let Ok(volume) = volumes.get(&engine.spec.volume_name).await else { return };
    let epoch =
        volume.status.record.as_ref().map_or(1, |record| record.epoch + u64::from(state == InstanceState::Stopped));
    let generation = volume.status.record.as_ref().map_or(1, |record| record.generation + 1);
    let record = json!({ "version": 1, "epoch": epoch, "generation": generation, "holder": name, "inSync": members });
    say(volumes, &engine.spec.volume_name, json!({ "record": record })).await;
    let mut modes: serde_json::Map<_, _> = map.keys().map(|replica| (replica.clone(), json!("RW"))).collect();
    let mut addresses = json!(map);
    for gone in engine.status.replica_mode_map.keys().filter(|replica| !map.contains_key(*replica)) {
        modes.insert(gone.clone(), json!(null));
        addresses[gone] = json!(null);
    }
    let status = json!({ "currentState": "running", "started": true, "endpoint": format!("/dev/longhorn/{}", engine.spec.volume_name),
                         "currentSize": engine.spec.volume_size, "replicaModeMap": modes, "currentReplicaAddressMap": addresses });
    say(api, name, status).await;
}

/// An engine that is not the volume's reads through the one that is, and leaves the record alone.
async fn stand_by(api: &Api<Engine>, engine: &Engine) {
    let map = &engine.spec.replica_address_map;
    let modes: serde_json::Map<_, _> = map.keys().map(|replica| (replica.clone(), json!("RW"))).collect();
    let status = json!({ "currentState": "running", "started": true, "endpoint": "standby",
                         "replicaModeMap": modes, "currentReplicaAddressMap": map });
    say(api, engine.metadata.name.as_deref().unwrap(), status).await;
}
