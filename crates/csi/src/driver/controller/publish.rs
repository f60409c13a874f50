//! A volume is made available to a node by a ticket, and taken away by removing it.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use tether_crd::attachment::{DISABLE_FRONTEND, LAST_ATTACHED_BY, SATISFIED, Ticket, TicketType};
use tether_crd::volume::{Frontend, State};
use tether_crd::{NAMESPACE, Volume, VolumeAttachment, condition, names};
use tether_plan::clone::{incomplete, is_pending};
use tether_plan::volume::{Leaving, leaving};
use tonic::Status;

use super::super::capability::{NO_SHARES, check, is_block};
use super::super::{Inner, PATIENCE};
use super::{api_error, required};
use crate::proto::ControllerPublishVolumeRequest;
use crate::proto::volume_capability::access_mode::Mode;

pub(super) async fn publish(driver: &Inner, request: ControllerPublishVolumeRequest) -> Result<(), Status> {
    let id = required("volume_id", &request.volume_id)?;
    let node = required("node_id", &request.node_id)?;
    let capability = request.volume_capability.as_ref();
    let capability = capability.ok_or_else(|| Status::invalid_argument("volume_capability is missing"))?;
    check(capability)?;
    driver.view.ready().await;
    let volume = driver.view.volume(id).ok_or_else(|| Status::not_found(format!("volume {id} does not exist")))?;
    if driver.view.nodes.get(NAMESPACE, node).is_none() {
        return Err(Status::not_found(format!("node {node} does not exist")));
    }
    can_be_published(&volume, is_block(capability))?;
    copied(driver, id).await?;
    let attachment = driver.view.until(PATIENCE, || driver.view.attachment(id)).await;
    let attachment =
        attachment.ok_or_else(|| Status::deadline_exceeded(format!("volume {id} has no attachment yet")))?;
    let multi = capability.access_mode.as_ref().is_some_and(|held| held.mode == i32::from(Mode::MultiNodeMultiWriter));
    if let Some(other) = elsewhere(&attachment, node).filter(|_| !(multi && volume.is_migratable())) {
        return Err(Status::failed_precondition(format!("volume {id} is published to node {other}")));
    }
    let ticket = names::csi_ticket(id, node);
    ask(driver, id, &ticket, node, &attachment).await?;
    let done = driver.view.until(PATIENCE, || {
        let attachment = driver.view.attachment(id)?;
        let is_attached = driver.view.volume(id)?.status.state == State::Attached;
        (is_attached && attachment.is_satisfied(&ticket) && driver.view.engine_on(id, node).is_some()).then_some(())
    });
    match done.await {
        Some(()) => Ok(()),
        None => Err(not_yet(driver, id, &ticket)),
    }
}

fn can_be_published(volume: &Volume, block: bool) -> Result<(), Status> {
    let name = volume.name_any();
    if volume.is_regular_rwx() || (volume.is_migratable() && !block) {
        return Err(Status::invalid_argument(NO_SHARES));
    }
    if volume.spec.frontend != Frontend::BlockDev {
        let words = format!("volume {name} has frontend {:?}, which no pod can use", volume.spec.frontend.as_str());
        return Err(Status::invalid_argument(words));
    }
    if volume.status.restore_required {
        return Err(Status::aborted(format!("volume {name} is being filled from a backup")));
    }
    Ok(())
}

/// A volume that is to be a copy of another one is not shown to anybody before it is.
async fn copied(driver: &Inner, id: &str) -> Result<(), Status> {
    let done = driver.view.until(PATIENCE, || driver.view.volume(id).is_none_or(|v| !is_pending(&v)).then_some(()));
    if done.await.is_some() {
        return Ok(());
    }
    match driver.view.volume(id).as_deref().and_then(incomplete) {
        Some((_, words)) => Err(Status::aborted(words)),
        None => Ok(()),
    }
}

/// The node that another CSI ticket is for.
fn elsewhere<'a>(attachment: &'a VolumeAttachment, node: &str) -> Option<&'a str> {
    let tickets = attachment.spec.attachment_tickets.values();
    let mut others = tickets.filter(|ticket| ticket.kind == TicketType::Csi && ticket.node_id != node);
    others.next().map(|ticket| ticket.node_id.as_str())
}

/// Puts the ticket there, if it is not. Kubernetes' attachment of the same name is its owner.
async fn ask(
    driver: &Inner,
    id: &str,
    ticket: &str,
    node: &str,
    attachment: &Arc<VolumeAttachment>,
) -> Result<(), Status> {
    let wanted = |held: &Ticket| held.node_id == node && held.kind == TicketType::Csi;
    if attachment.spec.attachment_tickets.get(ticket).is_some_and(wanted) {
        return Ok(());
    }
    let kubernetes: Api<k8s_openapi::api::storage::v1::VolumeAttachment> = Api::all(driver.client.clone());
    let owner = kubernetes.get_opt(ticket).await.ok().flatten().map_or(Value::Null, |owner| {
        json!({ "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "name": ticket, "uid": owner.uid() })
    });
    let wish = json!({
        "id": ticket, "type": TicketType::Csi.as_str(), "nodeID": node, "owner": owner,
        "parameters": { DISABLE_FRONTEND: "false", LAST_ATTACHED_BY: "" },
    });
    set_tickets(driver, id, json!({ ticket: wish })).await.map_err(|error| api_error("set ticket", &error))
}

async fn set_tickets(driver: &Inner, id: &str, tickets: Value) -> Result<(), kube::Error> {
    let api: Api<VolumeAttachment> = Api::namespaced(driver.client.clone(), NAMESPACE);
    let body = json!({ "spec": { "attachmentTickets": tickets } });
    let params = PatchParams { field_manager: Some("tether-csi".into()), ..Default::default() };
    let written = api.patch(id, &params, &Patch::Merge(body)).await?;
    // The next call must not find a ticket that this one removed, however far behind the watch is.
    driver.view.attachments.wrote(written);
    Ok(())
}

/// Why the volume is not there yet: in the words of the ticket, if it has some.
fn not_yet(driver: &Inner, id: &str, ticket: &str) -> Status {
    let attachment = driver.view.attachment(id);
    let status = attachment.as_ref().and_then(|a| a.status.attachment_ticket_statuses.get(ticket));
    let words = status.and_then(|status| {
        let waiting = status.waiting.as_ref().map(|waiting| waiting.message.clone());
        let condition = condition::find(&status.conditions, SATISFIED).map(|c| c.message.clone());
        waiting.or(condition).filter(|message| !message.is_empty())
    });
    match words {
        Some(words) => Status::internal(format!("volume {id} is not attached: {words}")),
        None => Status::deadline_exceeded(format!("volume {id} is not attached yet")),
    }
}

/// Takes the volume from a node, or from all if none is named, and returns when it has left: from then on it can be
/// published elsewhere. A volume that somebody else wants on the node stays there, and is not waited for.
pub(super) async fn unpublish(driver: &Inner, id: &str, node: &str) -> Result<(), Status> {
    let id = required("volume_id", id)?;
    driver.view.ready().await;
    let Some(attachment) = driver.view.attachment(id) else { return Ok(()) };
    let tickets = &attachment.spec.attachment_tickets;
    // The watch may not have shown a ticket that was just set: it is removed in any case.
    let mut removed: BTreeMap<String, String> = [(names::csi_ticket(id, node), node.to_owned())].into();
    if node.is_empty() {
        let csi = tickets.iter().filter(|(_, ticket)| ticket.kind == TicketType::Csi);
        removed = csi.map(|(key, ticket)| (key.clone(), ticket.node_id.clone())).collect();
    }
    let gone: serde_json::Map<String, Value> = removed.keys().map(|key| (key.clone(), Value::Null)).collect();
    match set_tickets(driver, id, Value::Object(gone)).await {
        Ok(()) => {}
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
        Err(error) => return Err(api_error("remove ticket", &error)),
    }
    let left =
        driver.view.until(PATIENCE, || removed.values().all(|node| still(driver, id, node).is_none()).then_some(()));
    if left.await.is_some() {
        return Ok(());
    }
    let mut late = removed.values().filter_map(|node| Some((node, still(driver, id, node)?)));
    match late.next() {
        None => Ok(()),
        Some((node, why)) => {
            let words = format!("volume {id} has not left node {node} yet. {why}");
            Err(Status::deadline_exceeded(words.trim_end()))
        }
    }
}

/// Whether the volume has yet to leave the node, and what is known of the reason.
fn still(driver: &Inner, id: &str, node: &str) -> Option<String> {
    let (volume, attachment) = (driver.view.volume(id)?, driver.view.attachment(id)?);
    let engines = driver.view.engines.find(id);
    match leaving(&volume, &attachment, engines.iter().map(AsRef::as_ref), node) {
        Leaving::Still(why) => Some(why),
        Leaving::Gone | Leaving::Wanted(_) => None,
    }
}
