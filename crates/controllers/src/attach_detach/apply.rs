//! Carrying out what was decided.

use k8s_openapi::api::core::v1::{AttachedVolume, Node};
use k8s_openapi::api::storage::v1::{VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec};
use kube::api::{Api, DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tether_plan::attach_detach::{Change, NodeChange};

use super::memory::Memory;
use crate::context::Context;
use crate::write::{Fence, WriteError, Writes, code};

pub(super) async fn apply(
    context: &Context,
    memory: &Memory,
    unique_name: &str,
    change: Change,
) -> Result<(), WriteError> {
    let api: Api<VolumeAttachment> = Api::all(context.client.clone());
    match change {
        Change::Create { name, driver, node, volume } => {
            let source = VolumeAttachmentSource { persistent_volume_name: Some(volume), ..Default::default() };
            let attachment = VolumeAttachment {
                metadata: ObjectMeta { name: Some(name.clone()), ..Default::default() },
                spec: VolumeAttachmentSpec { attacher: driver, node_name: node, source },
                status: None,
            };
            match api.create(&PostParams::default(), &attachment).await {
                Ok(created) => {
                    memory.created(created, || context.attachments.get("", &name).is_some());
                    Ok(())
                }
                // The watch will show it.
                Err(error) if code(&error) == Some(409) => Ok(()),
                Err(error) => Err(WriteError::of(format!("create volumeattachment {name}"), error)),
            }
        }
        Change::Delete { attachment, node, check, forced } => {
            if check {
                is_safe(context, &node, unique_name).await?;
            }
            if let Some(reason) = forced {
                tracing::warn!(volume = unique_name, node, reason, "the volume is taken from its node by force");
            }
            Writes::default().delete(&api, &attachment, DeleteParams::default(), Fence::Uid).await
        }
        Change::List { .. } | Change::Unlist { .. } => Ok(()),
    }
}

/// The second half of the handshake: the volume is off the node's list, and the node does not say that it uses it. Asked
/// of the API server, because a node that wrote later than the list changed will not mount it, and one that wrote earlier
/// is seen here.
async fn is_safe(context: &Context, node: &str, unique_name: &str) -> Result<(), WriteError> {
    let api: Api<Node> = Api::all(context.client.clone());
    let found = api.get_opt(node).await.map_err(|e| WriteError::of(format!("get node {node}"), e))?;
    let Some(status) = found.and_then(|node| node.status) else { return Ok(()) };
    let in_use = status.volumes_in_use.iter().flatten().any(|name| name == unique_name);
    let listed = status.volumes_attached.iter().flatten().any(|volume| volume.name == unique_name);
    if in_use || listed {
        let operation =
            format!("detach {unique_name}: volume is still in use by node {node}, according to Node status");
        return Err(WriteError::Unfinished { operation });
    }
    Ok(())
}

/// Replaces a node's list, if it still is what was decided on.
pub(super) async fn apply_node(context: &Context, change: NodeChange) -> Result<(), WriteError> {
    const PATH: &str = "/status/volumesAttached";
    let NodeChange::SetAttached { node, seen, wanted } = change;
    let list = |volumes: &[AttachedVolume]| if volumes.is_empty() { Value::Null } else { json!(volumes) };
    let mut steps = vec![
        json!({ "op": "test", "path": "/metadata/uid", "value": node.uid }),
        json!({ "op": "test", "path": PATH, "value": list(&seen) }),
    ];
    steps.push(match wanted.is_empty() {
        true => json!({ "op": "remove", "path": PATH }),
        false => json!({ "op": "add", "path": PATH, "value": wanted }),
    });
    let operation = format!("patch the attached volumes of node {node:?}");
    let patch = serde_json::from_value(Value::Array(steps)).expect("a patch that was written here must parse");
    let api: Api<Node> = Api::all(context.client.clone());
    let patched = api.patch_status(&node.name, &PatchParams::default(), &Patch::<()>::Json(patch)).await;
    match patched {
        Ok(_) => Ok(()),
        // A test failed: the list is another one by now.
        Err(error) if code(&error) == Some(422) => Err(WriteError::Stale { operation }),
        Err(error) => Err(WriteError::of(operation, error)),
    }
}
