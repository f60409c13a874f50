//! `tether version`: what this binary is and what it can read.

use anyhow::Result;
use serde::Serialize;

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
    kubernetes: &'static str,
    platform: String,
}

pub(crate) fn run(args: &Args) -> Result<Exit> {
    let about = About {
        version: env!("CARGO_PKG_VERSION"),
        kubernetes: "1.35",
        platform: format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    };
    output::print(args.output, &about, |about| {
        let row = |name: &str, value: &str| vec![name.to_owned(), value.to_owned()];
        output::columns(&[
            row("tether", about.version),
            row("Kubernetes API", about.kubernetes),
            row("platform", &about.platform),
        ])
    })?;
    Ok(Exit::Success)
}
