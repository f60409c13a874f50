//! `tether support-bundle`: collects what someone needs who helps from afar.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use jiff::Timestamp;

use super::DataDir;
use super::role::{self, Threads};
use crate::bundle;
use crate::cluster::Marker;
use crate::output::{self, Exit};

/// Collects logs, objects and facts of the machine into a file, secrets left out
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Contents of Secrets, tokens, keys and kubeconfigs are left out. Works for a cluster that does not run, without its objects.\n\n\
                  Example:\n  tether support-bundle\n  tether support-bundle --file /tmp/bundle.tar.gz"
)]
pub(crate) struct Args {
    #[command(flatten)]
    data: DataDir,
    /// Where to write [default: tether-support-TIME.tar.gz in the current directory]
    #[arg(long, short)]
    file: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<Exit> {
    let (layout, marker) = Marker::open(&args.data.resolve()?)?;
    let now = Timestamp::now();
    let name = || PathBuf::from(format!("tether-support-{}.tar.gz", now.strftime("%Y%m%d-%H%M%S")));
    let path = args.file.clone().unwrap_or_else(name);
    let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&path);
    let file = file.with_context(|| format!("--file {}: cannot be written", path.display()))?;
    let missing = role::runtime(Threads::One)?.block_on(bundle::write(&layout, &marker, file, now))?;
    for missing in missing {
        output::complain(&format!("not in the bundle: {missing}"));
    }
    output::say(&format!("{}\n", path.display()));
    Ok(Exit::Success)
}
