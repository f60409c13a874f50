//! Deletes and patches objects of any kind, and asks for owners.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use tether_plan::garbage::{Change, FOREGROUND, Object, Owner, Propagation, Resource};

use super::observe::Owners;
use crate::context::Context;
use crate::kinds::{Kind, Metadata};
use crate::write::{Fence, Part, WriteError, Writes, code};

/// Asks the API server for an owner.
pub(super) async fn ask(
    context: &Context,
    owners: &Owners,
    object: &Object,
    owner: &OwnerReference,
) -> Result<Owner, WriteError> {
    let Some(kind) = context.kinds.find(&owner.api_version, &owner.kind) else {
        return Ok(Owner::NoSuchKind);
    };
    let namespace = object.target.namespace.as_str();
    if kind.resource.is_namespaced && namespace.is_empty() {
        return Ok(Owner::OutOfReach);
    }
    let absent = Owner::Absent { elsewhere: owners.is_elsewhere(&owner.uid, namespace) };
    let api = context.kinds.api(&kind, if kind.resource.is_namespaced { namespace } else { "" });
    let found: Metadata = match api.get(&owner.name).await {
        Ok(found) => found,
        Err(error) if code(&error) == Some(404) => return Ok(absent),
        Err(error) => return Err(WriteError::of(format!("get {} {}", owner.kind, owner.name), error)),
    };
    let meta = found.metadata;
    let foreground = meta.finalizers.iter().flatten().any(|f| f == FOREGROUND) && meta.deletion_timestamp.is_some();
    Ok(match (meta.uid.as_deref() == Some(owner.uid.as_str()), foreground) {
        (false, _) => absent,
        (true, true) => Owner::Foreground,
        (true, false) => Owner::Solid,
    })
}

/// Carries out the changes in their order.
pub(super) async fn apply(context: &Context, looked_at: &Object, changes: Vec<Change>) -> Result<(), WriteError> {
    let mut writes = Writes::default();
    for change in changes {
        match change {
            Change::CheckOwner { .. } => {}
            Change::Delete { object, propagation } => {
                let params = match propagation {
                    Propagation::Background => DeleteParams::background(),
                    Propagation::Foreground => DeleteParams::foreground(),
                    Propagation::Orphan => DeleteParams::orphan(),
                };
                let api = context.kinds.api(&kind(&looked_at.resource), &object.namespace);
                writes.delete(&api, &object, params, Fence::Version).await?;
            }
            Change::SetOwners { resource, object, owners } => {
                let owners = if owners.is_empty() { Value::Null } else { json!(owners) };
                let api = context.kinds.api(&kind(&resource), &object.namespace);
                let body = json!({ "metadata": { "ownerReferences": owners } });
                let patched = writes.patch(&api, &object, Part::Object, body).await;
                match patched {
                    // A dependent that changed is looked at again with its owner; one that is gone needs nothing.
                    Err(error) if object.uid != looked_at.target.uid && !exists(&api, &object.name).await => {
                        tracing::debug!(%error, "a dependent is gone");
                    }
                    other => drop(other?),
                }
            }
            Change::RemoveFinalizer { object, finalizer } => {
                let kept: Vec<&String> = looked_at.finalizers.iter().filter(|f| *f != finalizer).collect();
                let api = context.kinds.api(&kind(&looked_at.resource), &object.namespace);
                let body = json!({ "metadata": { "finalizers": kept } });
                writes.patch(&api, &object, Part::Object, body).await?;
            }
        }
    }
    Ok(())
}

async fn exists(api: &kube::Api<Metadata>, name: &str) -> bool {
    !matches!(api.get_opt(name).await, Ok(None))
}

fn kind(resource: &Resource) -> Kind {
    Kind { resource: std::sync::Arc::new(resource.clone()), can_delete_collection: false }
}
