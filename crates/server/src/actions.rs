//! What clients do with volumes: make, delete, attach, detach, grow, and change single fields.

use kube::Client;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Map, Value, json};
use tether_crd::attachment::{DISABLE_FRONTEND, LAST_ATTACHED_BY, TicketType};
use tether_crd::volume::{DataLocality, Robustness, State};
use tether_crd::{API_VERSION, NAMESPACE, Node, Replica, Volume, VolumeAttachment, condition, labels};

use crate::error::RequestError;
use crate::resources::{api, one};

/// Every action with the type of its input.
pub(crate) const ACTIONS: &[(&str, &str)] = &[
    ("attach", "attachInput"),
    ("detach", "detachInput"),
    ("expand", "expandInput"),
    ("updateReplicaCount", "UpdateReplicaCountInput"),
    ("updateReplicaAutoBalance", "UpdateReplicaAutoBalanceInput"),
    ("updateDataLocality", "UpdateDataLocalityInput"),
    ("updateAccessMode", "UpdateAccessModeInput"),
    ("updateSnapshotDataIntegrity", "UpdateSnapshotDataIntegrityInput"),
    ("updateSnapshotMaxCount", "UpdateSnapshotMaxCountInput"),
    ("updateSnapshotMaxSize", "UpdateSnapshotMaxSizeInput"),
    ("updateReplicaSoftAntiAffinity", "UpdateReplicaSoftAntiAffinityInput"),
    ("updateReplicaZoneSoftAntiAffinity", "UpdateReplicaZoneSoftAntiAffinityInput"),
    ("updateReplicaDiskSoftAntiAffinity", "UpdateReplicaDiskSoftAntiAffinityInput"),
    ("updateUnmapMarkSnapChainRemoved", "UpdateUnmapMarkSnapChainRemovedInput"),
    ("updateFreezeFilesystemForSnapshot", "UpdateFreezeFilesystemForSnapshotInput"),
];

/// What a new volume may say; names as in the body, in lower case, and as in the spec.
const CREATABLE: [&str; 25] = [
    "size",
    "frontend",
    "numberOfReplicas",
    "staleReplicaTimeout",
    "dataLocality",
    "accessMode",
    "migratable",
    "encrypted",
    "diskSelector",
    "nodeSelector",
    "fromBackup",
    "dataSource",
    "cloneMode",
    "dataEngine",
    "backingImage",
    "replicaAutoBalance",
    "revisionCounterDisabled",
    "snapshotDataIntegrity",
    "snapshotMaxCount",
    "snapshotMaxSize",
    "unmapMarkSnapChainRemoved",
    "replicaSoftAntiAffinity",
    "replicaZoneSoftAntiAffinity",
    "replicaDiskSoftAntiAffinity",
    "backupTargetName",
];
/// Numbers that are text in the object.
const SIZES: [&str; 2] = ["size", "snapshotMaxSize"];

/// The actions that make sense now. Links are advice: the others are answered too.
pub(crate) fn available(volume: &Volume) -> Vec<&'static str> {
    let faulted = volume.status.robustness == Robustness::Faulted;
    let state = volume.status.state;
    let settled = matches!(state, State::Attached | State::Detached);
    let possible = |action: &str| match action {
        "attach" | "detach" => true,
        _ if faulted || !settled => false,
        "updateAccessMode" => state == State::Detached,
        "updateReplicaCount" => state == State::Attached,
        _ => true,
    };
    ACTIONS.iter().map(|(action, _)| *action).filter(|action| possible(action)).collect()
}

type Body = Map<String, Value>;

fn text<'a>(body: &'a Body, field: &str) -> &'a str {
    body.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn flag(body: &Body, field: &str) -> bool {
    body.get(field).and_then(Value::as_bool).unwrap_or_default()
}

/// Makes a volume; returns its name.
pub(crate) async fn create(client: &Client, body: &Body) -> Result<String, RequestError> {
    let name = text(body, "name").to_owned();
    let mut spec = Map::new();
    for field in CREATABLE {
        let Some(value) = body.get(&field.to_lowercase()).filter(|value| !value.is_null()) else { continue };
        let as_text = SIZES.contains(&field) && value.is_number();
        spec.insert(field.to_owned(), if as_text { value.to_string().into() } else { value.clone() });
    }
    spec.insert("Standby".to_owned(), flag(body, "standby").into());
    let volume = json!({"apiVersion": API_VERSION, "kind": "Volume", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec});
    let volume: Volume = serde_json::from_value(volume).map_err(|error| RequestError::Body(error.to_string()))?;
    api::<Volume>(client).create(&PostParams::default(), &volume).await?;
    Ok(name)
}

pub(crate) async fn delete(client: &Client, name: &str) -> Result<(), RequestError> {
    one::<Volume>(client, "volume", name).await?;
    api::<Volume>(client).delete(name, &DeleteParams::default()).await?;
    Ok(())
}

/// Carries out one action.
pub(crate) async fn act(client: &Client, name: &str, action: &str, body: &Body) -> Result<(), RequestError> {
    let volume: Volume = one(client, "volume", name).await?;
    match action {
        "attach" => attach(client, &volume, name, body).await,
        "detach" => detach(client, &volume, name, body).await,
        "expand" => expand(client, &volume, name, body).await,
        _ if ACTIONS.iter().any(|(known, _)| *known == action) => set_field(client, &volume, name, action, body).await,
        other => {
            let path = format!("/v1/volumes/{name}?action={other}");
            Err(RequestError::Nowhere { method: "POST".to_owned(), path })
        }
    }
}

async fn attach(client: &Client, volume: &Volume, name: &str, body: &Body) -> Result<(), RequestError> {
    let node = text(body, "hostid");
    may_attach(client, volume, name, node).await?;
    if volume.spec.migration_node_id == node {
        return Ok(());
    }
    let kind = match text(body, "attachertype") {
        "" => TicketType::Api.as_str(),
        other => other,
    };
    let id = text(body, "attachmentid");
    let parameters = json!({
        DISABLE_FRONTEND: flag(body, "disablefrontend").to_string(),
        LAST_ATTACHED_BY: text(body, "attachedby"),
    });
    let ticket = json!({"id": id, "type": kind, "nodeID": node, "parameters": parameters});
    write_tickets(client, name, json!({ id: ticket })).await
}

async fn may_attach(client: &Client, volume: &Volume, name: &str, node: &str) -> Result<(), RequestError> {
    let refuse = |why: String| Err(RequestError::Refused(format!("unable to attach volume {name} to {node}: {why}")));
    match api::<Node>(client).get_opt(node).await? {
        None => return refuse(format!("node {node:?} does not exist")),
        Some(found) if !found.is_ready() => {
            let ready = condition::find(&found.status.conditions, tether_crd::node::conditions::READY);
            return refuse(format!(
                "node {node} is not ready, reason: {}",
                ready.map_or("unknown", |r| r.reason.as_str())
            ));
        }
        Some(_) => {}
    }
    if volume.status.restore_required {
        return refuse("it is being restored".to_owned());
    }
    if volume.spec.data_locality == DataLocality::Disabled {
        let labelled = kube::api::ListParams::default().labels(&format!("{}={name}", labels::VOLUME));
        let replicas = api::<Replica>(client).list(&labelled).await?;
        if !replicas.items.iter().any(Replica::is_scheduled) {
            return refuse("no replica of it has a place".to_owned());
        }
    }
    Ok(())
}

/// Removes the ticket that is named; without a name those that people made; by force all of them.
async fn detach(client: &Client, volume: &Volume, name: &str, body: &Body) -> Result<(), RequestError> {
    if volume.status.is_standby {
        return Err(RequestError::Refused(format!("cannot detach standby volume {name}")));
    }
    let (id, force) = (text(body, "attachmentid"), flag(body, "forcedetach"));
    let Some(attachment) = api::<VolumeAttachment>(client).get_opt(name).await? else { return Ok(()) };
    let goes = |ticket: &tether_crd::attachment::Ticket| {
        force || if id.is_empty() { ticket.kind == TicketType::Api } else { ticket.id == id }
    };
    let tickets = attachment.spec.attachment_tickets.values().filter(|ticket| goes(ticket));
    let gone: Map<String, Value> = tickets.map(|ticket| (ticket.id.clone(), Value::Null)).collect();
    if gone.is_empty() {
        return Ok(());
    }
    write_tickets(client, name, gone.into()).await
}

async fn write_tickets(client: &Client, name: &str, tickets: Value) -> Result<(), RequestError> {
    let patch = Patch::Merge(json!({"spec": {"attachmentTickets": tickets}}));
    one::<VolumeAttachment>(client, "volumeAttachment", name).await?;
    api::<VolumeAttachment>(client).patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

async fn expand(client: &Client, volume: &Volume, name: &str, body: &Body) -> Result<(), RequestError> {
    if volume.status.robustness == Robustness::Faulted
        || !matches!(volume.status.state, State::Attached | State::Detached)
    {
        let state = volume.status.state;
        return Err(RequestError::Refused(format!("volume {name} cannot be expanded while it is {state}")));
    }
    let size = text(body, "size")
        .parse::<i64>()
        .map_err(|_| RequestError::Body("size: a number of bytes, as text, is needed".to_owned()))?;
    if size <= volume.spec.size.0 {
        return Ok(());
    }
    set(client, name, json!({"size": size.to_string()})).await
}

/// `updateX` sets field x of the spec to field x of the body.
async fn set_field(
    client: &Client,
    volume: &Volume,
    name: &str,
    action: &str,
    body: &Body,
) -> Result<(), RequestError> {
    let field = action.trim_start_matches("update");
    let (given, field) = match field {
        "ReplicaCount" => ("replicacount".to_owned(), "numberOfReplicas".to_owned()),
        other => (other.to_lowercase(), other[..1].to_lowercase() + &other[1..]),
    };
    if action == "updateAccessMode" && volume.status.state != State::Detached {
        return Err(RequestError::Refused(format!(
            "the access mode of volume {name} can be changed only while it is detached"
        )));
    }
    let Some(value) = body.get(&given) else { return Err(RequestError::Body(format!("{given}: is missing"))) };
    set(client, name, json!({ field: value })).await
}

async fn set(client: &Client, name: &str, spec: Value) -> Result<(), RequestError> {
    api::<Volume>(client).patch(name, &PatchParams::default(), &Patch::Merge(json!({ "spec": spec }))).await?;
    Ok(())
}
