//! Volume: a replicated block device; where it is wanted, how it is laid out, and how it is.

use std::collections::BTreeMap;

use crate::definitions::Column;
use crate::scalar::IntString;
use crate::{Condition, condition};

resource! {
    /// A replicated block device.
    Volume: "volumes", short "lhv" {
        /// What is wanted.
        spec: VolumeSpec,
        /// What is the case.
        status: VolumeStatus,
    } columns &[
        Column::text("Data Engine", ".spec.dataEngine"),
        Column::text("State", ".status.state"),
        Column::text("Robustness", ".status.robustness"),
        // Longhorn's own column filters by a type that no condition has, and is always blank.
        Column::text("Scheduled", ".status.conditions[?(@.type=='Scheduled')].status"),
        Column::text("Size", ".spec.size"),
        Column::text("Node", ".status.currentNodeID"),
        Column::AGE,
    ]
}

words! {
    /// How a volume shows itself to its node.
    Frontend {
        /// Not shown; for a volume that only receives a restore.
        None = "",
        /// A block device below /dev/longhorn.
        BlockDev = "blockdev",
        /// An iSCSI target without a device.
        Iscsi = "iscsi",
        /// NVMe over fabrics (second data engine).
        Nvmf = "nvmf",
        /// A userspace block device (second data engine).
        Ublk = "ublk",
    }
}

words! {
    /// Who may use a volume at once.
    AccessMode {
        /// Pods of one node.
        ReadWriteOnce = "rwo",
        /// One pod.
        ReadWriteOncePod = "rwop",
        /// Pods of several nodes: through a share, or one after the other when migratable.
        ReadWriteMany = "rwx",
    }
}

words! {
    /// The implementation of engines and replicas.
    DataEngine {
        /// Files on a file system.
        V1 = "v1",
        /// SPDK; known, not provided.
        V2 = "v2",
    }
}

words! {
    /// Whether a replica has to be where the volume is attached.
    DataLocality {
        /// No.
        Disabled = "disabled",
        /// If there is room.
        BestEffort = "best-effort",
        /// Exactly one replica, always there.
        StrictLocal = "strict-local",
    }
}

words! {
    /// Whether replicas are moved to spread evenly.
    ReplicaAutoBalance {
        /// As the setting says.
        Ignored = "ignored",
        /// Never.
        Disabled = "disabled",
        /// For redundancy only.
        LeastEffort = "least-effort",
        /// For an even spread.
        BestEffort = "best-effort",
    }
}

words! {
    /// A choice that a volume makes itself or leaves to the setting.
    Choice {
        /// As the setting says.
        Ignored = "ignored",
        /// Yes.
        Enabled = "enabled",
        /// No.
        Disabled = "disabled",
    }
}

words! {
    /// How snapshots are checked for damage.
    SnapshotDataIntegrity {
        /// As the setting says.
        Ignored = "ignored",
        /// Not at all.
        Disabled = "disabled",
        /// All of them, periodically.
        Enabled = "enabled",
        /// Those that changed.
        FastCheck = "fast-check",
    }
}

words! {
    /// How a volume is made from another one.
    CloneMode {
        /// Not a clone, or as the default says.
        Unset = "",
        /// By copying all data.
        FullCopy = "full-copy",
        /// By sharing a replica of the source.
        LinkedClone = "linked-clone",
    }
}

words! {
    /// How blocks of a backup are compressed.
    BackupCompressionMethod {
        /// As the setting says.
        Unset = "",
        /// Not at all.
        None = "none",
        /// LZ4.
        Lz4 = "lz4",
        /// Gzip.
        Gzip = "gzip",
    }
}

object! {
    /// Where provisioning asked for the volume's replicas.
    TopologyRequirement {
        /// A zone.
        zone: String,
        /// A region.
        region: String,
    }
}

object! {
    /// What is wanted of a volume.
    VolumeSpec {
        /// Size in bytes; a multiple of 2 MiB.
        size: IntString,
        /// How it shows itself to its node.
        frontend: Frontend,
        /// URL of the backup that it is made from.
        from_backup: String,
        /// Whether the recurring jobs of the backup are restored with it.
        restore_volume_recurring_job: Choice,
        /// What it is cloned from: `vol://<volume>` or `snap://<volume>/<snapshot>`.
        data_source: String,
        /// How it is cloned.
        clone_mode: CloneMode,
        /// Whether a replica has to be where the volume is attached.
        data_locality: DataLocality,
        /// Minutes after which a failed replica is thrown away; 0: never.
        stale_replica_timeout: i64,
        /// The node that it is to be attached to; set from the attachment tickets only.
        node_id: String = "nodeID",
        /// The node that it is being migrated to; set from the attachment tickets only.
        migration_node_id: String = "migrationNodeID",
        /// The node of the engine, where it may differ from that of the device (second data engine).
        engine_node_id: String = "engineNodeID",
        /// The engine's image.
        image: String,
        /// The image below its data; cannot be changed.
        backing_image: String,
        /// A volume that follows a backup until it is activated.
        standby: bool = "Standby",
        /// Tags that a replica's disk must have.
        disk_selector: Vec<String>,
        /// Tags that a replica's node must have.
        node_selector: Vec<String>,
        /// Attached without a frontend; set from the attachment tickets only.
        disable_frontend: bool,
        /// Whether replicas keep Longhorn's revision counter.
        revision_counter_disabled: bool,
        /// Whether a discard also frees space of removed snapshots.
        unmap_mark_snap_chain_removed: Choice,
        /// Whether replicas may share a node.
        replica_soft_anti_affinity: Choice,
        /// Whether replicas may share a zone.
        replica_zone_soft_anti_affinity: Choice,
        /// Whether replicas may share a disk.
        replica_disk_soft_anti_affinity: Choice,
        /// Who asked for the attachment; set from the attachment tickets only.
        last_attached_by: String,
        /// Who may use it at once.
        access_mode: AccessMode,
        /// Whether it may be attached to two nodes while it moves; for `rwx` only.
        migratable: bool,
        /// Whether its data is encrypted; cannot be changed.
        encrypted: bool,
        /// How many copies of the data are wanted.
        number_of_replicas: i64,
        /// Whether replicas are moved to spread evenly.
        replica_auto_balance: ReplicaAutoBalance,
        /// How snapshots are checked for damage.
        snapshot_data_integrity: SnapshotDataIntegrity,
        /// How blocks of a backup are compressed.
        backup_compression_method: BackupCompressionMethod,
        /// Block size of backups, in bytes: 2097152 or 16777216.
        backup_block_size: IntString,
        /// Where backups of it go.
        backup_target_name: String,
        /// The implementation of engine and replicas; cannot be changed.
        data_engine: DataEngine,
        /// How many snapshots it may have.
        snapshot_max_count: i64,
        /// How many bytes its snapshots may take; 0: any number.
        snapshot_max_size: IntString,
        /// Whether the file system is frozen while a snapshot is made.
        freeze_filesystem_for_snapshot: Choice,
        /// Whether it is rebuilt while it is not attached.
        offline_rebuilding: Choice,
        /// How many files are copied at once in a rebuild; 0: as the setting says.
        rebuild_concurrent_sync_limit: i64,
        /// Where provisioning asked for its replicas; cannot be changed.
        topology_requirement: Vec<TopologyRequirement>,
    }
}

words! {
    /// Where a volume is on the way between detached and attached.
    State {
        /// Nobody has looked at it yet.
        Unset = "",
        /// Its engine and replicas are being made.
        Creating = "creating",
        /// Its engine runs on its node.
        Attached = "attached",
        /// Nothing of it runs.
        Detached = "detached",
        /// Replicas and engine are being started.
        Attaching = "attaching",
        /// Engine and replicas are being stopped.
        Detaching = "detaching",
        /// It is going away.
        Deleting = "deleting",
    }
}

words! {
    /// How many good copies a volume has.
    Robustness {
        /// It cannot be told, as for a volume that is not attached.
        Unknown = "unknown",
        /// As many as are wanted.
        Healthy = "healthy",
        /// Fewer than are wanted.
        Degraded = "degraded",
        /// None that could be used.
        Faulted = "faulted",
    }
}

words! {
    /// How far a clone is.
    CloneState {
        /// Not a clone.
        Unset = "",
        /// Copying.
        Initiated = "initiated",
        /// Copied; further replicas are being built.
        CopyCompletedAwaitingHealthy = "copy-completed-awaiting-healthy",
        /// Done.
        Completed = "completed",
        /// Given up.
        Failed = "failed",
    }
}

words! {
    /// The state of the share of an `rwx` volume.
    ShareState {
        /// No share.
        Unset = "",
        /// It cannot be told.
        Unknown = "unknown",
        /// On its way up.
        Starting = "starting",
        /// Serving.
        Running = "running",
        /// On its way down.
        Stopping = "stopping",
        /// Down.
        Stopped = "stopped",
        /// Broken.
        Error = "error",
    }
}

object! {
    /// How far a clone is.
    CloneStatus {
        /// The volume that it is a clone of.
        source_volume: String,
        /// The snapshot of the source.
        snapshot: String,
        /// How far it is.
        state: CloneState,
        /// How often it was tried.
        attempt_count: i64,
        /// When it may be tried again.
        next_allowed_attempt_at: String,
        /// Why the last attempt failed; Longhorn tells that in an event only.
        error: String,
    }
}

object! {
    /// One pod that uses the volume.
    WorkloadStatus {
        /// Its name.
        pod_name: String,
        /// Its phase.
        pod_status: String,
        /// What it belongs to.
        workload_name: String,
        /// The kind of that.
        workload_type: String,
    }
}

object! {
    /// What Kubernetes does with the volume.
    KubernetesStatus {
        /// The persistent volume.
        pv_name: String,
        /// Its phase.
        pv_status: String,
        /// Namespace of claim and pods.
        namespace: String,
        /// The claim.
        pvc_name: String,
        /// When the claim was last seen, if it is gone.
        last_pvc_ref_at: String = "lastPVCRefAt",
        /// The pods.
        workloads_status: Vec<WorkloadStatus>,
        /// When a pod was last seen, if none is there.
        last_pod_ref_at: String,
    }
}

object! {
    /// Tether's fencing record: who may write, and which replicas hold every acknowledged write.
    ///
    /// It changes only by a JSON patch of the status that tests the old value, which makes the API server the arbiter.
    Record {
        /// Version of this format.
        version: u64,
        /// Raised by every start of an engine; replicas refuse older ones.
        epoch: u64,
        /// The uid of the engine process that may write.
        holder: Option<String>,
        /// The holder before, until it is known to be gone.
        previous: Option<String>,
        /// The members that hold every acknowledged write, by `dataDirectoryName`.
        in_sync: Vec<String>,
        /// Raised by every change of the set.
        generation: u64,
        /// The uid of the engine process that a migration may promote.
        standby: Option<String>,
        /// The holder stopped in order: nothing of it is in flight.
        released: bool,
        /// The holder stopped serving others; see the replication protocol.
        alone: bool,
    }
}

object! {
    /// What is the case with a volume.
    VolumeStatus {
        /// The node whose manager looks after it; kept for clients that read it.
        owner_id: String = "ownerID",
        /// Between detached and attached.
        state: State,
        /// Since when; an addition of Tether.
        state_changed_at: String,
        /// How many good copies there are.
        robustness: Robustness,
        /// The node that it is attached to.
        current_node_id: String = "currentNodeID",
        /// The node that it is being migrated to.
        current_migration_node_id: String = "currentMigrationNodeID",
        /// The node of the engine (second data engine).
        current_engine_node_id: String = "currentEngineNodeID",
        /// The image that the engine runs.
        current_image: String,
        /// Attached without a frontend.
        frontend_disabled: bool,
        /// It is to be filled from a backup.
        restore_required: bool,
        /// The restore has begun.
        restore_initiated: bool,
        /// It follows a backup.
        is_standby: bool,
        /// Its size on disk is not yet what is wanted.
        expansion_required: bool,
        /// Bytes that it takes on a disk.
        actual_size: i64,
        /// Since when it is degraded.
        last_degraded_at: String,
        /// When it was last started from failed replicas.
        last_auto_salvaged_at: String,
        /// When pods were last asked to mount it again.
        remount_requested_at: String,
        /// Its last backup.
        last_backup: String,
        /// When that was made.
        last_backup_at: String,
        /// The state of its share.
        share_state: ShareState,
        /// Where its share is.
        share_endpoint: String,
        /// How far it is, if it is a clone.
        clone_status: CloneStatus,
        /// What Kubernetes does with it.
        kubernetes_status: KubernetesStatus,
        /// Scheduled, Restore, TooManySnapshots, …
        conditions: Vec<Condition>,
        /// Tether's fencing record; absent until the first engine starts.
        record: Option<Record>,
    }
}

/// Types of a volume's conditions.
pub mod conditions {
    /// Every wanted replica has a place.
    pub const SCHEDULED: &str = "Scheduled";
    /// A restore is going on.
    pub const RESTORE: &str = "Restore";
    /// It has, or nearly has, more snapshots than it may.
    pub const TOO_MANY_SNAPSHOTS: &str = "TooManySnapshots";
    /// Its backing image is not there yet.
    pub const WAIT_FOR_BACKING_IMAGE: &str = "WaitForBackingImage";
    /// It is being rebuilt while it is not attached.
    pub const OFFLINE_REBUILDING: &str = "OfflineRebuilding";
}

impl Volume {
    /// Whether it may be attached to two nodes while it moves.
    pub fn is_migratable(&self) -> bool {
        self.spec.migratable && self.spec.access_mode == AccessMode::ReadWriteMany
    }

    /// Whether pods of several nodes use it through a share.
    pub fn is_regular_rwx(&self) -> bool {
        !self.spec.migratable && self.spec.access_mode == AccessMode::ReadWriteMany
    }

    /// Whether a migration is wanted or under way.
    pub fn is_migrating(&self) -> bool {
        !self.spec.migration_node_id.is_empty() || !self.status.current_migration_node_id.is_empty()
    }

    /// The status of one of its conditions.
    pub fn condition(&self, kind: &str) -> &str {
        condition::status(&self.status.conditions, kind)
    }
}

/// Parameters and labels of objects.
pub type Words = BTreeMap<String, String>;
