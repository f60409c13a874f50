//! Help for tests: harnesses that several crates use.

pub mod cluster;
pub mod disk;
pub mod kill;
pub mod lab;
pub mod load;
pub mod nbd;
pub mod proxy;

pub use cluster::Cluster;
pub use lab::Lab;
