//! Deletes instances, and lets definitions go.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, ListParams};
use serde_json::json;
use tether_plan::crd_cleanup::{Change, FINALIZER, Instances};
use tether_plan::garbage::Resource;

use crate::context::Context;
use crate::kinds::Kind;
use crate::write::{Part, WriteError, Writes, code};

/// Writes conditions and finalizers; returns the definition as it is then.
pub(super) async fn apply(
    context: &Context,
    definition: &CustomResourceDefinition,
    changes: Vec<Change>,
) -> Result<CustomResourceDefinition, WriteError> {
    let api: Api<CustomResourceDefinition> = Api::all(context.client.clone());
    let (mut current, mut writes) = (definition.clone(), Writes::default());
    for change in changes {
        match change {
            Change::DeleteInstances { .. } => {}
            Change::SetConditions { definition, conditions } => {
                let body = json!({ "status": { "conditions": conditions } });
                current = writes.patch(&api, &definition, Part::Status, body).await?;
            }
            Change::Finalize { definition } => {
                let held = current.metadata.finalizers.clone().unwrap_or_default();
                let kept: Vec<String> = held.into_iter().filter(|f| f != FINALIZER).collect();
                let body = json!({ "metadata": { "finalizers": kept } });
                current = writes.patch(&api, &definition, Part::Object, body).await?;
            }
        }
    }
    Ok(current)
}

/// Tells all instances to go, and counts those that remain.
pub(super) async fn delete_instances(context: &Context, definition: &CustomResourceDefinition) -> Instances {
    match try_delete(context, definition).await {
        Ok(remaining) => Instances::Deleted { remaining },
        // Not served any more: then there is nothing that could be there.
        Err(error) if code(&error) == Some(404) => Instances::Deleted { remaining: 0 },
        Err(error) => Instances::Failed { message: error.to_string() },
    }
}

async fn try_delete(context: &Context, definition: &CustomResourceDefinition) -> Result<usize, kube::Error> {
    let spec = &definition.spec;
    let served =
        spec.versions.iter().find(|v| v.storage && v.served).or_else(|| spec.versions.iter().find(|v| v.served));
    let Some(version) = served else {
        return Ok(0);
    };
    let kind = Kind {
        resource: Arc::new(Resource {
            group: spec.group.clone(),
            version: version.name.clone(),
            kind: spec.names.kind.clone(),
            plural: spec.names.plural.clone(),
            is_namespaced: spec.scope == "Namespaced",
        }),
        can_delete_collection: true,
    };
    let everywhere = context.kinds.api(&kind, "");
    let instances = everywhere.list(&ListParams::default()).await?.items;
    // A collection is deleted in one namespace at a time.
    let namespaces: BTreeSet<String> =
        instances.iter().map(|i| i.metadata.namespace.clone().unwrap_or_default()).collect();
    for namespace in namespaces {
        let api = context.kinds.api(&kind, &namespace);
        api.delete_collection(&DeleteParams::background(), &ListParams::default()).await?;
    }
    if instances.is_empty() {
        return Ok(0);
    }
    Ok(everywhere.list(&ListParams::default()).await?.items.len())
}
