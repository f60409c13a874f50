//! `tether version`: what this binary is and what it can read.

use anyhow::Result;
use serde::Serialize;

use crate::cluster::FORMAT;
use crate::output::{self, Exit, Format};

/// Prints the version of this binary and of everything that it writes and speaks
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  tether version -o json")]
pub(crate) struct Args {
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct About {
    version: &'static str,
    /// The Kubernetes version whose API the embedded server speaks.
    kubernetes: String,
    platform: String,
    /// The newest format of data directories that this binary reads, and the one that it writes.
    data_format: u32,
}

pub(crate) fn run(args: &Args) -> Result<Exit> {
    let about = About {
        version: env!("CARGO_PKG_VERSION"),
        kubernetes: tether_apiserver::git_version(),
        platform: format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
        data_format: FORMAT,
    };
    output::print(args.output, &about, |about| {
        let row = |name: &str, value: &str| vec![name.to_owned(), value.to_owned()];
        output::columns(&[
            row("tether", about.version),
            row("Kubernetes API", &about.kubernetes),
            row("platform", &about.platform),
            row("data format", &about.data_format.to_string()),
        ])
    })?;
    Ok(Exit::Success)
}
