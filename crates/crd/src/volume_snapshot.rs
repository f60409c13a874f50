//! `snapshot.storage.k8s.io/v1`: snapshots of claims, as Kubernetes knows them. A VolumeSnapshot is to a
//! VolumeSnapshotContent what a claim is to a volume.

use crate::definitions::Column;
use crate::volume::Words;

/// The API group.
pub const GROUP: &str = "snapshot.storage.k8s.io";
/// The version.
pub const VERSION: &str = "v1";
/// Group and version, as objects carry them.
pub const API_VERSION: &str = "snapshot.storage.k8s.io/v1";

resource! {
    /// A wish for a snapshot of a claim.
    VolumeSnapshot: "volumesnapshots", short "vs", of GROUP, VERSION, API_VERSION, k8s_openapi::NamespaceResourceScope {
        /// What is wanted.
        spec: VolumeSnapshotSpec,
        /// What is the case.
        status: VolumeSnapshotStatus,
    } columns &[
        Column { name: "ReadyToUse", kind: "boolean", path: ".status.readyToUse", priority: 0 },
        Column::text("SourcePVC", ".spec.source.persistentVolumeClaimName"),
        Column::text("SourceSnapshotContent", ".spec.source.volumeSnapshotContentName"),
        Column::text("RestoreSize", ".status.restoreSize"),
        Column::text("SnapshotClass", ".spec.volumeSnapshotClassName"),
        Column::text("SnapshotContent", ".status.boundVolumeSnapshotContentName"),
        Column { name: "CreationTime", kind: "date", path: ".status.creationTime", priority: 0 },
        Column::AGE,
    ]
}

resource! {
    /// A snapshot as its driver knows it.
    VolumeSnapshotContent: "volumesnapshotcontents", short "vsc",
    of GROUP, VERSION, API_VERSION, k8s_openapi::ClusterResourceScope {
        /// What is wanted.
        spec: VolumeSnapshotContentSpec,
        /// What is the case.
        status: VolumeSnapshotContentStatus,
    } columns &[
        Column { name: "ReadyToUse", kind: "boolean", path: ".status.readyToUse", priority: 0 },
        Column { name: "RestoreSize", kind: "integer", path: ".status.restoreSize", priority: 0 },
        Column::text("DeletionPolicy", ".spec.deletionPolicy"),
        Column::text("Driver", ".spec.driver"),
        Column::text("VolumeSnapshotClass", ".spec.volumeSnapshotClassName"),
        Column::text("VolumeSnapshot", ".spec.volumeSnapshotRef.name"),
        Column::text("VolumeSnapshotNamespace", ".spec.volumeSnapshotRef.namespace"),
        Column::AGE,
    ]
}

resource! {
    /// How snapshots of a driver are made.
    VolumeSnapshotClass: "volumesnapshotclasses", short "vsclass",
    of GROUP, VERSION, API_VERSION, k8s_openapi::ClusterResourceScope {
        /// The driver.
        driver: String,
        /// Delete or Retain: what becomes of the snapshot when its object is deleted.
        deletion_policy: String = "deletionPolicy",
        /// The driver's own.
        parameters: Words,
    } columns &[
        Column::text("Driver", ".driver"),
        Column::text("DeletionPolicy", ".deletionPolicy"),
        Column::AGE,
    ]
}

object! {
    /// What is wanted.
    VolumeSnapshotSpec {
        /// Where it comes from; cannot be changed.
        source: VolumeSnapshotSource,
        /// The class; without one, the default class of the driver.
        volume_snapshot_class_name: Option<String>,
    }
}

object! {
    /// Where a snapshot comes from: one of both.
    VolumeSnapshotSource {
        /// A claim, in the same namespace.
        persistent_volume_claim_name: Option<String>,
        /// A content that exists.
        volume_snapshot_content_name: Option<String>,
    }
}

object! {
    /// What is the case.
    VolumeSnapshotStatus {
        /// The content that stands for it.
        bound_volume_snapshot_content_name: Option<String>,
        /// When the driver made it.
        creation_time: Option<String>,
        /// It can be used.
        ready_to_use: Option<bool>,
        /// How large a volume made from it has to be, as a quantity.
        restore_size: Option<String>,
        /// What went wrong last.
        error: Option<SnapshotError>,
    }
}

object! {
    /// What went wrong.
    SnapshotError {
        /// When.
        time: Option<String>,
        /// What.
        message: Option<String>,
    }
}

object! {
    /// What is wanted.
    VolumeSnapshotContentSpec {
        /// The snapshot that it stands for.
        volume_snapshot_ref: SnapshotReference,
        /// Delete or Retain.
        deletion_policy: String,
        /// The driver.
        driver: String,
        /// The class that it was made by.
        volume_snapshot_class_name: Option<String>,
        /// Where it comes from; cannot be changed.
        source: VolumeSnapshotContentSource,
        /// Filesystem or Block, of the volume.
        source_volume_mode: Option<String>,
    }
}

object! {
    /// Where a content comes from: one of both.
    VolumeSnapshotContentSource {
        /// The driver's id of the volume.
        volume_handle: Option<String>,
        /// The driver's id of a snapshot that exists.
        snapshot_handle: Option<String>,
    }
}

object! {
    /// A VolumeSnapshot.
    SnapshotReference {
        /// Its kind.
        kind: Option<String>,
        /// Its group and version.
        api_version: Option<String>,
        /// Its namespace.
        namespace: Option<String>,
        /// Its name.
        name: Option<String>,
        /// Its uid; absent until it was seen.
        uid: Option<String>,
        /// Its version when it was written down.
        resource_version: Option<String>,
    }
}

object! {
    /// What is the case.
    VolumeSnapshotContentStatus {
        /// The driver's id.
        snapshot_handle: Option<String>,
        /// When the driver made it, in nanoseconds since 1970.
        creation_time: Option<i64>,
        /// How large a volume made from it has to be, in bytes.
        restore_size: Option<i64>,
        /// It can be used.
        ready_to_use: Option<bool>,
        /// What went wrong last.
        error: Option<SnapshotError>,
    }
}
