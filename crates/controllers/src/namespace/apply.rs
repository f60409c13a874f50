//! Empties namespaces, and lets them go.

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use serde_json::json;
use tether_plan::namespace::{Change, Outcome};

use crate::context::Context;
use crate::kinds::Kind;
use crate::write::{Part, WriteError, Writes, code};

/// Writes status and finalizers; returns the namespace as it is then.
pub(super) async fn apply(
    context: &Context,
    namespace: &Namespace,
    changes: Vec<Change>,
) -> Result<Namespace, WriteError> {
    let api: Api<Namespace> = Api::all(context.client.clone());
    let (mut current, mut writes) = (namespace.clone(), Writes::default());
    for change in changes {
        match change {
            Change::DeleteContent { .. } => {}
            Change::SetStatus { namespace, conditions } => {
                let body = json!({ "status": { "phase": "Terminating", "conditions": conditions } });
                current = writes.patch(&api, &namespace, Part::Status, body).await?;
            }
            Change::Finalize { namespace, finalizers } => {
                current.spec.get_or_insert_default().finalizers = Some(finalizers);
                let written =
                    api.replace_subresource("finalize", &namespace.name, &PostParams::default(), &current).await;
                current = match written {
                    Err(error) if code(&error) == Some(404) => return Ok(current),
                    other => other.map_err(|e| WriteError::of(format!("finalize namespace {}", namespace.name), e))?,
                };
            }
        }
    }
    Ok(current)
}

/// Deletes everything in the namespace, pods first: what they use stays until they are gone.
pub(super) async fn delete_content(context: &Context, namespace: &str) -> Outcome {
    let (kinds, discovery_failure) = context.kinds.served();
    let mut outcome = Outcome { discovery_failure, ..Outcome::default() };
    let namespaced = || kinds.iter().filter(|kind| kind.resource.is_namespaced);
    let is_pods = |kind: &&Kind| kind.resource.group.is_empty() && kind.resource.plural == "pods";
    for kind in namespaced().filter(is_pods) {
        delete_all(context, kind, namespace, &mut outcome).await;
    }
    if outcome.remaining.is_empty() && outcome.failures.is_empty() {
        for kind in namespaced().filter(|kind| !is_pods(kind)) {
            delete_all(context, kind, namespace, &mut outcome).await;
        }
    }
    outcome
}

async fn delete_all(context: &Context, kind: &Kind, namespace: &str, outcome: &mut Outcome) {
    let api = context.kinds.api(kind, namespace);
    let everything = ListParams::default();
    if kind.can_delete_collection
        && let Err(error) = api.delete_collection(&DeleteParams::background(), &everything).await
        && !matches!(code(&error), Some(404 | 405))
    {
        outcome.failures.push(format!("{}: {error}", kind.resource.plural));
        return;
    }
    let left = match api.list(&everything).await {
        Ok(left) => left.items,
        Err(error) if matches!(code(&error), Some(404 | 405)) => return,
        Err(error) => return outcome.failures.push(format!("{}: {error}", kind.resource.plural)),
    };
    for object in &left {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let told = kind.can_delete_collection || object.metadata.deletion_timestamp.is_some();
        if !told
            && let Err(error) = api.delete(name, &DeleteParams::background()).await
            && code(&error) != Some(404)
        {
            outcome.failures.push(format!("{} {name}: {error}", kind.resource.plural));
        }
        for finalizer in object.metadata.finalizers.iter().flatten() {
            *outcome.finalizers.entry(finalizer.clone()).or_default() += 1;
        }
    }
    if !left.is_empty() {
        let resource = format!("{}.{}", kind.resource.plural, kind.resource.group);
        outcome.remaining.insert(resource, left.len());
    }
}
