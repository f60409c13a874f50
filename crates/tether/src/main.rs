//! The `tether` binary: parses the command line and runs one command.

mod bench;
mod bundle;
mod client;
mod cluster;
mod commands;
mod logging;
mod output;
mod supervisor;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    output::exit(commands::Cli::parse().run())
}
