//! The external-resizer for any CSI driver: volumes grow with their claims.

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::watcher;
use kube::{Client, ResourceExt as _};
use serde_json::Value;
use tether_controllers::cache::{Cache, Seen};
use tether_controllers::clock::{Clock, SystemClock};
use tether_controllers::publish::{Names, Publisher};
use tether_controllers::worker::log;
use tether_model::reason::Reason;
use tether_plan::binding::volume_name;
use tether_plan::event::Event;
use tether_plan::resizer::{Expand, Observed, decide, failed, grown, volume_capacity};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::attacher::Ended;
use crate::call::{call, capability, read_secret, words};
use crate::connect::Connection;
use crate::handshake::handshake;
use crate::lanes::{Backoff, Failed, Lanes, Worker, serve};
use crate::metrics::{Calls, Metrics};
use crate::proto::controller_client::ControllerClient;
use crate::proto::controller_service_capability::rpc::Type as Rpc;
use crate::proto::{CapacityRange, ControllerExpandVolumeRequest};

const NAME: &str = "csi-resizer";
const EXPAND: &str = "/csi.v1.Controller/ControllerExpandVolume";

/// What may be set; the defaults are the external-resizer's.
#[derive(Clone)]
pub struct Settings {
    /// For each call to the driver.
    pub timeout: Duration,
    /// Calls at a time.
    pub workers: usize,
    pub backoff: Backoff,
    /// Who this process is, in events.
    pub identity: String,
    pub clock: Arc<dyn Clock>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(10),
            workers: 10,
            backoff: Backoff { first: SignedDuration::from_secs(1), longest: SignedDuration::from_mins(5) },
            identity: "external-resizer".into(),
            clock: Arc::new(SystemClock::default()),
        }
    }
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

/// Namespace and name of a claim.
type Key = (String, String);

struct Resizer {
    driver: String,
    single_node: bool,
    settings: Settings,
    client: Client,
    controller: ControllerClient<tonic::transport::Channel>,
    calls: Calls,
    events: Publisher,
    claims: Arc<Cache<PersistentVolumeClaim>>,
    volumes: Arc<Cache<PersistentVolume>>,
    lanes: Lanes<Key>,
}

/// Runs until `stop`, or until the driver is lost. A driver whose volumes cannot grow is left alone.
pub async fn run(
    client: Client,
    connection: Connection,
    settings: Settings,
    metrics: &Metrics,
    stop: CancellationToken,
) -> Result<(), Ended> {
    let lost = connection.lost.clone();
    let working = async {
        let about = handshake(&connection, settings.timeout).await?;
        if !about.can(Rpc::ExpandVolume) {
            tracing::info!(driver = about.name, "its volumes do not grow");
            return std::future::pending().await;
        }
        let names = Arc::<Names>::default();
        let events = Publisher::new(client.clone(), settings.clock.clone(), NAME, &settings.identity, names);
        let resizer = Arc::new(Resizer {
            calls: Calls::new(metrics, &about.name),
            controller: ControllerClient::new(connection.channel.clone()),
            single_node: about.can(Rpc::SingleNodeMultiWriter),
            driver: about.name,
            client,
            events,
            claims: Cache::indexed(Some(|claim| vec![volume_name(claim).to_owned()])),
            volumes: Cache::new(),
            lanes: Lanes::new(1, settings.backoff, settings.clock.clone()),
            settings,
        });
        resizer.subscribe();
        resizer.run().await
    };
    tokio::select! {
        ended = working => ended,
        () = stop.cancelled() => Ok(()),
        () = lost.cancelled() => Err(Ended::LostDriver),
    }
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
        let this = Arc::downgrade(self);
        self.claims.subscribe(move |seen| {
            let Some(this) = this.upgrade() else { return };
            let key = (seen.object().namespace().unwrap_or_default(), seen.object().name_any());
            match seen {
                Seen::Applied { .. } => this.lanes.add(key, 0),
                Seen::Deleted(_) => this.lanes.remove(&key),
            }
        });
        let this = Arc::downgrade(self);
        self.volumes.subscribe(move |seen| {
            let Some(this) = this.upgrade() else { return };
            for claim in this.claims.find(&seen.object().name_any()) {
                this.lanes.add((claim.namespace().unwrap_or_default(), claim.name_any()), 0);
            }
        });
    }

    async fn run(self: Arc<Self>) -> Result<(), Ended> {
        let mut tasks = JoinSet::new();
        let all = watcher::Config::default;
        tasks.spawn(self.volumes.clone().run(Api::all(self.client.clone()), all()));
        tasks.spawn(self.claims.clone().run(Api::all(self.client.clone()), all()));
        self.volumes.ready().await;
        self.claims.ready().await;
        tasks.spawn(serve(self.clone(), 0));
        while let Some(ended) = tasks.join_next().await {
            ended?;
        }
        Ok(())
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
        let mut controller = self.controller.clone();
        let answer = call(&self.calls, EXPAND, self.settings.timeout, request, |request| async move {
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
