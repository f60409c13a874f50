//! `tether volume delete`.

use anyhow::{Context as _, Result, bail};
use kube::api::{DeleteParams, Preconditions};
use tether_crd::Volume;
use tether_crd::volume::State;

use super::super::Access;
use super::wait::Patience;
use crate::output::{self, Exit};
use crate::picture::{Picture, api};

/// Deletes a volume and its data
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A volume that is in use is not deleted without --force.\n\nExample:\n  tether volume delete v1"
)]
pub(super) struct Args {
    /// Name of the volume
    name: String,
    /// Even if it is attached, or somebody wants it attached
    #[arg(long)]
    force: bool,
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
    let state = picture.volume.status.state;
    let tickets = picture.attachment.as_ref().map_or(0, |attachment| attachment.spec.attachment_tickets.len());
    if !args.force && (matches!(state, State::Attached | State::Attaching) || tickets > 0) {
        bail!(
            "volume {name} is {state} and {tickets} tickets want it: detach it first (`tether explain volume {name}` says \
             who holds it), or lose it with --force"
        );
    }
    // What was looked at is what is deleted, not another volume of the same name.
    let meant = Preconditions { uid: picture.volume.metadata.uid.clone(), resource_version: None };
    let params = DeleteParams::background().preconditions(meant);
    api::<Volume>(&client).delete(name, &params).await.with_context(|| format!("volume {name:?} was not deleted"))?;
    if args.patience.is_none() {
        output::say(&format!("volume {name} is being deleted\n"));
        return Ok(Exit::Success);
    }
    args.patience.until(&client, name, "gone", |picture| picture.is_none().then_some(())).await?;
    output::say(&format!("volume {name} is deleted\n"));
    Ok(Exit::Success)
}
