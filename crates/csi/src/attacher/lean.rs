//! Attachments and volumes as they are kept: what decisions look at, and nothing else.
//!
//! Kubernetes' own types have room in themselves for every source of a volume there ever was, some kilobytes for each object,
//! and an attachment has that twice. They are made for the moment in which one is worked on.

use std::borrow::Cow;

use k8s_openapi::ClusterResourceScope;
use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, PersistentVolume, PersistentVolumeSpec};
use k8s_openapi::api::storage::v1::{
    VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec, VolumeAttachmentStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::Deserialize;

/// A VolumeAttachment.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "VolumeAttachment")]
pub(super) struct Attachment {
    metadata: ObjectMeta,
    attacher: String,
    pub node: String,
    pub volume: Option<String>,
    inline: Option<Box<PersistentVolumeSpec>>,
    status: Option<Box<VolumeAttachmentStatus>>,
}

/// A PersistentVolume.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "PersistentVolume")]
pub(super) struct Volume {
    metadata: ObjectMeta,
    spec: Option<Box<Source>>,
}

/// How a volume of a driver is used.
#[derive(Clone, Debug)]
struct Source {
    access_modes: Option<Vec<String>>,
    mount_options: Option<Vec<String>>,
    volume_mode: Option<String>,
    csi: CSIPersistentVolumeSource,
}

impl From<VolumeAttachment> for Attachment {
    fn from(whole: VolumeAttachment) -> Self {
        Self {
            metadata: light(whole.metadata),
            attacher: whole.spec.attacher,
            node: whole.spec.node_name,
            volume: whole.spec.source.persistent_volume_name,
            inline: whole.spec.source.inline_volume_spec.map(Box::new),
            status: whole.status.map(Box::new),
        }
    }
}

impl From<&Attachment> for VolumeAttachment {
    fn from(lean: &Attachment) -> Self {
        let source = VolumeAttachmentSource {
            persistent_volume_name: lean.volume.clone(),
            inline_volume_spec: lean.inline.as_deref().cloned(),
        };
        Self {
            metadata: lean.metadata.clone(),
            spec: VolumeAttachmentSpec { attacher: lean.attacher.clone(), node_name: lean.node.clone(), source },
            status: lean.status.as_deref().cloned(),
        }
    }
}

impl From<PersistentVolume> for Volume {
    fn from(whole: PersistentVolume) -> Self {
        let spec = whole.spec.and_then(|spec| {
            let csi = spec.csi?;
            let PersistentVolumeSpec { access_modes, mount_options, volume_mode, .. } = spec;
            Some(Box::new(Source { access_modes, mount_options, volume_mode, csi }))
        });
        Self { metadata: light(whole.metadata), spec }
    }
}

impl From<&Volume> for PersistentVolume {
    fn from(lean: &Volume) -> Self {
        let spec = lean.spec.as_deref().cloned().map(|source| PersistentVolumeSpec {
            access_modes: source.access_modes,
            mount_options: source.mount_options,
            volume_mode: source.volume_mode,
            csi: Some(source.csi),
            ..PersistentVolumeSpec::default()
        });
        Self { metadata: lean.metadata.clone(), spec, status: None }
    }
}

/// Who an object is, what holds it and what was noted on it.
fn light(metadata: ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        name: metadata.name,
        uid: metadata.uid,
        resource_version: metadata.resource_version,
        deletion_timestamp: metadata.deletion_timestamp,
        finalizers: metadata.finalizers,
        annotations: metadata.annotations,
        ..ObjectMeta::default()
    }
}

/// A lean object is found where the whole one is.
macro_rules! stands_for {
    ($lean:ty, $whole:ty) => {
        impl Resource for $lean {
            type DynamicType = ();
            type Scope = ClusterResourceScope;

            fn kind((): &()) -> Cow<'_, str> {
                <$whole as Resource>::kind(&())
            }

            fn group((): &()) -> Cow<'_, str> {
                <$whole as Resource>::group(&())
            }

            fn version((): &()) -> Cow<'_, str> {
                <$whole as Resource>::version(&())
            }

            fn plural((): &()) -> Cow<'_, str> {
                <$whole as Resource>::plural(&())
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

stands_for!(Attachment, VolumeAttachment);
stands_for!(Volume, PersistentVolume);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_decisions_look_at_survives() {
        let whole: VolumeAttachment = serde_json::from_value(json!({
            "metadata": {
                "name": "a", "uid": "u", "resourceVersion": "7", "deletionTimestamp": "2026-01-02T03:04:05Z",
                "finalizers": ["f"], "annotations": {"k": "v"},
            },
            "spec": {
                "attacher": "d", "nodeName": "n",
                "source": {"persistentVolumeName": "p", "inlineVolumeSpec": {"csi": {"driver": "d", "volumeHandle": "h"}}},
            },
            "status": {"attached": true, "attachmentMetadata": {"a": "b"}, "detachError": {"message": "no"}},
        }))
        .unwrap();
        assert_eq!(VolumeAttachment::from(&Attachment::from(whole.clone())), whole);
        let whole: PersistentVolume = serde_json::from_value(json!({
            "metadata": {"name": "p", "uid": "u", "finalizers": ["f"]},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "mountOptions": ["noatime"], "volumeMode": "Block",
                "csi": {
                    "driver": "d", "volumeHandle": "h", "readOnly": true, "fsType": "xfs", "volumeAttributes": {"a": "b"},
                    "controllerPublishSecretRef": {"name": "s", "namespace": "n"},
                },
            },
        }))
        .unwrap();
        assert_eq!(PersistentVolume::from(&Volume::from(whole.clone())), whole);
    }

    #[test]
    fn a_thousand_of_each_take_little() {
        let bytes = |lean: usize, whole: usize| assert!(lean * 3 < whole, "{lean} of {whole}");
        bytes(size_of::<Attachment>(), size_of::<VolumeAttachment>());
        bytes(size_of::<Volume>(), size_of::<PersistentVolume>());
    }
}
