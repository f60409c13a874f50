//! The control API: gRPC on a unix socket, or over TCP with certificates on both sides.
//!
//! The same interface for a process that runs one engine or replica and for an instance manager: what a request is
//! about is found by name, and the name may be left out where only one runs.

mod client;
mod convert;
mod instances;
mod manager;
mod registry;
mod serve;
mod service;
mod shown;
mod watch;

/// What `proto/tether/engine/v1/control.proto` describes.
#[allow(clippy::all, clippy::pedantic, missing_docs, reason = "generated")]
pub mod proto {
    tonic::include_proto!("tether.engine.v1");
}

pub use client::{ConnectError, Protection, TlsFiles, connect};
pub use manager::Manager;
pub use registry::{Entry, Registry, Running};
pub use serve::{Bound, ServeError, bind, serve};
pub use service::{Service, volume_id};

/// Version of the interface, told by `List`.
pub const API_VERSION: u32 = 1;
