//! The data plane's processes: engines and replicas, each one event loop thread over sans-IO machines.
//!
//! ```text
//!   NBD clients ─► frontend ─┐                       ┌─ wire ─ replica server ─ store
//!   kernel device ─► device ─┴─► engine server ──────┼─ wire ─ replica server ─ store
//!                                (replication)       └─ wire ─ replica server ─ store
//!                                      │
//!                                record (file, or the Kubernetes API): compare and swap
//! ```
//!
//! Everything on the data path is a machine: events in, effects out, no clock, no randomness, no
//! descriptor. A host runs the effects: io_uring in production, a seeded simulator in tests.

pub mod auth;
pub mod control;
pub mod device;
pub mod engine_server;
pub mod framing;
pub mod frontend;
pub mod host;
pub mod instance;
pub mod line;
pub mod record;
pub mod replica_server;
pub mod ring;
pub mod unix;
