//! The CSI driver `driver.longhorn.io`: volumes of this system for Kubernetes and everybody else who speaks CSI.
//!
//! The controller half writes wishes into Longhorn's objects (a Volume, an attachment ticket, a size) and waits, woken by a
//! watch, until they say that it is done. The node half finds the device that the node's engine shows, and makes file
//! systems and mounts. No call depends on an earlier one having been finished: each looks at what is there and does what is
//! missing, so that it can be repeated, interrupted and answered by another process.

mod busy;
mod capability;
mod controller;
mod identity;
mod node;
mod parameters;
mod view;

use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use self::busy::Busy;
pub use self::parameters::{ParameterError, volume_id};
use self::view::View;
use crate::proto::controller_server::ControllerServer;
use crate::proto::identity_server::IdentityServer;
use crate::proto::node_server::NodeServer;
use crate::provisioner::capacity::News;
use crate::serve::{ServeError, serve};

/// The driver's name.
pub use tether_crd::names::CSI_DRIVER as NAME;

/// How long a call waits for what it asked for. Longhorn's sidecars give up after 110 s; this leaves room for the answer.
const PATIENCE: Duration = Duration::from_secs(90);

/// What a process of the driver does.
#[derive(Clone, Debug)]
pub struct Options {
    /// Serve the controller half.
    pub controller: bool,
    /// Serve the node half, as this node.
    pub node: Option<String>,
}

/// The driver.
#[derive(Clone)]
pub struct Driver(Arc<Inner>);

struct Inner {
    client: Client,
    options: Options,
    view: View,
    busy: Busy,
}

impl Driver {
    /// Begins to watch. The driver is ready when everything was listed.
    pub fn new(client: Client, options: Options, stop: &CancellationToken) -> Self {
        let view = View::start(&client, &options, stop);
        Self(Arc::new(Inner { client, options, view, busy: Busy::default() }))
    }

    /// Tells when room for volumes comes or goes: a provisioner in the same process need not ask.
    pub fn room_news(&self) -> Arc<News> {
        self.0.view.room_news()
    }

    /// Serves on a socket until `stop`.
    pub async fn serve(&self, listener: UnixListener, stop: CancellationToken) -> Result<(), ServeError> {
        let controller = self.0.options.controller.then(|| ControllerServer::new(self.clone()));
        let node = self.0.options.node.is_some().then(|| NodeServer::new(self.clone()));
        let router = Server::builder()
            .add_service(IdentityServer::new(self.clone()))
            .add_optional_service(controller)
            .add_optional_service(node);
        serve(router, listener, stop.cancelled_owned()).await
    }
}
