//! `tether volume detach`: a person's tickets go; what others hold stays.

use anyhow::{Context as _, Result, bail};
use kube::api::{Patch, PatchParams};
use serde_json::{Map, Value, json};
use tether_crd::VolumeAttachment;
use tether_crd::attachment::TicketType;
use tether_crd::volume::State;

use super::super::Access;
use super::wait::Patience;
use crate::output::{self, Exit};
use crate::picture::{Picture, api};

/// Removes tickets that people made, and waits until the volume is detached
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Tickets of pods, backups and other controllers are theirs: they stay, and so does the volume.\n\n\
                        Example:\n  tether volume detach v1"
)]
pub(super) struct Args {
    /// Name of the volume
    name: String,
    /// Only this ticket [default: all of type longhorn-api]
    #[arg(long)]
    ticket: Option<String>,
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
    let tickets = picture.attachment.as_ref().map(|a| &a.spec.attachment_tickets).into_iter().flatten();
    let (mine, others): (Vec<_>, Vec<_>) = tickets.partition(|(id, ticket)| match &args.ticket {
        Some(wanted) => *id == wanted && ticket.kind == TicketType::Api,
        None => ticket.kind == TicketType::Api,
    });
    if let Some(wanted) = &args.ticket
        && mine.is_empty()
    {
        bail!("--ticket {wanted}: volume {name} has no ticket of that name that a person made");
    }
    if !mine.is_empty() {
        let gone: Map<String, Value> = mine.iter().map(|(id, _)| ((*id).clone(), Value::Null)).collect();
        let body = json!({ "spec": { "attachmentTickets": gone } });
        let patched = api::<VolumeAttachment>(&client).patch(name, &PatchParams::default(), &Patch::Merge(body)).await;
        patched.with_context(|| format!("the tickets of volume {name:?} were not removed"))?;
    }
    if !others.is_empty() {
        let held: Vec<String> =
            others.iter().map(|(id, ticket)| format!("{id} ({}) for node {}", ticket.kind, ticket.node_id)).collect();
        output::say(&format!("volume {name} stays attached; these tickets hold it: {}\n", held.join(", ")));
        return Ok(Exit::Success);
    }
    if !args.patience.is_none() {
        let detached = |picture: &Picture| {
            picture.volume.status.state == State::Detached && picture.volume.spec.node_id.is_empty()
        };
        args.patience.until(&client, name, "detached", |picture| detached(picture?).then_some(())).await?;
    }
    output::say(&format!("volume {name} is {}\n", if args.patience.is_none() { "being detached" } else { "detached" }));
    Ok(Exit::Success)
}
