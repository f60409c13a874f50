//! `tether csi`: the CSI driver, and the loops that Kubernetes would run as sidecars beside it.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::ValueEnum as _;
use kube::Client;
use tether_crd::NAMESPACE;
use tether_csi::connect::{Address, Connection, connect};
use tether_csi::driver::{Driver, Options};
use tether_csi::metrics::Metrics;
use tether_csi::provisioner::capacity::{self, Refresh};
use tether_csi::{attacher, provisioner, resizer, sidecar, snapshotter};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::role::{self, Threads};
use crate::client;
use crate::logging::LogArgs;
use crate::output::Exit;

/// Runs the CSI driver driver.longhorn.io, and what else it takes to use it
#[derive(Debug, clap::Args)]
#[command(
    after_help = "With --controller the process also attaches volumes, makes, grows and deletes them for claims, and makes \
                  snapshots of claims, in place of the sidecars external-attacher, -provisioner, -resizer and -snapshotter and of \
                  the snapshot controller. --without leaves one to the upstream one.\n\n\
                  Examples:\n  tether csi --endpoint unix:///run/csi.sock --controller --kubeconfig ./kubeconfig\n  \
                  tether csi --endpoint unix:///run/csi.sock --node node-1"
)]
#[group(id = "half", required = true, multiple = true, args = ["controller", "node"])]
pub(crate) struct Args {
    /// Socket to serve on: a path, or unix:///path
    #[arg(long, default_value = "/run/csi/socket")]
    endpoint: Address,
    /// Credentials; without it those that a pod is given
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// Serve the controller half
    #[arg(long)]
    controller: bool,
    /// Serve the node half, as this node
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// Leave this to the upstream sidecar
    #[arg(long, value_enum, value_delimiter = ',')]
    without: Vec<Loop>,
    #[command(flatten)]
    logs: LogArgs,
}

/// What runs beside the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Loop {
    Attacher,
    Provisioner,
    Resizer,
    /// Both halves: the snapshot controller's and the sidecar's.
    Snapshotter,
}

impl Loop {
    async fn run(self, driver: Driver, client: Client, connection: Connection, stop: CancellationToken) -> Result<()> {
        let identity = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let (timeout, metrics) = (CALL_TIMEOUT, Metrics::default());
        match self {
            Self::Attacher => {
                let settings = attacher::Settings { timeout, workers: CALLS, ..attacher::Settings::default() };
                attacher::run(client, connection, settings, &metrics, stop).await?;
            }
            Self::Provisioner => {
                let capacity = Some(capacity::Settings {
                    namespace: NAMESPACE.into(),
                    immediate: false,
                    refresh: Refresh::Told(driver.room_news()),
                });
                let default_fs_type = "ext4".to_owned();
                let mut settings = provisioner::Settings { default_fs_type, capacity, ..Default::default() };
                settings.common = sidecar::Settings { timeout, identity, ..settings.common };
                provisioner::run(client, connection, settings, &metrics, stop).await?;
            }
            Self::Resizer => {
                let settings = sidecar::Settings { timeout, identity, ..resizer::defaults() };
                resizer::run(client, connection, settings, &metrics, stop).await?;
            }
            Self::Snapshotter => {
                let settings = sidecar::Settings { timeout, identity, ..snapshotter::defaults() };
                snapshotter::run(client, connection, settings, &metrics, stop).await?;
            }
        }
        Ok(())
    }
}

pub(crate) fn run(args: &Args) -> Result<Exit> {
    role::begin("csi", args.logs)?;
    role::runtime(Threads::One)?.block_on(serve(args))
}

async fn serve(args: &Args) -> Result<Exit> {
    let stop = role::until_signal()?;
    let client = client::from_flag(args.kubeconfig.as_deref(), "tether-csi").await?;
    let path = &args.endpoint.0;
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).with_context(|| format!("--endpoint {}", path.display()))?;
    }
    let listener = tether_engine::unix::listen(path).with_context(|| format!("--endpoint {}", path.display()))?;
    let options = Options { controller: args.controller, node: args.node.clone() };
    let driver = Driver::new(client.clone(), options, &stop);
    let mut tasks: JoinSet<Result<()>> = JoinSet::new();
    let (serving, token) = (driver.clone(), stop.clone());
    tasks.spawn(async move { Ok(serving.serve(listener, token).await?) });
    for each in Loop::value_variants().iter().filter(|each| args.controller && !args.without.contains(each)) {
        let (client, connection, token) = (client.clone(), connect(&args.endpoint).await?, stop.clone());
        tasks.spawn(each.run(driver.clone(), client, connection, token));
    }
    role::ready();
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(Exit::Success)
}

/// Calls of the attacher at a time, attaches and detaches each: they wait for the volume, which costs nothing, and one that takes
/// long must not be in the way of others.
const CALLS: usize = 100;

/// Longer than the driver itself waits for a volume, so that its own words are what is told.
const CALL_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(110);
