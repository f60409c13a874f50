//! `tether explain`: the chain from a wish to the first condition that is not met.

use anyhow::{Result, bail};
use jiff::Timestamp;

use super::Access;
use super::role::{self, Threads};
use crate::output::{self, Exit, Format};
use crate::picture::Picture;

/// Says why something is as it is, what will change that, and what is safe to run
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The decisions of the controllers are made on what the API server says now, without carrying them out; what is printed\n\
                  are their reports. Exit codes: 0 everything is as wished, 4 something is not met.\n\n\
                  Example:\n  tether explain volume v1\n  tether explain volume v1 -o json"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// A volume: who wants it, where it is, what it waits for
    Volume(VolumeArgs),
}

#[derive(Debug, clap::Args)]
struct VolumeArgs {
    /// Name of the volume
    name: String,
    #[command(flatten)]
    access: Access,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

pub(crate) fn run(args: &Args) -> Result<Exit> {
    let What::Volume(args) = &args.what;
    role::runtime(Threads::One)?.block_on(async {
        let client = args.access.client("tether-explain").await?;
        let Some(picture) = Picture::load(&client, &args.name).await? else {
            bail!("volume {:?} does not exist: see `tether volume list`", args.name);
        };
        let explanation = picture.explain(Timestamp::now());
        output::print(args.output, &explanation, ToString::to_string)?;
        Ok(if explanation.remedy.is_some() { Exit::NotReady } else { Exit::Success })
    })
}
