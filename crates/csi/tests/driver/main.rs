//! The CSI driver over the real controllers of tickets and volumes; only the node agents pretend.

// Test code fails by panicking; the helpers outside of #[test] functions do too.
#![allow(clippy::unwrap_used)]

mod capacity;
mod controller;
mod lab;
mod node;
mod path;
mod snapshots;
