//! Tickets: their generations, and how many of them a volume can have.

use serde_json::Value;

use super::{Operation, Refusal, Related, Review, belongs_to, new, old, read};
use crate::attachment::{Ticket, TicketType};
use crate::volume::{DataLocality, State};
use crate::{Volume, VolumeAttachment};

/// A volume that moves is on two nodes.
const MIGRATION_TICKETS_MAX: usize = 2;

pub(super) fn mutate(review: &Review<'_>, related: &Related, object: &mut Value) -> Result<(), Refusal> {
    belongs_to(object, "/spec/volume", related.volume.as_ref());
    let before: VolumeAttachment = review.old.map(read).transpose()?.unwrap_or_default();
    let after: VolumeAttachment = new(review)?;
    for (id, ticket) in &after.spec.attachment_tickets {
        let generation = generation(&before, id, ticket);
        if generation != ticket.generation {
            object["spec"]["attachmentTickets"][id]["generation"] = generation.into();
        }
    }
    Ok(())
}

/// A ticket's generation is raised by every change, also by one that removes it and adds it again: whoever reads its status can tell whether
/// it is about the ticket as it is.
fn generation(before: &VolumeAttachment, id: &str, ticket: &Ticket) -> i64 {
    let raised = |generation: i64| generation.checked_add(1).unwrap_or(0);
    let Some(known) = before.spec.attachment_tickets.get(id) else {
        let told = before.status.attachment_ticket_statuses.get(id);
        return told.map_or(0, |told| raised(told.generation));
    };
    let same = Ticket { generation: known.generation, ..ticket.clone() } == *known;
    if same { known.generation } else { raised(known.generation) }
}

pub(super) fn validate(review: &Review<'_>, attachment: &VolumeAttachment, related: &Related) -> Result<(), Refusal> {
    let before: Option<VolumeAttachment> = (review.operation == Operation::Update).then(|| old(review)).transpose()?;
    if let Some(before) = &before
        && before.spec.volume != attachment.spec.volume
    {
        let message = format!("cannot be changed from {:?} to {:?}", before.spec.volume, attachment.spec.volume);
        return Err(Refusal::new("spec.volume", message));
    }
    if review.operation == Operation::Create && review.name != attachment.spec.volume {
        let message = format!("must be the attachment's name, {:?}, and is {:?}", review.name, attachment.spec.volume);
        return Err(Refusal::new("spec.volume", message));
    }
    for (key, ticket) in &attachment.spec.attachment_tickets {
        if *key != ticket.id {
            let field = format!("spec.attachmentTickets[{key}].id");
            return Err(Refusal::new(field, format!("must be the ticket's key, {key:?}, and is {:?}", ticket.id)));
        }
    }
    let Some(volume) = &related.volume else { return Ok(()) };
    pods(before.as_ref(), attachment, volume)?;
    strict_local(before.as_ref(), attachment, volume, related)
}

fn pod_tickets(attachment: &VolumeAttachment) -> Vec<&Ticket> {
    attachment.spec.attachment_tickets.values().filter(|ticket| ticket.kind == TicketType::Csi).collect()
}

/// A migratable volume has the ticket of one pod, and while it is attached that of a second.
fn pods(before: Option<&VolumeAttachment>, after: &VolumeAttachment, volume: &Volume) -> Result<(), Refusal> {
    if !volume.is_migratable() {
        return Ok(());
    }
    let name = &after.spec.volume;
    let (had, has) = (before.map(pod_tickets).unwrap_or_default(), pod_tickets(after));
    let added = has.iter().any(|ticket| !had.iter().any(|before| before.id == ticket.id));
    if !added {
        return Ok(());
    }
    if has.len() > MIGRATION_TICKETS_MAX {
        let tickets = serde_json::to_string(&has).expect("tickets must be JSON");
        let message = format!(
            "cannot have more than {MIGRATION_TICKETS_MAX} CSI tickets for migratable volume {name}: {tickets}"
        );
        return Err(Refusal::new("spec.attachmentTickets", message));
    }
    if has.len() == MIGRATION_TICKETS_MAX && volume.status.state != State::Attached {
        let state = volume.status.state;
        let message =
            format!("cannot have second CSI ticket for migratable volume {name} while it is in state {state}");
        return Err(Refusal::new("spec.attachmentTickets", message));
    }
    Ok(())
}

/// A strict-local volume can be attached only where its one replica is. A ticket that was there before the replica may stay, or go.
fn strict_local(
    before: Option<&VolumeAttachment>,
    attachment: &VolumeAttachment,
    volume: &Volume,
    related: &Related,
) -> Result<(), Refusal> {
    if volume.spec.data_locality != DataLocality::StrictLocal {
        return Ok(());
    }
    let Some(replica) = related.replicas.iter().find(|replica| replica.is_scheduled()) else { return Ok(()) };
    let home = &replica.spec.node_id;
    let is_new = |ticket: &Ticket| {
        let known = before.and_then(|before| before.spec.attachment_tickets.get(&ticket.id));
        known.is_none_or(|known| known.node_id != ticket.node_id)
    };
    let astray = attachment.spec.attachment_tickets.values().find(|ticket| ticket.node_id != *home && is_new(ticket));
    astray.map_or(Ok(()), |ticket| {
        let field = format!("spec.attachmentTickets[{}].nodeID", ticket.id);
        let message = format!(
            "strict-local volume {} can be attached only to node {home}, where its replica is, not to node {}",
            attachment.spec.volume, ticket.node_id
        );
        Err(Refusal::new(field, message))
    })
}
