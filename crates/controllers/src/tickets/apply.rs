//! Tells the volume where to be, and the tickets how far they are: at most one write each.

use kube::api::Api;
use serde_json::{Value, json};
use tether_crd::attachment::TicketStatus;
use tether_crd::{FINALIZER, NAMESPACE, Volume, VolumeAttachment};
use tether_plan::tickets::Change;

use crate::context::Context;
use crate::write::{Part, WriteError, Writes};

pub(super) async fn apply(
    context: &Context,
    attachment: &VolumeAttachment,
    changes: Vec<Change>,
) -> Result<(), WriteError> {
    let volumes: Api<Volume> = Api::namespaced(context.client.clone(), NAMESPACE);
    let attachments: Api<VolumeAttachment> = Api::namespaced(context.client.clone(), NAMESPACE);
    let longhorn = &context.longhorn;
    let mut writes = Writes::default();
    for change in changes {
        match change {
            Change::SetVolume { volume, wish } => {
                let body = json!({"spec": {
                    "nodeID": wish.node,
                    "migrationNodeID": wish.migration_node,
                    "disableFrontend": wish.disable_frontend,
                    "lastAttachedBy": wish.last_attached_by,
                }});
                longhorn.volumes.wrote(writes.patch(&volumes, &volume, Part::Object, body).await?);
            }
            Change::Withdraw { attachment, tickets } => {
                let gone: serde_json::Map<String, Value> = tickets.into_iter().map(|id| (id, Value::Null)).collect();
                let body = json!({"spec": {"attachmentTickets": gone}});
                longhorn.attachments.wrote(writes.patch(&attachments, &attachment, Part::Object, body).await?);
            }
            Change::SetStatus { attachment, statuses } => {
                let statuses: serde_json::Map<String, Value> =
                    statuses.into_iter().map(|(id, status)| (id, status.map_or(Value::Null, whole))).collect();
                let body = json!({"status": {"attachmentTicketStatuses": statuses}});
                longhorn.attachments.wrote(writes.patch(&attachments, &attachment, Part::Status, body).await?);
            }
            Change::Release { attachment: target } => {
                let others = attachment.metadata.finalizers.iter().flatten().filter(|name| *name != FINALIZER);
                let body = json!({"metadata": {"finalizers": others.collect::<Vec<_>>()}});
                writes.patch(&attachments, &target, Part::Object, body).await?;
            }
        }
    }
    Ok(())
}

/// A status that replaces the one before it, also in what it no longer says.
fn whole(status: TicketStatus) -> Value {
    let satisfied = status.waiting.is_none();
    let mut body = json!(status);
    if satisfied {
        body["waiting"] = Value::Null;
    }
    body
}
