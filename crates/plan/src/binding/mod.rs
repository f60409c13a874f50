//! Binding of PersistentVolumeClaims to PersistentVolumes, one to one.
//!
//! A binding is two references, `claimRef` in the volume and `volumeName` in the claim, and it is complete when both are
//! there: the volume's is written first, so that no second claim can take it, and every step can be repeated after a
//! crash. Either reference may also come from a person (pre-bound), a provisioner or the scheduler; annotations say
//! which of them this controller wrote, for only those may it take back.
//!
//! ```text
//!   claim:  Pending ──► Bound ──► Lost (its volume is gone)
//!   volume: Available ──► Bound ──► Released (its claim is gone) ──► deleted by its provisioner, or kept
//! ```

pub mod claim;
pub mod matching;
pub mod protection;
pub mod volume;

use k8s_openapi::api::core::v1::{
    ObjectReference, PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimStatus,
};
use k8s_openapi::api::storage::v1::StorageClass;

use crate::object::{Target, annotation, name, namespace, uid};

/// On a claim: the binding was completed once.
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// On a claim or a volume: the reference to the other was written by the controller.
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// On a claim: the node that the scheduler wants the volume for.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// On a claim: who is to provision a volume for it.
pub const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// The older name of the same, which provisioners still read.
pub const BETA_STORAGE_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// On a volume: who provisioned it.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// On a volume: the claim's capacity until its file system is grown.
pub const PRE_RESIZE_CAPACITY: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";
/// The provisioner of classes whose volumes are made by hand.
pub const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

const CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
const BETA_DEFAULT_CLASS: &str = "storageclass.beta.kubernetes.io/is-default-class";

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Ask the API server whether the claim with this uid exists.
    CheckClaim {
        namespace: String,
        name: String,
    },
    /// Point the volume to the claim; `mark` it as this controller's doing.
    SetClaimRef {
        volume: Target,
        claim: ObjectReference,
        mark: bool,
    },
    /// Undo that: forget the claim, or only its uid where a person pointed the volume to it.
    ClearClaimRef {
        volume: Target,
        keep_name: bool,
    },
    SetVolumePhase {
        volume: Target,
        phase: &'static str,
    },
    /// Point the claim to the volume and mark the binding as complete; `mark` it as this controller's doing.
    SetVolumeName {
        claim: Target,
        volume: String,
        mark: bool,
    },
    SetClaimStatus {
        claim: Target,
        status: PersistentVolumeClaimStatus,
    },
    SetClass {
        claim: Target,
        class: String,
    },
    SetProvisioner {
        claim: Target,
        provisioner: String,
    },
    AddFinalizer {
        object: Target,
        finalizer: &'static str,
    },
    RemoveFinalizer {
        object: Target,
        finalizer: &'static str,
    },
}

/// The claim's class; empty where it wants none or says nothing.
pub fn claim_class(claim: &PersistentVolumeClaim) -> &str {
    let named = claim.spec.as_ref().and_then(|s| s.storage_class_name.as_deref());
    annotation(claim, CLASS).or(named).unwrap_or_default()
}

/// Whether the claim says anything about its class, be it that it wants none.
pub fn names_class(claim: &PersistentVolumeClaim) -> bool {
    annotation(claim, CLASS).is_some() || claim.spec.as_ref().is_some_and(|s| s.storage_class_name.is_some())
}

/// The volume's class, empty for none.
pub fn volume_class(volume: &PersistentVolume) -> &str {
    let named = volume.spec.as_ref().and_then(|s| s.storage_class_name.as_deref());
    annotation(volume, CLASS).or(named).unwrap_or_default()
}

/// The class that a claim gets which names none: of several, the youngest.
pub fn default_class<'a>(classes: impl IntoIterator<Item = &'a StorageClass>) -> Option<&'a StorageClass> {
    let is_default = |class: &&StorageClass| {
        [DEFAULT_CLASS, BETA_DEFAULT_CLASS].iter().any(|key| annotation(*class, key) == Some("true"))
    };
    let age = |class: &&StorageClass| {
        (std::cmp::Reverse(class.metadata.creation_timestamp.as_ref().map(|t| t.0)), name(*class).to_owned())
    };
    classes.into_iter().filter(is_default).min_by_key(age)
}

/// Whether volumes of the class are bound when the first pod that uses them is scheduled.
pub fn waits_for_consumer(class: Option<&StorageClass>) -> bool {
    class.and_then(|c| c.volume_binding_mode.as_deref()) == Some("WaitForFirstConsumer")
}

/// The name of the claim's volume, empty if it has none.
pub fn volume_name(claim: &PersistentVolumeClaim) -> &str {
    claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).unwrap_or_default()
}

/// The claim that the volume points to.
pub fn claim_ref(volume: &PersistentVolume) -> Option<&ObjectReference> {
    volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref())
}

/// Whether the volume points to this claim, by name and, where it has one, by uid.
pub fn points_to(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    claim_ref(volume).is_some_and(|reference| {
        let same_name = reference.name.as_deref().unwrap_or_default() == name(claim)
            && reference.namespace.as_deref().unwrap_or_default() == namespace(claim);
        let wanted = reference.uid.as_deref().unwrap_or_default();
        same_name && (wanted.is_empty() || wanted == uid(claim))
    })
}

/// Whether both references are there and the claim knows it.
pub fn is_fully_bound(claim: &PersistentVolumeClaim) -> bool {
    !volume_name(claim).is_empty() && annotation(claim, BIND_COMPLETED).is_some()
}

/// The reference that a volume has to the claim it is bound to.
pub fn reference_to(claim: &PersistentVolumeClaim) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("PersistentVolumeClaim".into()),
        namespace: Some(namespace(claim).to_owned()),
        name: Some(name(claim).to_owned()),
        uid: Some(uid(claim).to_owned()),
        resource_version: claim.metadata.resource_version.clone(),
        field_path: None,
    }
}

pub fn claim_phase(claim: &PersistentVolumeClaim) -> &str {
    claim.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

pub fn volume_phase(volume: &PersistentVolume) -> &str {
    volume.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}
