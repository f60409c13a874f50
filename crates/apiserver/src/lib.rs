//! An embedded Kubernetes API server: the real protocol, one process, one file.
//!
//! ```text
//!   kubectl, client-go, kube-rs ──TLS──► serve ─┐
//!   kube::Client in process ────────────────────┤
//!                                               ▼
//!   server ─► request ─► auth ─► handlers ─► admission ─► store (memory + redb)
//!                                   │
//!                                   └─ resource: one path for built-in kinds and custom resources
//! ```
//!
//! What an object may look like is decided in `tether-machinery`; here are the parts with a clock, a disk and
//! sockets. [`Server`] answers requests, whoever carries them; [`run`] puts one together on a data directory.

pub mod admission;
mod aggregation;
pub mod auth;
mod body;
mod bootstrap;
mod custom;
mod definitions;
mod discovery;
mod ephemeral;
mod expiry;
#[doc(hidden)]
pub mod handlers;
mod kubelet;
pub mod metrics;
mod object;
mod openapi;
mod options;
pub mod pki;
mod random;
mod registry;
mod request;
mod resource;
mod response;
mod run;
mod security;
pub mod serve;
mod server;
pub mod store;
mod stored;

pub use bootstrap::{BootstrapError, bootstrap, install};
pub use discovery::git_version;
pub use response::Body;
pub use run::{Options, RunError, run};
pub use security::Security;
pub use server::{Clock, Server, StoreObjects};
