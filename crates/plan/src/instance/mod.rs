//! What an agent does for the engines and replicas of its node, and what it says of them.
//!
//! An object is a wish (`spec.desireState`); a process in the node's instance manager is the fact. The agent makes the
//! fact follow the wish, and the status follow the fact.
//!
//! ```text
//!              wanted, not there: start              serves
//!   stopped ──────────────────────────► starting ──────────────► running
//!      ▲                                    │                       │ ended by itself, or with its manager
//!      │ known to be gone                   └───────► error ◄───────┘
//!      └──────── stopping ◄── not wanted: stop ───────┘
//! ```
//!
//! A process is called stopped only when it is known to be: the instance manager says so, or is itself known not to
//! run. While nobody answers, what was running is unknown.

mod engine;
mod fill;
mod replica;
mod snapshots;
mod told;

use std::collections::BTreeMap;

use tether_crd::engine::InstanceState;

pub use self::engine::{EngineChange, EngineObserved, EngineProcess, Member, decide_engine};
pub use self::replica::{ReplicaChange, ReplicaObserved, decide_replica};
pub use self::snapshots::{SnapshotChange, is_purging};
pub(crate) use self::told::because;

/// What the agent knows of the instance manager of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manager {
    /// It told everything that runs in it.
    Known,
    /// No process answers at its socket: it does not run, and nothing runs in it.
    Down,
    /// It was not heard yet, or has something to tell that was not heard.
    Unknown,
}

/// A process in the instance manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Of this run; an engine's is the holder in the record.
    pub uid: String,
    pub state: ProcessState,
    /// Why it does not serve, or how it ended.
    pub reason: String,
    pub ip: String,
    pub port: u16,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProcessState {
    #[default]
    Starting,
    Running,
    Stopped,
    Error,
}

/// What is the case, seen from the object.
fn observed_state(manager: Manager, process: Option<&Process>, started: bool, old: InstanceState) -> InstanceState {
    match (manager, process) {
        (Manager::Unknown, _) => {
            if started {
                InstanceState::Unknown
            } else {
                old
            }
        }
        (Manager::Down, _) | (Manager::Known, None) => {
            if started {
                InstanceState::Error
            } else {
                InstanceState::Stopped
            }
        }
        (Manager::Known, Some(process)) => match process.state {
            ProcessState::Starting => InstanceState::Starting,
            ProcessState::Running => InstanceState::Running,
            ProcessState::Stopped if !started => InstanceState::Stopped,
            ProcessState::Stopped | ProcessState::Error => InstanceState::Error,
        },
    }
}

/// Members and addresses by replica name, as the specification of an engine has them.
pub type Addresses = BTreeMap<String, String>;
