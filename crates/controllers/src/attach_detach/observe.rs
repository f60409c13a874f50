//! What there is to know about a volume and about a node, and what makes it worth another look.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use tether_plan::attach_detach::{
    Listed, NodeObserved, Observed, Place, Settings, Site, attachment_name, csi_name, is_attachable, is_managed,
    is_terminated, is_to_be_listed, unique_name,
};
use tether_plan::binding::{claim_phase, claim_ref, volume_name};
use tether_plan::node::{is_ready, taints};
use tether_plan::object::{name, namespace, uid};
use tether_plan::pod::{claim_names, node_name};

use super::Key;
use super::memory::Memory;
use crate::cache::Seen;
use crate::context::{
    Context, attachments_of_node, attachments_of_volume, pods_of_claim, pods_of_node, volumes_of_handle,
};
use crate::queue::Queue;

/// Volumes of CSI drivers are listed under this.
const CSI: &str = "kubernetes.io/csi/";

/// Puts into the queue what a change concerns.
pub(super) fn subscribe(context: &Arc<Context>, queue: &Arc<Queue<Key>>, memory: &Arc<Memory>) {
    let (weak, out) = (Arc::downgrade(context), queue.clone());
    context.pods.subscribe(move |seen| {
        let Some(context) = weak.upgrade() else { return };
        let relevant = |pod: &Pod| (node_name(pod).to_owned(), is_terminated(pod));
        if let Seen::Applied { old: Some(old), new } = seen
            && relevant(old) == relevant(new)
        {
            return;
        }
        let pod = seen.object();
        if !node_name(pod).is_empty() {
            add_volumes_of_pod(&context, &out, pod);
        }
    });
    let (weak, out) = (Arc::downgrade(context), queue.clone());
    context.claims.subscribe(move |seen| {
        let claim = seen.object();
        let relevant = |c: &PersistentVolumeClaim| (volume_name(c).to_owned(), claim_phase(c).to_owned());
        let is_same = matches!(seen, Seen::Applied { old: Some(old), new } if relevant(old) == relevant(new));
        if let (false, Some(context)) = (is_same, weak.upgrade()) {
            add_volume_named(&context, &out, volume_name(claim));
        }
    });
    let out = queue.clone();
    context.volumes.subscribe(move |seen| add_volume(&out, seen.object()));
    let (weak, out, kept) = (Arc::downgrade(context), queue.clone(), memory.clone());
    context.attachments.subscribe(move |seen| {
        let Some(context) = weak.upgrade() else { return };
        let attachment = seen.object();
        kept.seen(name(attachment));
        add_volume_named(&context, &out, attachment.spec.source.persistent_volume_name.as_deref().unwrap_or_default());
        out.add(Key::Node(attachment.spec.node_name.clone()));
        if matches!(seen, Seen::Deleted(_)) {
            // There is room on the node for another one.
            add_volumes_of_node(&context, &out, &attachment.spec.node_name);
        }
    });
    let (weak, out, kept) = (Arc::downgrade(context), queue.clone(), memory.clone());
    context.nodes.subscribe(move |seen| {
        let Some(context) = weak.upgrade() else { return };
        let node = seen.object();
        match seen {
            Seen::Applied { old: Some(old), new } if !concerns_volumes(old, new) => return,
            Seen::Applied { .. } => kept.forget_node(name(node)),
            Seen::Deleted(gone) => kept.node_went(gone),
        }
        out.add(Key::Node(name(node).to_owned()));
        add_volumes_of_node(&context, &out, name(node));
    });
    let (weak, out) = (Arc::downgrade(context), queue.clone());
    context.csi_nodes.subscribe(move |seen| {
        if let Some(context) = weak.upgrade() {
            add_volumes_of_node(&context, &out, name(seen.object()));
        }
    });
    let (weak, out) = (Arc::downgrade(context), queue.clone());
    context.csi_drivers.subscribe(move |seen| {
        let volumes = weak.upgrade().map(|context| context.volumes.list()).unwrap_or_default();
        let is_of = |volume: &PersistentVolume| driver_of(volume) == Some(name(seen.object()));
        volumes.iter().filter(|volume| is_of(volume)).for_each(|volume| add_volume(&out, volume));
    });
}

fn concerns_volumes(old: &Node, new: &Node) -> bool {
    let lists = |node: &Node| {
        node.status.as_ref().map(|s| (s.volumes_in_use.clone(), s.volumes_attached.clone())).unwrap_or_default()
    };
    lists(old) != lists(new)
        || is_ready(old) != is_ready(new)
        || taints(old) != taints(new)
        || is_managed(old) != is_managed(new)
        || uid(old) != uid(new)
}

fn driver_of(volume: &PersistentVolume) -> Option<&str> {
    volume.spec.as_ref()?.csi.as_ref().map(|csi| csi.driver.as_str())
}

fn csi_name_of(volume: &PersistentVolume) -> Option<String> {
    volume.spec.as_ref()?.csi.as_ref().map(|csi| csi_name(&csi.driver, &csi.volume_handle))
}

fn add_volume(queue: &Queue<Key>, volume: &PersistentVolume) {
    if let Some(name) = csi_name_of(volume) {
        queue.add(Key::Volume(name));
    }
}

fn add_volume_named(context: &Context, queue: &Queue<Key>, name: &str) {
    if let Some(volume) = context.volumes.get("", name) {
        add_volume(queue, &volume);
    }
}

fn add_volumes_of_pod(context: &Context, queue: &Queue<Key>, pod: &Pod) {
    for claim in claim_names(pod) {
        if let Some(claim) = context.claims.get(namespace(pod), &claim) {
            add_volume_named(context, queue, volume_name(&claim));
        }
    }
}

fn add_volumes_of_node(context: &Context, queue: &Queue<Key>, node: &str) {
    for attachment in context.attachments.find(&attachments_of_node(node)) {
        add_volume_named(context, queue, attachment.spec.source.persistent_volume_name.as_deref().unwrap_or_default());
    }
    for pod in context.pods.find(&pods_of_node(node)) {
        add_volumes_of_pod(context, queue, &pod);
    }
}

/// One volume, and every node that wants it or has it.
pub(super) struct VolumeView {
    pub(super) unique_name: String,
    volume: Arc<PersistentVolume>,
    sites: Vec<SiteView>,
}

/// One node of a volume.
struct SiteView {
    name: String,
    node: Option<Arc<Node>>,
    was_used: Option<bool>,
    pods: Vec<Arc<Pod>>,
    attachment: Option<Arc<VolumeAttachment>>,
    unwanted_since: Option<Timestamp>,
    room: Option<(usize, usize)>,
}

impl SiteView {
    fn site(&self) -> Site<'_> {
        let place = match &self.node {
            Some(node) => Place::Here(node),
            None => Place::Gone { mounted: self.was_used },
        };
        Site {
            node: &self.name,
            place,
            pods: self.pods.iter().map(AsRef::as_ref).collect(),
            attachment: self.attachment.as_deref(),
            unwanted_since: self.unwanted_since,
            room: self.room,
        }
    }
}

impl VolumeView {
    /// `None` if no object describes the volume.
    pub(super) fn of(context: &Context, memory: &Memory, csi_name: &str, now: Timestamp) -> Option<Self> {
        let volumes = context.volumes.find(&volumes_of_handle(csi_name));
        let volume = volumes.first()?.clone();
        let csi = volume.spec.as_ref()?.csi.clone()?;
        let attachable = is_attachable(context.csi_drivers.get("", &csi.driver).as_deref());
        let mut pods: BTreeMap<String, Vec<Arc<Pod>>> = BTreeMap::new();
        for volume in volumes.iter().filter(|_| attachable) {
            for pod in users(context, volume) {
                pods.entry(node_name(&pod).to_owned()).or_default().push(pod);
            }
        }
        let names: BTreeSet<&str> = volumes.iter().map(|volume| name(&**volume)).collect();
        let is_of = |a: &VolumeAttachment| {
            a.spec.source.persistent_volume_name.as_deref().is_some_and(|volume| names.contains(volume))
        };
        let seen = names.iter().flat_map(|volume| context.attachments.find(&attachments_of_volume(volume)));
        // Ours have names of their own kind; those that somebody else made are somebody else's to delete.
        let is_ours =
            |a: &VolumeAttachment| name(a) == attachment_name(&csi.volume_handle, &csi.driver, &a.spec.node_name);
        let seen = seen.filter(|attachment| is_ours(attachment));
        // What was seen counts for more than what was made.
        let all = memory.unseen(is_of).into_iter().chain(seen);
        let mut attachments: BTreeMap<String, Arc<VolumeAttachment>> =
            all.map(|attachment| (attachment.spec.node_name.clone(), attachment)).collect();
        let nodes: BTreeSet<String> = pods.keys().chain(attachments.keys()).cloned().collect();
        let unique_name = unique_name(&csi.driver, &csi.volume_handle);
        let sites = nodes.into_iter().map(|node| {
            let mut pods = pods.remove(&node).unwrap_or_default();
            pods.sort_by_key(|pod| (pod.metadata.creation_timestamp.clone(), uid(&**pod).to_owned()));
            let attachment = attachments.remove(&node);
            let unwanted_since = if pods.is_empty() && attachment.is_some() {
                Some(memory.unwanted(csi_name, &node, now))
            } else {
                memory.wanted(csi_name, &node);
                None
            };
            SiteView {
                node: context.nodes.get("", &node),
                was_used: memory.was_used(&node, &unique_name),
                pods,
                attachment,
                unwanted_since,
                room: room(context, &node, &csi.driver, &csi.volume_handle),
                name: node,
            }
        });
        Some(Self { sites: sites.collect(), unique_name, volume: volume.clone() })
    }

    pub(super) fn observed(&self) -> Observed<'_> {
        Observed { volume: &self.volume, sites: self.sites.iter().map(SiteView::site).collect() }
    }
}

/// The pods that use a volume on nodes that volumes are attached to.
fn users(context: &Context, volume: &PersistentVolume) -> Vec<Arc<Pod>> {
    let Some(reference) = claim_ref(volume) else { return Vec::new() };
    let (claim_namespace, claim_name) =
        (reference.namespace.as_deref().unwrap_or_default(), reference.name.as_deref().unwrap_or_default());
    let Some(claim) = context.claims.get(claim_namespace, claim_name) else { return Vec::new() };
    let is_bound = claim_phase(&claim) == "Bound"
        && volume_name(&claim) == name(volume)
        && reference.uid.as_deref() == Some(uid(&*claim));
    if !is_bound {
        return Vec::new();
    }
    let mut pods = context.pods.find(&pods_of_claim(claim_namespace, claim_name));
    pods.retain(|pod| {
        let node = node_name(pod);
        let managed = || context.nodes.get("", node).is_none_or(|node| is_managed(&node));
        !node.is_empty() && !is_terminated(pod) && owns(pod, &claim) && managed()
    });
    pods
}

/// A claim that is named after a pod's ephemeral volume must have been made for that pod.
fn owns(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let volumes = pod.spec.as_ref().and_then(|s| s.volumes.as_deref()).unwrap_or_default();
    let by_name = volumes
        .iter()
        .any(|v| v.persistent_volume_claim.as_ref().is_some_and(|source| source.claim_name == name(claim)));
    let owners = claim.metadata.owner_references.as_deref().unwrap_or_default();
    by_name || owners.iter().any(|owner| owner.controller == Some(true) && owner.uid == uid(pod))
}

/// How many other volumes of the driver the node has, and how many it can have.
fn room(context: &Context, node: &str, driver: &str, handle: &str) -> Option<(usize, usize)> {
    let csi_node = context.csi_nodes.get("", node)?;
    let registered = csi_node.spec.drivers.iter().find(|d| d.name == driver)?;
    let most = usize::try_from(registered.allocatable.as_ref()?.count?).ok().filter(|most| *most > 0)?;
    let mine = attachment_name(handle, driver, node);
    let others = context.attachments.find(&attachments_of_node(node));
    let has = others.iter().filter(|a| a.spec.attacher == driver && name(&***a) != mine).count();
    Some((has, most))
}

/// One node, and the volumes that its list has to have or not to have.
pub(super) struct NodeView {
    node: Arc<Node>,
    attached: Vec<(String, Arc<PersistentVolume>, Vec<Arc<Pod>>)>,
    barred: Vec<String>,
}

impl NodeView {
    /// `None` if the node is not there.
    pub(super) fn of(
        context: &Context,
        memory: &Memory,
        node_name: &str,
        settings: &Settings,
        now: Timestamp,
    ) -> Option<Self> {
        let node = context.nodes.get("", node_name)?;
        let listed = node.status.as_ref().and_then(|s| s.volumes_attached.clone()).unwrap_or_default();
        let mut barred: BTreeSet<String> =
            listed.into_iter().map(|volume| volume.name).filter(|name| name.starts_with(CSI)).collect();
        let mut attached = Vec::new();
        for attachment in context.attachments.find(&attachments_of_node(node_name)) {
            let volume = attachment.spec.source.persistent_volume_name.as_deref();
            let volume = volume.and_then(|name| context.volumes.get("", name));
            let Some(csi_name) = volume.as_deref().and_then(csi_name_of) else { continue };
            let Some(view) = VolumeView::of(context, memory, &csi_name, now) else { continue };
            let Some(site) = view.sites.iter().find(|site| site.name == node_name) else { continue };
            if is_to_be_listed(&site.site(), &view.unique_name, settings, now) {
                barred.remove(&view.unique_name);
                attached.push((view.unique_name.clone(), view.volume.clone(), site.pods.clone()));
            }
        }
        // An attachment whose volume is not described any more is left as it is: nobody can tell what wants it.
        barred.retain(|unique| {
            let parts = unique.strip_prefix(CSI).and_then(|rest| rest.split_once('^'));
            let found = parts.and_then(|(driver, handle)| {
                let attachment = context.attachments.get("", &attachment_name(handle, driver, node_name))?;
                Some((attachment, context.volumes.find(&volumes_of_handle(&csi_name(driver, handle))).is_empty()))
            });
            !found.is_some_and(|(_, is_undescribed)| is_undescribed)
        });
        Some(Self { node, attached, barred: barred.into_iter().collect() })
    }

    pub(super) fn observed(&self) -> NodeObserved<'_> {
        NodeObserved {
            node: &self.node,
            attached: self
                .attached
                .iter()
                .map(|(unique, volume, pods)| Listed {
                    unique_name: unique.clone(),
                    volume: name(&**volume),
                    pods: pods.iter().map(AsRef::as_ref).collect(),
                })
                .collect(),
            barred: self.barred.clone(),
        }
    }
}
