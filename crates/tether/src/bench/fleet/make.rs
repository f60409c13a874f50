//! The nodes of a fleet, with a disk each, and their end. Their instance managers are made by the controllers.

use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node as KubeNode;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::{Condition, await_condition};
use serde_json::{Value, json};
use tether_crd::instance_manager::InstanceManagerState;
use tether_crd::{InstanceManager, Node, Volume, names};
use tether_plan::instance_manager;

use super::{Plan, objects};

/// Requests of the bench at once.
pub(super) const AT_ONCE: usize = 64;
/// The tag of the fleet's nodes; its volumes go nowhere else.
pub(super) const TAG: &str = "fleet";
/// The node that is lost.
pub(super) const LOST: usize = 0;
/// Zones that the nodes are spread over.
const ZONES: usize = 3;
/// Each node's disk.
const DISK_BYTES: i64 = 1 << 44;
const LEASES: &str = "kube-node-lease";
/// Kubernetes' own.
const LEASE_SECONDS: u32 = 40;
/// A fleet that does not come up in this time never will.
const SLOW: Duration = Duration::from_secs(120);

pub(super) fn node_name(index: usize) -> String {
    format!("fleet-{index:04}")
}

pub(super) fn volume_name(index: usize) -> String {
    format!("fleet-vol-{index:05}")
}

pub(super) fn address(index: usize) -> String {
    format!("10.{}.{}.{}", 1 + index / 65536, index / 256 % 256, index % 256)
}

pub(super) fn manager_name(node: &str) -> String {
    names::instance_manager(node, instance_manager::IMAGE, "v1")
}

/// Makes all of them; those of an earlier run are taken over.
pub(super) async fn nodes(client: &Client, count: usize) -> Result<()> {
    stream::iter(0..count).map(|index| node(client, index)).buffer_unordered(AT_ONCE).try_collect::<()>().await
}

async fn node(client: &Client, index: usize) -> Result<()> {
    let name = node_name(index);
    let kube_nodes = Api::<KubeNode>::all(client.clone());
    heartbeat(client, &name).await?;
    let zone = format!("zone-{}", index % ZONES);
    let labels = json!({
        "kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone, "topology.kubernetes.io/region": "fleet",
    });
    let object = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
        // No pod goes to a node that only pretends.
        "spec": {"taints": [{"key": "tether.io/fleet", "effect": "NoSchedule"}]},
    });
    create(&kube_nodes, &object).await?;
    status(&kube_nodes, &name, json!({"conditions": [kube_ready("True")]})).await?;

    let disk = json!({
        "diskType": "filesystem", "path": "/var/lib/longhorn", "allowScheduling": true, "evictionRequested": false,
        "storageReserved": 0, "tags": [],
    });
    let object = json!({
        "apiVersion": tether_crd::API_VERSION, "kind": "Node",
        "metadata": {"name": name, "namespace": tether_crd::NAMESPACE},
        "spec": {"name": name, "allowScheduling": true, "tags": [TAG], "disks": {"default": disk}},
    });
    let nodes = objects::<Node>(client);
    create(&nodes, &object).await?;
    let disk = json!({
        "diskUUID": uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_DNS, name.as_bytes()).to_string(), "diskName": "default",
        "diskPath": "/var/lib/longhorn", "diskType": "filesystem", "storageAvailable": DISK_BYTES,
        "storageMaximum": DISK_BYTES, "conditions": [condition("Ready"), condition("Schedulable")],
    });
    status(&nodes, &name, json!({"diskStatus": {"default": disk}})).await
}

/// Waits until the controllers have made the instance manager of each node and found it running.
pub(super) async fn ready(client: &Client, count: usize) -> Result<()> {
    let managers = objects::<InstanceManager>(client);
    for name in (0..count).map(node_name) {
        let runs = |manager: Option<&InstanceManager>| {
            manager.is_some_and(|manager| manager.status.current_state == InstanceManagerState::Running)
        };
        until(&managers, &manager_name(&name), runs).await?;
        until(&objects::<Node>(client), &name, |node: Option<&Node>| node.is_some_and(Node::is_ready)).await?;
    }
    Ok(())
}

async fn until<K>(api: &Api<K>, name: &str, what: impl Condition<K>) -> Result<()>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let found = tokio::time::timeout(SLOW, await_condition(api.clone(), name, what)).await;
    found.with_context(|| format!("{name} did not become what the fleet needs within {SLOW:?}"))??;
    Ok(())
}

/// Says that the node is alive.
pub(super) async fn heartbeat(client: &Client, node: &str) -> Result<()> {
    let leases = Api::<Lease>::namespaced(client.clone(), LEASES);
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": node},
        "spec": {"holderIdentity": node, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": micro(Timestamp::now())},
    });
    leases.patch(node, &PatchParams::apply("tether-bench").force(), &Patch::Apply(lease)).await?;
    Ok(())
}

/// The node is found to be down, without the wait for its lease to run out; the rest is the controllers' to find.
pub(super) async fn lose(client: &Client, index: usize) -> Result<()> {
    let name = node_name(index);
    status(&Api::<KubeNode>::all(client.clone()), &name, json!({"conditions": [kube_ready("Unknown")]})).await?;
    until(&objects::<Node>(client), &name, |node: Option<&Node>| node.is_some_and(Node::is_down)).await
}

pub(super) async fn bring_back(client: &Client, index: usize) -> Result<()> {
    let name = node_name(index);
    heartbeat(client, &name).await?;
    status(&Api::<KubeNode>::all(client.clone()), &name, json!({"conditions": [kube_ready("True")]})).await?;
    until(&objects::<Node>(client), &name, |node: Option<&Node>| node.is_some_and(Node::is_ready)).await
}

/// Removes what the bench made.
pub(super) async fn unmake(client: &Client, plan: &Plan) -> Result<()> {
    let volumes = objects::<Volume>(client);
    stream::iter(0..plan.volumes)
        .map(|index| remove(&volumes, volume_name(index)))
        .buffer_unordered(AT_ONCE)
        .try_collect::<()>()
        .await?;
    while volumes
        .list_metadata(&ListParams::default())
        .await?
        .iter()
        .any(|volume| volume.metadata.name.as_deref().is_some_and(|name| name.starts_with("fleet-vol-")))
    {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let (kube_nodes, leases) = (Api::<KubeNode>::all(client.clone()), Api::<Lease>::namespaced(client.clone(), LEASES));
    let nodes = objects::<Node>(client);
    for name in (0..plan.nodes).map(node_name) {
        let allowed = Patch::Merge(json!({"spec": {"allowScheduling": false}}));
        nodes.patch(&name, &PatchParams::default(), &allowed).await?;
        remove(&nodes, name.clone()).await?;
        remove(&leases, name.clone()).await?;
        remove(&kube_nodes, name).await?;
    }
    Ok(())
}

async fn create<K>(api: &Api<K>, object: &Value) -> Result<()>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned + serde::Serialize,
{
    let object: K = serde_json::from_value(object.clone())?;
    match api.create(&PostParams::default(), &object).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        other => other.map(drop).context("cannot make an object of the fleet"),
    }
}

async fn status<K>(api: &Api<K>, name: &str, status: Value) -> Result<()>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let patch = Patch::Merge(json!({"status": status}));
    api.patch_status(name, &PatchParams::default(), &patch).await.with_context(|| format!("status of {name}"))?;
    Ok(())
}

async fn remove<K>(api: &Api<K>, name: String) -> Result<()>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    match api.delete(&name, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        other => other.map(drop).with_context(|| format!("cannot delete {name}")),
    }
}

fn kube_ready(status: &str) -> Value {
    let now = seconds(Timestamp::now());
    json!({
        "type": "Ready", "status": status, "reason": "Fleet", "message": "a node that only pretends",
        "lastHeartbeatTime": now, "lastTransitionTime": now,
    })
}

fn condition(kind: &str) -> Value {
    let now = seconds(Timestamp::now());
    json!({
        "type": kind, "status": "True", "reason": "", "message": "", "lastTransitionTime": now, "lastProbeTime": "",
    })
}

fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn micro(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}
