//! Of the resources of volumes, a node writes what is about itself: its Node, its instance manager, the engines and replicas
//! that are on it, and of a volume the record, as long as an engine of the volume is there.
//!
//! Who holds the credentials of one node can so neither take a volume from another node nor make a replica elsewhere fail.

use serde_json::Value;
use tether_crd::{GROUP, NAMESPACE};

use super::{Operation, Request};
use crate::auth::{Objects, text};

/// Why a node may not make this write of a resource of [`GROUP`]; none: it may.
pub(super) fn refuse(node: &str, request: &Request, objects: &dyn Objects) -> Option<String> {
    let old = request.old_object.as_deref();
    let held = old.unwrap_or(&request.object);
    let is_here = |object: &Value| text(object, "/spec/nodeID") == node || text(object, "/status/ownerID") == node;
    match request.resource.resource.as_str() {
        "nodes" => (request.name != node).then(|| format!("node {node:?} can only write the Node of its own name")),
        "instancemanagers" => (text(held, "/spec/nodeID") != node)
            .then(|| format!("node {node:?} can only write instance managers with spec.nodeID set to itself")),
        kind @ ("engines" | "replicas") => {
            if !is_here(held) {
                return Some(format!("node {node:?} can only write {kind} that are on it"));
            }
            let new = &request.object;
            let keeps_spec = request.operation != Operation::Update
                || request.subresource == "status"
                || old.is_none_or(|old| old.get("spec") == new.get("spec"));
            (!keeps_spec).then(|| format!("node {node:?} cannot change what is wanted of {kind}"))
        }
        "volumes" => {
            let keeps_rest = old.is_some_and(|old| rest(old) == rest(&request.object));
            if request.subresource != "status" || !keeps_rest {
                return Some(format!("node {node:?} can only change status.record of volumes"));
            }
            let engines = objects.named(&format!("engines.{GROUP}"), NAMESPACE, &format!("{}-e-", request.name));
            let serves =
                engines.iter().any(|engine| text(engine, "/spec/volumeName") == request.name && is_here(engine));
            (!serves).then(|| format!("node {node:?} has no engine of volume {:?}", request.name))
        }
        _ => None,
    }
}

/// The status of a volume, without its record.
fn rest(volume: &Value) -> Value {
    let mut status = volume.get("status").cloned().unwrap_or_default();
    if let Some(status) = status.as_object_mut() {
        status.remove("record");
    }
    match status {
        Value::Null => Value::Object(serde_json::Map::new()),
        status => status,
    }
}
