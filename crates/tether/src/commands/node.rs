//! `tether node`: the agent of one node.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use tether_agent::server::Identity;
use tether_agent::storage::Layout;
use tether_agent::{Options, Restarts, namespace};
use tether_engine::device::available;
use tether_engine::device::place::{DEVICES, Place, RUN};

use super::instance_manager;
use super::role::{self, LAST_EXIT_ENV, RESTARTS_ENV, SUPERVISOR_ENV, Threads};
use crate::client;
use crate::cluster::{CLUSTER_ENV, NODE_ENV};
use crate::logging::LogArgs;
use crate::output::Exit;

/// Runs the agent of one node of an embedded cluster
///
/// It registers the node, keeps its lease, and plays the kubelet for pods that are bound to it. Containers that say
/// what to execute run as processes of this host; they go on when the agent ends. No images are pulled.
#[derive(Debug, clap::Args)]
#[command(after_help = "Prints a line `ready` on standard output once the API server has acknowledged the node.\n\n\
                  Example:\n  tether node --name node-1 --kubeconfig ./nodes/node-1/kubeconfig --data-dir ./nodes/node-1")]
pub(crate) struct Args {
    /// Name of the Node object
    #[arg(long)]
    name: String,
    /// Credentials of the node
    #[arg(long)]
    kubeconfig: PathBuf,
    /// Directory of the node
    #[arg(long)]
    data_dir: PathBuf,
    /// Address at which the node's services listen
    #[arg(long, default_value = "127.0.0.1")]
    address: IpAddr,
    /// Value of the label topology.kubernetes.io/zone
    #[arg(long, default_value = "zone-a")]
    zone: String,
    /// Value of the label topology.kubernetes.io/region
    #[arg(long, default_value = "local")]
    region: String,
    /// File that holds the mount namespace to act in; without it, the current one
    #[arg(long)]
    namespace: Option<PathBuf>,
    /// Directory of the processes that keep kernel devices while engines are away; must not outlive a reboot
    #[arg(long, value_name = "DIR", default_value = RUN)]
    device_run: PathBuf,
    /// Certificate and key (one PEM file) with which the node serves logs of containers; without it, it does not
    #[arg(long, value_name = "FILE")]
    serving_certificate: Option<PathBuf>,
    /// Port of that service; 0 takes a free one
    #[arg(long, default_value_t = 0, requires = "serving_certificate")]
    port: u16,
    /// Show volumes by NBD only: no kernel devices
    #[arg(long)]
    no_devices: bool,
    /// How long the node counts as alive without renewing its lease; it renews it four times as often
    #[arg(long, default_value = "40s", value_name = "TIME")]
    lease_duration: jiff::SignedDuration,
    #[arg(long, env = RESTARTS_ENV, hide = true)]
    restarts: Option<u32>,
    #[arg(long, env = LAST_EXIT_ENV, hide = true)]
    last_exit: Option<String>,
    #[command(flatten)]
    logs: LogArgs,
}

pub(crate) fn run(args: Args) -> Result<Exit> {
    role::begin(&args.name, args.logs)?;
    // Entering a namespace loses the working directory.
    let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
    let (kubeconfig, data_dir) = (absolute(args.kubeconfig), absolute(args.data_dir));
    let device_run = absolute(args.device_run);
    if let Some(holder) = &args.namespace {
        namespace::enter(holder)?;
    }
    let devices =
        (!args.no_devices && available().is_ok()).then(|| Place { run: device_run.clone(), dev: DEVICES.into() });
    if args.namespace.is_some() && devices.is_some() {
        // Nodes of one host may have a device of the same name each.
        namespace::make_own(DEVICES.as_ref())?;
    }
    let supervised = std::env::var_os(SUPERVISOR_ENV).is_some();
    let restarts = Restarts { count: args.restarts.unwrap_or_default(), last_exit: args.last_exit };
    let manager = data_dir.join("manager");
    std::fs::create_dir_all(&manager)?;
    let socket = manager.join("control.sock");
    let text = |path: &std::path::Path| path.display().to_string();
    let api = args.serving_certificate.map(|path| identity(&path, &kubeconfig)).transpose()?;
    let options = Options {
        name: args.name,
        address: args.address,
        zone: args.zone,
        region: args.region,
        host_env: vec![
            (instance_manager::LISTEN_ENV.to_owned(), format!("unix:{}", socket.display())),
            (instance_manager::DATA_DIR_ENV.to_owned(), text(&manager)),
            (instance_manager::DEVICE_RUN_ENV.to_owned(), text(&device_run)),
            (instance_manager::KUBECONFIG_ENV.to_owned(), text(&kubeconfig)),
        ],
        storage: Some(Layout { socket, default_disk: data_dir.join("disk"), devices }),
        data_dir,
        lease_duration: args.lease_duration.try_into().context("--lease-duration: must not be below zero")?,
        version: tether_apiserver::git_version(),
        mounts_unavailable: namespace::unavailable(),
        // Containers outlive this process; by its mark a later `tether up` finds them.
        container_env: [CLUSTER_ENV, NODE_ENV]
            .into_iter()
            .filter_map(|name| Some((name.to_owned(), std::env::var(name).ok()?)))
            .collect(),
        api: api.map(|identity| (args.port, identity)),
        restarts: supervised.then_some(restarts),
    };
    role::runtime(Threads::One)?.block_on(async {
        let cancel = role::until_signal()?;
        let client = client::from_file(&kubeconfig, "tether-node").await?;
        Box::pin(tether_agent::run(client, options, role::ready, cancel)).await?;
        Ok(Exit::Success)
    })
}

/// As whom the node serves, and that it trusts the cluster's authority.
fn identity(path: &std::path::Path, kubeconfig: &std::path::Path) -> Result<Identity> {
    let read = std::fs::read_to_string(path);
    let certificate_pem = read.with_context(|| format!("--serving-certificate {}", path.display()))?;
    let ca = client::root_ca(kubeconfig)?;
    let client_ca_pem = ca.with_context(|| format!("--kubeconfig {}: names no authority", kubeconfig.display()))?;
    Ok(Identity { certificate_pem, client_ca_pem })
}
