//! The manager's REST API, `/v1`: what Longhorn's clients speak, over the same objects that everybody else uses.
//!
//! ```text
//!   Python client, CSI plugin, page ──HTTP──► serve ─► Manager ─► route ─► resources, actions
//!                                                         │                    │
//!                                                     who asks?           kube::Client, as whoever asks
//! ```
//!
//! The server has no rights of its own. A request carries the caller's token, as a bearer token or as the password of basic
//! authentication, and every question to the Kubernetes API is asked with it: what somebody may do here is what they may do there.
//!
//! Clients find their way by schemas and links, so that what is not in a schema does not exist for them: only what is provided is named.

mod actions;
mod clients;
mod error;
mod manager;
mod metrics;
mod resources;
mod route;
mod schemas;
mod serve;

pub use clients::{Clients, TokenClients};
pub use manager::Manager;
pub use metrics::{MetricsError, serve_metrics};
pub use serve::{ServeError, serve};
