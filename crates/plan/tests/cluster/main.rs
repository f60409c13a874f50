//! The decisions that Kubernetes brings to a cluster, by golden plans and by properties.

// Test code fails by panicking; the helpers outside of #[test] functions do too.
#![allow(clippy::unwrap_used)]

mod attach_detach;
mod attacher;
mod binding;
mod build;
mod capacity;
mod eviction;
mod garbage;
mod namespace;
mod node_lifecycle;
mod pod_gc;
mod provisioner;
mod schedule;
