//! Which volume fits a claim, and which of those that fit is best.

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};

use super::{claim_class, claim_ref, points_to, volume_class, volume_phase};
use crate::amount::units;
use crate::object::{is_deleting, name};
use crate::selector::{matches_labels, matches_node_selector};

/// Why a volume cannot serve a claim that asks for it; the texts are Kubernetes' own.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    #[error("the volume is marked for deletion {0:?}")]
    Deleting(String),
    #[error("requested PV is too small")]
    TooSmall,
    #[error("storageClassName does not match")]
    Class,
    #[error("volumeAttributesClassName does not match")]
    AttributesClass,
    #[error("incompatible volumeMode")]
    Mode,
    #[error("incompatible accessMode")]
    AccessMode,
}

/// Whether the volume can serve the claim, whoever brought them together.
pub fn check(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Result<(), Mismatch> {
    if is_deleting(volume) {
        Err(Mismatch::Deleting(name(volume).to_owned()))
    } else if capacity(volume) < requested(claim) {
        Err(Mismatch::TooSmall)
    } else if volume_class(volume) != claim_class(claim) {
        Err(Mismatch::Class)
    } else if !same_attributes_class(volume, claim) {
        Err(Mismatch::AttributesClass)
    } else if !same_mode(volume, claim) {
        Err(Mismatch::Mode)
    } else if !offers_access(volume, claim) {
        Err(Mismatch::AccessMode)
    } else {
        Ok(())
    }
}

/// The better of two volumes that fit comes first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Fit<'a> {
    /// False (and so first) for a volume that points to the claim already.
    unclaimed: bool,
    /// A volume with fewer access modes is less of a waste.
    access_modes: usize,
    capacity: i64,
    name: &'a str,
}

/// The best volume for the claim. With a node, only volumes that can be reached from it; with `only_claimed`, only
/// volumes that point to the claim already.
pub fn best<'a>(
    claim: &PersistentVolumeClaim,
    volumes: impl IntoIterator<Item = &'a PersistentVolume>,
    node: Option<&Node>,
    only_claimed: bool,
) -> Option<&'a PersistentVolume> {
    let fits = |volume: &&PersistentVolume| {
        let claimed = points_to(volume, claim);
        let free = claim_ref(volume).is_none() && volume_phase(volume) == "Available";
        let chosen = claimed || (free && !only_claimed && fits_freely(volume, claim));
        let able = !is_deleting(*volume)
            && capacity(volume) >= requested(claim)
            && same_mode(volume, claim)
            && same_attributes_class(volume, claim)
            && offers_access(volume, claim);
        chosen && able && node.is_none_or(|node| reachable_from(volume, node))
    };
    volumes.into_iter().filter(fits).min_by_key(|volume| Fit {
        unclaimed: !points_to(volume, claim),
        access_modes: volume.spec.as_ref().and_then(|s| s.access_modes.as_ref()).map_or(0, Vec::len),
        capacity: capacity(volume),
        name: name(*volume),
    })
}

fn fits_freely(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let selector = claim.spec.as_ref().and_then(|s| s.selector.as_ref());
    volume_class(volume) == claim_class(claim)
        && selector.is_none_or(|selector| matches_labels(selector, volume.metadata.labels.as_ref()))
}

/// Whether the volume's node affinity admits the node.
pub fn reachable_from(volume: &PersistentVolume, node: &Node) -> bool {
    let affinity = volume.spec.as_ref().and_then(|s| s.node_affinity.as_ref());
    affinity.and_then(|a| a.required.as_ref()).is_none_or(|required| matches_node_selector(required, node))
}

/// The volume's size.
pub fn capacity(volume: &PersistentVolume) -> i64 {
    units(volume.spec.as_ref().and_then(|s| s.capacity.as_ref()).and_then(|c| c.get("storage")))
}

/// The size that the claim asks for.
pub fn requested(claim: &PersistentVolumeClaim) -> i64 {
    let resources = claim.spec.as_ref().and_then(|s| s.resources.as_ref());
    units(resources.and_then(|r| r.requests.as_ref()).and_then(|r| r.get("storage")))
}

/// Block or Filesystem; Filesystem is what no word about it means.
pub fn same_mode(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let mode = |mode: Option<&String>| mode.map_or("Filesystem", String::as_str).to_owned();
    mode(volume.spec.as_ref().and_then(|s| s.volume_mode.as_ref()))
        == mode(claim.spec.as_ref().and_then(|s| s.volume_mode.as_ref()))
}

fn same_attributes_class(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let class = |class: Option<&String>| class.cloned().unwrap_or_default();
    class(volume.spec.as_ref().and_then(|s| s.volume_attributes_class_name.as_ref()))
        == class(claim.spec.as_ref().and_then(|s| s.volume_attributes_class_name.as_ref()))
}

fn offers_access(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let offered = volume.spec.as_ref().and_then(|s| s.access_modes.as_deref()).unwrap_or_default();
    let wanted = claim.spec.as_ref().and_then(|s| s.access_modes.as_deref()).unwrap_or_default();
    wanted.iter().all(|mode| offered.contains(mode))
}
