//! Help for tests: harnesses that several crates use.

pub mod kill;
