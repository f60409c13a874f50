//! Whole volumes in one thread: the real engine, replica and store code on a network and disks that fail on purpose.
//!
//! ```text
//!   clients ─ NBD ─► EngineServer ─ data port ─► ReplicaServer ─► store ─► FakeDisk
//!      │                 │                            ▲
//!      │                 └─► record service           └─ connections: delay, stall, cut, reset
//!      └─► oracle: one history per sector
//! ```
//!
//! The machines are those of production, unchanged; what they rest on (sockets, timers, files, clocks, the record) is
//! made of values here, moved by one queue in virtual time and one generator. A seed is a run, and a run is a log.

pub mod client;
pub mod cluster;
pub mod faults;
pub mod history;
pub mod log;
pub mod net;
pub mod oracle;
pub mod process;
pub mod queue;
pub mod record;
pub mod run;
pub mod world;
