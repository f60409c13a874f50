//! Writes to Snapshot objects and to the tickets that they need.

use kube::ResourceExt as _;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use tether_crd::{FINALIZER, NAMESPACE, Snapshot, VolumeAttachment, labels};
use tether_plan::object::Target;
use tether_plan::snapshot::{Change, owner};

use super::observe::View;
use crate::context::Context;
use crate::write::{FIELD_MANAGER, Part, WriteError, Writes};

pub(super) async fn apply(context: &Context, view: &View, changes: Vec<Change>) -> Result<(), WriteError> {
    let mut writes = Writes::default();
    for change in changes {
        one(context, view, &mut writes, change).await?;
    }
    Ok(())
}

async fn one(context: &Context, view: &View, writes: &mut Writes, change: Change) -> Result<(), WriteError> {
    let longhorn = &context.longhorn;
    let snapshots: Api<Snapshot> = Api::namespaced(context.client.clone(), NAMESPACE);
    match change {
        Change::Create(made) => {
            let params = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
            let made = snapshots.create(&params, &made).await;
            longhorn.snapshots.wrote(made.map_err(|error| WriteError::of("create Snapshot", error))?);
        }
        Change::Adopt { snapshot, volume, volume_uid } => {
            let Some(held) = view.snapshot(&snapshot.uid) else { return Ok(()) };
            let mut finalizers = held.finalizers().to_vec();
            if !finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
                finalizers.push(FINALIZER.to_owned());
            }
            let mut owners = held.owner_references().to_vec();
            if owners.iter().all(|owner| owner.uid != volume_uid) {
                owners.push(owner(&volume, &volume_uid));
            }
            let labels = json!({ labels::VOLUME: volume });
            let metadata = json!({ "finalizers": finalizers, "ownerReferences": owners, "labels": labels });
            patch(context, writes, &snapshots, &snapshot, Part::Object, json!({ "metadata": metadata })).await?;
        }
        Change::SetTicket { attachment, id, ticket } => {
            let attachments: Api<VolumeAttachment> = Api::namespaced(context.client.clone(), NAMESPACE);
            let body = json!({ "spec": { "attachmentTickets": { id: ticket } } });
            let patched = writes.patch(&attachments, &attachment, Part::Object, body).await?;
            longhorn.attachments.wrote(patched);
        }
        Change::HandOver { snapshot, node } => {
            let body = json!({ "metadata": { "labels": { labels::NODE: node } } });
            patch(context, writes, &snapshots, &snapshot, Part::Object, body).await?;
        }
        Change::SetStatus { snapshot, status } => {
            let held = view.snapshot(&snapshot.uid).map(|held| held.status.clone()).unwrap_or_default();
            let mut body = json!({ "status": *status });
            // Entries that are gone have to be named.
            for (field, old) in
                [("children", held.children.keys().collect::<Vec<_>>()), ("labels", held.labels.keys().collect())]
            {
                for key in old {
                    let entry = &mut body["status"][field];
                    if entry.get(key).is_none() {
                        entry[key] = Value::Null;
                    }
                }
            }
            patch(context, writes, &snapshots, &snapshot, Part::Status, body).await?;
        }
        Change::RemoveFinalizer { snapshot } => {
            let Some(held) = view.snapshot(&snapshot.uid) else { return Ok(()) };
            let kept: Vec<_> = held.finalizers().iter().filter(|finalizer| *finalizer != FINALIZER).collect();
            let body = json!({ "metadata": { "finalizers": kept } });
            match writes.patch(&snapshots, &snapshot, Part::Object, body).await {
                // That it is gone is what was wanted.
                Ok(_) | Err(WriteError::Stale { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

async fn patch(
    context: &Context,
    writes: &mut Writes,
    api: &Api<Snapshot>,
    target: &Target,
    part: Part,
    body: Value,
) -> Result<(), WriteError> {
    let patched = writes.patch(api, target, part, body).await?;
    context.longhorn.snapshots.wrote(patched);
    Ok(())
}
