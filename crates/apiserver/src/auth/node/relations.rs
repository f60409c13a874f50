//! Which node needs which object: from pods that are bound to it, through claims and volumes, to secrets.
//!
//! ```text
//!   node ◄─ pod ◄─ secret, configmap, service account
//!               ◄─ claim ◄─ volume ◄─ secret
//!   node ◄─ volume attachment
//! ```

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::RwLock;
use serde_json::Value;

use super::references::{PodReferences, volume_secrets};
use super::{Kind, MIRROR_ANNOTATION};
use crate::auth::{Objects, text};

const PODS: &str = "pods";
const VOLUMES: &str = "persistentvolumes";
const ATTACHMENTS: &str = "volumeattachments.storage.k8s.io";

/// Answers questions of relation; keeps what it found out until pods or volumes change.
pub(super) struct Relations {
    objects: Arc<dyn Objects>,
    index: RwLock<Arc<Index>>,
}

#[derive(Default)]
struct Index {
    changes: [u64; 2],
    /// By namespace and name, the nodes that need the object.
    nodes: HashMap<Kind, HashMap<(String, String), HashSet<String>>>,
}

impl Relations {
    pub(super) fn new(objects: Arc<dyn Objects>) -> Self {
        // Counters that no store starts at: the first question builds the index.
        let index = Index { changes: [u64::MAX; 2], ..Index::default() };
        Self { objects, index: RwLock::new(Arc::new(index)) }
    }

    pub(super) fn holds(&self, kind: Kind, namespace: &str, name: &str, node: &str) -> bool {
        let bound_to = |object: Option<Arc<Value>>| object.is_some_and(|o| text(&o, "/spec/nodeName") == node);
        match kind {
            Kind::Pod => bound_to(self.objects.get(PODS, namespace, name)),
            Kind::VolumeAttachment => bound_to(self.objects.get(ATTACHMENTS, "", name)),
            _ => self.index().holds(kind, namespace, name, node),
        }
    }

    fn index(&self) -> Arc<Index> {
        // Counters first, objects after: the index may be newer than its counters, never older.
        let changes = [PODS, VOLUMES].map(|resource| self.objects.changes(resource));
        let current = self.index.read().clone();
        if current.changes == changes {
            return current;
        }
        let index = Arc::new(Index::build(&*self.objects, changes));
        *self.index.write() = index.clone();
        index
    }
}

impl Index {
    fn build(objects: &dyn Objects, changes: [u64; 2]) -> Self {
        let mut index = Self { changes, ..Self::default() };
        for pod in objects.list(PODS) {
            index.add_pod(&pod);
        }
        for volume in objects.list(VOLUMES) {
            index.add_volume(&volume);
        }
        index
    }

    fn add(&mut self, kind: Kind, namespace: &str, name: &str, node: &str) {
        let key = (namespace.to_owned(), name.to_owned());
        self.nodes.entry(kind).or_default().entry(key).or_default().insert(node.to_owned());
    }

    fn add_pod(&mut self, pod: &Value) {
        let node = text(pod, "/spec/nodeName");
        // A mirror pod is written by the node itself: it must not open anything to it.
        let mirror = pod.pointer("/metadata/annotations").and_then(|a| a.get(MIRROR_ANNOTATION)).is_some();
        if node.is_empty() || mirror {
            return;
        }
        let namespace = text(pod, "/metadata/namespace");
        let references = PodReferences::of(pod);
        if !references.service_account.is_empty() {
            self.add(Kind::ServiceAccount, namespace, references.service_account, node);
        }
        for secret in references.secrets {
            self.add(Kind::Secret, namespace, secret, node);
        }
        for config_map in references.config_maps {
            self.add(Kind::ConfigMap, namespace, config_map, node);
        }
        for claim in &references.claims {
            self.add(Kind::PersistentVolumeClaim, namespace, claim, node);
        }
    }

    /// A volume goes where its claim goes. Called after all pods are in.
    fn add_volume(&mut self, volume: &Value) {
        let claim =
            (text(volume, "/spec/claimRef/namespace").to_owned(), text(volume, "/spec/claimRef/name").to_owned());
        let claims = self.nodes.get(&Kind::PersistentVolumeClaim);
        let Some(nodes) = claims.and_then(|claims| claims.get(&claim)).cloned() else { return };
        let secrets = volume_secrets(volume);
        for node in &nodes {
            self.add(Kind::PersistentVolume, "", text(volume, "/metadata/name"), node);
            for (namespace, name) in &secrets {
                self.add(Kind::Secret, namespace, name, node);
            }
        }
    }

    fn holds(&self, kind: Kind, namespace: &str, name: &str, node: &str) -> bool {
        let key = (namespace.to_owned(), name.to_owned());
        self.nodes.get(&kind).and_then(|objects| objects.get(&key)).is_some_and(|nodes| nodes.contains(node))
    }
}
