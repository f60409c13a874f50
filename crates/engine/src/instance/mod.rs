//! Engines and replicas as threads of this process: one event loop each, none of which takes another down.

mod device;
mod engine;
mod replica;
mod thread;
mod witness;

pub use device::default_place;
pub use engine::{EngineInstance, EngineOptions, StartEngineError};
pub use replica::{OpenReplicaError, ReplicaInstance, ReplicaOptions, boot_id, open_replica};
pub use thread::{AskFailed, Ended, Instance};
