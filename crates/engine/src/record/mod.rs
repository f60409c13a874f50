//! Where the record is kept when there is no cluster: a file, replaced as a whole under a lock.
//!
//! All of it blocks, and a lock may be held by a process that was stopped: so it runs on a thread of its own, and
//! an engine that waits for it suspends what needs the record and serves the rest.

mod file;
mod json;
mod keeper;

pub use file::{RecordFile, RecordFileError};
pub use keeper::{Keeper, NoWitness, RecordCall, RecordReturn, Witness};
