//! Making and deleting one volume.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tether_controllers::worker::log;
use tether_crd::volume_snapshot::{VolumeSnapshot, VolumeSnapshotContent};
use tether_model::reason::Reason;
use tether_plan::attacher::remove_finalizer;
use tether_plan::binding::{SELECTED_NODE, claim_class, volume_name};
use tether_plan::event::Event;
use tether_plan::object::{annotation, name as name_of};
use tether_plan::provisioner::{
    Asked, ClaimChange, ClaimObserved, Create, FINALIZER, Made, Origin, VolumeChange, VolumeObserved, asked,
    decide_claim, decide_volume, from_claim, from_snapshot, persistent_volume,
};
use tether_plan::resizer::requested;
use tonic::{Code, Status};

use super::{NAME, Provisioner};
use crate::call::{SecretError, capability, read_secret, words};
use crate::lanes::Failed;
use crate::precise::{is_gone, precisely};
use crate::proto::volume_content_source::{SnapshotSource, Type as SourceType, VolumeSource};
use crate::proto::{
    CapacityRange, CreateVolumeRequest, DeleteVolumeRequest, Topology, TopologyRequirement, VolumeContentSource,
};

const CREATE: &str = "/csi.v1.Controller/CreateVolume";
const DELETE: &str = "/csi.v1.Controller/DeleteVolume";

/// Why a step did not succeed.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error("{0}")]
    Secret(#[from] SecretError),
    #[error("{}", words(.0))]
    Call(#[source] Box<Status>),
    #[error("could not save PersistentVolume: {0}")]
    Save(#[source] Box<kube::Error>),
}

impl StepError {
    /// The driver has no room for it.
    fn is_exhausted(&self) -> bool {
        matches!(self, Self::Call(status) if status.code() == Code::ResourceExhausted)
    }
}

impl Provisioner {
    pub(super) async fn claim(&self, namespace: &str, name: &str) -> Result<(), Failed> {
        let Some(claim) = self.claims.get(namespace, name) else { return Ok(()) };
        let class = self.classes.get("", claim_class(&claim));
        let selected = annotation(&*claim, SELECTED_NODE);
        let node = selected.and_then(|node| Some((self.nodes.get("", node)?, self.csi_nodes.get("", node)?)));
        let node = node.as_ref().map(|(node, drivers)| (&**node, &**drivers));
        let origin = self.origin(&claim).await;
        let is_waiting = origin.is_err();
        let observed = ClaimObserved { claim: &claim, class: class.as_deref(), node, origin };
        let plan = decide_claim(&self.driver, &observed);
        log(NAME, &plan);
        self.events.publish(plan.events).await;
        let (Some(ClaimChange::Create(asked)), Some(class)) = (plan.changes.into_iter().next(), class) else {
            // Nobody tells when a source becomes ready: it is looked at again.
            return if is_waiting && volume_name(&claim).is_empty() { Err(Failed) } else { Ok(()) };
        };
        match self.create(&claim, &class, &asked).await {
            Ok(()) => {
                let note = format!("Successfully provisioned volume {}", asked.name);
                let event = Event::normal(&*claim, Reason::ProvisioningSucceeded, note);
                self.events.publish(vec![event]).await;
                self.used_room(name_of(&*class));
                Ok(())
            }
            Err(error) => {
                tracing::warn!(claim = name, namespace, %error, "trying again later");
                let note = format!("failed to provision volume with StorageClass {:?}: {error}", name_of(&*class));
                let event = Event::warning(&*claim, Reason::ProvisioningFailed, note);
                self.events.publish(vec![event]).await;
                if error.is_exhausted() && self.driver.topology && selected.is_some() {
                    self.used_room(name_of(&*class));
                    return self.give_back(&claim).await;
                }
                Err(Failed)
            }
        }
    }

    /// There is no room where the pod was to run: the scheduler is to choose again, and will tell.
    async fn give_back(&self, claim: &PersistentVolumeClaim) -> Result<(), Failed> {
        let api: Api<PersistentVolumeClaim> =
            Api::namespaced(self.client.clone(), claim.metadata.namespace.as_deref().unwrap_or_default());
        let body = json!({ "metadata": {
            "uid": claim.metadata.uid,
            "resourceVersion": claim.metadata.resource_version,
            "annotations": { SELECTED_NODE: null },
        } });
        match api.patch(name_of(claim), &PatchParams::default(), &Patch::Merge(body)).await {
            Ok(written) => {
                self.claims.wrote(written);
                Ok(())
            }
            Err(error) => {
                tracing::warn!(claim = name_of(claim), %error, "no other node could be asked for, trying again later");
                Err(Failed)
            }
        }
    }

    /// What the claim's volume is to begin with.
    async fn origin(&self, claim: &PersistentVolumeClaim) -> Result<Option<Origin>, String> {
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        match asked(claim) {
            Asked::Nothing => Ok(None),
            Asked::Other(what) => Err(format!("volumes cannot be made from {what}")),
            Asked::Claim(source) => {
                let source = self.claims.get(namespace, &source);
                let volume = source.as_ref().and_then(|source| self.volumes.get("", volume_name(source)));
                from_claim(&self.driver, source.as_deref(), volume.as_deref()).map(Some)
            }
            Asked::Snapshot(source) => {
                let snapshots: Api<VolumeSnapshot> = Api::namespaced(self.client.clone(), namespace);
                let snapshot = snapshots.get_opt(&source).await.map_err(|error| error.to_string())?;
                let bound = snapshot.as_ref().and_then(|s| s.status.bound_volume_snapshot_content_name.clone());
                let contents: Api<VolumeSnapshotContent> = Api::all(self.client.clone());
                let content = match bound {
                    Some(bound) => contents.get_opt(&bound).await.map_err(|error| error.to_string())?,
                    None => None,
                };
                let bytes = requested(claim).unwrap_or_default();
                from_snapshot(&self.driver, snapshot.as_ref(), content.as_ref(), bytes).map(Some)
            }
        }
    }

    async fn create(
        &self,
        claim: &PersistentVolumeClaim,
        class: &StorageClass,
        asked: &Create,
    ) -> Result<(), StepError> {
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        let request = CreateVolumeRequest {
            name: asked.name.clone(),
            capacity_range: Some(CapacityRange { required_bytes: asked.bytes, limit_bytes: 0 }),
            volume_capabilities: asked.modes.iter().map(|mode| capability(&asked.content, *mode)).collect(),
            parameters: asked.parameters.clone().into_iter().collect(),
            secrets: read_secret(&self.client, asked.secret.as_ref()).await?,
            accessibility_requirements: asked.topology.as_ref().map(|segments| {
                let here = vec![Topology { segments: segments.clone().into_iter().collect() }];
                TopologyRequirement { requisite: here.clone(), preferred: here }
            }),
            volume_content_source: asked.origin.as_ref().map(content_source),
            ..Default::default()
        };
        let answer = self
            .controller
            .call(CREATE, request, |mut controller, request| async move { controller.create_volume(request).await });
        let answer = answer.await.map_err(|status| StepError::Call(Box::new(status)))?;
        let Some(volume) = answer.volume else {
            return Err(StepError::Call(Box::new(Status::internal("the driver answered without a volume"))));
        };
        let made = Made {
            handle: volume.volume_id,
            bytes: volume.capacity_bytes,
            context: volume.volume_context.into_iter().collect(),
            topology: volume.accessible_topology.into_iter().map(|t| t.segments.into_iter().collect()).collect(),
        };
        let object = persistent_volume(&self.driver, claim, class, asked, &made);
        match api.create(&PostParams::default(), &object).await {
            Ok(written) => self.volumes.wrote(written),
            // An earlier attempt wrote it, and did not live to say so.
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(StepError::Save(Box::new(error))),
        }
        Ok(())
    }

    pub(super) async fn volume(&self, name: &str) -> Result<(), Failed> {
        let Some(volume) = self.volumes.get("", name) else { return Ok(()) };
        let observed = VolumeObserved { volume: &volume, attachments: self.attachments.find(name).len() };
        let plan = decide_volume(&self.driver, &observed);
        log(NAME, &plan);
        for change in plan.changes {
            if let Err(error) = self.delete(&volume, change).await {
                tracing::warn!(volume = name, %error, "trying again later");
                let event = Event::warning(&*volume, Reason::VolumeFailedDelete, error.to_string());
                self.events.publish(vec![event]).await;
                return Err(Failed);
            }
        }
        Ok(())
    }

    async fn delete(&self, volume: &PersistentVolume, change: VolumeChange) -> Result<(), StepError> {
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        if let VolumeChange::Delete { handle, secret, .. } = change {
            let request =
                DeleteVolumeRequest { volume_id: handle, secrets: read_secret(&self.client, secret.as_ref()).await? };
            let answer = self.controller.call(DELETE, request, |mut controller, request| async move {
                controller.delete_volume(request).await
            });
            match answer.await {
                Ok(_) => {}
                Err(status) if status.code() == Code::NotFound => {}
                Err(status) => return Err(StepError::Call(Box::new(status))),
            }
            match api.delete(name_of(volume), &DeleteParams::default()).await {
                Ok(_) => {}
                Err(error) if is_gone(&error) => return Ok(()),
                Err(error) => return Err(StepError::Save(Box::new(error))),
            }
            let class = volume.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
            self.used_room(class.unwrap_or_default());
        }
        // Others let go of it at the same time: where the finalizer stands may have changed.
        match precisely(&api, volume, |meta, _| remove_finalizer(meta, FINALIZER)).await {
            Err(error) if !is_gone(&error) => Err(StepError::Save(Box::new(error))),
            _ => Ok(()),
        }
    }
}

fn content_source(origin: &Origin) -> VolumeContentSource {
    let r#type = match origin {
        Origin::Volume(volume_id) => SourceType::Volume(VolumeSource { volume_id: volume_id.clone() }),
        Origin::Snapshot(snapshot_id) => SourceType::Snapshot(SnapshotSource { snapshot_id: snapshot_id.clone() }),
    };
    VolumeContentSource { r#type: Some(r#type) }
}
