//! One snapshot, and one content: what was decided is carried out.

use std::collections::HashMap;
use std::sync::Arc;

use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::{Value, json};
use tether_controllers::worker::log;
use tether_crd::volume_snapshot::{VolumeSnapshot, VolumeSnapshotContent};
use tether_model::reason::Reason;
use tether_plan::attacher::{add_finalizer, remove_finalizer};
use tether_plan::event::Event;
use tether_plan::object::Target;
use tether_plan::provisioner::{Asked, asked};
use tether_plan::volume_snapshot::content::{self, Change as ContentChange};
use tether_plan::volume_snapshot::snapshot::{self, Change as SnapshotChange, Observed};
use tether_plan::volume_snapshot::{BEING_CREATED, BEING_DELETED, CONTENT_FINALIZER};
use tonic::{Code, Status};

use super::{NAME, Snapshotter};
use crate::call::{SecretError, read_secret, words};
use crate::lanes::Failed;
use crate::precise::{is_gone, precisely};
use crate::proto::{CreateSnapshotRequest, DeleteSnapshotRequest, ListSnapshotsRequest, Snapshot};

const CREATE: &str = "/csi.v1.Controller/CreateSnapshot";
const DELETE: &str = "/csi.v1.Controller/DeleteSnapshot";
const LIST: &str = "/csi.v1.Controller/ListSnapshots";

/// Why a step did not succeed.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error("{0}")]
    Secret(#[from] SecretError),
    #[error("{}", words(.0))]
    Call(#[source] Box<Status>),
    #[error("could not save {0}: {1}")]
    Save(&'static str, #[source] Box<kube::Error>),
    /// The driver is still at it.
    #[error("the snapshot is not ready yet")]
    NotReady,
}

impl From<Status> for StepError {
    fn from(status: Status) -> Self {
        Self::Call(Box::new(status))
    }
}

impl Snapshotter {
    pub(super) async fn snapshot(&self, namespace: &str, name: &str) -> Result<(), Failed> {
        let Some(held) = self.snapshots.get(namespace, name) else { return Ok(()) };
        let content = self.contents.get("", &snapshot::content_name(&held));
        let classes = self.classes.list();
        let claim = held.spec.source.persistent_volume_claim_name.as_deref();
        let claim = claim.and_then(|claim| self.claims.get(namespace, claim));
        let volume = claim.as_ref().and_then(|claim| self.volume_of(claim));
        let is_source = self.claims.list().iter().any(|claim| {
            let waits =
                claim.spec.as_ref().is_some_and(|spec| spec.volume_name.as_deref().unwrap_or_default().is_empty());
            waits
                && claim.metadata.namespace.as_deref() == Some(namespace)
                && asked(claim) == Asked::Snapshot(name.to_owned())
        });
        let observed = Observed {
            snapshot: &held,
            content: content.as_deref(),
            classes: classes.iter().map(AsRef::as_ref).collect(),
            claim: claim.as_deref(),
            volume: volume.as_deref(),
            is_source,
        };
        let plan = snapshot::decide(&self.driver, &observed, self.settings.clock.now());
        log(NAME, &plan);
        for change in plan.changes {
            if let Err(error) = self.change_snapshot(&held, change).await {
                tracing::warn!(snapshot = name, namespace, %error, "trying again later");
                return Err(Failed);
            }
        }
        self.events.publish(plan.events).await;
        Ok(())
    }

    async fn change_snapshot(&self, held: &VolumeSnapshot, change: SnapshotChange) -> Result<(), StepError> {
        let namespace = held.metadata.namespace.as_deref().unwrap_or_default();
        let snapshots: Api<VolumeSnapshot> = Api::namespaced(self.client.clone(), namespace);
        let saved = |error| StepError::Save("VolumeSnapshot", Box::new(error));
        match change {
            SnapshotChange::Protect { .. } => {
                let written = precisely(&snapshots, held, |meta, _| snapshot::protected(meta)).await;
                self.wrote_snapshot(written).map_err(saved)?;
            }
            SnapshotChange::LetGo { .. } => {
                let written = precisely(&snapshots, held, |meta, _| snapshot::let_go(meta)).await;
                self.wrote_snapshot(written).map_err(saved)?;
            }
            SnapshotChange::SetStatus { snapshot, status } => {
                let mut body = json!({ "metadata": { "uid": snapshot.uid }, "status": *status });
                // What is not there any more has to be named.
                for field in ["error", "creationTime", "restoreSize"] {
                    if body["status"].get(field).is_none() {
                        body["status"][field] = Value::Null;
                    }
                }
                let written =
                    snapshots.patch_status(&snapshot.name, &PatchParams::default(), &Patch::Merge(body)).await;
                self.snapshots.wrote(written.map_err(saved)?);
            }
            SnapshotChange::CreateContent(made) => match self.contents().create(&PostParams::default(), &made).await {
                Ok(written) => self.contents.wrote(written),
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(StepError::Save("VolumeSnapshotContent", Box::new(error))),
            },
            SnapshotChange::Bind { content, uid } => {
                self.patch(&content, json!({ "spec": { "volumeSnapshotRef": { "uid": uid } } })).await?;
            }
            SnapshotChange::ReleaseContent { content, mark, delete } => {
                if mark {
                    let annotations = json!({ BEING_DELETED: "yes" });
                    self.patch(&content, json!({ "metadata": { "annotations": annotations } })).await?;
                }
                if delete {
                    let same = Preconditions { uid: Some(content.uid.clone()), resource_version: None };
                    match self.contents().delete(&content.name, &DeleteParams::default().preconditions(same)).await {
                        Ok(_) => {}
                        Err(kube::Error::Api(status)) if status.code == 404 => {}
                        Err(error) => return Err(StepError::Save("VolumeSnapshotContent", Box::new(error))),
                    }
                }
            }
        }
        Ok(())
    }

    fn contents(&self) -> Api<VolumeSnapshotContent> {
        Api::all(self.client.clone())
    }

    /// A snapshot that is gone needs nothing.
    fn wrote_snapshot(&self, written: Result<Option<VolumeSnapshot>, kube::Error>) -> Result<(), kube::Error> {
        match written {
            Ok(Some(written)) => self.snapshots.wrote(written),
            Ok(None) => {}
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    async fn patch(&self, content: &Target, mut body: Value) -> Result<Arc<VolumeSnapshotContent>, StepError> {
        body["metadata"]["uid"] = json!(content.uid);
        let written = self.contents().patch(&content.name, &PatchParams::default(), &Patch::Merge(body)).await;
        let written = written.map_err(|error| StepError::Save("VolumeSnapshotContent", Box::new(error)))?;
        self.contents.wrote(written.clone());
        Ok(Arc::new(written))
    }

    pub(super) async fn content(&self, name: &str) -> Result<(), Failed> {
        let Some(held) = self.contents.get("", name) else { return Ok(()) };
        let class = held.spec.volume_snapshot_class_name.as_deref().and_then(|class| self.classes.get("", class));
        let named = &held.spec.volume_snapshot_ref;
        let snapshot = self
            .snapshots
            .get(named.namespace.as_deref().unwrap_or_default(), named.name.as_deref().unwrap_or_default());
        let observed = content::Observed { content: &held, class: class.as_deref(), snapshot: snapshot.as_deref() };
        let plan = content::decide(&self.driver, &observed);
        log(NAME, &plan);
        self.events.publish(plan.events).await;
        for change in plan.changes {
            let is_delete = matches!(change, ContentChange::Delete { .. });
            match self.change_content(&held, change).await {
                Ok(()) => {}
                Err(StepError::NotReady) => return Err(Failed),
                Err(error) => {
                    tracing::warn!(content = name, %error, "trying again later");
                    let reason = if is_delete { Reason::SnapshotDeleteError } else { Reason::SnapshotCreateFailed };
                    self.events.publish(vec![Event::warning(&*held, reason, error.to_string())]).await;
                    self.tell_error(&held, &error.to_string()).await;
                    return Err(Failed);
                }
            }
        }
        Ok(())
    }

    async fn change_content(&self, held: &VolumeSnapshotContent, change: ContentChange) -> Result<(), StepError> {
        match change {
            ContentChange::AddFinalizer { .. } => {
                let api = self.contents();
                let written = precisely(&api, held, |meta, _| add_finalizer(meta, CONTENT_FINALIZER)).await;
                if let Some(written) =
                    written.map_err(|error| StepError::Save("VolumeSnapshotContent", Box::new(error)))?
                {
                    self.contents.wrote(written);
                }
            }
            ContentChange::Create { content, name, volume, parameters, secret } => {
                let request = CreateSnapshotRequest {
                    source_volume_id: volume,
                    name,
                    secrets: read_secret(&self.client, secret.as_ref()).await?,
                    parameters: parameters.into_iter().collect(),
                };
                let mark = |value: Value| json!({ "metadata": { "annotations": { BEING_CREATED: value } } });
                self.patch(&content, mark(json!("yes"))).await?;
                let answer = self.controller.call(CREATE, request, |mut controller, request| async move {
                    controller.create_snapshot(request).await
                });
                let made =
                    answer.await?.snapshot.ok_or_else(|| Status::internal("the driver answered without a snapshot"))?;
                self.tell(&content, &made).await?;
                self.patch(&content, mark(Value::Null)).await?;
                if !made.ready_to_use {
                    return Err(StepError::NotReady);
                }
            }
            ContentChange::Check { content, handle, secret } => {
                let secrets = read_secret(&self.client, secret.as_ref()).await?;
                let found = if self.lists { self.find(&handle, secrets).await? } else { existing(&handle) };
                self.tell(&content, &found).await?;
                if !found.ready_to_use {
                    return Err(StepError::NotReady);
                }
            }
            ContentChange::Delete { handle, secret, .. } => {
                let secrets = read_secret(&self.client, secret.as_ref()).await?;
                let request = DeleteSnapshotRequest { snapshot_id: handle, secrets };
                let answer = self.controller.call(DELETE, request, |mut controller, request| async move {
                    controller.delete_snapshot(request).await
                });
                match answer.await {
                    Ok(_) => {}
                    Err(status) if status.code() == Code::NotFound => {}
                    Err(status) => return Err(status.into()),
                }
                self.let_go(held).await?;
            }
            ContentChange::RemoveFinalizer { .. } => self.let_go(held).await?,
        }
        Ok(())
    }

    async fn let_go(&self, held: &VolumeSnapshotContent) -> Result<(), StepError> {
        match precisely(&self.contents(), held, |meta, _| remove_finalizer(meta, CONTENT_FINALIZER)).await {
            Err(error) if !is_gone(&error) => Err(StepError::Save("VolumeSnapshotContent", Box::new(error))),
            _ => Ok(()),
        }
    }

    async fn find(&self, handle: &str, secrets: HashMap<String, String>) -> Result<Snapshot, StepError> {
        let request = ListSnapshotsRequest { snapshot_id: handle.to_owned(), secrets, ..Default::default() };
        let answer = self
            .controller
            .call(LIST, request, |mut controller, request| async move { controller.list_snapshots(request).await });
        let found = answer.await?.entries.into_iter().find_map(|entry| entry.snapshot);
        Ok(found.ok_or_else(|| Status::not_found(format!("the driver has no snapshot {handle}")))?)
    }

    /// The content says what the driver said.
    async fn tell(&self, content: &Target, found: &Snapshot) -> Result<(), StepError> {
        let made = found.creation_time.map(|at| at.seconds * 1_000_000_000 + i64::from(at.nanos));
        let size = Some(found.size_bytes).filter(|bytes| *bytes > 0);
        self.status(
            content,
            json!({
                "snapshotHandle": found.snapshot_id,
                "creationTime": made,
                "restoreSize": size,
                "readyToUse": found.ready_to_use,
                "error": null,
            }),
        )
        .await
    }

    async fn tell_error(&self, held: &VolumeSnapshotContent, message: &str) {
        let same = held.status.error.as_ref().and_then(|error| error.message.as_deref()) == Some(message);
        let time = self.settings.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let error = json!({ "error": { "time": time, "message": message }, "readyToUse": false });
        if !same && let Err(error) = self.status(&Target::of(held), error).await {
            tracing::warn!(content = held.name_any(), %error, "the error could not be stored in the status");
        }
    }

    async fn status(&self, content: &Target, status: Value) -> Result<(), StepError> {
        let body = json!({ "metadata": { "uid": content.uid }, "status": status });
        let written = self.contents().patch_status(&content.name, &PatchParams::default(), &Patch::Merge(body)).await;
        let written = written.map_err(|error| StepError::Save("VolumeSnapshotContent", Box::new(error)))?;
        self.contents.wrote(written);
        Ok(())
    }
}

/// A driver that cannot be asked is taken at its word.
fn existing(handle: &str) -> Snapshot {
    Snapshot { snapshot_id: handle.to_owned(), ready_to_use: true, ..Snapshot::default() }
}
