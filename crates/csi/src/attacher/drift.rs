//! Comparing with what the driver lists: what somebody attached or detached behind our back is set right.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::ResourceExt;
use tether_plan::attacher::{Observed, disagrees};
use tonic::Status;

use super::{Attacher, Key};
use crate::call::{call, words};
use crate::proto::ListVolumesRequest;

impl Attacher {
    /// Compares again and again, the first time at once.
    pub(super) async fn compare(self: Arc<Self>) {
        loop {
            match tokio::time::timeout(self.settings.timeout, self.published()).await {
                Ok(Ok(published)) => self.mark_drift(&published),
                Ok(Err(status)) => tracing::warn!(error = words(&status), "the driver's volumes could not be listed"),
                Err(_) => tracing::warn!("the driver's volumes could not be listed in time"),
            }
            let clock = &self.settings.clock;
            clock.sleep_until(clock.now() + self.settings.reconcile_every).await;
        }
    }

    /// Which nodes each volume is published to.
    async fn published(&self) -> Result<BTreeMap<String, BTreeSet<String>>, Status> {
        let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut token = String::new();
        loop {
            let request = ListVolumesRequest { max_entries: self.settings.max_entries, starting_token: token };
            let mut controller = self.controller.clone();
            let timeout = self.settings.timeout;
            let page = call(&self.calls, "/csi.v1.Controller/ListVolumes", timeout, request, |request| async move {
                controller.list_volumes(request).await
            });
            let page = page.await?;
            for entry in page.entries {
                if let (Some(volume), Some(status)) = (entry.volume, entry.status) {
                    all.entry(volume.volume_id).or_default().extend(status.published_node_ids);
                }
            }
            if page.next_token.is_empty() {
                return Ok(all);
            }
            token = page.next_token;
        }
    }

    /// Attachments that are worked on meanwhile may differ for that reason, and are looked at the next time.
    fn mark_drift(&self, published: &BTreeMap<String, BTreeSet<String>>) {
        for attachment in self.attachments.list() {
            let name = attachment.name_any();
            if self.lanes.is_running(&Key::Attachment(name.clone())) {
                continue;
            }
            let volume = self.volume_of(&attachment);
            let node = self.nodes.get("", &attachment.node);
            let attachment = VolumeAttachment::from(&*attachment);
            let observed =
                Observed { attachment: &attachment, volume: volume.as_deref(), node: node.as_deref(), again: false };
            if disagrees(&self.driver, &observed, published) == Some(true) {
                tracing::warn!(attachment = name, "the driver lists something else than the attachment says");
                self.again.lock().insert(name);
                self.look_at(&attachment);
            }
        }
    }
}
