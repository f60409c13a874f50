//! The Container Storage Interface, from both sides.
//!
//! The [`driver`] serves volumes of this system. Towards drivers: the loops that Kubernetes runs as sidecars beside any CSI driver, the first of them the
//! [`attacher`]. Each is a client of the API server and of one driver's socket; the decisions are in `tether-plan`.

pub mod api;
pub mod attacher;
mod call;
pub mod connect;
pub mod driver;
pub mod fake;
pub mod handshake;
pub mod http;
pub mod lanes;
pub mod metrics;
pub mod mountinfo;
mod precise;
pub mod provisioner;
pub mod resizer;
pub mod serve;
pub mod sidecar;
pub mod snapshotter;

/// What `proto/csi/v1/csi.proto` describes.
#[allow(clippy::all, clippy::pedantic, missing_docs, reason = "generated")]
pub mod proto {
    tonic::include_proto!("csi.v1");
}
