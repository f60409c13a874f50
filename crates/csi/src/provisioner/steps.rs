//! Making and deleting one volume.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Secret, SecretReference};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use tether_controllers::worker::log;
use tether_model::reason::Reason;
use tether_plan::attacher::{Content, remove_finalizer};
use tether_plan::binding::{SELECTED_NODE, claim_class};
use tether_plan::event::Event;
use tether_plan::object::{annotation, name as name_of};
use tether_plan::provisioner::{
    ClaimChange, ClaimObserved, Create, FINALIZER, Made, VolumeChange, VolumeObserved, decide_claim, decide_volume,
    persistent_volume,
};
use tonic::{Code, Status};

use super::Provisioner;
use crate::call::{call, words};
use crate::proto::volume_capability::{self, AccessType};
use crate::proto::{
    CapacityRange, CreateVolumeRequest, DeleteVolumeRequest, Topology, TopologyRequirement, VolumeCapability,
};

const NAME: &str = "csi-provisioner";
const CREATE: &str = "/csi.v1.Controller/CreateVolume";
const DELETE: &str = "/csi.v1.Controller/DeleteVolume";

/// The attempt failed and is to be repeated; what there was to say about it was said.
pub(super) struct Failed;

/// Why a step did not succeed.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error("failed to load secret \"{0}\": {1}")]
    Secret(String, #[source] Box<kube::Error>),
    #[error("{}", words(.0))]
    Call(#[source] Box<Status>),
    #[error("could not save PersistentVolume: {0}")]
    Save(#[source] Box<kube::Error>),
}

impl Provisioner {
    pub(super) async fn claim(&self, namespace: &str, name: &str) -> Result<(), Failed> {
        let Some(claim) = self.claims.get(namespace, name) else { return Ok(()) };
        let class = self.classes.get("", claim_class(&claim));
        let selected = annotation(&*claim, SELECTED_NODE);
        let node = selected.and_then(|node| Some((self.nodes.get("", node)?, self.csi_nodes.get("", node)?)));
        let node = node.as_ref().map(|(node, drivers)| (&**node, &**drivers));
        let plan = decide_claim(&self.driver, &ClaimObserved { claim: &claim, class: class.as_deref(), node });
        log(NAME, &plan);
        self.events.publish(plan.events).await;
        let (Some(ClaimChange::Create(asked)), Some(class)) = (plan.changes.into_iter().next(), class) else {
            return Ok(());
        };
        match self.create(&claim, &class, &asked).await {
            Ok(()) => {
                let note = format!("Successfully provisioned volume {}", asked.name);
                let event = Event::normal(&*claim, Reason::ProvisioningSucceeded, note);
                self.events.publish(vec![event]).await;
                Ok(())
            }
            Err(error) => {
                tracing::warn!(claim = name, namespace, %error, "trying again later");
                let note = format!("failed to provision volume with StorageClass {:?}: {error}", name_of(&*class));
                let event = Event::warning(&*claim, Reason::ProvisioningFailed, note);
                self.events.publish(vec![event]).await;
                Err(Failed)
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
            volume_capabilities: capabilities(asked),
            parameters: asked.parameters.clone().into_iter().collect(),
            secrets: self.secret(asked.secret.as_ref()).await?,
            accessibility_requirements: asked.topology.as_ref().map(|segments| {
                let here = vec![Topology { segments: segments.clone().into_iter().collect() }];
                TopologyRequirement { requisite: here.clone(), preferred: here }
            }),
            ..Default::default()
        };
        let mut controller = self.controller.clone();
        let answer = call(&self.calls, CREATE, self.settings.timeout, request, |request| async move {
            controller.create_volume(request).await
        });
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
            let request = DeleteVolumeRequest { volume_id: handle, secrets: self.secret(secret.as_ref()).await? };
            let mut controller = self.controller.clone();
            let answer = call(&self.calls, DELETE, self.settings.timeout, request, |request| async move {
                controller.delete_volume(request).await
            });
            match answer.await {
                Ok(_) => {}
                Err(status) if status.code() == Code::NotFound => {}
                Err(status) => return Err(StepError::Call(Box::new(status))),
            }
            match api.delete(name_of(volume), &DeleteParams::default()).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
                Err(error) => return Err(StepError::Save(Box::new(error))),
            }
        }
        let Some(patch) = remove_finalizer(&volume.metadata, FINALIZER) else { return Ok(()) };
        let patch = serde_json::from_value(patch).expect("a patch that was written here must parse");
        match api.patch(name_of(volume), &PatchParams::default(), &Patch::<()>::Json(patch)).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(StepError::Save(Box::new(error))),
        }
    }

    async fn secret(&self, secret: Option<&SecretReference>) -> Result<HashMap<String, String>, StepError> {
        let Some(secret) = secret else { return Ok(HashMap::new()) };
        let (namespace, name) =
            (secret.namespace.as_deref().unwrap_or_default(), secret.name.as_deref().unwrap_or_default());
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let found = api.get(name).await;
        let found = found.map_err(|error| StepError::Secret(format!("{namespace}/{name}"), Box::new(error)))?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(found.data.into_iter().flatten().map(|(key, value)| (key, text(value.0))).collect())
    }
}

/// One capability for each access mode.
fn capabilities(asked: &Create) -> Vec<VolumeCapability> {
    let access_type = match &asked.content {
        Content::Block => AccessType::Block(volume_capability::BlockVolume {}),
        Content::Mount { fs_type, flags } => AccessType::Mount(volume_capability::MountVolume {
            fs_type: fs_type.clone(),
            mount_flags: flags.clone(),
            volume_mount_group: String::new(),
        }),
    };
    let capability = |mode: &i32| VolumeCapability {
        access_type: Some(access_type.clone()),
        access_mode: Some(volume_capability::AccessMode { mode: *mode }),
    };
    asked.modes.iter().map(capability).collect()
}
