//! One step for one volume: the record first, then the driver, then what is known.

use std::collections::BTreeMap;
use std::fs;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::events::{Event as ApiEvent, EventType};
use kube::{Resource as _, ResourceExt as _};
use serde_json::{Value, json};
use tether_controllers::write::WriteError;
use tether_plan::attach_detach::attachment_name;
use tether_plan::kubelet::volume::{Progress, Step, Wanted, after_failure};
use tether_plan::object::{name as name_of, namespace, uid};

use super::calls::{CallError, Driver, Publish, Secrets};
use super::held::{Held, Stage, Wish};
use super::records::{self, Record};
use super::{Volumes, ownership};

/// A step that failed: at which point, and why.
struct Failed {
    at: &'static str,
    error: CallError,
}

fn at(at: &'static str) -> impl Fn(CallError) -> Failed {
    move |error| Failed { at, error }
}

impl Volumes {
    /// Makes one step; whether the server has just said that the volume is attached.
    pub(super) async fn step(&self, name: &str, step: Step) -> Result<bool, WriteError> {
        if let Step::Report | Step::Confirm = step {
            return self.report(name).await;
        }
        if step == Step::Forget {
            self.report(name).await?;
            let mut state = self.state.lock();
            if state.volumes.get(name).is_some_and(|held| !held.is_in_use()) {
                state.volumes.remove(name);
            }
            return Ok(false);
        }
        let mut pods = self.users(name);
        let done = match &step {
            Step::Stage => self.stage(name).await,
            Step::Publish { pod } => self.publish(name, pod).await,
            Step::Grow { pod } => self.grow(name, pod).await,
            Step::Unpublish { pod } => {
                pods.push(pod.clone());
                self.unpublish(name, pod).await
            }
            _ => self.unstage(name).await,
        };
        match done {
            Ok(()) => self.with(name, Held::succeeded),
            Err(failed) => self.failed(name, &step, &failed).await,
        }
        self.tell(pods);
        Ok(false)
    }

    fn users(&self, name: &str) -> Vec<String> {
        let state = self.state.lock();
        state.volumes.get(name).map(|held| held.users.keys().cloned().collect()).unwrap_or_default()
    }

    /// Changes what is known of a volume.
    fn with(&self, name: &str, change: impl FnOnce(&mut Held)) {
        if let Some(held) = self.state.lock().volumes.get_mut(name) {
            change(held);
        }
    }

    fn read<T>(&self, name: &str, look: impl FnOnce(&Held) -> T) -> Result<T, CallError> {
        let state = self.state.lock();
        state.volumes.get(name).map(look).ok_or_else(|| CallError::Object(format!("volume {name} is not known")))
    }

    fn wish(&self, name: &str, pod: Option<&str>) -> Result<Wish, CallError> {
        let found = self.read(name, |held| match pod {
            Some(pod) => held.users.get(pod).cloned(),
            None => held.users.values().next().cloned(),
        })?;
        found.ok_or_else(|| CallError::Object(format!("no pod wants volume {name} any more")))
    }

    async fn driver(&self, name: &str) -> Result<Driver, CallError> {
        Driver::open(name, &self.socket(name)).await
    }

    async fn stage(&self, name: &str) -> Result<(), Failed> {
        let wish = self.wish(name, None).map_err(at("MountDevice"))?;
        let (wanted, places) = (&wish.wanted, self.read(name, |held| held.places.clone()).map_err(at("MountDevice"))?);
        let context = self.attached(wanted).await.map_err(at("WaitForAttach"))?;
        let failed = at("MountDevice");
        let secrets = self.secrets(wanted.stage_secret.as_ref()).await.map_err(&failed)?;
        let mut driver = self.driver(&wanted.driver).await.map_err(&failed)?;
        records::write(&places.record, &self.record(wanted, wanted.is_block())).map_err(|e| failed(e.into()))?;
        records::make(&places.staging).map_err(|e| failed(e.into()))?;
        self.with(name, |held| held.staged.progress = held.staged.progress.max(Progress::Unknown));
        driver.stage(wanted, &places.staging, &context, secrets, group(&wish.pod)).await.map_err(&failed)?;
        self.with(name, |held| held.staged = Stage { progress: Progress::Done, kept: false });
        Ok(())
    }

    /// What the attachment says beside that it is one.
    async fn attached(&self, wanted: &Wanted) -> Result<BTreeMap<String, String>, CallError> {
        if !self.attachable(&wanted.driver) {
            return Ok(BTreeMap::new());
        }
        let attachments: Api<VolumeAttachment> = Api::all(self.client.clone());
        let name = attachment_name(&wanted.handle, &wanted.driver, &self.node);
        let found = attachments.get_opt(&name).await.map_err(|error| CallError::Object(error.to_string()))?;
        let found =
            found.ok_or_else(|| CallError::Object(format!("volumeattachments.storage.k8s.io {name:?} not found")))?;
        let status = found.status.clone().unwrap_or_default();
        if !status.attached || found.metadata.deletion_timestamp.is_some() {
            return Err(CallError::Object(format!("volume {} has not been attached: {name}", wanted.handle)));
        }
        Ok(status.attachment_metadata.unwrap_or_default())
    }

    fn record(&self, wanted: &Wanted, whole: bool) -> Record {
        let whole = |text: String| if whole { text } else { String::new() };
        Record {
            driver_name: wanted.driver.clone(),
            volume_handle: wanted.handle.clone(),
            volume: whole(wanted.persistent_volume.clone()),
            node_name: whole(self.node.clone()),
            attachment: whole(attachment_name(&wanted.handle, &wanted.driver, &self.node)),
            volume_lifecycle_mode: whole("Persistent".into()),
        }
    }

    async fn secrets(&self, reference: Option<&(String, String)>) -> Result<Secrets, CallError> {
        let Some((namespace, name)) = reference else { return Ok(Secrets::new()) };
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let secret = secrets.get(name).await;
        let secret = secret.map_err(|error| CallError::Object(format!("secret {namespace}/{name}: {error}")))?;
        let data = secret.data.unwrap_or_default().into_iter();
        Ok(data.map(|(key, value)| (key, String::from_utf8_lossy(&value.0).into_owned())).collect())
    }

    async fn publish(&self, name: &str, pod: &str) -> Result<(), Failed> {
        let failed = at("SetUp");
        let wish = self.wish(name, Some(pod)).map_err(&failed)?;
        let (wanted, places) = (&wish.wanted, self.read(name, |held| held.places.clone()).map_err(&failed)?);
        let context = self.attached(wanted).await.map_err(at("WaitForAttach"))?;
        let secrets = self.secrets(wanted.publish_secret.as_ref()).await.map_err(&failed)?;
        let mut driver = self.driver(&wanted.driver).await.map_err(&failed)?;
        let target = places.target(pod);
        let prepared = if wanted.is_block() {
            target.parent().map_or(Ok(()), records::make).and_then(|()| records::link(&places, pod))
        } else {
            records::write(&places.of_pod(pod), &self.record(wanted, true))
        };
        prepared.map_err(|error| failed(error.into()))?;
        self.with(name, |held| {
            let stage = held.published.entry(pod.to_owned()).or_default();
            stage.progress = stage.progress.max(Progress::Unknown);
        });
        let order = Publish {
            staging: &places.staging,
            target: &target,
            context: &context,
            more_context: self.pod_info(&wanted.driver, &wish.pod),
            secrets,
            group: group(&wish.pod),
        };
        let grouped = driver.can(tether_csi::proto::node_service_capability::rpc::Type::VolumeMountGroup);
        driver.publish(wanted, order).await.map_err(&failed)?;
        if !wanted.is_block() && !grouped {
            let policy = self.drivers.get("", &wanted.driver);
            let applied = ownership::apply(&wish.pod, wanted, policy.as_deref(), &target).await;
            applied.map_err(|error| failed(CallError::Afterwards(format!("applyFSGroup failed: {error}"))))?;
        }
        self.with(name, |held| {
            held.published.insert(pod.to_owned(), Stage { progress: Progress::Done, kept: false });
        });
        if wanted.is_block() {
            for (what, path) in [("globalMapPath", &places.staging), ("volumeMapPath", &places.of_pod(pod))] {
                let volume = &wanted.persistent_volume;
                let note =
                    format!("MapVolume.MapPodDevice succeeded for volume {volume:?} {what} {:?}", path.display());
                self.publish_event(&wish.pod, EventType::Normal, "SuccessfulMountVolume", note).await;
            }
        }
        Ok(())
    }

    /// What a driver that asks for it is told of the pod.
    fn pod_info(&self, driver: &str, pod: &Pod) -> Vec<(String, String)> {
        let driver = self.drivers.get("", driver);
        if driver.and_then(|driver| driver.spec.pod_info_on_mount) != Some(true) {
            return Vec::new();
        }
        let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone()).unwrap_or_default();
        let pairs = [
            ("pod.name", name_of(pod).to_owned()),
            ("pod.namespace", namespace(pod).to_owned()),
            ("pod.uid", uid(pod).to_owned()),
            ("serviceAccount.name", account),
            ("ephemeral", "false".to_owned()),
        ];
        pairs.map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value)).into()
    }

    async fn unpublish(&self, name: &str, pod: &str) -> Result<(), Failed> {
        let failed = at("TearDown");
        let (driver, handle, block, places) = self.identity(name).map_err(&failed)?;
        self.driver(&driver).await.map_err(&failed)?.unpublish(&handle, &places.target(pod)).await.map_err(&failed)?;
        let removed = if block {
            let published = places.target(pod);
            records::gone(fs::remove_file(places.of_pod(pod)))
                .and_then(|()| published.parent().map_or(Ok(()), drop_empty))
        } else {
            records::remove_dir(&places.target(pod)).and_then(|()| records::remove(&places.of_pod(pod)))
        };
        removed.map_err(|error| failed(error.into()))?;
        self.with(name, |held| {
            held.published.remove(pod);
        });
        Ok(())
    }

    async fn unstage(&self, name: &str) -> Result<(), Failed> {
        let failed = at("UnmountDevice");
        let (driver, handle, block, places) = self.identity(name).map_err(&failed)?;
        self.with(name, |held| held.staged.progress = Progress::Unknown);
        self.driver(&driver).await.map_err(&failed)?.unstage(&handle, &places.staging).await.map_err(&failed)?;
        let removed =
            records::remove_dir(&places.staging).and_then(|()| records::remove(&places.record)).and_then(|()| {
                // The directory of a device's record has one of its own.
                if block { places.record.parent().map_or(Ok(()), drop_empty) } else { Ok(()) }
            });
        removed.map_err(|error| failed(error.into()))?;
        self.with(name, |held| held.staged = Stage::default());
        Ok(())
    }

    fn identity(
        &self,
        name: &str,
    ) -> Result<(String, String, bool, tether_plan::kubelet::volume::layout::Places), CallError> {
        self.read(name, |held| (held.driver.clone(), held.handle.clone(), held.block, held.places.clone()))
    }

    async fn grow(&self, name: &str, pod: &str) -> Result<(), Failed> {
        let failed = at("NodeExpandVolume");
        let wish = self.wish(name, Some(pod)).map_err(&failed)?;
        let (wanted, places) = (&wish.wanted, self.read(name, |held| held.places.clone()).map_err(&failed)?);
        let secrets = self.secrets(wanted.expand_secret.as_ref()).await.map_err(&failed)?;
        let mut driver = self.driver(&wanted.driver).await.map_err(&failed)?;
        let target = places.target(pod);
        let expanded = driver.expand(wanted, &places.staging, &target, secrets).await.map_err(&failed)?;
        self.claim_grew(wanted).await.map_err(|error| failed(CallError::Object(error.to_string())))?;
        self.with(name, |held| {
            for wish in held.users.values_mut() {
                wish.wanted.capacity.claim_bytes = wish.wanted.capacity.volume_bytes;
            }
        });
        if expanded {
            let volume = &wanted.persistent_volume;
            let note = format!("MountVolume.NodeExpandVolume succeeded for volume {volume:?} {}", self.node);
            self.publish_event(&wish.pod, EventType::Normal, "FileSystemResizeSuccessful", note).await;
        }
        Ok(())
    }

    /// The claim is as large as its volume from now on, and waits for nothing.
    async fn claim_grew(&self, wanted: &Wanted) -> kube::Result<()> {
        let (namespace, name) = &wanted.claim;
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let claim = claims.get(name).await?;
        let status = claim.status.clone().unwrap_or_default();
        let is_over = |kind: &str| matches!(kind, "FileSystemResizePending" | "Resizing" | "NodeResizeError");
        let conditions = status.conditions.unwrap_or_default();
        let conditions: Vec<_> = conditions.into_iter().filter(|condition| !is_over(&condition.type_)).collect();
        let patch = json!({
            "metadata": {"uid": claim.uid(), "resourceVersion": claim.resource_version()},
            "status": {
                "capacity": {"storage": wanted.capacity.text},
                "conditions": conditions,
                "allocatedResourceStatuses": {"storage": Value::Null},
            },
        });
        claims.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
    }

    /// Notes what a failure leaves, and tells the pods.
    async fn failed(&self, name: &str, step: &Step, failed: &Failed) {
        let class = failed.error.class();
        let (wishes, words) = {
            let mut state = self.state.lock();
            let Some(held) = state.volumes.get_mut(name) else { return };
            match step {
                Step::Stage => {
                    held.staged.progress = after_failure(held.staged.progress, class, held.staged.kept);
                    if held.staged.progress == Progress::Nothing {
                        let _ = records::remove_dir(&held.places.staging);
                        let _ = records::remove(&held.places.record);
                    }
                }
                Step::Publish { pod } => {
                    let places = held.places.clone();
                    if let Some(stage) = held.published.get_mut(pod) {
                        stage.progress = after_failure(stage.progress, class, stage.kept);
                        if stage.progress == Progress::Nothing {
                            held.published.remove(pod);
                            let _ = records::remove_dir(&places.target(pod));
                            let _ = if held.block {
                                records::gone(fs::remove_file(places.of_pod(pod)))
                            } else {
                                records::remove(&places.of_pod(pod))
                            };
                        }
                    }
                }
                _ => {}
            }
            let verb = if held.block { "MapVolume" } else { "MountVolume" };
            let words = format!("{verb}.{} failed for volume {:?} : {}", failed.at, held.volume, failed.error);
            held.failed(words.clone(), Timestamp::now());
            (held.users.clone(), words)
        };
        tracing::warn!(volume = name, ?step, "{words}");
        let block = words.starts_with("MapVolume");
        let (reason, about): (&str, Vec<&Wish>) = match step {
            Step::Stage => (if block { "FailedMapVolume" } else { "FailedMount" }, wishes.values().collect()),
            Step::Publish { pod } => {
                (if block { "FailedMapVolume" } else { "FailedMount" }, wishes.get(pod).into_iter().collect())
            }
            Step::Grow { pod } => ("VolumeResizeFailed", wishes.get(pod).into_iter().collect()),
            // A kubelet tells nobody of these.
            _ => return,
        };
        for wish in about {
            self.publish_event(&wish.pod, EventType::Warning, reason, words.clone()).await;
        }
    }

    /// An event that cannot be published is lost, as everywhere in Kubernetes.
    async fn publish_event(&self, pod: &Pod, type_: EventType, reason: &str, note: String) {
        let event =
            ApiEvent { type_, reason: reason.to_owned(), note: Some(note), action: "Sync".into(), secondary: None };
        if let Err(error) = self.recorder.publish(&event, &pod.object_ref(&())).await {
            tracing::warn!(%error, "cannot publish an event");
        }
    }
}

/// The group that the pod's volumes belong to.
fn group(pod: &Pod) -> Option<i64> {
    pod.spec.as_ref()?.security_context.as_ref()?.fs_group
}

/// Removes a directory unless others still use it.
fn drop_empty(dir: &std::path::Path) -> std::io::Result<()> {
    match records::remove_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::DirectoryNotEmpty => Ok(()),
        other => other,
    }
}
