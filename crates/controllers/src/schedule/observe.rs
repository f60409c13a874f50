//! The cluster as the scheduler sees it, and what makes it look again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};
use parking_lot::Mutex;
use tether_plan::node::{is_unschedulable, taints};
use tether_plan::object::{key as text_key, name, namespace, uid};
use tether_plan::pod::{claim_names, is_finished, node_name};
use tether_plan::schedule::volumes::Volumes;
use tether_plan::schedule::{NodeView, Observed};

use crate::cache::{Key, Seen, key};
use crate::context::Context;
use crate::queue::Queue;

/// Pods that were given to a node and that the cache does not show there yet: they count all the same.
#[derive(Default)]
pub(super) struct Assumed {
    /// The node, by the pod's uid.
    pods: Mutex<BTreeMap<String, String>>,
}

impl Assumed {
    pub(super) fn insert(&self, uid: &str, node: &str) {
        self.pods.lock().insert(uid.to_owned(), node.to_owned());
    }

    pub(super) fn remove(&self, uid: &str) {
        self.pods.lock().remove(uid);
    }

    pub(super) fn has(&self, pod: &Pod) -> bool {
        self.pods.lock().contains_key(uid(pod))
    }

    fn node_of<'a>(&self, pod: &'a Pod) -> std::borrow::Cow<'a, str> {
        match node_name(pod) {
            "" => self.pods.lock().get(uid(pod)).cloned().unwrap_or_default().into(),
            node => node.into(),
        }
    }
}

/// Pods that have no node, and are looked at again when something changes that may help them.
#[derive(Default)]
pub(super) struct Waiting {
    pods: Mutex<BTreeSet<Key>>,
}

impl Waiting {
    pub(super) fn insert(&self, pod: &Key) {
        self.pods.lock().insert(pod.clone());
    }

    pub(super) fn remove(&self, pod: &Key) {
        self.pods.lock().remove(pod);
    }

    fn wake(&self, queue: &Queue<Key>) {
        for pod in self.pods.lock().iter() {
            queue.add(pod.clone());
        }
    }
}

/// Puts into the queue what a change concerns.
pub(super) fn subscribe(
    context: &Arc<Context>,
    queue: &Arc<Queue<Key>>,
    assumed: &Arc<Assumed>,
    waiting: &Arc<Waiting>,
) {
    let wake = {
        let (queue, waiting) = (queue.clone(), waiting.clone());
        move || waiting.wake(&queue)
    };
    context.pods.subscribe({
        let (queue, assumed, waiting, wake) = (queue.clone(), assumed.clone(), waiting.clone(), wake.clone());
        move |seen| {
            let pod = seen.object();
            let placed = !node_name(pod).is_empty();
            match seen {
                Seen::Applied { .. } if !placed => queue.add(key(pod)),
                _ => {
                    assumed.remove(uid(pod));
                    waiting.remove(&key(pod));
                }
            }
            // A pod that left or ended made room.
            let holds = |pod: &Pod| (node_name(pod).to_owned(), is_finished(pod));
            match seen {
                Seen::Applied { old, new } if !placed || old.map(holds) == Some(holds(new)) => {}
                _ => wake(),
            }
        }
    });
    context.nodes.subscribe({
        let wake = wake.clone();
        move |seen| {
            // Heartbeats change nothing for a pod.
            let relevant = |node: &Node| {
                let allocatable = node.status.as_ref().and_then(|s| s.allocatable.clone());
                (node.metadata.labels.clone(), taints(node).to_vec(), is_unschedulable(node), allocatable)
            };
            match seen {
                Seen::Applied { old: Some(old), new } if relevant(old) == relevant(new) => {}
                _ => wake(),
            }
        }
    });
    let also = wake.clone();
    context.claims.subscribe(move |_| also());
    let also = wake.clone();
    context.volumes.subscribe(move |_| also());
    let also = wake.clone();
    context.classes.subscribe(move |_| also());
    let also = wake.clone();
    context.csi_nodes.subscribe(move |_| also());
    let also = wake.clone();
    context.csi_drivers.subscribe(move |_| also());
    let also = wake.clone();
    context.capacities.subscribe(move |_| also());
    context.attachments.subscribe(move |seen| {
        if matches!(seen, Seen::Deleted(_)) {
            wake();
        }
    });
}

/// Everything that a placement looks at, held while it is made.
pub(super) struct Snapshot {
    nodes: Vec<Arc<Node>>,
    pods: BTreeMap<String, Vec<Arc<Pod>>>,
    claims: Vec<Arc<PersistentVolumeClaim>>,
    volumes: Vec<Arc<PersistentVolume>>,
    classes: Vec<Arc<StorageClass>>,
    csi_nodes: Vec<Arc<CSINode>>,
    csi_drivers: Vec<Arc<CSIDriver>>,
    capacities: Vec<Arc<CSIStorageCapacity>>,
    attachments: Vec<Arc<VolumeAttachment>>,
}

impl Snapshot {
    pub(super) fn of(context: &Context, assumed: &Assumed) -> Self {
        let mut pods: BTreeMap<String, Vec<Arc<Pod>>> = BTreeMap::new();
        for pod in context.pods.list() {
            let node = assumed.node_of(&pod).into_owned();
            if !node.is_empty() && !is_finished(&pod) {
                pods.entry(node).or_default().push(pod);
            }
        }
        Self {
            nodes: context.nodes.list(),
            pods,
            claims: context.claims.list(),
            volumes: context.volumes.list(),
            classes: context.classes.list(),
            csi_nodes: context.csi_nodes.list(),
            csi_drivers: context.csi_drivers.list(),
            capacities: context.capacities.list(),
            attachments: context.attachments.list(),
        }
    }

    pub(super) fn observed(&self) -> Observed<'_> {
        let pods_on = |node: &str| self.pods.get(node).into_iter().flatten().map(AsRef::as_ref).collect();
        let mut users: BTreeMap<String, usize> = BTreeMap::new();
        for pod in self.pods.values().flatten() {
            for claim in claim_names(pod) {
                *users.entry(format!("{}/{claim}", namespace(&**pod))).or_default() += 1;
            }
        }
        Observed {
            nodes: self.nodes.iter().map(|node| NodeView { node, pods: pods_on(name(&**node)) }).collect(),
            volumes: Volumes {
                claims: self.claims.iter().map(|claim| (text_key(&**claim), &**claim)).collect(),
                volumes: self.volumes.iter().map(|volume| (name(&**volume), &**volume)).collect(),
                classes: self.classes.iter().map(|class| (name(&**class), &**class)).collect(),
                csi_nodes: self.csi_nodes.iter().map(|node| (name(&**node), &**node)).collect(),
                csi_drivers: self.csi_drivers.iter().map(|driver| (name(&**driver), &**driver)).collect(),
                capacities: self.capacities.iter().map(AsRef::as_ref).collect(),
                attachments: self.attachments.iter().map(AsRef::as_ref).collect(),
                users,
            },
        }
    }
}
