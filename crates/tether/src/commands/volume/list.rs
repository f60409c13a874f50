//! `tether volume list` and `get`: volumes at a glance, and one of them with its replicas and tickets.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::ListParams;
use serde::Serialize;
use tether_crd::engine::ReplicaMode;
use tether_crd::{Engine, Replica, Volume, VolumeAttachment};

use super::super::Access;
use super::show_size;
use crate::output::{self, Exit, Format};
use crate::picture::{Picture, api};

/// Lists volumes
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  tether volume list\n  tether volume list -o wide\n  tether volume list -o json")]
pub(super) struct Args {
    #[command(flatten)]
    access: Access,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Shows a volume with its replicas and tickets
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  tether volume get v1\n  tether volume get v1 -o yaml")]
pub(super) struct GetArgs {
    /// Name of the volume
    name: String,
    #[command(flatten)]
    access: Access,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    name: String,
    state: String,
    robustness: String,
    size: i64,
    replicas: i64,
    /// Replicas that hold every write, while the volume is attached.
    healthy_replicas: usize,
    node: String,
    wanted_on: String,
    endpoint: String,
    scheduled: String,
    epoch: Option<u64>,
    tickets: Vec<TicketRow>,
    created: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TicketRow {
    id: String,
    #[serde(rename = "type")]
    kind: String,
    node: String,
    satisfied: bool,
    waits_for: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Details {
    #[serde(flatten)]
    row: Row,
    replica_details: Vec<ReplicaRow>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ReplicaRow {
    name: String,
    node: String,
    disk_path: String,
    state: String,
    mode: String,
    in_sync: bool,
    failed_at: String,
}

pub(super) async fn run(args: &Args) -> Result<Exit> {
    let client = args.access.client("tether-volume").await?;
    let all = ListParams::default();
    let volumes = api::<Volume>(&client).list(&all).await.context("the API server does not answer")?.items;
    let attachments = api::<VolumeAttachment>(&client).list(&all).await?.items;
    let attachments: BTreeMap<String, VolumeAttachment> = attachments.into_iter().map(|a| (a.name_any(), a)).collect();
    let mut engines: BTreeMap<String, Vec<Engine>> = BTreeMap::new();
    for engine in api::<Engine>(&client).list(&all).await?.items {
        engines.entry(engine.spec.volume_name.clone()).or_default().push(engine);
    }
    let row = |volume: &Volume| {
        let name = volume.name_any();
        row(volume, attachments.get(&name), engines.get(&name).map(Vec::as_slice).unwrap_or_default())
    };
    let rows: Vec<Row> = volumes.iter().map(row).collect();
    output::print(args.output, &rows, |rows| table(rows, args.output == Format::Wide))?;
    Ok(Exit::Success)
}

pub(super) async fn get(args: &GetArgs) -> Result<Exit> {
    let client = args.access.client("tether-volume").await?;
    let Some(picture) = Picture::load(&client, &args.name).await? else {
        bail!("volume {:?} does not exist: see `tether volume list`", args.name);
    };
    let row = row(&picture.volume, picture.attachment.as_ref(), &picture.engines);
    let replica_details = picture.replicas.iter().map(|replica| replica_row(&picture, replica)).collect();
    output::print(args.output, &Details { row, replica_details }, details)?;
    Ok(Exit::Success)
}

fn row(volume: &Volume, attachment: Option<&VolumeAttachment>, engines: &[Engine]) -> Row {
    let status = &volume.status;
    let serving = engines.iter().find(|engine| engine.is_available_on(&status.current_node_id));
    let modes = serving.into_iter().flat_map(|engine| engine.status.replica_mode_map.values());
    let tickets = attachment.into_iter().flat_map(|a| a.spec.attachment_tickets.values().map(move |t| (a, t)));
    let tickets = tickets.map(|(attachment, ticket)| {
        let told = attachment.status.attachment_ticket_statuses.get(&ticket.id);
        let waits = told.and_then(|told| told.waiting.as_ref()).map(|waiting| waiting.message.clone());
        TicketRow {
            id: ticket.id.clone(),
            kind: ticket.kind.to_string(),
            node: ticket.node_id.clone(),
            satisfied: attachment.is_satisfied(&ticket.id),
            waits_for: waits.unwrap_or_default(),
        }
    });
    Row {
        name: volume.name_any(),
        state: status.state.to_string(),
        robustness: status.robustness.to_string(),
        size: volume.spec.size.0,
        replicas: volume.spec.number_of_replicas,
        healthy_replicas: modes.filter(|mode| **mode == ReplicaMode::ReadWrite).count(),
        node: status.current_node_id.clone(),
        wanted_on: volume.spec.node_id.clone(),
        endpoint: serving.map(|engine| engine.status.endpoint.clone()).unwrap_or_default(),
        scheduled: volume.condition(tether_crd::volume::conditions::SCHEDULED).to_owned(),
        epoch: status.record.as_ref().map(|record| record.epoch),
        tickets: tickets.collect(),
        created: volume.metadata.creation_timestamp.as_ref().map(|time| time.0.to_string()),
    }
}

fn replica_row(picture: &Picture, replica: &Replica) -> ReplicaRow {
    let name = replica.name_any();
    let mode = picture.engines.iter().find_map(|engine| engine.status.replica_mode_map.get(&name));
    let record = picture.volume.status.record.as_ref();
    ReplicaRow {
        node: replica.spec.node_id.clone(),
        disk_path: replica.spec.disk_path.clone(),
        state: replica.status.current_state.to_string(),
        mode: mode.map(ToString::to_string).unwrap_or_default(),
        in_sync: record.is_none_or(|record| record.in_sync.contains(&replica.spec.data_directory_name)),
        failed_at: replica.spec.failed_at.clone(),
        name,
    }
}

fn table(rows: &[Row], is_wide: bool) -> String {
    if rows.is_empty() {
        return "There are no volumes. Make one: tether volume create NAME --size 1Gi\n".to_owned();
    }
    let mut head = vec!["NAME", "STATE", "ROBUSTNESS", "SIZE", "REPLICAS", "NODE", "AGE"];
    if is_wide {
        head.extend(["WANTED ON", "SCHEDULED", "ENDPOINT", "TICKETS"]);
    }
    let mut lines = vec![head.into_iter().map(ToOwned::to_owned).collect()];
    lines.extend(rows.iter().map(|row| line(row, is_wide)));
    output::columns(&lines)
}

fn line(row: &Row, is_wide: bool) -> Vec<String> {
    let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let replicas = match row.state.as_str() {
        "attached" => format!("{}/{}", row.healthy_replicas, row.replicas),
        _ => row.replicas.to_string(),
    };
    let age = row.created.as_deref().and_then(|time| time.parse().ok()).map(age);
    let mut cells = vec![
        row.name.clone(),
        or_dash(&row.state),
        row.robustness.clone(),
        show_size(row.size),
        replicas,
        or_dash(&row.node),
        age.unwrap_or_else(|| "-".to_owned()),
    ];
    if is_wide {
        let tickets: Vec<&str> = row.tickets.iter().map(|ticket| ticket.id.as_str()).collect();
        cells.extend([
            or_dash(&row.wanted_on),
            row.scheduled.clone(),
            or_dash(&row.endpoint),
            or_dash(&tickets.join(",")),
        ]);
    }
    cells
}

/// `3m`, `5h`, `2d`.
fn age(since: Timestamp) -> String {
    let seconds = Timestamp::now().duration_since(since).as_secs().max(0);
    match seconds {
        0..=119 => format!("{seconds}s"),
        120..=7199 => format!("{}m", seconds / 60),
        7200..=172_799 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

fn details(details: &Details) -> String {
    let mut text = table(std::slice::from_ref(&details.row), true);
    let row = |cells: &[&str]| cells.iter().map(ToString::to_string).collect::<Vec<_>>();
    let mut lines = vec![row(&["REPLICA", "NODE", "DISK", "STATE", "MODE", "IN SYNC", "FAILED AT"])];
    for replica in &details.replica_details {
        let in_sync = if replica.in_sync { "yes" } else { "no" };
        let ReplicaRow { name, node, disk_path, state, mode, failed_at, .. } = replica;
        lines.push(row(&[name, node, disk_path, state, mode, in_sync, failed_at]));
    }
    text = text + "\n" + &output::columns(&lines);
    if !details.row.tickets.is_empty() {
        let mut lines = vec![row(&["TICKET", "TYPE", "NODE", "SATISFIED", "WAITS FOR"])];
        for ticket in &details.row.tickets {
            let satisfied = if ticket.satisfied { "yes" } else { "no" };
            lines.push(row(&[&ticket.id, &ticket.kind, &ticket.node, satisfied, &ticket.waits_for]));
        }
        text = text + "\n" + &output::columns(&lines);
    }
    text
}
