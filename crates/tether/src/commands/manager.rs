//! `tether manager`: the REST API that Longhorn's clients speak.

use std::net::SocketAddr;

use anyhow::Result;
use tether_server::{Manager, TokenClients, serve};

use super::Access;
use super::role::{self, Threads};
use crate::logging::LogArgs;
use crate::output::Exit;

/// Serves the manager's REST API, for Longhorn's clients
#[derive(Debug, clap::Args)]
#[command(after_help = "Prints a line `ready` on standard output once requests are answered.\n\
                  Requests carry the token of whoever asks, as `Authorization: Bearer TOKEN` or as the password of basic\n\
                  authentication, and may do what that token may do. Credentials of the kubeconfig are not used.\n\n\
                  Example:\n  tether manager &\n  \
                  TOKEN=$(kubectl -n longhorn-system create token longhorn-service-account)\n  \
                  curl -u x:$TOKEN http://127.0.0.1:9500/v1/volumes")]
pub(crate) struct Args {
    #[command(flatten)]
    access: Access,
    /// Address and port to listen on; a loopback address, because nothing is encrypted
    #[arg(long, default_value = "127.0.0.1:9500")]
    listen: SocketAddr,
    #[command(flatten)]
    logs: LogArgs,
}

pub(crate) fn run(args: &Args) -> Result<Exit> {
    role::begin("manager", args.logs)?;
    role::runtime(Threads::Many)?.block_on(async {
        let cancel = role::until_signal()?;
        let clients = TokenClients::new(args.access.config().await?);
        let ready = |address| {
            tracing::info!(%address, "listening");
            role::ready();
        };
        serve(args.listen, Manager::new(clients), cancel, ready).await?;
        Ok(Exit::Success)
    })
}
