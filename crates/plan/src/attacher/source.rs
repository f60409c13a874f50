//! Which volume an attachment is for.

use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, PersistentVolume, PersistentVolumeSpec};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use tether_model::reason::Reason;

use super::Refusal;

/// The object that describes the volume, or the description in the attachment itself.
#[derive(Clone, Copy)]
pub(super) enum Lookup<'a> {
    Volume(&'a PersistentVolume),
    Inline(&'a PersistentVolumeSpec),
}

/// A volume of a CSI driver.
pub(super) struct Volume<'a> {
    pub spec: &'a PersistentVolumeSpec,
    pub csi: &'a CSIPersistentVolumeSource,
}

pub(super) fn lookup<'a>(
    attachment: &'a VolumeAttachment,
    volume: Option<&'a PersistentVolume>,
) -> Result<Lookup<'a>, Refusal> {
    let source = &attachment.spec.source;
    match (&source.inline_volume_spec, &source.persistent_volume_name) {
        (Some(_), Some(_)) => Err(Refusal::new(
            Reason::AttachmentInvalid,
            "both InlineCSIVolumeSource and PersistentVolumeName specified in VA source",
        )),
        (None, None) => Err(Refusal::new(
            Reason::AttachmentInvalid,
            "neither InlineCSIVolumeSource nor PersistentVolumeName specified in VA source",
        )),
        (Some(spec), None) => Ok(Lookup::Inline(spec)),
        (None, Some(name)) => volume
            .map(Lookup::Volume)
            .ok_or_else(|| Refusal::new(Reason::VolumeNotFound, format!("persistentvolume {name:?} not found"))),
    }
}

impl<'a> Lookup<'a> {
    pub(super) fn volume(self) -> Result<Volume<'a>, Refusal> {
        let (spec, without) = match self {
            Self::Volume(volume) => (volume.spec.as_ref(), "pv spec contained non-csi source that was not migrated"),
            Self::Inline(spec) => (Some(spec), "inline volume spec contains nil CSI source"),
        };
        spec.and_then(|spec| spec.csi.as_ref().map(|csi| Volume { spec, csi }))
            .ok_or_else(|| Refusal::new(Reason::VolumeNotCSI, without))
    }
}
