//! Secrets for calls about snapshots. The one for making and deleting is written on the content when it is made, since by the
//! time it is deleted neither class nor snapshot need be there; the one for asking follows from the class.

use k8s_openapi::api::core::v1::SecretReference;
use tether_crd::volume_snapshot::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent};

use super::{DELETION_SECRET_NAME, DELETION_SECRET_NAMESPACE};
use crate::object::{annotation, name, namespace};
use crate::secret::{Part, named};

/// For making and deleting what is described by the content of this name.
pub(super) fn of_class(
    class: &VolumeSnapshotClass,
    content: &str,
    snapshot: &VolumeSnapshot,
) -> Result<Option<SecretReference>, String> {
    named(Some(&class.parameters), "snapshotter-secret", |part, word| match (part, word) {
        (_, "volumesnapshotcontent.name") => Some(content.to_owned()),
        (_, "volumesnapshot.namespace") => Some(namespace(snapshot).to_owned()),
        (Part::Name, "volumesnapshot.name") => Some(name(snapshot).to_owned()),
        _ => None,
    })
}

/// For asking after a content's snapshot.
pub(super) fn for_list(
    class: Option<&VolumeSnapshotClass>,
    content: &VolumeSnapshotContent,
) -> Result<Option<SecretReference>, String> {
    named(class.map(|class| &class.parameters), "snapshotter-list-secret", |_, word| {
        (word == "volumesnapshotcontent.name").then(|| name(content).to_owned())
    })
}

/// The one that is written on the content.
pub(super) fn of_content(content: &VolumeSnapshotContent) -> Result<Option<SecretReference>, String> {
    match (annotation(content, DELETION_SECRET_NAME), annotation(content, DELETION_SECRET_NAMESPACE)) {
        (Some(name), Some(namespace)) if !name.is_empty() && !namespace.is_empty() => {
            Ok(Some(SecretReference { name: Some(name.to_owned()), namespace: Some(namespace.to_owned()) }))
        }
        (Some(_), Some(_)) => {
            let content = name(content);
            Err(format!("cannot retrieve secrets for snapshot content {content:?}: name or namespace is empty"))
        }
        _ => Ok(None),
    }
}
