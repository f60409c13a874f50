//! The controllers against the embedded API server, in process, with a clock that tests move.

// Test code fails by panicking; the helpers outside of #[test] functions do too.
#![allow(clippy::unwrap_used)]

mod agents;
mod attaching;
mod binding;
mod garbage;
mod harness;
mod leader;
mod longhorn_volumes;
mod namespaces;
mod nodes;
mod rest;
mod scheduling;
mod tickets;
