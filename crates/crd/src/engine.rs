//! Engine: the process that serves a volume on one node, and its view of the replicas.

use std::collections::BTreeMap;

use crate::Condition;
use crate::definitions::Column;
use crate::scalar::IntString;
use crate::volume::{DataEngine, Frontend, Words};

resource! {
    /// The process that serves a volume on one node.
    Engine: "engines", short "lhe" {
        /// What is wanted.
        spec: EngineSpec,
        /// What is the case.
        status: EngineStatus,
    } columns &[
        Column::text("Data Engine", ".spec.dataEngine"),
        Column::text("State", ".status.currentState"),
        Column::text("Node", ".spec.nodeID"),
        Column::text("InstanceManager", ".status.instanceManagerName"),
        Column::text("Image", ".status.currentImage"),
        Column::AGE,
    ]
}

words! {
    /// Whether a process runs, or is to run.
    InstanceState {
        /// It does not.
        Stopped = "stopped",
        /// It does.
        Running = "running",
        /// It is on its way up.
        Starting = "starting",
        /// It is on its way down.
        Stopping = "stopping",
        /// It ended without being asked to.
        Error = "error",
        /// It cannot be told, as when its node does not answer.
        Unknown = "unknown",
        /// It runs without leave to serve; kept for compatibility.
        Suspended = "suspended",
    }
}

words! {
    /// What an engine may do with a replica.
    ReplicaMode {
        /// Read and write: it holds every acknowledged write.
        ReadWrite = "RW",
        /// Write only: it is being rebuilt.
        WriteOnly = "WO",
        /// Nothing: it failed.
        Error = "ERR",
    }
}

object! {
    /// What is wanted of an engine.
    EngineSpec {
        /// Its volume.
        volume_name: String,
        /// Size of the volume in bytes.
        volume_size: IntString,
        /// The node that it is to run on.
        node_id: String = "nodeID",
        /// Its image.
        image: String,
        /// Whether it is to run.
        desire_state: InstanceState,
        /// Its log is wanted.
        log_requested: bool,
        /// It is to start from replicas that failed.
        salvage_requested: bool,
        /// The implementation.
        data_engine: DataEngine,
        /// How the volume shows itself.
        frontend: Frontend,
        /// Serve without a frontend.
        disable_frontend: bool,
        /// The replicas to serve with: address by name.
        replica_address_map: Words,
        /// The same, while the image is being upgraded.
        upgraded_replica_address_map: Words,
        /// The backup volume to restore from.
        backup_volume: String,
        /// The backup to restore.
        requested_backup_restore: String,
        /// The volume or snapshot to clone.
        requested_data_source: String,
        /// Whether it is the engine that counts; a migration's target is not, until it is confirmed.
        active: bool,
        /// Whether replicas keep Longhorn's revision counter.
        revision_counter_disabled: bool,
        /// Whether a discard also frees space of removed snapshots.
        unmap_mark_snap_chain_removed_enabled: bool,
        /// How many snapshots the volume may have.
        snapshot_max_count: i64,
        /// How many bytes its snapshots may take.
        snapshot_max_size: IntString,
        /// How many files are copied at once in a rebuild.
        rebuild_concurrent_sync_limit: i64,
        /// Of an engine that stands by: where it finds the one that it reads through. Tether's own.
        migration_source: String,
        /// The uid of an engine that stood by and must not take over any more. Tether's own.
        dismissed_standby: String,
    }
}

object! {
    /// One snapshot, as the engine sees it.
    SnapshotInfo {
        /// Its name.
        name: String,
        /// The snapshot that it is based on.
        parent: String,
        /// What is based on it.
        children: BTreeMap<String, bool>,
        /// It is marked to go.
        removed: bool,
        /// A person, not the system, asked for it.
        user_created: bool = "usercreated",
        /// When it was made.
        created: String,
        /// Bytes that it takes.
        size: String,
        /// Its labels.
        labels: Words,
    }
}

object! {
    /// The state of a backup, by id.
    BackupProgress {
        /// In percent.
        progress: i64,
        /// URL of the backup.
        backup_url: String = "backupURL",
        /// What went wrong.
        error: String,
        /// The snapshot.
        snapshot_name: String,
        /// In a word.
        state: String,
        /// The replica that is read.
        replica_address: String,
    }
}

object! {
    /// The state of a restore into one replica.
    RestoreProgress {
        /// Whether it goes on.
        is_restoring: bool,
        /// The last backup that was restored.
        last_restored: String,
        /// The backup that is being restored.
        current_restoring_backup: String,
        /// In percent.
        progress: i64,
        /// What went wrong.
        error: String,
        /// The file that is written.
        filename: String,
        /// In a word.
        state: String,
        /// URL of the backup.
        backup_url: String = "backupURL",
    }
}

object! {
    /// The state of the removal of snapshots in one replica.
    PurgeProgress {
        /// What went wrong.
        error: String,
        /// Whether it goes on.
        is_purging: bool,
        /// In percent.
        progress: i64,
        /// In a word.
        state: String,
    }
}

object! {
    /// The state of a rebuild of one replica.
    RebuildProgress {
        /// What went wrong.
        error: String,
        /// Whether it goes on.
        is_rebuilding: bool,
        /// In percent.
        progress: i64,
        /// In a word.
        state: String,
        /// The replica that is read.
        from_replica_address: String,
    }
}

object! {
    /// The state of a clone into one replica.
    CloneProgress {
        /// Whether it goes on.
        is_cloning: bool,
        /// What went wrong.
        error: String,
        /// In percent.
        progress: i64,
        /// In a word.
        state: String,
        /// The replica that is read.
        from_replica_address: String,
        /// The snapshot of the source.
        snapshot_name: String,
    }
}

object! {
    /// What is the case with an engine.
    EngineStatus {
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
        /// InstanceCreation, FilesystemReadOnly.
        conditions: Vec<Condition>,
        /// The uid of the process: the holder in the volume's record.
        uuid: String,
        /// Size that it serves, in bytes.
        current_size: IntString,
        /// The replicas that it serves with: address by name.
        current_replica_address_map: Words,
        /// What it may do with each.
        replica_mode_map: BTreeMap<String, ReplicaMode>,
        /// Since when.
        replica_transition_time_map: Words,
        /// Where the volume is found on the node: a device, or a URL.
        endpoint: String,
        /// The last backup that was restored.
        last_restored_backup: String,
        /// Backups, by id.
        backup_status: BTreeMap<String, BackupProgress>,
        /// Restores, by replica URL.
        restore_status: BTreeMap<String, RestoreProgress>,
        /// Removals of snapshots, by replica URL.
        purge_status: BTreeMap<String, PurgeProgress>,
        /// Rebuilds, by replica URL.
        rebuild_status: BTreeMap<String, RebuildProgress>,
        /// Clones, by replica URL.
        clone_status: BTreeMap<String, CloneProgress>,
        /// The snapshots, by name; `volume-head` is what is written to.
        snapshots: BTreeMap<String, SnapshotInfo>,
        /// Why the snapshots could not be listed.
        snapshots_error: String,
        /// It is being grown.
        is_expanding: bool,
        /// Why it could not be grown.
        last_expansion_error: String,
        /// When that was.
        last_expansion_failed_at: String,
        /// Whether a discard also frees space of removed snapshots.
        unmap_mark_snap_chain_removed_enabled: bool,
        /// How many snapshots the volume may have.
        snapshot_max_count: i64,
        /// How many bytes its snapshots may take.
        snapshot_max_size: IntString,
    }
}

/// The condition of an engine or replica whose process could not be made.
pub const INSTANCE_CREATION: &str = "InstanceCreation";
/// The condition that is False while a process that is to end cannot; its message says why.
pub const INSTANCE_REMOVAL: &str = "InstanceRemoval";
/// Its reason where an engine ended because another one holds the volume.
pub const FENCED: &str = "Fenced";
/// The condition of an engine whose file system turned read-only.
pub const FILESYSTEM_READ_ONLY: &str = "FilesystemReadOnly";

impl Engine {
    /// Whether it serves its volume with at least one good replica.
    pub fn is_available_on(&self, node: &str) -> bool {
        self.metadata.deletion_timestamp.is_none()
            && self.spec.node_id == node
            && self.spec.desire_state == InstanceState::Running
            && self.status.current_state == InstanceState::Running
            && self.status.replica_mode_map.values().any(|mode| *mode == ReplicaMode::ReadWrite)
    }
}
