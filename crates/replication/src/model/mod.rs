//! An exhaustive model over the real machines: small worlds, every order of events, every fault that a scope allows.
//!
//! - [`monitor`]: which histories of one block are legal (invariants I1 to I3);
//! - [`world`]: engines, replicas, connections, disks and the record, as one value;
//! - [`action`]: what can happen next;
//! - [`search`]: breadth first, shortest counterexamples;
//! - [`scopes`]: which worlds are searched; [`walks`]: random ways through larger ones;
//! - [`mutants`]: the rules removed one at a time.

mod action;
mod monitor;
mod mutants;
mod scopes;
mod search;
mod stories;
mod tests;
mod walks;
mod world;
