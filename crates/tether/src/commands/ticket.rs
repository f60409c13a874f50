//! `tether ticket`: who wants which volume where, and what each waits for.

use anyhow::{Context as _, Result};
use clap::Subcommand;
use kube::api::{Api, ListParams};
use serde::Serialize;
use tether_crd::attachment::{Owner, Ticket, TicketStatus, Waiting};
use tether_crd::{NAMESPACE, VolumeAttachment};

use super::Access;
use super::role::{self, Threads};
use crate::output::{self, Exit, Format};

/// How many attachments are asked for at once.
const PAGE: u32 = 500;

/// Shows the attachment tickets of volumes
#[derive(Debug, clap::Args)]
#[command(after_help = "A ticket is one party's wish to have a volume attached to a node.\n\n\
                  Example:\n  tether ticket list\n  tether ticket list --volume v1 -o json")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    List(ListArgs),
}

/// Lists tickets, those of the highest priority first
#[derive(Debug, clap::Args)]
struct ListArgs {
    #[command(flatten)]
    access: Access,
    /// Only those of this volume
    #[arg(long, value_name = "NAME")]
    volume: Option<String>,
    /// Only those that wait
    #[arg(long)]
    waiting: bool,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// One ticket with what it is told.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    volume: String,
    id: String,
    #[serde(rename = "type")]
    kind: String,
    priority: i32,
    #[serde(rename = "nodeID")]
    node_id: String,
    parameters: tether_crd::volume::Words,
    generation: i64,
    satisfied: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<Waiting>,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<Owner>,
}

pub(crate) fn run(args: &Args) -> Result<Exit> {
    let Verb::List(args) = &args.verb;
    let attachments = role::runtime(Threads::One)?.block_on(fetch(args))?;
    let mut rows: Vec<Row> =
        attachments.iter().flat_map(rows_of).filter(|row| !(args.waiting && row.satisfied)).collect();
    rows.sort_by(|a, b| (&a.volume, -a.priority, &a.id).cmp(&(&b.volume, -b.priority, &b.id)));
    output::print(args.output, &rows, |rows| table(rows, args.output == Format::Wide))?;
    Ok(Exit::Success)
}

async fn fetch(args: &ListArgs) -> Result<Vec<VolumeAttachment>> {
    let api: Api<VolumeAttachment> = Api::namespaced(args.access.client("tether-ticket").await?, NAMESPACE);
    if let Some(volume) = &args.volume {
        return Ok(vec![api.get(volume).await.with_context(|| format!("--volume {volume}"))?]);
    }
    let (mut all, mut params) = (Vec::new(), ListParams::default().limit(PAGE));
    loop {
        let page = api.list(&params).await.context("the attachments could not be listed")?;
        all.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = ListParams::default().limit(PAGE).continue_token(&token),
            None => return Ok(all),
        }
    }
}

fn rows_of(attachment: &VolumeAttachment) -> Vec<Row> {
    let row = |ticket: &Ticket| {
        let told: Option<&TicketStatus> = attachment.status.attachment_ticket_statuses.get(&ticket.id);
        let current = told.filter(|told| told.generation == ticket.generation);
        Row {
            volume: attachment.spec.volume.clone(),
            id: ticket.id.clone(),
            kind: ticket.kind.to_string(),
            priority: ticket.kind.priority(),
            node_id: ticket.node_id.clone(),
            parameters: ticket.parameters.clone(),
            generation: ticket.generation,
            satisfied: attachment.is_satisfied(&ticket.id),
            waiting: current.and_then(|told| told.waiting.clone()),
            owner: ticket.owner.clone(),
        }
    };
    attachment.spec.attachment_tickets.values().map(row).collect()
}

fn table(rows: &[Row], wide: bool) -> String {
    if rows.is_empty() {
        return "No tickets.\n".to_owned();
    }
    let mut heading = vec!["VOLUME", "TICKET", "TYPE", "NODE", "SATISFIED", "WAITS FOR"];
    if wide {
        heading.extend(["PRIORITY", "POSITION", "SINCE", "OWNER"]);
    }
    let mut cells = vec![heading.into_iter().map(str::to_owned).collect()];
    cells.extend(rows.iter().map(|row| {
        let waiting = row.waiting.as_ref();
        let message = match waiting {
            Some(waiting) => waiting.message.clone(),
            None if row.satisfied => String::new(),
            None => "it is on its way.".to_owned(),
        };
        let satisfied = if row.satisfied { "true" } else { "false" };
        let mut line =
            vec![row.volume.clone(), row.id.clone(), row.kind.clone(), row.node_id.clone(), satisfied.to_owned()];
        line.push(message);
        if wide {
            line.push(row.priority.to_string());
            line.push(waiting.map_or_else(String::new, |waiting| waiting.position.to_string()));
            line.push(waiting.map_or_else(String::new, |waiting| waiting.since.clone()));
            line.push(row.owner.as_ref().map_or_else(String::new, |owner| format!("{}/{}", owner.kind, owner.name)));
        }
        line
    }));
    output::columns(&cells)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tickets_are_shown_with_what_they_wait_for() {
        let attachment: VolumeAttachment = serde_json::from_value(json!({
            "spec": {"volume": "v1", "attachmentTickets": {
                "a": {"id": "a", "type": "csi-attacher", "nodeID": "node-1"},
                "b": {"id": "b", "type": "longhorn-api", "nodeID": "node-2"},
                "c": {"id": "c", "type": "csi-attacher", "nodeID": "node-3", "generation": 2},
            }},
            "status": {"attachmentTicketStatuses": {
                "a": {"id": "a", "satisfied": true},
                "b": {"id": "b", "waiting": {"reason": "AttachedElsewhere", "message": "volume v1 is on node-1.", "position": 0}},
                "c": {"id": "c", "satisfied": true, "generation": 1},
            }},
        }))
        .expect("an attachment");
        assert_eq!(
            table(&rows_of(&attachment), false),
            "VOLUME  TICKET  TYPE          NODE    SATISFIED  WAITS FOR\n\
             v1      a       csi-attacher  node-1  true\n\
             v1      b       longhorn-api  node-2  false      volume v1 is on node-1.\n\
             v1      c       csi-attacher  node-3  false      it is on its way.\n"
        );
    }
}
