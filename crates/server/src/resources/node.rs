//! Nodes with their disks.

use kube::Client;
use kube::api::{Patch, PatchParams};
use serde_json::{Map, Value, json};
use tether_crd::Node;

use super::{Links, all, api, conditions, one};
use crate::error::RequestError;

/// What may be changed of a node, and how the object calls it.
const CHANGEABLE: [&str; 4] = ["allowScheduling", "evictionRequested", "tags", "instanceManagerCPURequest"];

pub(crate) async fn list(client: &Client, links: &Links) -> Result<Vec<Value>, RequestError> {
    Ok(all::<Node>(client, "").await?.iter().map(|node| resource(links, node)).collect())
}

pub(crate) async fn get(client: &Client, links: &Links, name: &str) -> Result<Value, RequestError> {
    Ok(resource(links, &one(client, "node", name).await?))
}

pub(crate) async fn update(client: &Client, name: &str, body: &Map<String, Value>) -> Result<(), RequestError> {
    let mut spec = Map::new();
    for field in CHANGEABLE {
        if let Some(value) = body.get(&field.to_lowercase()) {
            spec.insert(field.to_owned(), value.clone());
        }
    }
    one::<Node>(client, "node", name).await?;
    api::<Node>(client).patch(name, &PatchParams::default(), &Patch::Merge(json!({ "spec": spec }))).await?;
    Ok(())
}

fn resource(links: &Links, node: &Node) -> Value {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let mut disks: Map<String, Value> = Map::new();
    for (disk, spec) in &node.spec.disks {
        let mut fields = json!(spec);
        if let Some(status) = node.status.disk_status.get(disk) {
            for field in [
                "diskUUID",
                "storageAvailable",
                "storageMaximum",
                "storageScheduled",
                "scheduledReplica",
                "filesystemType",
            ] {
                fields[field] = json!(status)[field].clone();
            }
            fields["conditions"] = conditions(&status.conditions);
        }
        disks.insert(disk.clone(), fields);
    }
    let fields = json!({
        "name": name,
        "address": "",
        "allowScheduling": node.spec.allow_scheduling,
        "evictionRequested": node.spec.eviction_requested,
        "autoEvicting": node.status.auto_evicting,
        "tags": node.spec.tags,
        "region": node.status.region,
        "zone": node.status.zone,
        "instanceManagerCPURequest": node.spec.instance_manager_cpu_request,
        "conditions": conditions(&node.status.conditions),
        "disks": disks,
    });
    links.member("node", "nodes", name, &[], fields)
}
