//! `tether controller`: all cluster controllers, against any Kubernetes.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::runtime::wait::await_condition;
use kube::{Api, Client};
use tether_controllers::{Options, leader};
use tether_plan::attach_detach;
use tether_plan::node::lifecycle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::role::{self, Threads};
use crate::client;
use crate::logging::LogArgs;
use crate::output::Exit;

/// The account is made within milliseconds; a controller that cannot make it runs all the same.
const ACCOUNT_WAIT: Duration = Duration::from_secs(10);

/// Runs the cluster controllers: scheduling, binding, node lifecycle, garbage collection
#[derive(Debug, clap::Args)]
#[command(after_help = "Prints a line `ready` on standard output once the controllers run.\n\n\
                  Examples:\n  tether controller --kubeconfig ./kubeconfig\n  \
                  tether controller --kubeconfig ./kubeconfig --volumes-only")]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct Args {
    /// Credentials of the controllers
    #[arg(long)]
    kubeconfig: PathBuf,
    /// Run only while leading; `false` if this is the only process of its kind
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    leader_elect: bool,
    /// Only look after volumes, on a cluster that has Kubernetes' own controllers
    #[arg(long, conflicts_with = "attach_detach")]
    volumes_only: bool,
    /// Also attach volumes to nodes, where Kubernetes' own controller does not
    #[arg(long)]
    attach_detach: bool,
    /// Never take a mounted volume from a node that is not ready
    #[arg(long, requires = "attach_detach")]
    disable_force_detach_on_timeout: bool,
    /// How long such a volume is left there otherwise
    #[arg(long, default_value = "6m", env = "TETHER_FORCE_DETACH_AFTER", requires = "attach_detach")]
    force_detach_after: SignedDuration,
    /// How long nothing may be heard of a node before it counts as not ready
    #[arg(long, default_value = "50s", value_name = "TIME", env = "TETHER_NODE_MONITOR_GRACE")]
    node_monitor_grace: SignedDuration,
    /// Address and port of `/metrics`, over TLS, for tokens that may read it
    #[arg(long, value_name = "ADDRESS", requires_all = ["metrics_certificate", "metrics_key"])]
    metrics_listen: Option<SocketAddr>,
    /// Certificate of the metrics, as PEM
    #[arg(long, value_name = "FILE", requires = "metrics_listen")]
    metrics_certificate: Option<PathBuf>,
    /// Its key, as PEM; may be in the same file
    #[arg(long, value_name = "FILE", requires = "metrics_listen")]
    metrics_key: Option<PathBuf>,
    #[command(flatten)]
    logs: LogArgs,
}

pub(crate) fn run(args: &Args) -> Result<Exit> {
    role::begin("controller", args.logs)?;
    role::runtime(Threads::One)?.block_on(async {
        let cancel = role::until_signal()?;
        let client = client::from_file(&args.kubeconfig, "tether-controller").await?;
        let options = Options {
            identity: format!("{}_{}", rustix::system::uname().nodename().to_string_lossy(), std::process::id()),
            leader_election: args.leader_elect.then(leader::Settings::default),
            attach_detach: args.attach_detach.then_some(attach_detach::Settings {
                wait_for_unmount: args.force_detach_after,
                disable_force_detach: args.disable_force_detach_on_timeout,
            }),
            node: lifecycle::Settings { monitor_grace: args.node_monitor_grace, ..Default::default() },
            cluster: !args.volumes_only,
            storage_nodes: true,
            root_ca: client::root_ca(&args.kubeconfig)?,
            on_leading: Arc::new({
                let client = client.clone();
                move || drop(tokio::spawn(ready(client.clone())))
            }),
            ..Options::default()
        };
        serve_metrics(args, &client, &options, &cancel)?;
        tether_controllers::run(client, options, cancel).await?;
        Ok(Exit::Success)
    })
}

/// Serves metrics beside the controllers, which go on without them.
fn serve_metrics(args: &Args, client: &Client, options: &Options, cancel: &CancellationToken) -> Result<()> {
    let (Some(address), Some(certificate), Some(key)) =
        (args.metrics_listen, &args.metrics_certificate, &args.metrics_key)
    else {
        return Ok(());
    };
    let certificate =
        std::fs::read(certificate).with_context(|| format!("--metrics-certificate {}", certificate.display()))?;
    let key = std::fs::read(key).with_context(|| format!("--metrics-key {}", key.display()))?;
    let (client, metrics, cancel) = (client.clone(), options.metrics.clone(), cancel.clone());
    tokio::spawn(async move {
        let render = move || metrics.render();
        if let Err(error) = tether_server::serve_metrics(address, (&certificate, &key), client, render, cancel).await {
            tracing::error!(%error, "no metrics");
        }
    });
    Ok(())
}

/// Says so once a pod can be made: without the account that every pod has by default, it would be refused.
async fn ready(client: Client) {
    let accounts: Api<ServiceAccount> = Api::namespaced(client, "default");
    let exists = |account: Option<&ServiceAccount>| account.is_some();
    if !matches!(timeout(ACCOUNT_WAIT, await_condition(accounts, "default", exists)).await, Ok(Ok(_))) {
        tracing::warn!("the default service account is not there yet; pods are refused until it is");
    }
    role::ready();
}
