//! Stable reason codes: *why*, as a value that scripts, alerts and dashboards may match on.
//!
//! A code is written once and keeps its meaning for ever: it may be retired, never reused or renamed
//! (`tests/reason_codes.txt` lists the codes ever released, and a test holds this file to that list).
//! The words around a code are for people and may be improved at any time.
//!
//! Where Kubernetes has a reason for the same thing, the code is Kubernetes' own.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Declares the codes; the doc comment of a code is also its meaning at run time.
macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $code:ident,)+) => {
        /// Why a rule acted, waits, asks, is blocked or rests.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Reason {
            $($(#[doc = $doc])+ $code,)+
        }

        impl Reason {
            /// Every code, in the order of this file.
            pub const ALL: &'static [Self] = &[$(Self::$code,)+];

            /// The code as it appears in conditions and events.
            pub const fn code(self) -> &'static str {
                match self { $(Self::$code => stringify!($code),)+ }
            }

            /// What the code means, in general; the words of a finding say it of one object.
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$code => concat!($($doc,)+).trim_start(),)+ }
            }
        }
    };
}

reasons! {
    // Everywhere.

    /// The object is being deleted; what follows from that is another rule's work.
    BeingDeleted,
    /// What the rule wants is already so.
    UpToDate,
    /// Phase or conditions are set to what is the case.
    StatusFollows,
    /// The object is not being deleted, which is what the rule is about.
    NotBeingDeleted,
    /// An object that has to exist does not.
    ObjectMissing,
    /// An object's content is not what it has to be.
    ContentDiffers,
    /// What the rule would need was not set up.
    NotConfigured,

    // A pod on its node.

    /// The pod has finished; nothing of it runs any more.
    PodCompleted,
    /// The pod's volumes are mounted and it runs.
    Started,
    /// A volume of the pod cannot be mounted.
    FailedMount,
    /// A container is being stopped.
    Killing,
    /// A container that ended is run again after a pause.
    BackOff,
    /// What the container's environment comes from is missing.
    CreateContainerConfigError,

    // Pod garbage collection.

    /// The number of finished pods is within the limit.
    BelowThreshold,
    /// More finished pods are kept than the limit allows; the oldest go first.
    TooManyTerminatedPods,
    /// A terminating pod is on a node that an administrator declared out of service.
    NodeOutOfService,
    /// A terminating pod is on a node that carries the out-of-service taint but reports Ready.
    NodeStillReady,
    /// A pod's node is not known; it may only not have been seen yet.
    NodeNotSeen,
    /// A pod's node does not exist any more.
    DeletionByPodGC,
    /// A terminating pod was never given to a node, so no kubelet will finish it.
    NeverScheduled,

    // Node lifecycle.

    /// The node gives signs of life, or is Ready.
    NodeAlive,
    /// Nothing was heard of the node for too long; whether it is silent or the listener is deaf has to be found out.
    NodeSilent,
    /// The kubelet posted the node's status once, and stopped.
    NodeStatusUnknown,
    /// The kubelet never posted the node's status.
    NodeStatusNeverUpdated,
    /// The node is not ready, or was not heard of for too long.
    NodeNotReady,
    /// The node's taints are set to what its conditions and its cordon ask for.
    TaintsFollowConditions,
    /// No node of the cluster is Ready, so that a fault of the network or of the control plane is more likely.
    AllNodesAway,
    /// Too many nodes of the zone are not Ready to evict anything from it.
    ZoneUnhealthy,
    /// Nodes of a zone are evicted one at a time.
    EvictionRateLimited,
    /// The pod tolerates the taints of its node, for ever or for a while.
    TaintTolerated,
    /// The pod is deleted for a NoExecute taint of its node.
    DeletionByTaintManager,
    /// The pod is marked for deletion for a NoExecute taint of its node.
    TaintManagerEviction,

    // Garbage collection by owner references.

    /// Every owner of the object exists.
    OwnerExists,
    /// An owner was not seen; it may exist all the same.
    OwnerNotSeen,
    /// Some or all owners of the object are gone, or wait for it to go.
    OwnerGone,
    /// The kind of an owner is not served, so that nobody can tell whether it exists.
    OwnerKindUnknown,
    /// An owner reference points into another namespace, which no reference can.
    OwnerRefInvalidNamespace,
    /// Objects that own each other are deleted in foreground; one of them no longer blocks.
    OwnersInCircle,
    /// The deleted owner's dependents are let go.
    DependentOrphaned,
    /// Nothing blocks the deletion of the owner any more.
    DependentsGone,
    /// Dependents block the deletion of their owner.
    DependentsRemain,

    // Deletion of namespaces and of custom resource definitions.

    /// Nothing was tried yet to delete the namespace's content.
    ContentUnknown,
    /// The namespace is empty.
    ContentRemoved,
    /// The namespace's content was told to go.
    ContentDeleted,
    /// No object in the namespace has a finalizer.
    ContentHasNoFinalizers,
    /// Some of the namespace's content could not be deleted.
    ContentDeletionFailed,
    /// Objects remain in the namespace.
    SomeResourcesRemain,
    /// Objects with finalizers remain in the namespace.
    SomeFinalizersRemain,
    /// It could not be found out which kinds are served.
    DiscoveryFailed,
    /// Every kind that is served is known.
    ResourcesDiscovered,
    /// The names of all kinds were understood.
    ParsedGroupVersions,
    /// The instances of the definition are being deleted.
    InstanceDeletionInProgress,
    /// The instances of the definition could not be deleted.
    InstanceDeletionFailed,
    /// The definition has no instance any more.
    InstanceDeletionCompleted,

    // Claims and volumes.

    /// Claim and volume are made to point to each other.
    Binding,
    /// The claim cannot be bound.
    FailedBinding,
    /// The claim is bound to something that is gone.
    ClaimLost,
    /// Two claims are bound to one volume.
    ClaimMisbound,
    /// The volume's claim was not seen; it may exist all the same.
    ClaimNotSeen,
    /// The volume's claim is bound to another volume.
    ClaimBoundElsewhere,
    /// The claim got the default storage class.
    DefaultClassAssigned,
    /// The volume does not exist.
    VolumeNotFound,
    /// Volume and claim do not fit.
    VolumeMismatch,
    /// The volume's reclaim policy is not one that can be followed.
    VolumeUnknownReclaimPolicy,
    /// The claim is bound when the first pod uses it.
    WaitForFirstConsumer,
    /// The claim is bound when the pods that use it are scheduled.
    WaitForPodScheduled,
    /// Somebody else is to make a volume for the claim.
    ExternalProvisioning,
    /// No volume can be made for the claim.
    ProvisioningFailed,
    /// Deletion has to wait until the object is no longer used.
    Protected,
    /// The object is used, and its deletion waits.
    InUse,
    /// The object is not used.
    NotInUse,
    /// No user of the object was seen; there may be one all the same.
    UsersNotSeen,

    // Scheduling.

    /// The pod got its node.
    Scheduled,
    /// No node is possible for the pod.
    Unschedulable,
    /// The pod could not be given a node.
    FailedScheduling,
    /// The pod wants another scheduler.
    OtherScheduler,
    /// The pod has scheduling gates that somebody has to remove.
    SchedulingGated,
    /// The pod's volumes are bound before the pod is.
    VolumesBinding,
    /// The node is possible for the pod.
    NodeFits,
    /// The node is cordoned.
    NodeUnschedulable,
    /// The node has a taint that the pod does not tolerate.
    UntoleratedTaint,
    /// The pod's node selector or required affinity does not match the node.
    NodeAffinityMismatch,
    /// The node has too little left of something that the pod asks for.
    InsufficientResources,
    /// The pod uses a claim that does not exist.
    ClaimNotFound,
    /// The pod uses a claim that is not bound.
    ClaimNotBound,
    /// The pod uses a claim that only one pod may use, and another does.
    VolumeInUse,
    /// The node cannot have so many volumes of one driver.
    TooManyVolumes,
    /// A volume of the pod cannot be reached from the node.
    VolumeNodeAffinityMismatch,
    /// No volume exists or can be made for a claim of the pod on the node.
    NoVolumeForNode,

    // Placement of replicas.

    /// A replica has its place.
    ReplicaPlaced,
    /// The node cannot take replicas now: not ready, cordoned, switched off, or without an instance manager.
    NodeUnavailable,
    /// The replica is for another node, zone or region.
    NodeAffinityNotSatisfied,
    /// The node or the disk lacks tags that the volume selects.
    TagsNotFulfilled,
    /// The disk cannot take replicas now.
    DiskUnavailable,
    /// The disk has too little space left, or too much of it is promised.
    InsufficientStorage,
    /// Another replica of the volume is there, and two must not share the place.
    ReplicaAntiAffinity,
    /// No place was found for a replica.
    ReplicaSchedulingFailure,
    /// No place was found for a replica on the one node that it is for.
    LocalReplicaSchedulingFailure,

    // The life of a volume.

    /// What belongs to a volume is made.
    VolumeCreated,
    /// The volume is deleted, and all that belongs to it.
    Delete,
    /// The volume is to be attached to a node, and what that takes is under way.
    Attaching,
    /// The volume is attached.
    Attached,
    /// The volume is to be detached, and what that takes is under way.
    Detaching,
    /// The volume is detached.
    Detached,
    /// The engine died under the volume; it is detached and attached again.
    DetachedUnexpectedly,
    /// As many replicas hold all data as the volume asks for.
    Healthy,
    /// Fewer replicas hold all data than the volume asks for.
    Degraded,
    /// The volume cannot serve: its engine died, or no replica that holds all data can run.
    Faulted,
    /// It is not known how the volume is, because the node of its engine is not heard of.
    Unknown,
    /// Whoever uses the volume must mount it again.
    Remount,
    /// A failed replica that the record names as in sync is used again.
    AutoSalvaged,
    /// No replica that the record names as in sync can run.
    NoInSyncReplica,
    /// Replicas are being started.
    ReplicasStarting,
    /// The engine waits no longer for a replica that does not start.
    ReplicaStartTooSlow,
    /// The engine is being started.
    EngineStarting,
    /// The engine is being stopped.
    EngineStopping,
    /// Replicas are being stopped.
    ReplicasStopping,
    /// The engine's node is not heard of: it is fenced by the record and counts as stopped.
    EngineFenced,
    /// The instance manager of the node does not run.
    InstanceManagerUnavailable,
    /// The node cannot be drained: what its instance manager runs would be lost.
    DrainBlocked,
    /// The node may be drained: nothing would be lost.
    DrainAllowed,
    /// The replica failed.
    ReplicaFailed,
    /// A failed replica is started again and brought up to date.
    ReplicaReused,
    /// A new replica takes the place of one that is missing.
    ReplicaReplenished,
    /// A failed replica may come back; a new one is made only after a while.
    ReplenishmentWait,
    /// A replica is being brought up to date.
    RebuildInProgress,
    /// The replica failed too long ago or too often.
    StaleReplica,
    /// The volume has more replicas than it asks for.
    ReplicaSurplus,
    /// The replica belongs to no engine any more.
    ReplicaInactive,
    /// The replica is to leave its place, and there is no other for it.
    EvictionFailed,
    /// The replica is to leave its place, or may stay after all.
    ReplicaEviction,
    /// Replicas would be spread better with one more, after which one goes.
    ReplicaBalance,
    /// The volume is being made larger.
    ExpansionInProgress,
    /// The volume is not made larger after all.
    CanceledExpansion,
    /// The volume has more snapshots, or larger ones, than it should.
    TooManySnapshots,
    /// The volume moves to another node while it is used.
    Migrating,
    /// The volume did not move; it is detached, or stays where it was.
    MigrationFailed,

    // Attachment of volumes to nodes.

    /// The volume was attached to the node.
    SuccessfulAttachVolume,
    /// The volume is not attached to the node, and cannot be for now.
    FailedAttachVolume,
    /// Whether the volume is attached is not known; the next attempt will tell.
    AttachmentUncertain,
    /// The volume is attached, and has to be.
    VolumeAttached,
    /// The attachment does not say which volume it is for, or says it twice.
    AttachmentInvalid,
    /// The attachment is another driver's.
    OtherDriver,
    /// The driver lists something else than the attachment's status says.
    DriverDisagrees,
    /// The volume's access modes cannot be had together.
    AccessModesUnsupported,
    /// The volume is not one of a CSI driver.
    VolumeNotCSI,
    /// The driver is not registered on the node.
    DriverNotOnNode,
    /// The volume is attached to another node, and may be attached to one only.
    WaitingForDetach,
    /// No pod on the node uses the volume any more.
    VolumeNotWanted,
    /// A pod on the node uses the volume.
    VolumeWanted,
    /// The node says that the volume is mounted there.
    VolumeStillMounted,
    /// The node was not ready and the volume not unmounted for longer than is waited for.
    ForceDetachTimeout,
    /// Another operation on the same volume is under way.
    OperationUnderWay,
    /// The last attempt failed, and the next one waits.
    BackingOff,
    /// The node's list of attached volumes is set to what is the case.
    NodeListFollows,
    /// A volume is being made for a claim.
    Provisioning,
    /// A volume was made for a claim.
    ProvisioningSucceeded,
    /// A volume could not be deleted.
    VolumeFailedDelete,
    // Attachment tickets.

    /// No ticket wants the volume where it is.
    NoMatchingTicket,
    /// A ticket wants the volume where it is.
    TicketMatches,
    /// Somebody wants to work with the volume on another node, and those who hold it can be interrupted.
    WorkloadInterrupts,
    /// The volume follows the ticket of the highest priority.
    TicketChosen,
    /// No ticket wants the volume anywhere.
    NoTicket,
    /// The volume is not detached yet.
    NotDetached,
    /// Two pods want a volume that was migrating and is now attached nowhere; one of them has to let go.
    MigrationUnresolved,
    /// A second pod wants the volume, and it begins to move.
    MigrationStarted,
    /// The node that the volume is to move to is not ready.
    MigrationTargetNotReady,
    /// The node that the volume was to move to is down; the volume is detached.
    MigrationTargetDown,
    /// The engine on the node that the volume moves to is not ready.
    MigrationEngineNotReady,
    /// The engine on the node that the volume moves to does not know all snapshots yet; not said any more.
    MigrationSnapshotsDiffer,
    /// The node that the volume moves to has written, which takes the volume over before it was decided.
    MigrationPromoted,
    /// Nothing is rebuilt while the volume moves; it is when the move is decided.
    RebuildAfterMigration,
    /// An engine that stood by, and is not to take over any more, is taken out of the record.
    StandbyDismissed,
    /// The first pod has let go: the volume is where the second one wants it.
    MigrationConfirmed,
    /// The second pod has let go: the volume stays where it is.
    MigrationRolledBack,
    /// The volume is detached, and its migration with it.
    MigrationCancelled,
    /// The volume is attached as the ticket wants it.
    TicketSatisfied,
    /// The volume is attached to another node than the ticket wants.
    AttachedElsewhere,
    /// The volume is attached to the ticket's node, with the other frontend than it wants.
    AttachedWithIncompatibleParameters,
    /// The share of the volume is not available yet.
    ShareNotReady,
    /// Another ticket comes first.
    BehindOtherTicket,

    // Snapshots of a volume.

    /// A snapshot is to be made, removed or reverted to at the volume's engine.
    SnapshotWanted,
    /// The snapshot was made.
    SnapshotMade,
    /// The engine has a snapshot that has no object yet.
    SnapshotFound,
    /// Something else has to happen before the snapshot can be made or can go.
    SnapshotWaits,
    /// Nothing of the snapshot is left.
    SnapshotGone,
    /// The engine does not have the snapshot any more.
    SnapshotLost,
    /// It is not known which snapshots the engine has.
    SnapshotsUnknown,

    // Clones.

    /// The data of another volume is being copied into this one.
    VolumeCloneInitiated,
    /// The data is copied, and not every replica has it yet.
    VolumeCloneCopyCompletedAwaitingHealthy,
    /// The clone is complete.
    VolumeCloneCompleted,
    /// The data could not be copied.
    VolumeCloneFailed,
    /// The source of the clone is not ready to be copied from.
    VolumeCloneWaits,
    /// The volume is made as a copy, and is shown to nobody before the copy is complete.
    CopyIncomplete,

    // Resizing of claims.

    /// The claim's volume is being made larger.
    Resizing,
    /// The claim's volume could not be made larger.
    VolumeResizeFailed,
    /// The volume is larger; its file system has yet to grow, on the node.
    FileSystemResizeRequired,
    /// The volume was made larger.
    VolumeResizeSuccessful,

    // Snapshots of claims.

    /// The driver was asked for the snapshot.
    CreatingSnapshot,
    /// The driver has made the snapshot.
    SnapshotCreated,
    /// The snapshot can be used.
    SnapshotReady,
    /// The snapshot names a content that does not exist.
    SnapshotContentMissing,
    /// The snapshot names a content that is another one's.
    SnapshotContentMisbound,
    /// The snapshot's content could not be made.
    SnapshotContentCreationFailed,
    /// The driver could not make the snapshot.
    SnapshotCreateFailed,
    /// The driver could not delete the snapshot.
    SnapshotDeleteError,
    /// A snapshot is to be deleted; its content goes first.
    SnapshotDeleting,
}

/// A text that is not a reason code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a reason code")]
pub struct UnknownReason(pub String);

impl FromStr for Reason {
    type Err = UnknownReason;

    fn from_str(code: &str) -> Result<Self, Self::Err> {
        Self::ALL.iter().copied().find(|r| r.code() == code).ok_or_else(|| UnknownReason(code.to_owned()))
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.code())
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.code())
    }
}

impl<'de> Deserialize<'de> for Reason {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Reason {
    /// Whether it says why a volume that moves, or moved, has to wait.
    pub const fn is_of_migration(self) -> bool {
        matches!(self, Self::MigrationUnresolved | Self::MigrationTargetNotReady | Self::MigrationEngineNotReady)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const RELEASED: &str = include_str!("../tests/reason_codes.txt");

    #[test]
    fn a_released_code_stays() {
        let gone: Vec<&str> = RELEASED.lines().filter(|code| Reason::from_str(code).is_err()).collect();
        assert!(gone.is_empty(), "released codes must not disappear: {gone:?}");
    }

    #[test]
    fn every_code_is_listed() {
        let listed: BTreeSet<&str> = RELEASED.lines().collect();
        let missing: Vec<&str> = Reason::ALL.iter().map(|r| r.code()).filter(|c| !listed.contains(c)).collect();
        assert!(missing.is_empty(), "add to tests/reason_codes.txt:\n{}", missing.join("\n"));
    }

    #[test]
    fn every_code_fits_a_condition_and_says_what_it_means() {
        for reason in Reason::ALL {
            let code = reason.code();
            assert!(code.len() <= 64 && code.chars().all(|c| c.is_ascii_alphanumeric()), "{code}");
            assert!(reason.meaning().ends_with('.'), "{code}: {:?}", reason.meaning());
            assert_eq!(code.parse(), Ok(*reason));
        }
    }
}
