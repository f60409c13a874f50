//! Attachments.

use kube::Client;
use serde_json::{Map, Value, json};
use tether_crd::VolumeAttachment;
use tether_crd::attachment::Ticket;

use super::{Links, all, one};
use crate::error::RequestError;

pub(crate) async fn list(client: &Client, links: &Links) -> Result<Vec<Value>, RequestError> {
    Ok(all::<VolumeAttachment>(client, "").await?.iter().map(|attachment| resource(links, attachment)).collect())
}

pub(crate) async fn get(client: &Client, links: &Links, name: &str) -> Result<Value, RequestError> {
    Ok(resource(links, &one(client, "volumeAttachment", name).await?))
}

fn resource(links: &Links, attachment: &VolumeAttachment) -> Value {
    links.member("volumeAttachment", "volumeattachments", &attachment.spec.volume, &[], fields(attachment))
}

/// Volume and tickets, each with what it is told.
pub(super) fn fields(attachment: &VolumeAttachment) -> Value {
    let entry = |ticket: &Ticket| {
        let told = attachment.status.attachment_ticket_statuses.get(&ticket.id);
        let fields = json!({
            "attachmentID": ticket.id,
            "attachmentType": ticket.kind,
            "nodeID": ticket.node_id,
            "parameters": ticket.parameters,
            "satisfied": attachment.is_satisfied(&ticket.id),
            "conditions": told.map(|told| told.conditions.clone()).unwrap_or_default(),
            "waiting": told.and_then(|told| told.waiting.clone()),
        });
        (ticket.id.clone(), fields)
    };
    let attachments: Map<String, Value> = attachment.spec.attachment_tickets.values().map(entry).collect();
    json!({"volume": attachment.spec.volume, "attachments": attachments})
}
