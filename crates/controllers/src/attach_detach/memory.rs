//! What no object says: since when volumes are unwanted, what nodes used when they went, what was just created.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use parking_lot::Mutex;
use tether_plan::object::name;

/// All of it is lost with the process, which costs patience and nothing else.
#[derive(Default)]
pub(super) struct Memory {
    unwanted: Mutex<BTreeMap<(String, String), Timestamp>>,
    departed: Mutex<BTreeMap<String, BTreeSet<String>>>,
    created: Mutex<BTreeMap<String, Arc<VolumeAttachment>>>,
}

impl Memory {
    /// Since when nobody wants the volume on the node; from now if that is news.
    pub(super) fn unwanted(&self, volume: &str, node: &str, now: Timestamp) -> Timestamp {
        *self.unwanted.lock().entry((volume.to_owned(), node.to_owned())).or_insert(now)
    }

    /// Somebody wants it, or it is not there any more.
    pub(super) fn wanted(&self, volume: &str, node: &str) {
        self.unwanted.lock().remove(&(volume.to_owned(), node.to_owned()));
    }

    /// A node's object went.
    pub(super) fn node_went(&self, node: &Node) {
        let used = node.status.as_ref().and_then(|s| s.volumes_in_use.clone()).unwrap_or_default();
        self.departed.lock().insert(name(node).to_owned(), used.into_iter().collect());
    }

    /// It came back, or nothing is attached to it.
    pub(super) fn forget_node(&self, node: &str) {
        self.departed.lock().remove(node);
    }

    /// Whether a node that is gone used the volume when it went; `None` if nobody saw it go.
    pub(super) fn was_used(&self, node: &str, unique_name: &str) -> Option<bool> {
        self.departed.lock().get(node).map(|used| used.contains(unique_name))
    }

    /// An attachment was made that the watch has not shown yet. `is_seen` is asked after it is noted, so that what is
    /// shown meanwhile is not missed.
    pub(super) fn created(&self, attachment: VolumeAttachment, is_seen: impl FnOnce() -> bool) {
        let name = name(&attachment).to_owned();
        self.created.lock().insert(name.clone(), Arc::new(attachment));
        if is_seen() {
            self.created.lock().remove(&name);
        }
    }

    /// The watch showed it.
    pub(super) fn seen(&self, attachment: &str) {
        self.created.lock().remove(attachment);
    }

    /// Attachments of these volumes that the watch has not shown yet.
    pub(super) fn unseen(&self, is_of: impl Fn(&VolumeAttachment) -> bool) -> Vec<Arc<VolumeAttachment>> {
        self.created.lock().values().filter(|attachment| is_of(attachment)).cloned().collect()
    }
}
