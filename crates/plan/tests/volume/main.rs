//! The life of a volume: Longhorn's unit-test scenarios as tables, and whole lives with agents that do what they are told.

// Test code fails by panicking; the helpers outside of #[test] functions do too.
#![allow(clippy::unwrap_used)]

mod build;
mod explain;
mod golden;
mod lives;
mod migration;
mod moving;
mod stories;
mod world;
