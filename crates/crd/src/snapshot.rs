//! Snapshot: a volume as it was at one moment.

use std::collections::BTreeMap;

use crate::definitions::Column;
use crate::volume::Words;

resource! {
    /// A volume as it was at one moment.
    Snapshot: "snapshots", short "lhsnap" {
        /// What is wanted.
        spec: SnapshotSpec,
        /// What is the case.
        status: SnapshotStatus,
    } columns &[
        Column::text("Volume", ".spec.volume"),
        Column::text("CreationTime", ".status.creationTime"),
        Column { name: "ReadyToUse", kind: "boolean", path: ".status.readyToUse", priority: 0 },
        Column { name: "RestoreSize", kind: "integer", path: ".status.restoreSize", priority: 0 },
        Column { name: "Size", kind: "integer", path: ".status.size", priority: 0 },
        Column::AGE,
    ]
}

object! {
    /// What is wanted of a snapshot.
    SnapshotSpec {
        /// The volume; cannot be changed.
        volume: String,
        /// It is to be made; otherwise the object tells of one that exists.
        create_snapshot: bool,
        /// Labels that are kept with the data.
        labels: Words,
    }
}

object! {
    /// What is the case with a snapshot.
    SnapshotStatus {
        /// The snapshot that it is based on.
        parent: String,
        /// What is based on it.
        children: BTreeMap<String, bool>,
        /// It is marked to go.
        mark_removed: bool,
        /// A person, not the system, asked for it.
        user_created: bool,
        /// When it was asked for.
        requested_time: String,
        /// When it was made.
        creation_time: String,
        /// Bytes that it takes.
        size: i64,
        /// Labels that are kept with the data.
        labels: Words,
        /// The node whose manager looks after it; kept for clients that read it.
        owner_id: String = "ownerID",
        /// What went wrong.
        error: String,
        /// Bytes that a volume made from it needs.
        restore_size: i64,
        /// It can be used.
        ready_to_use: bool,
        /// Of its data.
        checksum: String,
    }
}
