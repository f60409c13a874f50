//! An embedded Kubernetes API server.

pub mod admission;
pub mod auth;
pub mod pki;
pub mod store;
