//! Engines and replicas as threads of this process: one event loop each, none of which takes another down.

mod engine;
mod replica;
mod thread;

pub use engine::{EngineInstance, EngineOptions, StartEngineError};
pub use replica::{OpenReplicaError, ReplicaInstance, ReplicaOptions, boot_id, open_replica};
pub use thread::{AskFailed, Ended, Instance};
