//! The `tether` binary: parses the command line and runs one command.

mod commands;
mod output;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    output::exit(commands::Cli::parse().run())
}
