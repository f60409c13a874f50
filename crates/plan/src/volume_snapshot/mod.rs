//! Snapshots of claims, as Kubernetes knows them: a wish (VolumeSnapshot) and what the driver has (VolumeSnapshotContent).
//!
//! ```text
//!   VolumeSnapshot of a claim ──► content made for it ──► CreateSnapshot ──► content's status ──► snapshot's status
//!   VolumeSnapshot of a content that exists ──► bound to it ──► ListSnapshots ──► the same
//!   snapshot deleted ──► content deleted ──► DeleteSnapshot (policy Delete) ──► both go
//! ```
//!
//! [`snapshot`] is what Kubernetes' snapshot-controller does, [`content`] what the sidecar csi-snapshotter does. Names,
//! finalizers, annotations and events are theirs.

pub mod content;
mod secrets;
pub mod snapshot;
#[cfg(test)]
mod tests;

/// Keeps a content until the driver has deleted what it stands for.
pub const CONTENT_FINALIZER: &str = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection";
/// Keeps a snapshot until its content is gone.
pub const BOUND_FINALIZER: &str = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection";
/// Keeps a snapshot while a volume is made from it.
pub const SOURCE_FINALIZER: &str = "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection";
/// On a content whose snapshot is deleted.
pub const BEING_DELETED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";
/// On a content while the driver makes the snapshot: whether it exists is not known.
pub const BEING_CREATED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-created";
/// On the class of a driver that is used where none is named.
pub const DEFAULT_CLASS: &str = "snapshot.storage.kubernetes.io/is-default-class";
/// On a content: the secret that making and deleting its snapshot takes.
pub const DELETION_SECRET_NAME: &str = "snapshot.storage.kubernetes.io/deletion-secret-name";
/// The namespace of that.
pub const DELETION_SECRET_NAMESPACE: &str = "snapshot.storage.kubernetes.io/deletion-secret-namespace";
