//! What an engine is told, what it may be asked, and what it says of itself.

use std::collections::BTreeMap;

use serde::Serialize;
use tether_replication::engine::Limits;
use tether_replication::ids::{Holder, MemberId, VolumeId};
use tether_replication::rules::Rules;

use crate::auth::Key;
use crate::frontend::nbd::listen::Security;
use crate::host::Address;

/// Where a replica is. Its name is learned from itself if it is not given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaAddress {
    pub name: Option<MemberId>,
    pub address: Address,
}

/// Where NBD is served, and how.
#[derive(Clone, Debug)]
pub struct Nbd {
    pub address: Address,
    pub security: Security,
}

/// What an engine is told at birth.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name of the volume.
    pub volume: String,
    pub volume_id: VolumeId,
    /// Uid of this engine process.
    pub holder: Holder,
    pub size: u64,
    pub replicas: Vec<ReplicaAddress>,
    pub key: Key,
    pub nbd: Vec<Nbd>,
    pub limits: Limits,
    /// Every engine that ever held the volume is known to be stopped.
    pub older_stopped: bool,
    /// Where standbys of this engine read through it.
    pub peer_listen: Option<Address>,
    /// Become standby instead of taking the volume.
    pub standby: bool,
    /// Of a standby: where the engine that holds the volume lets standbys read.
    pub source: Option<Address>,
    /// [`Command::Line`] will come: clients wait for it, so that those who replay are told the truth.
    pub line: bool,
    /// All of them, but in a simulation of what each is for.
    pub rules: Rules,
}

/// What other threads may ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Where NBD is served; answered when it is.
    Listening,
    /// Answered when reads and writes are served, or never will be.
    Serving,
    Info,
    /// As `Info`, answered when there is a version newer than `seen`.
    Watch {
        seen: u64,
    },
    SnapshotCreate {
        name: String,
        created: String,
        labels: BTreeMap<String, String>,
    },
    SnapshotList,
    SnapshotRevert {
        name: String,
        created: String,
    },
    SnapshotDelete {
        name: String,
    },
    SnapshotPurge,
    Expand {
        size: u64,
    },
    AddReplica {
        name: Option<String>,
        address: Address,
    },
    RemoveReplica {
        name: String,
    },
    /// Bytes per second; 0 is no limit.
    ResyncLimit {
        bytes_per_second: u64,
    },
    /// Compare what replicas hold, from the start of the volume, at so many bytes per second; 0 stops.
    Scrub {
        bytes_per_second: u64,
    },
    Flush,
    Promote,
    /// Of a standby: it gives up and ends. Of the engine that holds the volume: this standby, or whoever is standby, may
    /// not be promoted any more.
    Rollback {
        standby: Option<Holder>,
    },
    /// Of a standby: the source is here now.
    Source {
        address: Address,
    },
    /// An operator accepts to serve from a doubtful replica.
    AcceptLoss {
        name: String,
    },
    /// How this engine stands in the line of engines at its place; see [`crate::line`].
    Line {
        name: Option<String>,
        older_stopped: bool,
    },
    /// Serve this kernel device.
    ServeDevice(super::DeviceFd),
    /// The kernel device is at this path; or why there is none.
    DeviceIs(Result<String, String>),
    /// Detaches the device, then ends as [`Command::Stop`]. Refused while the device is used.
    Close,
    /// Ends in order: finishes what it has, flushes, releases the volume. The device waits for the next engine.
    Stop,
    /// Ends as if it were killed: nothing is waited for, nothing is released.
    Abandon,
    /// A defect, on purpose: what becomes of the others.
    #[doc(hidden)]
    Panic,
}

/// What they get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Listening(Result<Vec<Address>, String>),
    Info(Box<Info>),
    /// JSON, in the store's words.
    Snapshots(String),
    Done,
    /// What went wrong and why.
    Failed(String),
}

/// An engine as people see it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Info {
    pub volume: String,
    pub size: u64,
    pub phase: String,
    pub holder: String,
    pub epoch: u64,
    pub generation: u64,
    pub in_sync: Vec<String>,
    pub standby: Option<String>,
    /// Why I/O does not go on, if it does not.
    pub suspended: Option<String>,
    pub replicas: Vec<MemberInfo>,
    pub nbd: Vec<String>,
    /// For NBD clients that replay after a reconnect: the export `VOLUME@LINE` is there while the line is unbroken.
    pub line: Option<String>,
    /// Where standbys read through it.
    pub peer: Option<String>,
    pub clients: usize,
    pub requests_in_flight: usize,
    /// How far the last comparison of replicas is.
    pub scrub: Option<Scrub>,
    /// Path of the kernel device, once it is attached.
    pub device: Option<String>,
    /// Why there is no kernel device.
    pub device_error: Option<String>,
    /// What happened lately, oldest first.
    pub events: Vec<String>,
    /// Counts changes of all this, for [`Command::Watch`].
    #[serde(skip)]
    pub version: u64,
}

/// A replica as the engine sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberInfo {
    pub name: String,
    pub address: String,
    pub in_sync: bool,
    pub connected: bool,
    pub resync: Option<Progress>,
    pub last_error: Option<String>,
}

/// How far a comparison of replicas is, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Scrub {
    pub done: u64,
    pub total: u64,
    pub different: u64,
}

/// How far a resync is, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Progress {
    pub done: u64,
    pub total: u64,
    pub copied: u64,
}
