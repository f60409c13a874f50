//! `tether fault`: breaks something on purpose.

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams};
use tether_crd::{NAMESPACE, names};
use tether_plan::instance_manager::IMAGE;

use super::role::{self, Threads};
use super::{Access, DataDir};
use crate::cluster::{self, Layout, Marker};
use crate::output::{self, Exit};

/// Breaks something on purpose, to see what becomes of it
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  tether fault crash-instance-manager node-2\n  \
                  tether fault node-down node-1 && tether explain volume v1; tether fault node-up node-1\n  \
                  tether fault partition node-3; sleep 10; tether fault heal node-3")]
pub(crate) struct Args {
    #[command(subcommand)]
    fault: Fault,
}

#[derive(Debug, clap::Subcommand)]
enum Fault {
    /// Deletes the pod of a node's instance manager: every engine and replica there ends, then a new one is started
    #[command(after_help = "On a cordoned node no new one is started. Works on any cluster.\n\n\
                      Example:\n  tether fault crash-instance-manager node-2\n  \
                      tether fault crash-instance-manager node-2 --now")]
    CrashInstanceManager {
        /// The node
        node: String,
        /// Leave it no time to end in order
        #[arg(long)]
        now: bool,
        #[command(flatten)]
        access: Access,
    },
    /// Ends all processes of a node at once, as if it lost power, and keeps them from being started
    #[command(
        after_help = "For a cluster of `tether up`. What was written to the node's disk stays, flushed or not.\n\n\
                      Example:\n  tether fault node-down node-1"
    )]
    NodeDown(OfNode),
    /// Switches a node on again
    #[command(after_help = "Example:\n  tether fault node-up node-1")]
    NodeUp(OfNode),
    /// Cuts a node off: all its processes stand still (SIGSTOP), so that nobody hears them and they hear nobody
    #[command(
        after_help = "For a cluster of `tether up`. Unlike behind a broken link, nothing goes on inside meanwhile; what the node was \
                      about\nto send, it sends when it is healed, however late.\n\n\
                      Example:\n  tether fault partition node-3; sleep 10; tether fault heal node-3"
    )]
    Partition(OfNode),
    /// Lets the processes of a node that was cut off go on
    #[command(after_help = "Example:\n  tether fault heal node-3")]
    Heal(OfNode),
}

#[derive(Debug, clap::Args)]
struct OfNode {
    /// The node
    node: String,
    #[command(flatten)]
    data: DataDir,
}

impl OfNode {
    fn open(&self) -> Result<(Layout, Marker)> {
        Ok(Marker::open(&self.data.resolve()?)?)
    }
}

pub(crate) fn run(args: &Args) -> Result<Exit> {
    let said = match &args.fault {
        Fault::CrashInstanceManager { node, now, access } => {
            role::runtime(Threads::One)?.block_on(crash(access, node, *now))?;
            format!("the instance manager of {node} ends")
        }
        Fault::NodeDown(of) => {
            let (layout, marker) = of.open()?;
            let ended = cluster::node_down(&layout, &marker, &of.node)?;
            format!("{} is down: {ended} processes ended", of.node)
        }
        Fault::NodeUp(of) => {
            let (layout, marker) = of.open()?;
            if !cluster::node_up(&layout, &marker, &of.node)? {
                bail!("{} is not down", of.node);
            }
            format!("{} is switched on", of.node)
        }
        Fault::Partition(of) => {
            let (layout, marker) = of.open()?;
            let count = cluster::partition(&layout, &marker, &of.node)?;
            format!("{} is cut off: {count} processes stand still", of.node)
        }
        Fault::Heal(of) => {
            let (layout, marker) = of.open()?;
            format!("{} is back: {} processes go on", of.node, cluster::heal(&layout, &marker, &of.node)?)
        }
    };
    output::say(&format!("{said}\n"));
    Ok(Exit::Success)
}

async fn crash(access: &Access, node: &str, now: bool) -> Result<()> {
    let client = access.client("tether-fault").await?;
    crash_instance_manager(&client, node, now).await
}

/// Deletes the pod of a node's instance manager; does not wait for its end.
pub(crate) async fn crash_instance_manager(client: &kube::Client, node: &str, now: bool) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let pod = names::instance_manager(node, IMAGE, "v1");
    let params = if now { DeleteParams::default().grace_period(0) } else { DeleteParams::default() };
    match pods.delete(&pod, &params).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => {
            bail!("node {node} has no instance manager (pod {pod}); see `kubectl -n {NAMESPACE} get lhim`")
        }
        Err(error) => Err(error).with_context(|| format!("cannot delete pod {pod}")),
    }
}
