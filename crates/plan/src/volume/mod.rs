//! The life of a volume: from the wish in its spec to engines and replicas, and back.
//!
//! Tickets decide *where* a volume is wanted (`spec.nodeID`); this decides what follows. Replicas and engine are told
//! what to be (their specs), agents carry that out and say what is (their statuses), and the volume's status follows.
//!
//! ```text
//!                     spec.nodeID == ""                     spec.nodeID == A
//!   ┌──────────┐ made ┌───────────┐  all stopped  ┌──────────┐   wanted   ┌───────────┐  engine serves  ┌──────────┐
//!   │ creating ├─────►│ detaching ├──────────────►│ detached ├───────────►│ attaching ├────────────────►│ attached │
//!   └──────────┘      └───────────┘               └──────────┘            └─────┬─────┘                 └────┬─────┘
//!                           ▲                                                   │ not wanted there any more  │
//!                           └───────────────────────────────────────────────────┴────────────────────────────┘
//!   any state, on deletion: deleting
//!
//!   attaching:  replicas run ──► engine's spec gets their addresses ──► engine runs with one replica in RW
//!   detaching:  engine stopped ──► replicas stopped
//! ```
//!
//! [`state`] is this picture as one table. Robustness ([`health`]) is a second, independent dimension: unknown, healthy,
//! degraded, faulted; *faulted* is what makes tickets detach the volume and attach it again.
//!
//! Which replicas may be used is never guessed. The fencing record in the volume's status says which of them hold every
//! acknowledged write; one of these that runs is enough to start, and one that is not among them is never needed.
//!
//! Every rule works on a [`draft::Draft`]: copies of the objects. What differs in the end is written, replicas first,
//! then engines, then the volume's status: a status that was written implies that the specs were.

mod balance;
mod cleanup;
mod create;
mod delete;
mod draft;
mod evict;
mod expand;
mod health;
mod leaving;
mod migration;
mod offline;
mod rebuild;
mod run;
mod salvage;
pub mod settings;
pub mod state;
mod tickets;

use jiff::Timestamp;
use serde_json::Value;
use tether_crd::attachment::Ticket;
use tether_crd::{Engine, Replica, Volume, VolumeAttachment};

use self::draft::Draft;
pub use self::leaving::{Leaving, leaving};
pub use self::run::{REPLICA_START_PATIENCE, REPLICA_STOP_PATIENCE};
pub use self::settings::Settings;
use crate::Plan;
use crate::object::{Target, is_deleting};
use crate::placement::{Hosts, Promised};

/// What the decision looks at.
#[derive(Clone, Debug)]
pub struct Observed<'a> {
    pub volume: &'a Volume,
    pub attachment: Option<&'a VolumeAttachment>,
    /// Those of the volume.
    pub engines: Vec<&'a Engine>,
    /// Those of the volume.
    pub replicas: Vec<&'a Replica>,
    /// Every node.
    pub hosts: &'a Hosts,
    pub promised: &'a Promised,
    pub settings: &'a Settings,
    /// A random number: names of new replicas are made from it.
    pub seed: u64,
}

/// Objects that change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Volume,
    Engine,
    Replica,
    Attachment,
}

/// Which part of an object changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Object,
    Status,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Make the Secret with the key that engine and replicas prove to each other, if there is none.
    CreateKey {
        volume: Target,
    },
    CreateAttachment(Box<VolumeAttachment>),
    CreateReplica(Box<Replica>),
    CreateEngine(Box<Engine>),
    /// Merge `body` into the object.
    Patch {
        kind: Kind,
        part: Part,
        target: Target,
        body: Value,
    },
    /// Put a ticket among the others, or take it away.
    SetTicket {
        attachment: Target,
        id: String,
        ticket: Option<Box<Ticket>>,
    },
    Delete {
        kind: Kind,
        target: Target,
    },
    /// Let a deleted object go.
    RemoveFinalizer {
        kind: Kind,
        target: Target,
    },
}

/// Decides what is to be done for a volume now.
pub fn decide(observed: &Observed<'_>, now: Timestamp) -> Plan<Change> {
    let mut draft = Draft::new(observed, now);
    if is_deleting(observed.volume) {
        delete::delete(&mut draft);
        return draft.into_plan();
    }
    if create::objects(&mut draft) == create::Made::Now {
        create::condition(&mut draft);
        return draft.into_plan();
    }
    migration::decided(&mut draft);
    health::look(&mut draft);
    salvage::salvage(&mut draft);
    expand::expand(&mut draft);
    evict::evict(&mut draft);
    migration::migrate(&mut draft);
    rebuild::rebuild(&mut draft);
    offline::rebuild(&mut draft);
    run::follow(&mut draft);
    cleanup::cleanup(&mut draft);
    create::condition(&mut draft);
    draft.into_plan()
}
