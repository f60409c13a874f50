//! Chores of the repository: `cargo xtask --help`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool prints")]

mod campaign;
mod fuzz;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Chores of the repository")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Debug, Subcommand)]
enum Chore {
    /// Checks the rules that no compiler checks (also run by `cargo test -p xtask`)
    Tidy,
    /// Runs a long randomized test with many seeds
    #[command(after_help = "Example:\n  cargo xtask campaign list\n  cargo xtask campaign run store --seeds 1000")]
    Campaign(campaign::Args),
    /// Feeds mutated inputs to everything that reads from the network or the disk
    #[command(after_help = "Example:\n  cargo xtask fuzz run selectors --seconds 60")]
    Fuzz(fuzz::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().chore {
        Chore::Tidy => tidy::main(&root()),
        Chore::Campaign(args) => campaign::main(&root(), &args),
        Chore::Fuzz(args) => fuzz::main(&root(), &args),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The workspace's root: this crate is one folder below it.
fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask must lie in the workspace").to_owned()
}
