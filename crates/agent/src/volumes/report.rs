//! The node's list of volumes in use, which is this agent's alone to write: before something is mounted it is on the
//! list, and it leaves the list when nothing is left of it.

use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tether_controllers::write::WriteError;
use tether_plan::kubelet::volume::Attachment;

use super::Volumes;
use super::held::Held;

/// What the API server acknowledged.
#[derive(Default)]
pub(super) struct Report {
    /// One writer at a time, and what it wrote last.
    acknowledged: tokio::sync::Mutex<Option<Vec<String>>>,
    seen: parking_lot::Mutex<Option<Vec<String>>>,
}

impl Volumes {
    /// What is known of a volume's attachment. `confirmed`: the server has just said that it is attached.
    pub(super) fn attachment(&self, held: &Held, name: &str, confirmed: bool) -> Attachment {
        if !self.attachable(&held.driver) {
            return Attachment::NotNeeded;
        }
        let reported = self.report.seen.lock().as_ref().is_some_and(|list| list.iter().any(|held| held == name));
        match (reported, confirmed) {
            (false, _) => Attachment::Unreported,
            (true, true) => Attachment::Confirmed,
            (true, false) if self.own_node().is_some_and(|node| lists(&node, name)) => Attachment::Seen,
            (true, false) => Attachment::Unlisted,
        }
    }

    /// Says which volumes are in use, and reads what the server says is attached: in this order, which is half of what
    /// keeps a volume from being taken away while it is mounted. Whether this one is attached.
    pub(super) async fn report(&self, name: &str) -> Result<bool, WriteError> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let mut acknowledged = self.report.acknowledged.lock().await;
        let list = self.in_use();
        let node = if acknowledged.as_ref() == Some(&list) {
            nodes.get(&self.node).await.map_err(|error| WriteError::of("read this node", error))?
        } else {
            // What comes of it is not known until the server has answered.
            *acknowledged = None;
            let patch = Patch::Merge(json!({"status": {"volumesInUse": list}}));
            let patched = nodes.patch_status(&self.node, &PatchParams::default(), &patch).await;
            patched.map_err(|error| WriteError::of("report volumes in use", error))?
        };
        // Whoever else wrote the list: what counts is what the server has.
        let held = node.status.as_ref().and_then(|status| status.volumes_in_use.clone()).unwrap_or_default();
        *acknowledged = (held == list).then(|| held.clone());
        let reported = held.iter().any(|held| held == name);
        *self.report.seen.lock() = Some(held);
        Ok(reported && lists(&node, name))
    }

    /// Volumes of drivers that attach, and of which a pod wants something or something may be left.
    fn in_use(&self) -> Vec<String> {
        let state = self.state.lock();
        let used = state.volumes.iter().filter(|(_, held)| held.is_in_use() && self.attachable(&held.driver));
        used.map(|(name, _)| name.clone()).collect()
    }
}

fn lists(node: &Node, name: &str) -> bool {
    let attached = node.status.iter().flat_map(|status| status.volumes_attached.iter().flatten());
    attached.into_iter().any(|volume| volume.name == name)
}
