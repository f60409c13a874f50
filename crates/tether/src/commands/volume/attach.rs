//! `tether volume attach`: a ticket, and the wait until it is satisfied.

use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use kube::Client;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tether_crd::attachment::TicketType;
use tether_crd::{Node, Volume, VolumeAttachment};

use super::super::Access;
use super::TICKET;
use super::wait::Patience;
use crate::output::{self, Exit};
use crate::picture::api;

/// Attaches a volume to a node
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  tether volume attach v1 --node node-1\n  tether volume attach v1 --node node-1 --disable-frontend"
)]
pub(super) struct Args {
    /// Name of the volume
    name: String,
    /// The node
    #[arg(long)]
    node: String,
    /// Without a block device
    #[arg(long)]
    disable_frontend: bool,
    /// Name of the ticket
    #[arg(long, default_value = TICKET)]
    ticket: String,
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    access: Access,
}

pub(super) async fn run(args: &Args) -> Result<Exit> {
    let Args { name, node, ticket, .. } = args;
    let client = args.access.client("tether-volume").await?;
    let known = api::<Node>(&client).get_opt(node).await.context("the API server does not answer")?;
    if known.is_none() {
        bail!("--node {node}: there is no such node; see `kubectl -n longhorn-system get lhn`");
    }
    let volume = api::<Volume>(&client).get_opt(name).await.context("the API server does not answer")?;
    if volume.is_none() {
        bail!("volume {name:?} does not exist: see `tether volume list`");
    }
    let held = args.patience.until(&client, name, "known", |picture| picture?.attachment.clone()).await?;
    if let Some(other) = held.spec.attachment_tickets.get(ticket).filter(|other| other.node_id != *node) {
        bail!("ticket {ticket} wants volume {name} on node {}: run `tether volume detach {name}` first", other.node_id);
    }
    let began = Instant::now();
    put(&client, args).await?;
    if args.patience.is_none() {
        output::say(&format!("volume {name} is wanted on node {node}\n"));
        return Ok(Exit::Success);
    }
    let what = format!("attached to node {node}");
    let endpoint = args.patience.until(&client, name, &what, |picture| {
        let picture = picture?;
        let attachment = picture.attachment.as_ref()?;
        attachment.is_satisfied(ticket).then(|| picture.endpoint().to_owned())
    });
    let endpoint = endpoint.await?;
    let at = if endpoint.is_empty() { String::new() } else { format!(" as {endpoint}") };
    output::say(&format!("volume {name} is attached to node {node}{at} ({:.2} s)\n", began.elapsed().as_secs_f64()));
    Ok(Exit::Success)
}

async fn put(client: &Client, args: &Args) -> Result<()> {
    let parameters = json!({ "disableFrontend": args.disable_frontend.to_string(), "lastAttachedBy": "" });
    let wish = json!({
        "id": args.ticket,
        "type": TicketType::Api.as_str(),
        "nodeID": args.node,
        "parameters": parameters,
    });
    let body = json!({ "spec": { "attachmentTickets": { &args.ticket: wish } } });
    let put = api::<VolumeAttachment>(client).patch(&args.name, &PatchParams::default(), &Patch::Merge(body)).await;
    put.map(drop).with_context(|| format!("the ticket for volume {:?} was refused", args.name))
}
