//! Volumes and where they can be used: topology, attach limits, exclusive use, and binding on first use.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use tether_model::reason::Reason;

use super::filter::Rejection;
use super::{Change, NodeView};
use crate::amount::units;
use crate::binding::{
    NO_PROVISIONER, SELECTED_NODE, claim_class, claim_ref, is_fully_bound, matching, reference_to, volume_name,
    waits_for_consumer,
};
use crate::object::{Target, annotation, is_deleting, key, name, namespace, uid};
use crate::pod::{claim_names, is_finished};
use crate::selector::{matches_labels, matches_topology};

const TOPOLOGY: &str = "volume-topology";

/// Everything about storage that a placement looks at.
#[derive(Clone, Debug, Default)]
pub struct Volumes<'a> {
    /// By `namespace/name`.
    pub claims: BTreeMap<String, &'a PersistentVolumeClaim>,
    pub volumes: BTreeMap<&'a str, &'a PersistentVolume>,
    pub classes: BTreeMap<&'a str, &'a StorageClass>,
    pub csi_nodes: BTreeMap<&'a str, &'a CSINode>,
    pub csi_drivers: BTreeMap<&'a str, &'a CSIDriver>,
    pub capacities: Vec<&'a CSIStorageCapacity>,
    pub attachments: Vec<&'a VolumeAttachment>,
    /// How many pods that have a node and have not ended use a claim, by `namespace/name`.
    pub users: BTreeMap<String, usize>,
}

/// A pod's claims.
#[derive(Clone, Debug, Default)]
pub struct Claims<'a> {
    pub bound: Vec<&'a PersistentVolumeClaim>,
    /// To be bound for the node that the pod gets.
    pub waiting: Vec<&'a PersistentVolumeClaim>,
}

/// What has to happen before the pod can go to a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Steps {
    pub changes: Vec<Change>,
    /// Nothing has to.
    pub is_complete: bool,
}

/// Where a claim gets a volume for a node.
enum Source {
    /// It was arranged; the claim only has to be bound.
    UnderWay,
    Found(Box<Change>),
}

/// A volume as a driver counts it.
type Handle = (String, String);

impl<'a> Volumes<'a> {
    /// The pod's claims, or why the pod can go nowhere.
    pub fn claims_of(&self, pod: &Pod) -> Result<Claims<'a>, Rejection> {
        const RULE: &str = "pod-claims";
        let mut claims = Claims::default();
        for claim_name in claim_names(pod) {
            let Some(claim) = self.claims.get(&format!("{}/{claim_name}", namespace(pod))).copied() else {
                let text = format!("persistentvolumeclaim {claim_name:?} not found");
                return Err(Rejection::new(RULE, Reason::ClaimNotFound, text));
            };
            if is_deleting(claim) {
                let text = format!("persistentvolumeclaim {claim_name:?} is being deleted");
                return Err(Rejection::new(RULE, Reason::BeingDeleted, text));
            }
            if claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Lost") {
                let text = format!(
                    "persistentvolumeclaim {claim_name:?} bound to non-existent persistentvolume {:?}",
                    volume_name(claim)
                );
                return Err(Rejection::new(RULE, Reason::ClaimLost, text));
            }
            if is_fully_bound(claim) {
                claims.bound.push(claim);
            } else if waits_for_consumer(self.classes.get(claim_class(claim)).copied()) && volume_name(claim).is_empty()
            {
                claims.waiting.push(claim);
            } else {
                let text = "pod has unbound immediate PersistentVolumeClaims";
                return Err(Rejection::new(RULE, Reason::ClaimNotBound, text));
            }
        }
        Ok(claims)
    }

    /// The node that the pod was to go to when its volumes were made: they were made while it waited, and for that node. A
    /// volume that was there before the pod says nothing.
    pub fn chosen_for(&self, pod: &Pod, claims: &Claims<'a>) -> Option<&'a str> {
        let made = |claim: &&PersistentVolumeClaim| {
            let volume = self.volumes.get(volume_name(claim))?;
            let (made, asked) =
                (volume.metadata.creation_timestamp.as_ref()?, pod.metadata.creation_timestamp.as_ref()?);
            (made.0 >= asked.0).then_some(())
        };
        let mut new = claims.bound.iter().copied().filter(|claim| made(claim).is_some());
        new.find_map(|claim| annotation(claim, SELECTED_NODE))
    }

    /// A ReadWriteOncePod claim that another pod has.
    pub fn exclusive_use(&self, claims: &Claims<'_>) -> Option<Rejection> {
        let exclusive = |claim: &&&PersistentVolumeClaim| {
            let modes = claim.spec.as_ref().and_then(|s| s.access_modes.as_deref()).unwrap_or_default();
            modes.iter().any(|mode| mode == "ReadWriteOncePod")
        };
        let mut all = claims.bound.iter().chain(&claims.waiting).filter(exclusive);
        let used = all.any(|claim| self.users.get(&key(*claim)).is_some_and(|users| *users > 0));
        used.then(|| {
            let text = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use \
                        by another pod";
            Rejection::new("volume-exclusive-use", Reason::VolumeInUse, text)
        })
    }

    /// More volumes of one driver than the node can have.
    pub fn attach_limit(&self, claims: &Claims<'_>, view: &NodeView<'_>) -> Option<Rejection> {
        let csi_node = self.csi_nodes.get(name(view.node))?;
        let new: BTreeSet<Handle> = claims.bound.iter().chain(&claims.waiting).filter_map(|c| self.handle(c)).collect();
        if new.is_empty() {
            return None;
        }
        let mut all = self.attached(view);
        all.extend(new.iter().cloned());
        let drivers: BTreeSet<&str> = new.iter().map(|(driver, _)| driver.as_str()).collect();
        let over = drivers.into_iter().any(|driver| {
            let known = csi_node.spec.drivers.iter().find(|d| d.name == driver);
            let limit = known.and_then(|d| d.allocatable.as_ref()).and_then(|a| a.count);
            let count = all.iter().filter(|(d, _)| d == driver).count();
            limit.is_some_and(|limit| i64::try_from(count).unwrap_or(i64::MAX) > i64::from(limit))
        });
        over.then(|| Rejection::new("volume-attach-limit", Reason::TooManyVolumes, "node(s) exceed max volume count"))
    }

    /// What the node has: the volumes of its pods, and those that are attached to it whoever uses them.
    fn attached(&self, view: &NodeView<'_>) -> BTreeSet<Handle> {
        let pods = view.pods.iter().filter(|pod| !is_finished(pod));
        let claims = pods.flat_map(|pod| claim_names(pod).into_iter().map(|c| format!("{}/{c}", namespace(*pod))));
        let mut handles: BTreeSet<Handle> = claims.filter_map(|claim| self.handle(self.claims.get(&claim)?)).collect();
        let here = self.attachments.iter().filter(|a| a.spec.node_name == name(view.node));
        let volumes = here.filter_map(|a| a.spec.source.persistent_volume_name.as_deref());
        handles.extend(volumes.filter_map(|volume| self.volumes.get(volume)).filter_map(|volume| csi_handle(volume)));
        handles
    }

    /// A claim that has no volume yet counts as one that it will have.
    fn handle(&self, claim: &PersistentVolumeClaim) -> Option<Handle> {
        if let Some(volume) = self.volumes.get(volume_name(claim)) {
            return csi_handle(volume);
        }
        let class = self.classes.get(claim_class(claim))?;
        Some((class.provisioner.clone(), format!("claim {}", uid(claim))))
    }

    /// What has to happen before the pod's volumes can be used on the node, or why they cannot be.
    pub fn steps(&self, claims: &Claims<'_>, node: &Node) -> Result<Steps, Rejection> {
        for claim in &claims.bound {
            let Some(volume) = self.volumes.get(volume_name(claim)) else {
                let text = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";
                return Err(Rejection::new(TOPOLOGY, Reason::VolumeNotFound, text));
            };
            if !matching::reachable_from(volume, node) {
                let text = "node(s) didn't match PersistentVolume's node affinity";
                return Err(Rejection::new(TOPOLOGY, Reason::VolumeNodeAffinityMismatch, text));
            }
        }
        let mut steps = Steps { changes: Vec::new(), is_complete: claims.waiting.is_empty() };
        let mut taken: BTreeSet<&str> = BTreeSet::new();
        // The smallest first, so that each gets the smallest volume that fits.
        let mut waiting = claims.waiting.clone();
        waiting.sort_by_key(|claim| (matching::requested(claim), key(*claim)));
        for claim in waiting {
            match self.source(claim, node, &mut taken)? {
                Source::UnderWay => {}
                Source::Found(change) => steps.changes.push(*change),
            }
        }
        Ok(steps)
    }

    fn source(
        &self,
        claim: &PersistentVolumeClaim,
        node: &Node,
        taken: &mut BTreeSet<&'a str>,
    ) -> Result<Source, Rejection> {
        let none = || {
            let text = "node(s) didn't find available persistent volumes to bind";
            Err(Rejection::new(TOPOLOGY, Reason::NoVolumeForNode, text))
        };
        let class = self.classes.get(claim_class(claim)).copied();
        if let Some(selected) = annotation(claim, SELECTED_NODE) {
            // Whether there is room is the provisioner's business by now: its volume may be what takes the room.
            let stays = selected == name(node) && class.is_some_and(|class| can_provision(class, node));
            return if stays { Ok(Source::UnderWay) } else { none() };
        }
        let free = self.volumes.values().copied().filter(|volume| !taken.contains(name(*volume)));
        if let Some(volume) = matching::best(claim, free, Some(node), false) {
            taken.insert(name(volume));
            if claim_ref(volume).and_then(|r| r.uid.as_deref()) == Some(uid(claim)) {
                return Ok(Source::UnderWay);
            }
            let mark = claim_ref(volume).is_none();
            let change = Change::SetClaimRef { volume: Target::of(volume), claim: reference_to(claim), mark };
            return Ok(Source::Found(Box::new(change)));
        }
        let Some(class) = class.filter(|class| can_provision(class, node)) else { return none() };
        if !self.has_room(class, matching::requested(claim), node) {
            let text = "node(s) did not have enough free storage";
            return Err(Rejection::new("volume-capacity", Reason::InsufficientStorage, text));
        }
        Ok(Source::Found(Box::new(Change::SelectNode { claim: Target::of(claim), node: name(node).to_owned() })))
    }

    /// Whether the class's driver has room for a volume that the node can reach. Only drivers that say that they publish
    /// their capacity are held to it, and what such a driver has not published it does not have.
    fn has_room(&self, class: &StorageClass, bytes: i64, node: &Node) -> bool {
        let publishes = |driver: &&CSIDriver| driver.spec.storage_capacity == Some(true);
        if self.csi_drivers.get(class.provisioner.as_str()).is_none_or(|driver| !publishes(driver)) {
            return true;
        }
        self.capacities.iter().any(|capacity| {
            let limit = capacity.maximum_volume_size.as_ref().or(capacity.capacity.as_ref());
            let reaches = |selector: &LabelSelector| matches_labels(selector, node.metadata.labels.as_ref());
            capacity.storage_class_name == name(class)
                && limit.is_some_and(|limit| units(Some(limit)) >= bytes)
                && capacity.node_topology.as_ref().is_some_and(reaches)
        })
    }
}

fn can_provision(class: &StorageClass, node: &Node) -> bool {
    !class.provisioner.is_empty()
        && class.provisioner != NO_PROVISIONER
        && matches_topology(class.allowed_topologies.as_deref().unwrap_or_default(), node)
}

fn csi_handle(volume: &PersistentVolume) -> Option<Handle> {
    let csi = volume.spec.as_ref()?.csi.as_ref()?;
    Some((csi.driver.clone(), csi.volume_handle.clone()))
}
