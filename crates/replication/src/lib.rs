//! Replication of one volume: who may write it, which replicas hold all of it, and how they stay equal.
//!
//! The protocol without sockets, files, clocks or threads. Two machines take events and return effects:
//! [`engine::Engine`] (one per attached volume) and [`replica::Replica`] (one per replica directory). Whatever
//! hosts them, an io_uring loop, a simulator or a model checker, does what the effects say and reports back.
//!
//! - [`record`]: the record in the API server, and which changes of it are legal;
//! - [`wire`]: what engine and replica say to each other;
//! - [`region`]: the grain of activity logs and missed maps.
//!
//! `docs/replication.md` holds the argument why this is safe.

pub mod engine;
pub mod ids;
pub mod record;
pub mod region;
pub mod replica;
pub mod rules;
pub mod wire;

#[cfg(test)]
mod model;
