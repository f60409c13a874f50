//! Writes for a clone: tickets on both volumes, the snapshot of the source, the engine's order, the status.

use kube::api::{Api, DeleteParams, PostParams};
use serde_json::json;
use tether_crd::{Engine, NAMESPACE, Snapshot, Volume, VolumeAttachment};
use tether_plan::clone::{Change, FOR_CLONE};

use crate::context::Context;
use crate::write::{FIELD_MANAGER, Fence, Part, WriteError, Writes, code};

pub(super) async fn apply(context: &Context, changes: Vec<Change>) -> Result<(), WriteError> {
    let mut writes = Writes::default();
    for change in changes {
        one(context, &mut writes, change).await?;
    }
    Ok(())
}

async fn one(context: &Context, writes: &mut Writes, change: Change) -> Result<(), WriteError> {
    let longhorn = &context.longhorn;
    let client = || context.client.clone();
    match change {
        Change::CreateSnapshot { name, volume, clone } => {
            let snapshots: Api<Snapshot> = Api::namespaced(client(), NAMESPACE);
            let mut snapshot = Snapshot::default();
            snapshot.metadata.name = Some(name);
            snapshot.spec.volume = volume;
            snapshot.spec.create_snapshot = true;
            snapshot.spec.labels.insert(FOR_CLONE.to_owned(), clone);
            let params = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
            match snapshots.create(&params, &snapshot).await {
                Ok(made) => longhorn.snapshots.wrote(made),
                // An earlier decision made it, and the watch has yet to tell.
                Err(error) if code(&error) == Some(409) => {}
                Err(error) => return Err(WriteError::of("create Snapshot", error)),
            }
        }
        Change::DeleteSnapshot { snapshot } => {
            let snapshots: Api<Snapshot> = Api::namespaced(client(), NAMESPACE);
            writes.delete(&snapshots, &snapshot, DeleteParams::background(), Fence::Uid).await?;
        }
        Change::SetTicket { attachment, id, ticket } => {
            let attachments: Api<VolumeAttachment> = Api::namespaced(client(), NAMESPACE);
            let body = json!({ "spec": { "attachmentTickets": { id: ticket } } });
            longhorn.attachments.wrote(writes.patch(&attachments, &attachment, Part::Object, body).await?);
        }
        Change::Request { engine, source } => {
            let engines: Api<Engine> = Api::namespaced(client(), NAMESPACE);
            let body = json!({ "spec": { "requestedDataSource": source } });
            longhorn.engines.wrote(writes.patch(&engines, &engine, Part::Object, body).await?);
        }
        Change::SetStatus { volume, status } => {
            let volumes: Api<Volume> = Api::namespaced(client(), NAMESPACE);
            let body = json!({ "status": { "cloneStatus": status } });
            longhorn.volumes.wrote(writes.patch(&volumes, &volume, Part::Status, body).await?);
        }
    }
    Ok(())
}
