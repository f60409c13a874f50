//! The command line: one module per command.

mod version;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::output::Exit;

#[derive(Debug, Parser)]
#[command(
    name = "tether",
    version,
    about = "Replicated block volumes for Kubernetes, and a cluster in one command to try them on",
    after_help = "Exit codes:\n  0  success\n  1  the command failed; the reason is on standard error\n  2  wrong command line"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Version(version::Args),
}

impl Cli {
    pub(crate) fn run(self) -> Result<Exit> {
        match self.command {
            Command::Version(args) => version::run(&args),
        }
    }
}
