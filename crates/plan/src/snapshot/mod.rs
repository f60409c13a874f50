//! Snapshot objects: what is asked for is made at the volume's engine, what the engine has is shown as objects.
//!
//! ```text
//!   wanted, or deleted        engine serves             engine lists it, or does not any more
//!   ──────► ticket ──► volume attached ──► handed to the engine's node ──► status, ticket gone
//!                                          (label `longhornnode`)          finalizer gone
//! ```
//!
//! All snapshots of a volume are decided about at once. A node carries out what is labelled with its name and nothing
//! else: who follows only its own label needs no copy of all snapshots of a cluster. What the engine lists is the truth;
//! an object that it does not know was lost, and one that nobody asked for is shown by an object that is made for it.

mod objects;
#[cfg(test)]
mod tests;
mod wishes;

use jiff::Timestamp;
use tether_crd::attachment::Ticket;
use tether_crd::engine::{InstanceState, SnapshotInfo};
use tether_crd::snapshot::SnapshotStatus;
use tether_crd::{Engine, Snapshot, Volume, VolumeAttachment};
use tether_model::report::Rule;

use crate::Plan;
use crate::object::{Target, is_deleting};

pub use self::objects::owner;
pub(crate) use self::wishes::reverts;
pub use self::wishes::{REVERT_REQUESTED, revert_request};

/// The engine's name for what is being written to; it is no snapshot.
pub const VOLUME_HEAD: &str = "volume-head";

const OBJECT: Rule = Rule("snapshot-object");
const TICKET: Rule = Rule("snapshot-ticket");
const HAND_OVER: Rule = Rule("snapshot-hand-over");
const STATUS: Rule = Rule("snapshot-status");
const REMOVAL: Rule = Rule("snapshot-removal");
const MIRROR: Rule = Rule("snapshot-mirror");

/// What the decision looks at: a volume and its snapshots.
#[derive(Clone, Debug)]
pub struct Observed<'a> {
    /// None: it does not exist.
    pub volume: Option<&'a Volume>,
    pub attachment: Option<&'a VolumeAttachment>,
    /// Those of the volume.
    pub engines: Vec<&'a Engine>,
    pub snapshots: Vec<&'a Snapshot>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Show a snapshot that the engine has.
    Create(Box<Snapshot>),
    /// Finalizer, label of the volume and owner, as far as they are missing.
    Adopt {
        snapshot: Target,
        volume: String,
        volume_uid: String,
    },
    /// Put a ticket among the volume's, or take it away.
    SetTicket {
        attachment: Target,
        id: String,
        ticket: Option<Box<Ticket>>,
    },
    /// The node that is to carry it out; none: there is nothing to be done any more.
    HandOver {
        snapshot: Target,
        node: Option<String>,
    },
    SetStatus {
        snapshot: Target,
        status: Box<SnapshotStatus>,
    },
    /// Nothing of it is left.
    RemoveFinalizer {
        snapshot: Target,
    },
}

/// Decides about all snapshots of a volume.
pub fn decide(observed: &Observed<'_>, now: Timestamp) -> Plan<Change> {
    let mut plan = Plan::default();
    let look = Look::new(observed, now);
    for snapshot in &observed.snapshots {
        if is_deleting(*snapshot) {
            wishes::removal(&mut plan, &look, snapshot);
        } else {
            objects::adopt(&mut plan, &look, snapshot);
            wishes::creation(&mut plan, &look, snapshot);
        }
    }
    objects::mirror(&mut plan, &look);
    plan
}

/// A volume as its snapshots see it.
struct Look<'a> {
    volume: Option<&'a Volume>,
    attachment: Option<&'a VolumeAttachment>,
    /// The one that counts.
    engine: Option<&'a Engine>,
    is_migrating: bool,
    /// It is being made as a copy: a snapshot of it would show something that never was.
    is_copied_into: bool,
    snapshots: &'a [&'a Snapshot],
    now: Timestamp,
}

impl<'a> Look<'a> {
    fn new(observed: &'a Observed<'a>, now: Timestamp) -> Self {
        let alive = observed.engines.iter().copied().filter(|engine| !is_deleting(*engine));
        let engine = alive.clone().find(|engine| engine.spec.active).or_else(|| alive.clone().next());
        Self {
            // What is going takes its snapshots with it.
            volume: observed.volume.filter(|volume| !is_deleting(*volume)),
            attachment: observed.attachment.filter(|attachment| !is_deleting(*attachment)),
            engine,
            is_migrating: observed.volume.is_some_and(Volume::is_migrating) || alive.count() > 1,
            is_copied_into: observed.volume.is_some_and(crate::clone::is_pending),
            snapshots: &observed.snapshots,
            now,
        }
    }

    /// What the engine has of a snapshot, as it last said.
    fn info(&self, snapshot: &str) -> Option<&'a SnapshotInfo> {
        self.engine?.status.snapshots.get(snapshot)
    }

    /// Whether the engine has ever said what it has: it then names at least what is being written to.
    fn is_listed(&self) -> bool {
        self.engine.is_some_and(|engine| engine.status.snapshots.contains_key(VOLUME_HEAD))
    }

    /// The node whose engine can carry something out now.
    fn serving_node(&self) -> Option<&'a str> {
        let engine = self.engine.filter(|_| !self.is_migrating && !self.is_copied_into)?;
        let serves = engine.spec.active
            && engine.spec.desire_state == InstanceState::Running
            && engine.is_available_on(&engine.spec.node_id);
        serves.then_some(engine.spec.node_id.as_str())
    }

    /// Where the volume is to be attached for it.
    fn ticket_node(&self) -> Option<&'a str> {
        let volume = self.volume?;
        let nodes = [volume.spec.node_id.as_str(), volume.status.owner_id.as_str()];
        nodes.into_iter().find(|node| !node.is_empty())
    }
}
