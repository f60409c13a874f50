//! The node side: what a kubelet does for Tether, on a node of the embedded cluster.
//!
//! One process per node. It registers the node and keeps it alive ([`node`], [`heartbeat`]), runs the pods that are
//! bound to it ([`pods`]) as processes of the host ([`container`]) with their volumes ([`volumes`]), and acts inside the
//! node's own mount namespace ([`namespace`]). All of that outlives it: killing the agent unmounts nothing and ends no
//! container.

pub mod container;
pub mod host;
pub mod loops;
pub mod namespace;
pub mod records;
pub mod server;
pub mod storage;

mod heartbeat;
mod node;
mod pods;
mod volumes;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use kube::Client;
use tokio_util::sync::CancellationToken;

/// Who this node is.
#[derive(Clone, Debug)]
pub struct Options {
    pub name: String,
    /// Where the node's services listen.
    pub address: IpAddr,
    pub zone: String,
    pub region: String,
    /// The node's directory; the free space of its file system is the node's.
    pub data_dir: PathBuf,
    /// How long the node counts as alive after it was last heard of.
    pub lease_duration: Duration,
    /// As `kubectl get nodes` shows it.
    pub version: String,
    /// Why kernel devices and mounts cannot be used here, if they cannot.
    pub mounts_unavailable: Option<String>,
    /// Added to the environment of every container.
    pub container_env: Vec<(String, String)>,
    /// Added to the environment of containers that act on the node: where its socket, its disks and its credentials are.
    pub host_env: Vec<(String, String)>,
    /// The node's storage; without it, the node has none.
    pub storage: Option<storage::Layout>,
    /// Where and as whom the node's HTTP API is served; without it there are no logs and no commands.
    pub api: Option<(u16, server::Identity)>,
    /// What whoever restarts this process knows of its past.
    pub restarts: Option<Restarts>,
}

/// How often this agent was restarted, and how its predecessor ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restarts {
    pub count: u32,
    pub last_exit: Option<String>,
}

/// Why the agent gave up.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("cannot read facts of this host: {0}")]
    Host(#[from] host::HostError),
    #[error("cannot read what is known of volumes on this node: {0}")]
    Volumes(std::io::Error),
    #[error("cannot serve the CSI driver: {0}")]
    Driver(std::io::Error),
    #[error(transparent)]
    Api(#[from] server::ServeError),
}

/// Runs the node until `cancel`. `ready` is called once, when the API server has acknowledged a Ready node.
pub async fn run(
    client: Client,
    options: Options,
    ready: impl FnOnce() + Send,
    cancel: CancellationToken,
) -> Result<(), AgentError> {
    let facts = host::Facts::read(&options.data_dir)?;
    let listener = match &options.api {
        Some((port, identity)) => Some(server::listen((options.address, *port).into(), identity).await?),
        None => None,
    };
    let node = node::Description::new(&options, &facts, listener.as_ref().map_or(0, |listener| listener.port));
    let registered = tokio::select! {
        registered = node::register(&client, &node) => registered,
        () = cancel.cancelled() => return Ok(()),
    };
    tracing::info!(node = options.name, "registered");
    // Whatever gives up takes the others along: whoever restarts this process gets a whole one.
    let driver = async {
        let _ended = cancel.clone().drop_guard();
        let served = volumes::serve_driver(client.clone(), &options.name, &options.data_dir, &cancel).await;
        served.map_err(AgentError::Driver)
    };
    let pods = async {
        let _ended = cancel.clone().drop_guard();
        Box::pin(pods::run(client.clone(), &options, listener, &cancel)).await
    };
    let ((), (), pods, (), driver) = tokio::join!(
        heartbeat::keep_lease(&client, &options, registered, &cancel),
        heartbeat::keep_status(&client, &node, &options.data_dir, ready, &cancel),
        pods,
        storage::run(client.clone(), &options, &cancel),
        driver,
    );
    pods.and(driver)
}
