//! Help for tests: harnesses that several crates use.

pub mod cluster;
pub mod kill;

pub use cluster::Cluster;
