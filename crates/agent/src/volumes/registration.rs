//! Drivers of this node: the one that comes with it, and what the cluster is told of it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver, VolumeNodeResources};
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use tether_csi::driver::{Driver as Served, NAME, Options};
use tokio_util::sync::CancellationToken;

use super::calls::Driver;

/// On a Node: how drivers call it.
const NODE_IDS: &str = "csi.volume.kubernetes.io/nodeid";
/// Between two attempts to register.
const RETRY: Duration = Duration::from_secs(1);

/// Where a driver of this node listens.
pub(crate) fn socket(root: &Path, driver: &str) -> PathBuf {
    root.join("plugins").join(driver).join("csi.sock")
}

/// Serves the node half of the driver `driver.longhorn.io`, and tells the cluster of it, until `cancel`.
pub(crate) async fn serve_driver(
    client: Client,
    node: &str,
    root: &Path,
    cancel: &CancellationToken,
) -> io::Result<()> {
    let socket = socket(root, NAME);
    std::fs::create_dir_all(socket.parent().unwrap_or(root))?;
    let listener = tether_engine::unix::listen(&socket)?;
    let options = Options { controller: false, node: Some(node.to_owned()) };
    let driver = Served::new(client.clone(), options, cancel);
    let registered = async {
        while let Err(error) = register(&client, node, &socket).await {
            tracing::warn!(%error, driver = NAME, "cannot register the driver; trying again");
            tokio::time::sleep(RETRY).await;
        }
        tracing::info!(driver = NAME, "registered");
        std::future::pending::<()>().await;
    };
    tokio::select! {
        served = driver.serve(listener, cancel.clone()) => served.map_err(io::Error::other),
        () = registered => Ok(()),
    }
}

/// Asks the driver how it calls this node, and writes that down.
async fn register(client: &Client, node: &str, socket: &Path) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let info = Driver::open(NAME, socket).await?.info().await?;
    let nodes: Api<Node> = Api::all(client.clone());
    let found = nodes.get(node).await?;
    let mut ids: serde_json::Map<String, serde_json::Value> =
        found.annotations().get(NODE_IDS).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let segments = info.accessible_topology.unwrap_or_default().segments;
    let labelled = segments.iter().all(|(key, value)| found.labels().get(key) == Some(value));
    if ids.insert(NAME.to_owned(), info.node_id.clone().into()) != Some(info.node_id.clone().into()) || !labelled {
        let ids = serde_json::to_string(&ids)?;
        let patch = json!({"metadata": {"annotations": {NODE_IDS: ids}, "labels": segments}});
        nodes.patch(node, &PatchParams::default(), &Patch::Merge(patch)).await?;
    }
    let mut topology_keys: Vec<String> = segments.into_keys().collect();
    topology_keys.sort();
    let entry = CSINodeDriver {
        name: NAME.to_owned(),
        node_id: info.node_id,
        topology_keys: Some(topology_keys),
        allocatable: i32::try_from(info.max_volumes_per_node)
            .ok()
            .filter(|count| *count > 0)
            .map(|count| VolumeNodeResources { count: Some(count) }),
    };
    let csi_nodes: Api<CSINode> = Api::all(client.clone());
    let mut held = csi_nodes.get(node).await?;
    if held.spec.drivers.contains(&entry) {
        return Ok(());
    }
    held.spec.drivers.retain(|driver| driver.name != NAME);
    held.spec.drivers.push(entry);
    let patch = json!({
        "metadata": {"resourceVersion": held.resource_version()},
        "spec": {"drivers": held.spec.drivers},
    });
    csi_nodes.patch(node, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}
