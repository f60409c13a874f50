//! Help for tests: harnesses that several crates use.

pub mod cluster;
pub mod disk;
pub mod kill;
pub mod load;
pub mod nbd;
pub mod proxy;

pub use cluster::Cluster;
