//! `tether instance-manager`: many engines and replicas in one process.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use tether_agent::records::VolumeRecords;
use tether_engine::control::{Manager, Registry, Running, Service, bind, serve};
use tether_engine::device::place::{DEVICES, Place, RUN};
use tether_engine::host::Address;
use tether_engine::record::{RecordFiles, Records};
use tether_engine::{engine_server, replica_server};

use super::data_plane::{NbdTlsArgs, TlsArgs};
use super::role::{self, Threads};
use crate::client;
use crate::logging::LogArgs;
use crate::output::{self, Exit};

/// A node tells the instance managers that it runs where things are by these.
pub(super) const LISTEN_ENV: &str = "TETHER_MANAGER_LISTEN";
pub(super) const DATA_DIR_ENV: &str = "TETHER_MANAGER_DIR";
pub(super) const DEVICE_RUN_ENV: &str = "TETHER_MANAGER_DEVICES";
pub(super) const KUBECONFIG_ENV: &str = "TETHER_MANAGER_KUBECONFIG";

/// Runs the engines and replicas of one node
///
/// They are started, asked and stopped through the control API. Each has a thread of its own; one that fails does not
/// take the others down.
#[derive(Debug, clap::Args)]
#[command(after_help = "Prints a line `ready ADDR` on standard output once the control API is served.\n\n\
                  Example:\n  tether instance-manager --listen unix:/run/tether/manager.sock --data-dir /var/lib/tether")]
pub(crate) struct Args {
    /// Where the control API is served: unix:/path, or IP:PORT (with --tls-cert)
    #[arg(long, value_name = "ADDR", env = LISTEN_ENV)]
    listen: Address,
    /// Directory for sockets, records, and replicas that are given no directory of their own
    #[arg(long, value_name = "DIR", env = DATA_DIR_ENV)]
    data_dir: PathBuf,
    /// Keep records in the Volume objects of this cluster; without it, in files below the directory
    #[arg(long, value_name = "FILE", env = KUBECONFIG_ENV)]
    kubeconfig: Option<PathBuf>,
    /// Address of this node at which engines of other nodes reach its replicas
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    address: IpAddr,
    /// Address at which engines serve NBD over TCP when asked to (with --nbd-tls-cert beyond loopback)
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    nbd_address: IpAddr,
    #[command(flatten)]
    nbd_tls: NbdTlsArgs,
    /// Directory in which kernel devices appear
    #[arg(long, value_name = "DIR", default_value = DEVICES)]
    device_dir: PathBuf,
    /// Directory of the processes that keep kernel devices while engines are away; must not outlive a reboot
    #[arg(long, value_name = "DIR", default_value = RUN, env = DEVICE_RUN_ENV)]
    device_run: PathBuf,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    logs: LogArgs,
}

impl Args {
    async fn manager(&self) -> Result<Manager> {
        let data_dir = std::path::absolute(&self.data_dir).context("--data-dir")?;
        for dir in ["replicas", "nbd"] {
            std::fs::create_dir_all(data_dir.join(dir)).context("--data-dir")?;
        }
        let absolute = |path: &PathBuf| std::path::absolute(path);
        let records: Box<dyn Records> = match &self.kubeconfig {
            Some(file) => Box::new(VolumeRecords::new(client::from_file(file, "tether-instance-manager").await?)),
            None => Box::new(RecordFiles { dir: data_dir.join("records") }),
        };
        Ok(Manager {
            records,
            data_dir,
            address: self.address,
            nbd_address: self.nbd_address,
            nbd_tls: self.nbd_tls.configure()?,
            devices: Place { run: absolute(&self.device_run)?, dev: absolute(&self.device_dir)? },
        })
    }
}

pub(crate) fn run(args: Args) -> Result<Exit> {
    role::begin("instance-manager", args.logs)?;
    role::runtime(Threads::One)?.block_on(async {
        let registry = Arc::new(Registry::of_manager(args.manager().await?));
        let cancel = role::until_signal()?;
        let bound = bind(&args.listen, &args.tls.protection())?;
        let stop = async {
            cancel.cancelled().await;
            stop_all(&registry).await;
        };
        output::say(&format!("ready {}\n", bound.local()));
        serve(bound, Service::new(registry.clone()), stop).await?;
        Ok(Exit::Success)
    })
}

/// Engines first: they flush to their replicas.
async fn stop_all(registry: &Registry) {
    registry.end();
    for (_, entry) in registry.list() {
        if let Running::Engine(engine) = entry.running
            && engine.get_async(engine_server::Command::Stop).await.is_ok()
        {
            engine.wait_ended().await;
        }
    }
    for (_, entry) in registry.list() {
        if let Running::Replica(replica) = entry.running
            && replica.get_async(replica_server::Command::Stop).await.is_ok()
        {
            replica.wait_ended().await;
        }
    }
}
