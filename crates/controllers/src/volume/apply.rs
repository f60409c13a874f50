//! Writes to volumes and to what belongs to them. Replicas change side by side, then engines, then the volume's status.

use std::fmt::Debug;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures::future::try_join_all;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DeleteParams, PostParams};
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tether_crd::{API_VERSION, Engine, FINALIZER, NAMESPACE, Replica, Volume, VolumeAttachment, labels, names};
use tether_plan::object::Target;
use tether_plan::volume::{Change, Kind, Part as Which};

use super::observe::View;
use crate::cache::Cache;
use crate::context::Context;
use crate::write::{FIELD_MANAGER, Fence, Part, WriteError, Writes, code};

/// Bytes of a volume's key.
const KEY_BYTES: usize = 32;

/// Carries out a plan. What is for different objects and may be made in any order is made side by side.
pub(super) async fn apply(context: &Context, view: &View, changes: Vec<Change>) -> Result<(), WriteError> {
    let mut writes = Writes::default();
    let mut changes = changes.into_iter().peekable();
    while let Some(change) = changes.next() {
        if !is_of_replica(&change) {
            one(context, view, &mut writes, change).await?;
            continue;
        }
        let mut together = vec![change];
        while let Some(next) = changes.next_if(is_of_replica) {
            together.push(next);
        }
        // Each is for a replica of its own.
        try_join_all(together.into_iter().map(async |change| one(context, view, &mut Writes::default(), change).await))
            .await?;
    }
    Ok(())
}

fn is_of_replica(change: &Change) -> bool {
    match change {
        Change::CreateReplica(_) => true,
        Change::Patch { kind, .. } | Change::Delete { kind, .. } => *kind == Kind::Replica,
        _ => false,
    }
}

async fn one(context: &Context, view: &View, writes: &mut Writes, change: Change) -> Result<(), WriteError> {
    let longhorn = &context.longhorn;
    match change {
        Change::CreateKey { volume } => create_key(context, &volume).await,
        Change::CreateAttachment(made) => create(context, &longhorn.attachments, &made).await,
        Change::CreateReplica(made) => create(context, &longhorn.replicas, &made).await,
        Change::CreateEngine(made) => create(context, &longhorn.engines, &made).await,
        Change::Patch { kind, part, target, body } => {
            let part = match part {
                Which::Object => Part::Object,
                Which::Status => Part::Status,
            };
            match kind {
                Kind::Volume => patch(context, &longhorn.volumes, writes, &target, part, body).await,
                Kind::Engine => patch(context, &longhorn.engines, writes, &target, part, body).await,
                Kind::Replica => patch(context, &longhorn.replicas, writes, &target, part, body).await,
                Kind::Attachment => patch(context, &longhorn.attachments, writes, &target, part, body).await,
            }
        }
        Change::SetTicket { attachment, id, ticket } => {
            let body = json!({ "spec": { "attachmentTickets": { id: ticket } } });
            patch(context, &longhorn.attachments, writes, &attachment, Part::Object, body).await
        }
        Change::Delete { kind, target } => match kind {
            Kind::Volume => delete::<Volume>(context, writes, &target).await,
            Kind::Engine => delete::<Engine>(context, writes, &target).await,
            Kind::Replica => delete::<Replica>(context, writes, &target).await,
            Kind::Attachment => delete::<VolumeAttachment>(context, writes, &target).await,
        },
        Change::RemoveFinalizer { kind, target } => {
            let body = json!({ "metadata": { "finalizers": without_ours(view, kind, &target) } });
            match kind {
                Kind::Volume => gone(patch(context, &longhorn.volumes, writes, &target, Part::Object, body).await),
                Kind::Engine => gone(patch(context, &longhorn.engines, writes, &target, Part::Object, body).await),
                Kind::Replica => gone(patch(context, &longhorn.replicas, writes, &target, Part::Object, body).await),
                Kind::Attachment => {
                    gone(patch(context, &longhorn.attachments, writes, &target, Part::Object, body).await)
                }
            }
        }
    }
}

fn api<K>(context: &Context) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    Api::namespaced(context.client.clone(), NAMESPACE)
}

async fn create<K>(context: &Context, cache: &Cache<K>, made: &K) -> Result<(), WriteError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Serialize
        + Send
        + Sync
        + 'static,
{
    let params = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
    let operation = || format!("create {} {}", K::kind(&()), made.name_any());
    let made = api::<K>(context).create(&params, made).await.map_err(|e| WriteError::of(operation(), e))?;
    cache.wrote(made);
    Ok(())
}

async fn patch<K>(
    context: &Context,
    cache: &Cache<K>,
    writes: &mut Writes,
    target: &Target,
    part: Part,
    body: Value,
) -> Result<(), WriteError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let patched = writes.patch(&api::<K>(context), target, part, body).await?;
    // One that was deleted, and only waited for this, is gone; the watch says so.
    if patched.meta().deletion_timestamp.is_none() {
        cache.wrote(patched);
    }
    Ok(())
}

async fn delete<K>(context: &Context, writes: &Writes, target: &Target) -> Result<(), WriteError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    // The decision rests on what the object was: a replica that is in use again is not deleted.
    writes.delete(&api::<K>(context), target, DeleteParams::background(), Fence::Version).await
}

/// That it is gone is what was wanted.
fn gone(done: Result<(), WriteError>) -> Result<(), WriteError> {
    match done {
        Err(WriteError::Stale { .. }) | Ok(()) => Ok(()),
        refused => refused,
    }
}

/// The finalizers that others put there.
fn without_ours(view: &View, kind: Kind, target: &Target) -> Vec<String> {
    let is_meant = |uid: Option<&String>| uid == Some(&target.uid);
    let held = match kind {
        Kind::Volume => Some(view.volume.finalizers()),
        Kind::Attachment => view.attachment.as_ref().map(|attachment| attachment.finalizers()),
        Kind::Engine => view.engines.iter().find(|e| is_meant(e.metadata.uid.as_ref())).map(|e| e.finalizers()),
        Kind::Replica => view.replicas.iter().find(|r| is_meant(r.metadata.uid.as_ref())).map(|r| r.finalizers()),
    };
    held.unwrap_or_default().iter().filter(|finalizer| *finalizer != FINALIZER).cloned().collect()
}

/// Makes the Secret that engine and replicas of the volume prove to each other to know. One that is there stays.
async fn create_key(context: &Context, volume: &Target) -> Result<(), WriteError> {
    let mut key = [0_u8; KEY_BYTES];
    getrandom::fill(&mut key).expect("the system must have random numbers");
    let name = names::data_key_secret(&volume.name);
    let owner = json!({ "apiVersion": API_VERSION, "kind": "Volume", "name": volume.name, "uid": volume.uid });
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": { "name": name, "labels": { labels::VOLUME: volume.name }, "ownerReferences": [owner] },
        "type": "Opaque",
        "immutable": true,
        "data": { names::DATA_KEY: BASE64_STANDARD.encode(key) },
    });
    let secret: Secret = serde_json::from_value(secret).expect("a Secret must be one");
    let params = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
    match api::<Secret>(context).create(&params, &secret).await {
        Ok(_) => Ok(()),
        Err(error) if code(&error) == Some(409) => Ok(()),
        Err(error) => Err(WriteError::of(format!("create Secret {name}"), error)),
    }
}
