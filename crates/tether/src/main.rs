//! The `tether` binary: parses the command line and runs one command.

mod bench;
mod bundle;
mod cluster;
mod commands;
mod logging;
mod picture;
mod scenario;
mod supervisor;

use std::process::ExitCode;

use clap::Parser;
use tether_role::{client, output};

use crate::output::Exit;

/// A third of the processor time of the API server and of the controllers was the system's allocator: objects come and go
/// as JSON, in many small pieces.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Before anything else: a holder is this program, but small, without threads and without a command line of ours.
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == tether_engine::device::holder::SUBCOMMAND) {
        return tether_engine::device::holder::main(&words[1..]);
    }
    // So is the process that watches over a container.
    if let [word, dir] = words.as_slice()
        && word == tether_agent::container::shim::SUBCOMMAND
    {
        return output::exit(
            tether_agent::container::shim::run(dir.as_ref()).map(|()| Exit::Success).map_err(Into::into),
        );
    }
    output::exit(commands::Cli::parse().run())
}
