//! `tether apiserver`: the embedded Kubernetes API server.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Result;

use super::role::{self, Threads};
use crate::logging::LogArgs;
use crate::output::Exit;

/// Runs the embedded Kubernetes API server
#[derive(Debug, clap::Args)]
#[command(after_help = "Prints a line `ready` on standard output once requests are answered.\n\n\
                  Example:\n  tether apiserver --data-dir ./apiserver --listen 127.0.0.1:6443")]
pub(crate) struct Args {
    /// Directory of the server: its objects and its certificate authority
    #[arg(long)]
    data_dir: PathBuf,
    /// Address and port to listen on
    #[arg(long, default_value = "127.0.0.1:6443")]
    listen: SocketAddr,
    /// A further name or address under which clients know the server; may be repeated
    #[arg(long = "host")]
    hosts: Vec<String>,
    #[command(flatten)]
    logs: LogArgs,
}

pub(crate) fn run(args: Args) -> Result<Exit> {
    role::begin("apiserver", args.logs)?;
    let options = tether_apiserver::Options {
        data_dir: args.data_dir,
        listen: args.listen,
        hosts: args.hosts,
        plugins: Vec::new(),
        objects: tether_crd::install::objects(),
    };
    role::runtime(Threads::Many)?.block_on(async {
        let cancel = role::until_signal()?;
        let ready = |address, _: &_| {
            tracing::info!(%address, "listening");
            role::ready();
        };
        tether_apiserver::run(options, cancel, ready).await?;
        Ok(Exit::Success)
    })
}
