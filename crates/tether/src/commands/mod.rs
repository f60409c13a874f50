//! The command line: one module per command.

mod apiserver;
mod attacher_bench;
mod bench;
mod controller;
mod csi;
mod data_plane;
mod down;
mod engine;
mod explain;
pub(crate) mod fault;
mod instance_manager;
mod manager;
mod manifests;
mod node;
mod pod_bench;
mod replica;
mod scenario;
mod snapshot;
mod status;
mod support_bundle;
mod ticket;
mod up;
mod version;
mod volume;

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
pub(crate) use tether_role::process as role;

use crate::cluster;
use crate::output::Exit;

#[derive(Debug, Parser)]
#[command(
    name = "tether",
    version,
    about = "Replicated block volumes for Kubernetes, and a cluster in one command to try them on",
    after_help = "Environment:
  TETHER_DATA_DIR    directory of the cluster, as --data-dir
  TETHER_LOG         what is logged: info, debug, tether_agent=trace,warn
  TETHER_LOG_FORMAT  text or json

Exit codes:
  0  success
  1  the command failed; the reason is on standard error
  2  wrong command line
  3  the cluster does not run (status)
  4  the cluster runs, but not all of it is ready (status); something is not as wished (explain)"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Up(up::Args),
    Status(status::Args),
    Down(down::Args),
    SupportBundle(support_bundle::Args),
    Version(version::Args),
    Volume(Box<volume::Args>),
    Snapshot(Box<snapshot::Args>),
    Ticket(ticket::Args),
    Explain(explain::Args),
    Fault(fault::Args),
    Scenario(scenario::Args),
    Bench(bench::Args),
    Apiserver(apiserver::Args),
    Controller(controller::Args),
    Attacher(Box<tether_attacher::Args>),
    Csi(csi::Args),
    Node(node::Args),
    Replica(Box<replica::Args>),
    Engine(Box<engine::Args>),
    InstanceManager(instance_manager::Args),
    Manager(manager::Args),
    Manifests(manifests::Args),
}

impl Cli {
    pub(crate) fn run(self) -> Result<Exit> {
        match self.command {
            Command::Up(args) => up::run(&args),
            Command::Status(args) => status::run(&args),
            Command::Down(args) => down::run(&args),
            Command::SupportBundle(args) => support_bundle::run(&args),
            Command::Version(args) => version::run(&args),
            Command::Volume(args) => volume::run(&args),
            Command::Snapshot(args) => snapshot::run(&args),
            Command::Ticket(args) => ticket::run(&args),
            Command::Explain(args) => explain::run(&args),
            Command::Fault(args) => fault::run(&args),
            Command::Scenario(args) => scenario::run(&args),
            Command::Bench(args) => bench::run(&args),
            Command::Apiserver(args) => apiserver::run(args),
            Command::Controller(args) => controller::run(&args),
            Command::Attacher(args) => tether_attacher::run(&args),
            Command::Csi(args) => csi::run(&args),
            Command::Node(args) => node::run(args),
            Command::Replica(args) => replica::run(*args),
            Command::Engine(args) => engine::run(*args),
            Command::InstanceManager(args) => instance_manager::run(args),
            Command::Manager(args) => manager::run(&args),
            Command::Manifests(args) => manifests::run(&args),
        }
    }
}

/// Which cluster a command is about.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DataDir {
    /// Directory of the cluster [default: $XDG_DATA_HOME/tether, else ~/.local/share/tether]
    #[arg(long = "data-dir", value_name = "DIR", env = "TETHER_DATA_DIR")]
    dir: Option<PathBuf>,
}

impl DataDir {
    pub(crate) fn resolve(&self) -> Result<PathBuf> {
        let dir = self.dir.clone().or_else(cluster::default_dir);
        let dir =
            dir.context("--data-dir: not given, and neither XDG_DATA_HOME nor HOME is set; say where to keep data")?;
        std::path::absolute(&dir).with_context(|| format!("--data-dir {}", dir.display()))
    }
}

/// How a command reaches the cluster that it is about.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Access {
    #[command(flatten)]
    data: DataDir,
    /// Kubeconfig of any cluster [default: that of the cluster in --data-dir]
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
}

impl Access {
    /// A client that says who it is.
    pub(crate) async fn client(&self, role: &'static str) -> Result<kube::Client> {
        crate::client::from_file(&self.file()?, role).await
    }

    /// Where the API server is.
    pub(crate) async fn config(&self) -> Result<kube::Config> {
        crate::client::config(&self.file()?).await
    }

    fn file(&self) -> Result<PathBuf> {
        match &self.kubeconfig {
            Some(file) => Ok(file.clone()),
            None => Ok(cluster::Marker::open(&self.data.resolve()?)?.0.kubeconfig()),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn every_command_explains_itself_with_an_example() {
        let cli = Cli::command();
        cli.clone().debug_assert();
        for command in cli.get_subcommands() {
            assert!(command.get_about().is_some(), "{} has no help", command.get_name());
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(after.contains("Example"), "{} has no example", command.get_name());
        }
    }
}
