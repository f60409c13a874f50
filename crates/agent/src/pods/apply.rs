//! Carries out what was decided about a pod.

use k8s_openapi::api::core::v1::{Container, Pod};
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::events::{Event as ApiEvent, EventType};
use serde_json::json;
use tether_controllers::write::WriteError;
use tether_plan::event::Event;
use tether_plan::kubelet::{self, Change, Observed, Sources};
use tether_plan::object::{Target, uid};

use super::{Pods, failed};

impl Pods {
    pub(super) async fn apply(
        &self,
        observed: &Observed<'_>,
        sources: &Sources,
        changes: Vec<Change>,
    ) -> Result<(), WriteError> {
        let uid = uid(observed.pod);
        for change in changes {
            match change {
                Change::Start { container, attempt } => self.start(observed, sources, &container, attempt).await?,
                Change::Terminate { container } => self.runner.terminate(uid, &container).map_err(failed)?,
                Change::Kill { container } => self.runner.kill(uid, &container).map_err(failed)?,
                Change::SetStatus { pod, status } => {
                    let metadata = json!({"uid": pod.uid, "resourceVersion": pod.resource_version});
                    let patch = Patch::Merge(json!({"metadata": metadata, "status": status}));
                    let patched = self.api(&pod).patch_status(&pod.name, &PatchParams::default(), &patch).await;
                    patched.map_err(|error| WriteError::of(format!("write the status of {pod:?}"), error))?;
                }
                Change::Remove { pod } => self.remove(&pod).await?,
            }
        }
        Ok(())
    }

    async fn start(
        &self,
        observed: &Observed<'_>,
        sources: &Sources,
        container: &str,
        attempt: u32,
    ) -> Result<(), WriteError> {
        let pod = observed.pod;
        let Some(found) = find(pod, container) else { return Ok(()) };
        let launch = kubelet::launch(pod, found, observed.address, sources).map_err(failed)?;
        let view = self.view(pod, &launch);
        self.runner.start(uid(pod), container, attempt, launch, view).await.map_err(failed)
    }

    async fn remove(&self, pod: &Target) -> Result<(), WriteError> {
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid: Some(pod.uid.clone()), resource_version: None }),
            ..DeleteParams::default()
        };
        match self.api(pod).delete(&pod.name, &params).await {
            // Someone was faster, or a pod of the same name has taken its place.
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
            other => other.map(drop).map_err(|error| WriteError::of(format!("remove {pod:?}"), error)),
        }
    }

    /// An event that cannot be published is lost, as everywhere in Kubernetes.
    pub(super) async fn publish(&self, events: &[Event]) {
        for event in events {
            let published = ApiEvent {
                type_: if event.warning { EventType::Warning } else { EventType::Normal },
                reason: event.reason.code().to_owned(),
                note: Some(event.note.clone()),
                action: "Sync".to_owned(),
                secondary: None,
            };
            if let Err(error) = self.recorder.publish(&published, &event.about).await {
                tracing::warn!(%error, "cannot publish an event");
            }
        }
    }

    fn api(&self, pod: &Target) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &pod.namespace)
    }
}

fn find<'a>(pod: &'a Pod, name: &str) -> Option<&'a Container> {
    let spec = pod.spec.as_ref()?;
    let mut all = spec.init_containers.iter().flatten().chain(&spec.containers);
    all.find(|container| container.name == name)
}
