//! `tether instance-manager`: many engines and replicas in one process.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use tether_engine::control::{Registry, Running, Service, serve};
use tether_engine::host::Address;
use tether_engine::record::RecordFiles;
use tether_engine::{engine_server, replica_server};

use super::data_plane::TlsArgs;
use super::role::{self, Threads};
use crate::logging::LogArgs;
use crate::output::{self, Exit};

/// Runs the engines and replicas of one node
///
/// They are started, asked and stopped through the control API. Each has a thread of its own; one that fails does not
/// take the others down.
#[derive(Debug, clap::Args)]
#[command(after_help = "Prints a line `ready` on standard output once the control API is served.\n\n\
                  Example:\n  tether instance-manager --listen unix:/run/tether/manager.sock --data-dir /var/lib/tether")]
pub(crate) struct Args {
    /// Where the control API is served: unix:/path, or IP:PORT (with --tls-cert beyond loopback)
    #[arg(long, value_name = "ADDR")]
    listen: Address,
    /// Directory below which replicas are kept
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    logs: LogArgs,
}

pub(crate) fn run(args: Args) -> Result<Exit> {
    role::begin("instance-manager", args.logs)?;
    let data_dir = std::path::absolute(&args.data_dir).context("--data-dir")?;
    std::fs::create_dir_all(data_dir.join("replicas")).context("--data-dir")?;
    let records = Box::new(RecordFiles { dir: data_dir.join("records") });
    let registry = Arc::new(Registry::of_manager(data_dir, records));
    role::runtime(Threads::One)?.block_on(async {
        let cancel = role::until_signal()?;
        let stop = async {
            cancel.cancelled().await;
            stop_all(&registry).await;
        };
        output::say("ready\n");
        serve(&args.listen, Service::new(registry.clone()), args.tls.files().as_ref(), stop).await?;
        Ok(Exit::Success)
    })
}

/// Engines first: they flush to their replicas.
async fn stop_all(registry: &Registry) {
    for (_, running, _) in registry.list() {
        if let Running::Engine(engine) = running
            && engine.get_async(engine_server::Command::Stop).await.is_ok()
        {
            engine.wait_ended().await;
        }
    }
    for (_, running, _) in registry.list() {
        if let Running::Replica(replica) = running
            && replica.get_async(replica_server::Command::Stop).await.is_ok()
        {
            replica.wait_ended().await;
        }
    }
}
