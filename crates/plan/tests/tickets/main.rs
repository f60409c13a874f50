//! Attachment tickets: Longhorn's scenarios as tables, and what holds whatever the tickets are.

// Test code fails by panicking; the helpers outside of #[test] functions do too.
#![allow(clippy::unwrap_used)]

mod copies;
mod goldens;
mod migration;
mod properties;
mod waiting;
mod world;
