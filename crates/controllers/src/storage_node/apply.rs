//! Writes to Longhorn Nodes, instance managers and their pods.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::json;
use tether_crd::{FINALIZER, InstanceManager, NAMESPACE, Node};
use tether_plan::instance_manager::{self, FAILURES};
use tether_plan::storage_node;

use crate::context::Context;
use crate::write::{FIELD_MANAGER, Fence, Part, WriteError, Writes, code};

pub(super) async fn node(context: &Context, node: &Node, changes: Vec<storage_node::Change>) -> Result<(), WriteError> {
    let api: Api<Node> = Api::namespaced(context.client.clone(), NAMESPACE);
    let mut writes = Writes::default();
    for change in changes {
        match change {
            storage_node::Change::SetStatus { node, conditions, zone, region } => {
                let body = json!({"status": {"conditions": conditions, "zone": zone, "region": region}});
                let patched = writes.patch(&api, &node, Part::Status, body).await?;
                context.longhorn.nodes.wrote(patched);
            }
            storage_node::Change::Delete { node } => {
                writes.delete(&api, &node, DeleteParams::background(), Fence::Uid).await?;
            }
            storage_node::Change::RemoveFinalizer { node: target } => {
                let kept: Vec<_> = node.finalizers().iter().filter(|held| *held != FINALIZER).collect();
                writes.patch(&api, &target, Part::Object, json!({"metadata": {"finalizers": kept}})).await?;
            }
        }
    }
    Ok(())
}

pub(super) async fn manager(context: &Context, changes: Vec<instance_manager::Change>) -> Result<(), WriteError> {
    let managers: Api<InstanceManager> = Api::namespaced(context.client.clone(), NAMESPACE);
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), NAMESPACE);
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(context.client.clone(), NAMESPACE);
    let params = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
    let mut writes = Writes::default();
    for change in changes {
        match change {
            instance_manager::Change::CreateManager(made) => {
                let made =
                    managers.create(&params, &made).await.map_err(|e| WriteError::of("create InstanceManager", e))?;
                context.longhorn.instance_managers.wrote(made);
            }
            instance_manager::Change::CreatePod(made) => match pods.create(&params, &made).await {
                Ok(made) => context.pods.wrote(made),
                // The cache has yet to show it.
                Err(error) if code(&error) == Some(409) => {}
                Err(error) => return Err(WriteError::of("create the pod of an instance manager", error)),
            },
            instance_manager::Change::CreateBudget(made) => match budgets.create(&params, &made).await {
                Ok(made) => context.budgets.wrote(made),
                // The cache has yet to show it.
                Err(error) if code(&error) == Some(409) => {}
                Err(error) => return Err(WriteError::of("create the budget of an instance manager", error)),
            },
            instance_manager::Change::DeleteBudget(target) => {
                writes.delete(&budgets, &target, DeleteParams::background(), Fence::Uid).await?;
            }
            instance_manager::Change::ReplacePod { pod, manager, failures } => {
                let annotations = json!({FAILURES: failures.to_string()});
                let body = json!({"metadata": {"annotations": annotations}});
                writes.patch(&managers, &manager, Part::Object, body).await?;
                writes.delete(&pods, &pod, DeleteParams::default().grace_period(0), Fence::Uid).await?;
            }
            instance_manager::Change::SetStatus { manager, status } => {
                let patched = writes.patch(&managers, &manager, Part::Status, json!({"status": *status})).await?;
                context.longhorn.instance_managers.wrote(patched);
            }
        }
    }
    Ok(())
}
