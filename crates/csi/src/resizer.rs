//! The external-resizer for any CSI driver: volumes grow with their claims.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use serde_json::Value;
use tether_controllers::cache::{Cache, Key, key};
use tether_controllers::publish::Publisher;
use tether_controllers::worker::log;
use tether_model::reason::Reason;
use tether_plan::binding::volume_name;
use tether_plan::event::Event;
use tether_plan::resizer::{Expand, Observed, decide, failed, grown, volume_capacity};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::call::{capability, read_secret, words};
use crate::connect::Connection;
use crate::handshake::About;
use crate::lanes::{Failed, Lanes, Worker};
use crate::metrics::Metrics;
use crate::proto::controller_service_capability::rpc::Type as Rpc;
use crate::proto::{CapacityRange, ControllerExpandVolumeRequest};
use crate::sidecar::{self, Controller, Ended, Settings, Tasks};

const NAME: &str = "csi-resizer";
const EXPAND: &str = "/csi.v1.Controller/ControllerExpandVolume";

/// The external-resizer's.
pub fn defaults() -> Settings {
    Settings::new("external-resizer", Duration::from_secs(10), 10)
}

/// Why a step did not succeed.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error("{0}")]
    Secret(#[from] crate::call::SecretError),
    #[error("{}", words(.0))]
    Call(#[source] Box<Status>),
    #[error("could not save {0}: {1}")]
    Save(&'static str, #[source] Box<kube::Error>),
}

struct Resizer {
    driver: String,
    single_node: bool,
    settings: Settings,
    client: Client,
    controller: Controller,
    events: Publisher,
    claims: Arc<Cache<PersistentVolumeClaim>>,
    volumes: Arc<Cache<PersistentVolume>>,
    lanes: Arc<Lanes<Key>>,
}

/// Runs until `stop`, or until the driver is lost. A driver whose volumes cannot grow is left alone.
pub async fn run(
    client: Client,
    connection: Connection,
    settings: Settings,
    metrics: &Metrics,
    stop: CancellationToken,
) -> Result<(), Ended> {
    let timeout = settings.timeout;
    let start = async |about: About| {
        if !about.can(Rpc::ExpandVolume) {
            return sidecar::idle(&about.name, "its volumes do not grow").await;
        }
        let resizer = Arc::new(Resizer {
            controller: Controller::new(&connection, &about.name, metrics, timeout),
            single_node: about.can(Rpc::SingleNodeMultiWriter),
            driver: about.name,
            events: settings.publisher(&client, NAME),
            client,
            claims: Cache::indexed(Some(|claim| vec![volume_name(claim).to_owned()])),
            volumes: Cache::new(),
            lanes: Arc::new(Lanes::new(1, settings.backoff, settings.clock.clone())),
            settings,
        });
        resizer.subscribe();
        resizer.run().await
    };
    sidecar::run(&connection, timeout, &stop, start).await
}

impl Worker for Resizer {
    type Key = Key;

    fn lanes(&self) -> &Lanes<Key> {
        &self.lanes
    }

    fn at_once(&self) -> usize {
        self.settings.workers
    }

    async fn work(&self, (namespace, name): &Key) -> Result<(), Failed> {
        let Some(claim) = self.claims.get(namespace, name) else { return Ok(()) };
        let volume = self.volumes.get("", volume_name(&claim));
        let observed = Observed { claim: &claim, volume: volume.as_deref() };
        let plan = decide(&self.driver, self.single_node, &observed, self.settings.clock.now());
        log(NAME, &plan);
        self.events.publish(plan.events).await;
        let Some(asked) = plan.changes.into_iter().next() else { return Ok(()) };
        let volume = volume_name(&claim).to_owned();
        match self.expand(&claim, &volume, &asked).await {
            Ok(event) => {
                self.events.publish(vec![event]).await;
                Ok(())
            }
            Err(error) => {
                tracing::warn!(claim = name, namespace, %error, "trying again later");
                let note = format!("resize volume {volume:?} by resizer {:?} failed: {error}", self.driver);
                self.events.publish(vec![Event::warning(&*claim, Reason::VolumeResizeFailed, note)]).await;
                if let StepError::Call(status) = &error
                    && let Some(body) = failed(i32::from(status.code()))
                    && let Err(error) = self.claim_status(&claim, body).await
                {
                    tracing::warn!(claim = name, namespace, %error, "the claim could not be told");
                }
                Err(Failed)
            }
        }
    }
}

impl Resizer {
    fn subscribe(self: &Arc<Self>) {
        self.lanes.follow(&self.claims, 0, key);
        let this = Arc::downgrade(self);
        self.volumes.subscribe(move |seen| {
            let Some(this) = this.upgrade() else { return };
            for claim in this.claims.find(&seen.object().name_any()) {
                this.lanes.add(key(&*claim), 0);
            }
        });
    }

    async fn run(self: Arc<Self>) -> Result<(), Ended> {
        let mut tasks = Tasks::default();
        tasks.watch(&self.volumes, Api::all(self.client.clone()));
        tasks.watch(&self.claims, Api::all(self.client.clone()));
        tasks.listed().await;
        tasks.work(&self, 1);
        tasks.join().await
    }

    /// Makes the volume larger; what is to be told of it.
    async fn expand(&self, claim: &PersistentVolumeClaim, volume: &str, asked: &Expand) -> Result<Event, StepError> {
        if let Some(body) = &asked.begin {
            self.claim_status(claim, body.clone()).await?;
        }
        let request = ControllerExpandVolumeRequest {
            volume_id: asked.handle.clone(),
            capacity_range: Some(CapacityRange { required_bytes: asked.bytes, limit_bytes: 0 }),
            secrets: read_secret(&self.client, asked.secret.as_ref()).await?,
            volume_capability: Some(capability(&asked.content, asked.mode)),
        };
        let answer = self.controller.call(EXPAND, request, |mut controller, request| async move {
            controller.controller_expand_volume(request).await
        });
        let answer = answer.await.map_err(|status| StepError::Call(Box::new(status)))?;
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let body = Patch::Merge(volume_capacity(&asked.quantity));
        let patched = volumes.patch(volume, &PatchParams::default(), &body).await;
        self.volumes.wrote(patched.map_err(|error| StepError::Save("PersistentVolume", Box::new(error)))?);
        let node = answer.node_expansion_required;
        // The claim as it is after the write before the call.
        let (namespace, name) = (claim.namespace().unwrap_or_default(), claim.name_any());
        let newest = self.claims.get(&namespace, &name);
        let body = grown(newest.as_deref().unwrap_or(claim), &asked.quantity, node, self.settings.clock.now());
        self.claim_status(claim, body).await?;
        Ok(if node {
            Event::normal(claim, Reason::FileSystemResizeRequired, "Require file system resize of volume on node")
        } else {
            Event::normal(claim, Reason::VolumeResizeSuccessful, "Resize volume succeeded")
        })
    }

    async fn claim_status(&self, claim: &PersistentVolumeClaim, mut body: Value) -> Result<(), StepError> {
        body["metadata"]["uid"] = claim.uid().into();
        let api: Api<PersistentVolumeClaim> =
            Api::namespaced(self.client.clone(), &claim.namespace().unwrap_or_default());
        let patched = api.patch_status(&claim.name_any(), &PatchParams::default(), &Patch::Merge(body)).await;
        self.claims.wrote(patched.map_err(|error| StepError::Save("PersistentVolumeClaim", Box::new(error)))?);
        Ok(())
    }
}
