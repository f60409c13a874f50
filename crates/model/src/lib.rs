//! The vocabulary: what the rest of Tether talks about, as plain values.
//!
//! This crate decides nothing and knows nobody. A decision (`tether-plan`) takes values and returns changes
//! together with a [`report::Report`]; a shell applies the changes and publishes the report; a person reads it
//! as a condition, an event, a CSI error or the output of `tether explain`. What they all share is here:
//!
//! - [`reason::Reason`]: why, as a stable code;
//! - [`report::Report`]: every rule that was looked at, and what came of it.

pub mod reason;
pub mod report;
