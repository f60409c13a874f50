//! Node: a machine that holds disks with replicas.

use std::collections::BTreeMap;

use crate::Condition;
use crate::definitions::Column;

resource! {
    /// A machine that holds disks with replicas.
    Node: "nodes", short "lhn" {
        /// What is wanted.
        spec: NodeSpec,
        /// What is the case.
        status: NodeStatus,
    } columns &[
        Column::text("Ready", ".status.conditions[?(@.type=='Ready')].status"),
        Column { name: "AllowScheduling", kind: "boolean", path: ".spec.allowScheduling", priority: 0 },
        Column::text("Schedulable", ".status.conditions[?(@.type=='Schedulable')].status"),
        Column::AGE,
    ]
}

words! {
    /// What a disk is.
    DiskType {
        /// A directory of a file system.
        Filesystem = "filesystem",
        /// A block device (second data engine).
        Block = "block",
    }
}

object! {
    /// What is wanted of a disk.
    DiskSpec {
        /// What it is.
        disk_type: DiskType,
        /// Its directory.
        path: String,
        /// Its driver (second data engine).
        disk_driver: String,
        /// Whether new replicas may go there.
        allow_scheduling: bool,
        /// Whether its replicas are to go elsewhere.
        eviction_requested: bool,
        /// Bytes that replicas leave alone.
        storage_reserved: i64,
        /// Its tags.
        tags: Vec<String>,
    }
}

object! {
    /// What is wanted of a node.
    NodeSpec {
        /// Its name.
        name: String,
        /// Its disks, by name.
        disks: BTreeMap<String, DiskSpec>,
        /// Whether new replicas may go there.
        allow_scheduling: bool,
        /// Whether its replicas are to go elsewhere.
        eviction_requested: bool,
        /// Its tags.
        tags: Vec<String>,
        /// Milli-CPUs for the instance manager; 0: as the setting says.
        instance_manager_cpu_request: i64 = "instanceManagerCPURequest",
    }
}

object! {
    /// What is the case with a disk.
    DiskStatus {
        /// The UUID that is written on it.
        disk_uuid: String = "diskUUID",
        /// Its name.
        disk_name: String,
        /// Its directory.
        disk_path: String,
        /// What it is.
        disk_type: DiskType,
        /// Its driver (second data engine).
        disk_driver: String,
        /// Its file system.
        filesystem_type: String,
        /// Bytes that are free.
        storage_available: i64,
        /// Bytes in all.
        storage_maximum: i64,
        /// Bytes that its replicas may grow to.
        storage_scheduled: i64,
        /// Its replicas, with that size.
        scheduled_replica: BTreeMap<String, i64>,
        /// Its backing images, with their size.
        scheduled_backing_image: BTreeMap<String, i64>,
        /// The instance manager that serves it.
        instance_manager_name: String,
        /// Ready, Schedulable, Error.
        conditions: Vec<Condition>,
    }
}

object! {
    /// When snapshots were last checked for damage.
    SnapshotCheckStatus {
        /// When.
        last_periodic_checked_at: String,
    }
}

object! {
    /// What is the case with a node.
    NodeStatus {
        /// Ready, Schedulable, MountPropagation, …
        conditions: Vec<Condition>,
        /// Its disks, by name.
        disk_status: BTreeMap<String, DiskStatus>,
        /// Its region.
        region: String,
        /// Its zone.
        zone: String,
        /// When snapshots were last checked for damage.
        snapshot_check_status: SnapshotCheckStatus,
        /// Its replicas are being moved because it is drained.
        auto_evicting: bool,
    }
}

/// Types of the conditions of nodes and disks.
pub mod conditions {
    /// It can be used.
    pub const READY: &str = "Ready";
    /// New replicas may go there.
    pub const SCHEDULABLE: &str = "Schedulable";
    /// Mounts made in a pod show on the node.
    pub const MOUNT_PROPAGATION: &str = "MountPropagation";
    /// No multipath daemon claims the devices.
    pub const MULTIPATHD: &str = "Multipathd";
    /// The kernel has what is needed.
    pub const KERNEL_MODULES_LOADED: &str = "KernelModulesLoaded";
    /// The node has the programs that are needed.
    pub const REQUIRED_PACKAGES: &str = "RequiredPackages";
    /// The node can mount shares.
    pub const NFS_CLIENT_INSTALLED: &str = "NFSClientInstalled";
    /// Of a disk: it cannot be used.
    pub const ERROR: &str = "Error";
}

/// Reasons of the conditions of nodes and disks.
pub mod reasons {
    /// The Kubernetes node does not exist.
    pub const KUBERNETES_NODE_GONE: &str = "KubernetesNodeGone";
    /// The Kubernetes node is not ready.
    pub const KUBERNETES_NODE_NOT_READY: &str = "KubernetesNodeNotReady";
    /// The Kubernetes node is short of something.
    pub const KUBERNETES_NODE_PRESSURE: &str = "KubernetesNodePressure";
    /// The Kubernetes node is cordoned.
    pub const KUBERNETES_NODE_CORDONED: &str = "KubernetesNodeCordoned";
    /// The agent of the node does not run.
    pub const MANAGER_POD_DOWN: &str = "ManagerPodDown";
    /// The agent of the node does not exist.
    pub const MANAGER_POD_MISSING: &str = "ManagerPodMissing";
    /// The disk has too little left.
    pub const DISK_PRESSURE: &str = "DiskPressure";
    /// Another file system is mounted there than before.
    pub const DISK_FILESYSTEM_CHANGED: &str = "DiskFilesystemChanged";
    /// Nothing is known of the disk.
    pub const NO_DISK_INFO: &str = "NoDiskInfo";
    /// The disk cannot be used.
    pub const DISK_NOT_READY: &str = "DiskNotReady";
    /// The disk's node cannot be used.
    pub const NODE_NOT_READY: &str = "NodeNotReady";
}

impl Node {
    /// Whether it can be used.
    pub fn is_ready(&self) -> bool {
        crate::condition::is_true(&self.status.conditions, conditions::READY)
    }

    /// Whether it is known to be down, or gone: an agent that does not run is not enough.
    pub fn is_down(&self) -> bool {
        crate::condition::find(&self.status.conditions, conditions::READY).is_some_and(|ready| {
            ready.status == crate::condition::FALSE
                && [reasons::KUBERNETES_NODE_GONE, reasons::KUBERNETES_NODE_NOT_READY].contains(&ready.reason.as_str())
        })
    }
}
