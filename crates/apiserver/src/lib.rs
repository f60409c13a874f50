//! An embedded Kubernetes API server.

pub mod auth;
pub mod pki;
pub mod store;
