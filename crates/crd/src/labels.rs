//! Labels of Longhorn's objects: the older ones without a prefix, the newer ones with.

/// On everything that belongs to a volume, and on the volume: its name.
pub const VOLUME: &str = "longhornvolume";
/// On engines and replicas: the node that they are on, or are to be on.
pub const NODE: &str = "longhornnode";
/// On replicas: the disk.
pub const DISK_UUID: &str = "longhorndiskuuid";
/// On replicas: the engine that they serve.
pub const ENGINE: &str = "longhornengine";
/// On replicas: their own name.
pub const REPLICA: &str = "longhornreplica";
/// On pods: the instance manager that they are.
pub const INSTANCE_MANAGER: &str = "longhorninstancemanager";

/// Which part of the system an object is.
pub const COMPONENT: &str = "longhorn.io/component";
/// Who made an object.
pub const MANAGED_BY: &str = "longhorn.io/managed-by";
/// The value of [`MANAGED_BY`].
pub const MANAGER: &str = "longhorn-manager";
/// On managed pods and instance managers: their node.
pub const COMPONENT_NODE: &str = "longhorn.io/node";
/// `v1` or `v2`.
pub const DATA_ENGINE: &str = "longhorn.io/data-engine";
/// `aio`: engines and replicas in one.
pub const INSTANCE_MANAGER_TYPE: &str = "longhorn.io/instance-manager-type";
/// A hash of the instance manager's image.
pub const INSTANCE_MANAGER_IMAGE: &str = "longhorn.io/instance-manager-image";
/// On replicas of a volume with a backing image.
pub const BACKING_IMAGE: &str = "longhorn.io/backing-image";
