//! Writes to nodes and their pods.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams};
use serde_json::json;
use tether_plan::node::{eviction, lifecycle};

use super::observe::Heartbeats;
use crate::context::{Context, NODE_LEASES};
use crate::write::{Fence, Part, WriteError, Writes};

/// Carries out the changes to nodes, as many as can be; returns whether a question was answered, so that there is more
/// to decide.
pub(super) async fn nodes(
    context: &Context,
    heartbeats: &Heartbeats,
    changes: Vec<lifecycle::Change>,
) -> Result<bool, WriteError> {
    let api: Api<Node> = Api::all(context.client.clone());
    let leases: Api<Lease> = Api::namespaced(context.client.clone(), NODE_LEASES);
    let (mut asked, mut outcome) = (false, Ok(()));
    for change in changes {
        let mut writes = Writes::default();
        let done = match change {
            lifecycle::Change::CheckLease { node } => {
                let lease = leases.get_opt(&node).await;
                let lease = lease.map_err(|e| WriteError::of(format!("get lease {node}"), e));
                asked |= lease.is_ok();
                lease.map(|lease| heartbeats.checked(&node, lease.as_ref()))
            }
            lifecycle::Change::SetConditions { node, conditions } => {
                let body = json!({ "status": { "conditions": conditions } });
                writes.patch(&api, &node, Part::Status, body).await.map(drop)
            }
            lifecycle::Change::SetTaints { node, taints } => {
                let body = json!({ "spec": { "taints": taints } });
                writes.patch(&api, &node, Part::Object, body).await.map(drop)
            }
        };
        outcome = outcome.and(done);
    }
    outcome.map(|()| asked)
}

/// Carries out the changes to pods, as many as can be.
pub(super) async fn pods(context: &Context, changes: Vec<eviction::Change>) -> Result<(), WriteError> {
    let mut outcome = Ok(());
    for change in changes {
        outcome = outcome.and(pod(context, change).await);
    }
    outcome
}

async fn pod(context: &Context, change: eviction::Change) -> Result<(), WriteError> {
    let mut writes = Writes::default();
    let (eviction::Change::SetConditions { pod, .. } | eviction::Change::Evict { pod, .. }) = &change;
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &pod.namespace);
    match change {
        eviction::Change::SetConditions { pod, conditions } => {
            let body = json!({ "status": { "conditions": conditions } });
            writes.patch(&api, &pod, Part::Status, body).await.map(drop)
        }
        eviction::Change::Evict { pod, conditions } => {
            if let Some(conditions) = conditions {
                let body = json!({ "status": { "conditions": conditions } });
                writes.patch(&api, &pod, Part::Status, body).await?;
            }
            writes.delete(&api, &pod, DeleteParams::default(), Fence::Uid).await
        }
    }
}
