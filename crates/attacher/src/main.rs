//! `tether-attacher`: `tether attacher` and nothing else.
//!
//! An external-attacher is a container beside somebody else's driver, one for each driver of a cluster. There the whole of
//! Tether would be carried along for a tenth of it: in the image, and in memory, where most of a small process is its program.

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser};
use tether_role::output;

/// As in `tether`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Debug, Parser)]
#[command(name = "tether-attacher", version)]
struct Cli {
    #[command(flatten)]
    args: tether_attacher::Args,
}

fn main() -> ExitCode {
    let command = Cli::command().after_help(tether_attacher::help("tether-attacher"));
    let given = Cli::from_arg_matches(&command.get_matches());
    match given {
        Ok(cli) => output::exit(tether_attacher::run(&cli.args)),
        Err(error) => error.exit(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_names_this_program() {
        let command = Cli::command();
        command.clone().debug_assert();
        assert!(command.get_about().is_some());
        assert!(tether_attacher::help(command.get_name()).contains("\n  tether-attacher --csi-address"));
    }
}
