//! `tether volume expand`.

use anyhow::{Context as _, Result, bail};
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tether_crd::Volume;

use super::super::Access;
use super::wait::Patience;
use super::{parse_size, show_size};
use crate::output::{self, Exit};
use crate::picture::{Picture, api};

/// Makes a volume larger; one that is detached is attached for it, and detached again
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The file system on it is made larger by whoever mounts it.\n\nExample:\n  tether volume expand v1 --size 2Gi"
)]
pub(super) struct Args {
    /// Name of the volume
    name: String,
    /// How large it is to be: 2Gi, 500M, or bytes
    #[arg(long, value_parser = parse_size)]
    size: i64,
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    access: Access,
}

pub(super) async fn run(args: &Args) -> Result<Exit> {
    let name = &args.name;
    let client = args.access.client("tether-volume").await?;
    let Some(picture) = Picture::load(&client, name).await? else {
        bail!("volume {name:?} does not exist: see `tether volume list`");
    };
    let held = picture.volume.spec.size.0;
    if args.size < held {
        bail!("--size {}: volume {name} has {}, and volumes only grow", show_size(args.size), show_size(held));
    }
    let body = json!({ "spec": { "size": args.size.to_string() } });
    let patched = api::<Volume>(&client).patch(name, &PatchParams::default(), &Patch::Merge(body)).await;
    let size = patched.with_context(|| format!("the size of volume {name:?} was refused"))?.spec.size;
    if args.patience.is_none() {
        output::say(&format!("volume {name} is to have {}\n", show_size(size.0)));
        return Ok(Exit::Success);
    }
    let grown = |picture: &Picture| {
        let told = picture.engines.iter().all(|engine| engine.spec.volume_size == size);
        told && !picture.engines.is_empty() && !picture.volume.status.expansion_required
    };
    args.patience.until(&client, name, "grown", |picture| grown(picture?).then_some(())).await?;
    output::say(&format!("volume {name} has {}\n", show_size(size.0)));
    Ok(Exit::Success)
}
