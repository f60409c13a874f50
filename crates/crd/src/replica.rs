//! Replica: one copy of a volume's data, in a directory of a disk, and the process that serves it.

use crate::Condition;
use crate::definitions::Column;
use crate::engine::InstanceState;
use crate::scalar::IntString;
use crate::volume::DataEngine;

resource! {
    /// One copy of a volume's data.
    Replica: "replicas", short "lhr" {
        /// What is wanted.
        spec: ReplicaSpec,
        /// What is the case.
        status: ReplicaStatus,
    } columns &[
        Column::text("Data Engine", ".spec.dataEngine"),
        Column::text("State", ".status.currentState"),
        Column::text("Node", ".spec.nodeID"),
        Column::text("Disk", ".spec.diskID"),
        Column::text("InstanceManager", ".status.instanceManagerName"),
        Column::text("Image", ".status.currentImage"),
        Column::AGE,
    ]
}

object! {
    /// What is wanted of a replica.
    ReplicaSpec {
        /// Its volume.
        volume_name: String,
        /// Size of the volume in bytes.
        volume_size: IntString,
        /// Its node; empty until it has a place.
        node_id: String = "nodeID",
        /// Its image.
        image: String,
        /// Whether its process is to run.
        desire_state: InstanceState,
        /// Its log is wanted.
        log_requested: bool,
        /// It is to be used although it failed.
        salvage_requested: bool,
        /// The implementation.
        data_engine: DataEngine,
        /// The engine that it serves.
        engine_name: String,
        /// The engine that it serves in a migration (second data engine).
        migration_engine_name: String,
        /// Whether it counts; a migration's twin does not, until it is confirmed.
        active: bool,
        /// When it first was good since it was last rebuilt.
        healthy_at: String,
        /// When it last was good.
        last_healthy_at: String,
        /// When it failed; empty: it did not.
        failed_at: String,
        /// When it last failed.
        last_failed_at: String,
        /// UUID of its disk.
        disk_id: String = "diskID",
        /// Path of its disk.
        disk_path: String,
        /// Its directory below the disk's `replicas`; also the name of the member in the volume's record.
        data_directory_name: String,
        /// The only node that it may be on.
        hard_node_affinity: String,
        /// The only disk that it may be on.
        hard_disk_affinity: String,
        /// How often its rebuild was tried.
        rebuild_retry_count: i64,
        /// It is to be replaced by one elsewhere.
        eviction_requested: bool,
        /// The image below its data.
        backing_image: String,
        /// Whether it keeps Longhorn's revision counter.
        revision_counter_disabled: bool,
        /// Whether a discard also frees space of removed snapshots.
        unmap_mark_disk_chain_removed_enabled: bool,
        /// How many snapshots the volume may have.
        snapshot_max_count: i64,
        /// How many bytes its snapshots may take.
        snapshot_max_size: IntString,
    }
}

object! {
    /// What is the case with a replica.
    ReplicaStatus {
        /// The node whose manager looks after it; kept for clients that read it.
        owner_id: String = "ownerID",
        /// The instance manager that runs it.
        instance_manager_name: String,
        /// Whether it runs.
        current_state: InstanceState,
        /// The image that it runs.
        current_image: String,
        /// Where it listens.
        ip: String,
        /// Where it listens in the storage network.
        storage_ip: String = "storageIP",
        /// Its port.
        port: i64,
        /// Its start was asked for.
        starting: bool,
        /// It was up once, since it was last stopped.
        started: bool,
        /// Its log was fetched.
        log_fetched: bool,
        /// The salvage was carried out.
        salvage_executed: bool,
        /// InstanceCreation, RebuildFailed, WaitForBackingImage.
        conditions: Vec<Condition>,
        /// The uid of the process.
        uuid: String,
        /// It is being evicted.
        eviction_requested: bool,
    }
}

/// The condition of a replica that could not be rebuilt.
pub const REBUILD_FAILED: &str = "RebuildFailed";

impl Replica {
    /// Whether it was good when last heard of, and nobody is taking it away.
    pub fn is_healthy(&self) -> bool {
        !self.spec.healthy_at.is_empty()
            && self.spec.failed_at.is_empty()
            && !self.spec.eviction_requested
            && self.metadata.deletion_timestamp.is_none()
    }

    /// Whether it has a place.
    pub fn is_scheduled(&self) -> bool {
        !self.spec.node_id.is_empty()
    }
}
