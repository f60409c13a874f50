//! Writes to claims and volumes.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::Api;
use serde_json::{Value, json};
use tether_plan::binding::{
    BETA_STORAGE_PROVISIONER, BIND_COMPLETED, BOUND_BY_CONTROLLER, Change, STORAGE_PROVISIONER,
};
use tether_plan::object::Target;

use crate::context::Context;
use crate::write::{Part, WriteError, Writes};

/// Carries out the changes in their order, which is what makes a binding safe.
pub(super) async fn apply(context: &Context, changes: Vec<Change>) -> Result<(), WriteError> {
    let mut writes = Writes::default();
    for change in changes {
        one(context, &mut writes, change).await?;
    }
    Ok(())
}

async fn one(context: &Context, writes: &mut Writes, change: Change) -> Result<(), WriteError> {
    match change {
        Change::CheckClaim { .. } | Change::AddFinalizer { .. } | Change::RemoveFinalizer { .. } => Ok(()),
        Change::SetClaimRef { volume, claim, mark } => {
            let mut body = json!({ "spec": { "claimRef": claim } });
            if mark {
                body["metadata"]["annotations"][BOUND_BY_CONTROLLER] = json!("yes");
            }
            on_volume(context, writes, &volume, Part::Object, body).await
        }
        Change::ClearClaimRef { volume, keep_name: true } => {
            let body = json!({ "spec": { "claimRef": { "uid": null, "resourceVersion": null } } });
            on_volume(context, writes, &volume, Part::Object, body).await
        }
        Change::ClearClaimRef { volume, keep_name: false } => {
            let mut body = json!({ "spec": { "claimRef": null } });
            body["metadata"]["annotations"][BOUND_BY_CONTROLLER] = Value::Null;
            on_volume(context, writes, &volume, Part::Object, body).await
        }
        Change::SetVolumePhase { volume, phase } => {
            let body = json!({ "status": { "phase": phase } });
            on_volume(context, writes, &volume, Part::Status, body).await
        }
        Change::SetVolumeName { claim, volume, mark } => {
            let mut body = json!({ "spec": { "volumeName": volume } });
            body["metadata"]["annotations"][BIND_COMPLETED] = json!("yes");
            if mark {
                body["metadata"]["annotations"][BOUND_BY_CONTROLLER] = json!("yes");
            }
            on_claim(context, writes, &claim, Part::Object, body).await
        }
        Change::SetClaimStatus { claim, status } => {
            // Null removes what the new status does not have.
            let mut body = json!({ "status": { "accessModes": null, "capacity": null } });
            merge(&mut body["status"], json!(status));
            on_claim(context, writes, &claim, Part::Status, body).await
        }
        Change::SetClass { claim, class } => {
            let body = json!({ "spec": { "storageClassName": class } });
            on_claim(context, writes, &claim, Part::Object, body).await
        }
        Change::SetProvisioner { claim, provisioner } => {
            let mut body = json!({});
            body["metadata"]["annotations"][STORAGE_PROVISIONER] = json!(provisioner);
            body["metadata"]["annotations"][BETA_STORAGE_PROVISIONER] = json!(provisioner);
            on_claim(context, writes, &claim, Part::Object, body).await
        }
    }
}

fn merge(base: &mut Value, over: Value) {
    if let (Value::Object(base), Value::Object(over)) = (base, over) {
        base.extend(over);
    }
}

async fn on_volume(
    context: &Context,
    writes: &mut Writes,
    volume: &Target,
    part: Part,
    body: Value,
) -> Result<(), WriteError> {
    let api: Api<PersistentVolume> = Api::all(context.client.clone());
    writes.patch(&api, volume, part, body).await.map(drop)
}

async fn on_claim(
    context: &Context,
    writes: &mut Writes,
    claim: &Target,
    part: Part,
    body: Value,
) -> Result<(), WriteError> {
    let api: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), &claim.namespace);
    writes.patch(&api, claim, part, body).await.map(drop)
}

/// Protects or frees a claim.
pub(super) async fn claim_finalizers(
    context: &Context,
    claim: &PersistentVolumeClaim,
    changes: Vec<Change>,
) -> Result<(), WriteError> {
    for change in changes {
        if let Some((target, body)) = finalizers(claim.metadata.finalizers.as_deref(), change) {
            on_claim(context, &mut Writes::default(), &target, Part::Object, body).await?;
        }
    }
    Ok(())
}

/// Protects or frees a volume.
pub(super) async fn volume_finalizers(
    context: &Context,
    volume: &PersistentVolume,
    changes: Vec<Change>,
) -> Result<(), WriteError> {
    for change in changes {
        if let Some((target, body)) = finalizers(volume.metadata.finalizers.as_deref(), change) {
            on_volume(context, &mut Writes::default(), &target, Part::Object, body).await?;
        }
    }
    Ok(())
}

/// The whole list of finalizers as it is to be: the version keeps others' from being overwritten.
fn finalizers(held: Option<&[String]>, change: Change) -> Option<(Target, Value)> {
    let mut all: Vec<String> = held.unwrap_or_default().to_vec();
    let target = match change {
        Change::AddFinalizer { object, finalizer } => {
            all.push(finalizer.to_owned());
            object
        }
        Change::RemoveFinalizer { object, finalizer } => {
            all.retain(|held| held != finalizer);
            object
        }
        _ => return None,
    };
    Some((target, json!({ "metadata": { "finalizers": all } })))
}
