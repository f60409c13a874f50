//! Carrying out what was decided for one attachment or volume: each step only if the one before it succeeded.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::{PersistentVolume, SecretReference};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use serde_json::Value;
use tether_controllers::worker::log;
use tether_plan::attacher::{
    Certainty, Change, Kind, Observed, Publish, Unpublish, add_finalizer, attach_failed, attached, certainty, decide,
    decide_volume, detach_failed, detached, finalizer, is_attached, mark, remove_finalizer, trivially_attached,
};
use tonic::Status;

use super::lean::Attachment;
use super::{Attacher, by_volume};
use crate::call::{SecretError, call, capability, read_secret, words};
use crate::lanes::Failed;
use crate::precise::{is_gone, precisely};
use crate::proto::{ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest};

const NAME: &str = "csi-attacher";
const PUBLISH: &str = "/csi.v1.Controller/ControllerPublishVolume";
const UNPUBLISH: &str = "/csi.v1.Controller/ControllerUnpublishVolume";

/// Why a step did not succeed.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error("could not add PersistentVolume finalizer: {0}")]
    Protect(#[source] Box<kube::Error>),
    #[error("{0}")]
    Secret(#[from] SecretError),
    #[error("could not save VolumeAttachment: {0}")]
    Mark(#[source] Box<kube::Error>),
    #[error("{}", words(.0))]
    Call(#[source] Box<Status>),
    /// The call succeeded, and its success could not be written down.
    #[error("could not mark as attached: {0}")]
    Attached(#[source] Box<kube::Error>),
    #[error("could not mark as detached: {0}")]
    Detached(#[source] Box<kube::Error>),
    #[error("{0}")]
    Refused(String),
}

impl StepError {
    fn code(&self) -> Option<i32> {
        match self {
            Self::Call(status) => Some(i32::from(status.code())),
            _ => None,
        }
    }
}

impl Attacher {
    pub(super) async fn attachment(&self, name: &str) -> Result<(), Failed> {
        let again = self.again.lock().remove(name);
        let Some(kept) = self.written.newest(name, || self.attachments.get("", name)) else { return Ok(()) };
        let volume = self.volume_of(&kept);
        let node = self.nodes.get("", &kept.node);
        // Whole objects are large: as a part of this future they would be there for every worker, whatever it does.
        let attachment = Box::new(VolumeAttachment::from(&*kept));
        let observed = Observed { attachment: &attachment, volume: volume.as_deref(), node: node.as_deref(), again };
        let plan = decide(&self.driver, &observed);
        log(NAME, &plan);
        let kind = tether_plan::attacher::lane(&self.driver, &attachment, again).unwrap_or(Kind::Attach);
        let mut work = Work { attacher: self, attachment, volume, secrets: HashMap::new() };
        for change in plan.changes {
            if let Err(error) = work.step(change).await {
                work.failed(kind, &error).await;
                // What the driver disagreed about is still to be set right.
                if again {
                    self.again.lock().insert(name.to_owned());
                }
                return Err(Failed);
            }
        }
        Ok(())
    }

    /// Lets a deleted volume go once nothing is attached any more.
    pub(super) async fn volume(&self, name: &str) -> Result<(), Failed> {
        let Some(volume) = self.volumes.get("", name) else { return Ok(()) };
        let volume = Box::new(PersistentVolume::from(&*volume));
        let plan = decide_volume(&self.driver, &volume, self.attachments.find(&by_volume(name)).len());
        log(NAME, &plan);
        if plan.changes.is_empty() {
            return Ok(());
        }
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        let finalizer = finalizer(&self.driver.name);
        let done = precisely(&api, &*volume, |meta, _| remove_finalizer(meta, &finalizer)).await;
        match done {
            // Whoever else held it let go of it as well.
            Err(error) if !is_gone(&error) => {
                tracing::warn!(volume = name, %error, "the volume could not be let go");
                Err(Failed)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn volume_of(&self, attachment: &Attachment) -> Option<Box<PersistentVolume>> {
        let kept = self.volumes.get("", attachment.volume.as_deref()?)?;
        Some(Box::new((&*kept).into()))
    }
}

/// The work on one attachment.
struct Work<'a> {
    attacher: &'a Attacher,
    /// As it was last written.
    attachment: Box<VolumeAttachment>,
    volume: Option<Box<PersistentVolume>>,
    secrets: HashMap<String, String>,
}

impl Work<'_> {
    async fn step(&mut self, change: Change) -> Result<(), StepError> {
        match change {
            Change::Protect { .. } => self.protect().await,
            Change::ReadSecret { secret } => self.read_secret(&secret).await,
            Change::Mark { node_id, .. } => self.mark(&node_id).await,
            Change::Publish(publish) => self.publish(publish).await,
            Change::Unpublish(unpublish) => self.unpublish(unpublish).await,
            Change::SetAttached { .. } => {
                let body = trivially_attached(&self.attachment);
                self.write_status(body).await.map_err(|error| StepError::Attached(Box::new(error)))
            }
            Change::Fail { message, .. } => Err(StepError::Refused(message)),
        }
    }

    fn attachments(&self) -> Api<VolumeAttachment> {
        Api::all(self.attacher.client.clone())
    }

    async fn protect(&mut self) -> Result<(), StepError> {
        let Some(volume) = &self.volume else { return Ok(()) };
        let api: Api<PersistentVolume> = Api::all(self.attacher.client.clone());
        let finalizer = finalizer(&self.attacher.driver.name);
        let done = precisely(&api, &**volume, |meta, _| add_finalizer(meta, &finalizer)).await;
        done.map(drop).map_err(|error| StepError::Protect(Box::new(error)))
    }

    async fn read_secret(&mut self, secret: &SecretReference) -> Result<(), StepError> {
        self.secrets = read_secret(&self.attacher.client, Some(secret)).await?;
        Ok(())
    }

    async fn mark(&mut self, node_id: &str) -> Result<(), StepError> {
        let finalizer = finalizer(&self.attacher.driver.name);
        let done = precisely(&self.attachments(), &*self.attachment, |_, va| mark(va, &finalizer, node_id)).await;
        if let Some(written) = done.map_err(|error| StepError::Mark(Box::new(error)))? {
            self.wrote(written);
        }
        Ok(())
    }

    async fn publish(&mut self, publish: Publish) -> Result<(), StepError> {
        let request = ControllerPublishVolumeRequest {
            volume_id: publish.volume_id,
            node_id: publish.node_id,
            volume_capability: Some(capability(&publish.capability.content, publish.capability.mode as i32)),
            readonly: publish.read_only,
            secrets: std::mem::take(&mut self.secrets),
            volume_context: publish.context.into_iter().collect(),
        };
        let mut controller = self.attacher.controller.clone();
        let (calls, timeout) = (&self.attacher.calls, self.attacher.settings.timeout);
        let answer = call(calls, PUBLISH, timeout, request, |request| async move {
            controller.controller_publish_volume(request).await
        });
        let answer = answer.await.map_err(|status| StepError::Call(Box::new(status)))?;
        let body = attached(&self.attachment, &answer.publish_context.into_iter().collect());
        self.write_status(body).await.map_err(|error| StepError::Attached(Box::new(error)))
    }

    async fn unpublish(&mut self, unpublish: Unpublish) -> Result<(), StepError> {
        let Unpublish { volume_id, node_id } = unpublish;
        let secrets = std::mem::take(&mut self.secrets);
        let request = ControllerUnpublishVolumeRequest { volume_id, node_id, secrets };
        let mut controller = self.attacher.controller.clone();
        let (calls, timeout) = (&self.attacher.calls, self.attacher.settings.timeout);
        let answer = call(calls, UNPUBLISH, timeout, request, |request| async move {
            controller.controller_unpublish_volume(request).await
        });
        answer.await.map_err(|status| StepError::Call(Box::new(status)))?;
        let finalizer = finalizer(&self.attacher.driver.name);
        let api = self.attachments();
        let removed = precisely(&api, &*self.attachment, |meta, _| remove_finalizer(meta, &finalizer)).await;
        match removed {
            Ok(Some(written)) => {
                // With the last finalizer a deleted object goes: there is no status to write any more.
                let is_gone = written.metadata.finalizers.as_ref().is_none_or(Vec::is_empty);
                self.wrote(written);
                if is_gone && self.attachment.metadata.deletion_timestamp.is_some() {
                    return Ok(());
                }
            }
            Ok(None) => {}
            Err(error) if is_gone(&error) => return Ok(()),
            Err(error) => return Err(StepError::Detached(Box::new(error))),
        }
        let Some(body) = detached(&self.attachment, &finalizer).status else { return Ok(()) };
        match self.write_status(body).await {
            Err(error) if !is_gone(&error) => Err(StepError::Detached(Box::new(error))),
            _ => Ok(()),
        }
    }

    async fn write_status(&mut self, body: Value) -> Result<(), kube::Error> {
        let name = self.attachment.name_any();
        let params = PatchParams::default();
        let written = self.attachments().patch_status(&name, &params, &Patch::Merge(body)).await?;
        self.wrote(written);
        Ok(())
    }

    fn wrote(&mut self, written: VolumeAttachment) {
        let attacher = self.attacher;
        let name = written.name_any();
        let kept = Attachment::from(written);
        *self.attachment = (&kept).into();
        attacher.written.keep(kept, || attacher.attachments.get("", &name));
    }

    /// Says in the status why the attempt failed. A success that could not be written down is no failure to tell.
    async fn failed(&mut self, kind: Kind, error: &StepError) {
        let name = self.attachment.name_any();
        let how = match error.code().map(|code| certainty(Some(code))) {
            Some(Certainty::Ambiguous) => "the driver may have done it all the same",
            Some(Certainty::Final) => "the driver refused",
            None => "not asked of the driver, or not written down",
        };
        tracing::warn!(attachment = name, ?kind, %error, how, "trying again later");
        if matches!(error, StepError::Attached(_)) {
            return;
        }
        let now = self.attacher.settings.clock.now();
        let message = error.to_string();
        let body = match kind {
            Kind::Attach => attach_failed(&self.attachment, &message, error.code(), now),
            Kind::Detach => detach_failed(&self.attachment, &message, now),
        };
        if let Err(error) = self.write_status(body).await
            && (!is_gone(&error) || is_attached(&self.attachment))
        {
            tracing::warn!(attachment = name, %error, "the error could not be stored in the status");
        }
    }
}
