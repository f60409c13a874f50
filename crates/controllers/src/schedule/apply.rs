//! Gives pods their nodes.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use tether_plan::binding::{BOUND_BY_CONTROLLER, SELECTED_NODE};
use tether_plan::object::Target;
use tether_plan::schedule::Change;

use super::observe::Assumed;
use crate::context::Context;
use crate::write::{Part, WriteError, Writes};

pub(super) async fn apply(context: &Context, assumed: &Assumed, changes: Vec<Change>) -> Result<(), WriteError> {
    let client = || context.client.clone();
    let mut writes = Writes::default();
    for change in changes {
        match change {
            Change::SetClaimRef { volume, claim, mark } => {
                let mut body = json!({ "spec": { "claimRef": claim } });
                if mark {
                    body["metadata"]["annotations"][BOUND_BY_CONTROLLER] = json!("yes");
                }
                let api: Api<PersistentVolume> = Api::all(client());
                writes.patch(&api, &volume, Part::Object, body).await?;
            }
            Change::SelectNode { claim, node } => {
                let mut body = json!({});
                body["metadata"]["annotations"][SELECTED_NODE] = json!(node);
                let api: Api<PersistentVolumeClaim> = Api::namespaced(client(), &claim.namespace);
                writes.patch(&api, &claim, Part::Object, body).await?;
            }
            Change::SetConditions { pod, conditions } => {
                let body = json!({ "status": { "conditions": conditions } });
                let api: Api<Pod> = Api::namespaced(client(), &pod.namespace);
                writes.patch(&api, &pod, Part::Status, body).await?;
            }
            Change::Bind { pod, node } => {
                assumed.insert(&pod.uid, &node);
                if let Err(error) = bind(context, &pod, &node).await {
                    assumed.remove(&pod.uid);
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

async fn bind(context: &Context, pod: &Target, node: &str) -> Result<(), WriteError> {
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &pod.namespace);
    let binding = json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": { "name": pod.name, "namespace": pod.namespace, "uid": pod.uid },
        "target": { "apiVersion": "v1", "kind": "Node", "name": node },
    });
    let bound: Result<Value, _> = api.create_subresource("binding", &pod.name, &PostParams::default(), &binding).await;
    bound.map(drop).map_err(|e| WriteError::of(format!("bind pod {pod:?} to {node}"), e))
}
