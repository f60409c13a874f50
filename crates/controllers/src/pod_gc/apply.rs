//! Removes pods, and asks for nodes.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams};
use serde_json::json;
use tether_plan::pod_gc::Change;

use super::observe::MissingNodes;
use crate::context::Context;
use crate::write::{Fence, Part, WriteError, Writes};

/// Carries out the changes, as many as can be; returns whether a node turned out to be gone, so that there is more to
/// decide.
pub(super) async fn apply(context: &Context, missing: &MissingNodes, changes: Vec<Change>) -> Result<bool, WriteError> {
    let (mut asked, mut outcome) = (false, Ok(()));
    for change in changes {
        let done = match change {
            Change::CheckNode { node } => {
                let found = Api::<Node>::all(context.client.clone()).get_metadata_opt(&node).await;
                let found = found.map_err(|e| WriteError::of(format!("get node {node}"), e));
                found.map(|found| {
                    if found.is_some() {
                        missing.exists(&node);
                    } else {
                        missing.gone(&node);
                        asked = true;
                    }
                })
            }
            change @ Change::Remove { .. } => remove(context, change).await,
        };
        outcome = outcome.and(done);
    }
    outcome.map(|()| asked)
}

async fn remove(context: &Context, change: Change) -> Result<(), WriteError> {
    let Change::Remove { pod, fail, conditions } = change else {
        return Ok(());
    };
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &pod.namespace);
    let mut writes = Writes::default();
    if fail {
        let mut status = json!({ "phase": "Failed" });
        if let Some(conditions) = conditions {
            status["conditions"] = json!(conditions);
        }
        writes.patch(&api, &pod, Part::Status, json!({ "status": status })).await?;
    }
    writes.delete(&api, &pod, DeleteParams::default().grace_period(0), Fence::Uid).await
}
