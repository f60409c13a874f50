//! Volumes for claims, from a CSI driver: which one is asked for, what object describes it, and when it goes again.
//!
//! ```text
//!   claim names the driver, its class is known, its node is chosen ──► CreateVolume ──► PersistentVolume with claimRef
//!   volume Released, policy Delete, attached nowhere               ──► DeleteVolume ──► PersistentVolume deleted
//! ```
//!
//! The name of a volume follows from the claim's uid, so that asking twice makes one. Annotations, names and texts are those
//! of Kubernetes' external-provisioner, which this replaces.

pub mod capacity;
mod claim;
mod origin;
mod volume;

use std::collections::BTreeMap;

pub(crate) use self::claim::binary;
pub use self::claim::{ClaimObserved, Made, decide_claim, persistent_volume};
pub use self::origin::{Asked, Origin, asked, from_claim, from_snapshot};
pub use self::volume::{VolumeObserved, decide_volume};
use k8s_openapi::api::core::v1::SecretReference;

use crate::attacher::Content;
use crate::object::Target;

/// Keeps a volume's object until the volume itself is deleted.
pub const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
/// On a volume: the secret that deleting it takes.
pub const DELETION_SECRET_NAME: &str = "volume.kubernetes.io/provisioner-deletion-secret-name";
/// The namespace of that.
pub const DELETION_SECRET_NAMESPACE: &str = "volume.kubernetes.io/provisioner-deletion-secret-namespace";

/// The driver that volumes are made by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    pub name: String,
    /// Where volumes are matters to it.
    pub topology: bool,
    pub single_node_multi_writer: bool,
    /// The file system of volumes whose class names none.
    pub default_fs_type: String,
}

/// What is to be done for a claim.
#[derive(Clone, Debug, PartialEq)]
pub enum ClaimChange {
    Create(Box<Create>),
}

/// The call that makes a volume.
#[derive(Clone, Debug, PartialEq)]
pub struct Create {
    pub name: String,
    pub bytes: i64,
    /// Access modes in the numbers of the Container Storage Interface, each with the same content.
    pub modes: Vec<i32>,
    pub content: Content,
    pub parameters: BTreeMap<String, String>,
    pub secret: Option<SecretReference>,
    /// Where the volume has to be reachable from.
    pub topology: Option<BTreeMap<String, String>>,
    /// What it begins with; nothing if none.
    pub origin: Option<Origin>,
}

/// What is to be done for a volume.
#[derive(Clone, Debug, PartialEq)]
pub enum VolumeChange {
    /// Delete what the object describes, then the object.
    Delete { volume: Target, handle: String, secret: Option<SecretReference> },
    /// The object is going: its volume is deleted, let it go.
    LetGo { volume: Target },
}
