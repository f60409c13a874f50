//! What a claim wants its volume to begin with: the data of another claim, or of a snapshot.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use tether_crd::volume_snapshot::{self, VolumeSnapshot, VolumeSnapshotContent};

use super::Driver;
use crate::binding::{claim_phase, claim_ref};
use crate::object::{is_deleting, key, name, namespace, uid};

/// What a volume begins with, in the driver's ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Volume(String),
    Snapshot(String),
}

/// What a claim names as its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    Nothing,
    /// In the claim's namespace.
    Claim(String),
    /// In the claim's namespace.
    Snapshot(String),
    /// Something that others fill volumes with.
    Other(String),
}

/// What the claim names as its source.
pub fn asked(claim: &PersistentVolumeClaim) -> Asked {
    let spec = claim.spec.as_ref();
    // `dataSourceRef` says what `dataSource` says, and more.
    let source = spec.and_then(|spec| spec.data_source_ref.as_ref()).map(|source| {
        let elsewhere = source.namespace.as_deref().is_some_and(|other| other != namespace(claim));
        (source.api_group.clone(), source.kind.clone(), source.name.clone(), elsewhere)
    });
    let source = source.or_else(|| {
        let source = spec?.data_source.as_ref()?;
        Some((source.api_group.clone(), source.kind.clone(), source.name.clone(), false))
    });
    let Some((group, kind, name, elsewhere)) = source else { return Asked::Nothing };
    match (group.as_deref().unwrap_or_default(), kind.as_str(), elsewhere) {
        ("", "PersistentVolumeClaim", false) => Asked::Claim(name),
        (volume_snapshot::GROUP, "VolumeSnapshot", false) => Asked::Snapshot(name),
        (_, kind, true) => Asked::Other(format!("{kind} {name} of another namespace")),
        (_, kind, false) => Asked::Other(format!("{kind} {name}")),
    }
}

/// The volume of another claim, as an origin.
pub fn from_claim(
    driver: &Driver,
    source: Option<&PersistentVolumeClaim>,
    volume: Option<&PersistentVolume>,
) -> Result<Origin, String> {
    let source = source.ok_or("the source claim does not exist")?;
    if is_deleting(source) {
        return Err(format!("the source claim {} is being deleted", key(source)));
    }
    let volume = volume.filter(|volume| claim_phase(source) == "Bound" && belongs(volume, source));
    let volume = volume.ok_or_else(|| format!("the source claim {} has no volume yet", key(source)))?;
    let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref()).filter(|csi| csi.driver == driver.name);
    let csi = csi.ok_or_else(|| format!("the source claim {} has a volume of another driver", key(source)))?;
    Ok(Origin::Volume(csi.volume_handle.clone()))
}

fn belongs(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    claim_ref(volume).is_some_and(|held| held.uid.as_deref() == Some(uid(claim)))
}

/// A snapshot, as an origin.
pub fn from_snapshot(
    driver: &Driver,
    snapshot: Option<&VolumeSnapshot>,
    content: Option<&VolumeSnapshotContent>,
    bytes: i64,
) -> Result<Origin, String> {
    let snapshot = snapshot.ok_or("the source snapshot does not exist")?;
    if is_deleting(snapshot) {
        return Err(format!("the source snapshot {} is being deleted", key(snapshot)));
    }
    let bound = snapshot.status.bound_volume_snapshot_content_name.as_deref();
    let content = content.filter(|content| {
        bound == Some(name(*content)) && content.spec.volume_snapshot_ref.uid.as_deref() == Some(uid(snapshot))
    });
    let content = content.filter(|_| snapshot.status.ready_to_use == Some(true));
    let content = content.ok_or_else(|| format!("the source snapshot {} is not ready yet", key(snapshot)))?;
    if content.spec.driver != driver.name {
        return Err(format!("the source snapshot {} is of driver {}", key(snapshot), content.spec.driver));
    }
    if content.status.restore_size.is_some_and(|needed| needed > bytes) {
        return Err(format!(
            "requested volume size {bytes} is less than the size of the source snapshot {}",
            key(snapshot)
        ));
    }
    let handle = content.status.snapshot_handle.clone().filter(|handle| !handle.is_empty());
    handle.map(Origin::Snapshot).ok_or_else(|| format!("the source snapshot {} has no handle", key(snapshot)))
}
