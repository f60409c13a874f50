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
    // Before anything else: a holder is this program, but small, without threads and without a command line of ours.
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == tether_engine::device::holder::SUBCOMMAND) {
        return tether_engine::device::holder::main(&words[1..]);
    }
    output::exit(commands::Cli::parse().run())
}
