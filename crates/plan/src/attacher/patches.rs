//! The writes, precise enough that nobody else's are lost.
//!
//! Metadata is changed by JSON patches that test what they change, status by merge patches of the attacher's own fields.
//! Both name the object's uid: an attachment that was deleted and made again has the same name, and is another one.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::errors::shortened;
use super::names::NODE_ID;
use crate::object::uid;

/// What a detached attachment gets: the finalizer goes first, for with the status first a crash in between would
/// unpublish once more.
#[derive(Clone, Debug, PartialEq)]
pub struct Detached {
    /// Empty if the finalizer is not there.
    pub metadata: Option<Value>,
    pub status: Option<Value>,
}

/// Adds the finalizer; `None` if it is there.
pub fn add_finalizer(meta: &ObjectMeta, finalizer: &str) -> Option<Value> {
    let steps = finalizer_steps(meta, finalizer)?;
    Some(Value::Array(same_object(meta).into_iter().chain(steps).collect()))
}

fn finalizer_steps(meta: &ObjectMeta, finalizer: &str) -> Option<Vec<Value>> {
    const PATH: &str = "/metadata/finalizers";
    match meta.finalizers.as_deref() {
        Some(held) if held.iter().any(|f| f == finalizer) => None,
        None => Some(vec![
            json!({ "op": "test", "path": PATH, "value": null }),
            json!({ "op": "add", "path": PATH, "value": [finalizer] }),
        ]),
        Some([]) => Some(vec![
            json!({ "op": "test", "path": PATH, "value": [] }),
            json!({ "op": "replace", "path": PATH, "value": [finalizer] }),
        ]),
        Some(held) => Some(vec![
            json!({ "op": "test", "path": PATH, "value": held }),
            json!({ "op": "add", "path": format!("{PATH}/-"), "value": finalizer }),
        ]),
    }
}

/// Removes the finalizer from where it was seen; `None` if it is not there.
pub fn remove_finalizer(meta: &ObjectMeta, finalizer: &str) -> Option<Value> {
    let at = meta.finalizers.as_deref()?.iter().position(|f| f == finalizer)?;
    let path = format!("/metadata/finalizers/{at}");
    let steps = [json!({ "op": "test", "path": path, "value": finalizer }), json!({ "op": "remove", "path": path })];
    Some(Value::Array(same_object(meta).into_iter().chain(steps).collect()))
}

/// Replaces the list of finalizers, if it still is the one that `wanted` was made from; `None` if that is it already.
pub fn set_finalizers(meta: &ObjectMeta, wanted: &[String]) -> Option<Value> {
    const PATH: &str = "/metadata/finalizers";
    let held = meta.finalizers.as_deref();
    if held.unwrap_or_default() == wanted {
        return None;
    }
    let steps = [
        json!({ "op": "test", "path": PATH, "value": held }),
        json!({ "op": if held.is_some() { "replace" } else { "add" }, "path": PATH, "value": wanted }),
    ];
    Some(Value::Array(same_object(meta).into_iter().chain(steps).collect()))
}

/// Writes down that a call will be made: finalizer and node id. `None` if both are there.
pub fn mark(attachment: &VolumeAttachment, finalizer: &str, node_id: &str) -> Option<Value> {
    let meta = &attachment.metadata;
    let mut steps = finalizer_steps(meta, finalizer).unwrap_or_default();
    match &meta.annotations {
        Some(held) if held.get(NODE_ID).map(String::as_str) == Some(node_id) => {}
        Some(held) if !held.is_empty() => {
            let path = format!("/metadata/annotations/{}", NODE_ID.replace('~', "~0").replace('/', "~1"));
            steps.push(json!({ "op": "add", "path": path, "value": node_id }));
        }
        _ => {
            steps.push(json!({ "op": "test", "path": "/metadata/annotations", "value": null }));
            steps.push(json!({ "op": "add", "path": "/metadata/annotations", "value": { NODE_ID: node_id } }));
        }
    }
    (!steps.is_empty()).then(|| Value::Array(same_object(meta).into_iter().chain(steps).collect()))
}

fn same_object(meta: &ObjectMeta) -> Option<Value> {
    let uid = meta.uid.as_deref()?;
    Some(json!({ "op": "test", "path": "/metadata/uid", "value": uid }))
}

/// The status after a successful publish; what an earlier one left in the metadata goes.
pub fn attached(attachment: &VolumeAttachment, context: &BTreeMap<String, String>) -> Value {
    let held = attachment.status.as_ref().and_then(|s| s.attachment_metadata.as_ref());
    let mut metadata: BTreeMap<&str, Option<&str>> =
        held.into_iter().flatten().map(|(k, _)| (k.as_str(), None)).collect();
    metadata.extend(context.iter().map(|(k, v)| (k.as_str(), Some(v.as_str()))));
    let metadata = if metadata.is_empty() { Value::Null } else { json!(metadata) };
    let status = json!({ "attached": true, "attachmentMetadata": metadata, "attachError": null });
    json!({ "metadata": { "uid": uid(attachment) }, "status": status })
}

/// The status where there is nothing to publish.
pub fn trivially_attached(attachment: &VolumeAttachment) -> Value {
    json!({ "metadata": { "uid": uid(attachment) }, "status": { "attached": true } })
}

/// What is written after a successful unpublish.
pub fn detached(attachment: &VolumeAttachment, finalizer: &str) -> Detached {
    let status = attachment.status.as_ref();
    let was = status.is_some_and(|s| s.attached || s.detach_error.is_some() || s.attachment_metadata.is_some());
    let body = json!({ "attached": false, "detachError": null, "attachmentMetadata": null });
    Detached {
        metadata: remove_finalizer(&attachment.metadata, finalizer),
        status: was.then(|| json!({ "metadata": { "uid": uid(attachment) }, "status": body })),
    }
}

/// The status after a failed attach. A status has to say whether the volume is attached, and it is not.
pub fn attach_failed(attachment: &VolumeAttachment, message: &str, code: Option<i32>, now: Timestamp) -> Value {
    let mut error = json!({ "message": shortened(message), "time": seconds(now) });
    if let Some(code) = code {
        error["errorCode"] = json!(code);
    }
    failed(attachment, "attachError", &error)
}

/// The status after a failed detach.
pub fn detach_failed(attachment: &VolumeAttachment, message: &str, now: Timestamp) -> Value {
    failed(attachment, "detachError", &json!({ "message": shortened(message), "time": seconds(now) }))
}

fn failed(attachment: &VolumeAttachment, field: &str, error: &Value) -> Value {
    let mut status = json!({ field: error });
    if attachment.status.is_none() {
        status["attached"] = json!(false);
    }
    json!({ "metadata": { "uid": uid(attachment) }, "status": status })
}

/// Kubernetes' times have no fraction of a second.
fn seconds(now: Timestamp) -> String {
    Timestamp::from_second(now.as_second()).unwrap_or(now).to_string()
}
