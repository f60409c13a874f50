//! Snapshots of claims for any CSI driver: the snapshot-controller's half for the driver's volumes, and the sidecar
//! csi-snapshotter's.

mod steps;

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::Api;
use kube::runtime::watcher;
use kube::{Client, ResourceExt as _};
use tether_controllers::cache::{Cache, Seen};
use tether_controllers::clock::{Clock, SystemClock};
use tether_controllers::publish::{Names, Publisher};
use tether_crd::volume_snapshot::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent};
use tether_plan::binding::volume_name;
use tether_plan::volume_snapshot::snapshot::content_name;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::attacher::Ended;
use crate::connect::Connection;
use crate::handshake::handshake;
use crate::lanes::{Backoff, Failed, Lanes, Worker, serve};
use crate::metrics::{Calls, Metrics};
use crate::proto::controller_client::ControllerClient;
use crate::proto::controller_service_capability::rpc::Type as Rpc;

const NAME: &str = "csi-snapshotter";

/// What may be set; the defaults are the upstream sidecar's.
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
            timeout: Duration::from_secs(60),
            workers: 10,
            backoff: Backoff { first: SignedDuration::from_secs(1), longest: SignedDuration::from_mins(5) },
            identity: "external-snapshotter".into(),
            clock: Arc::new(SystemClock::default()),
        }
    }
}

/// What is worked on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Snapshot(String, String),
    Content(String),
}

const SNAPSHOTS: usize = 0;
const CONTENTS: usize = 1;

struct Snapshotter {
    driver: String,
    /// The driver can be asked for one snapshot.
    lists: bool,
    settings: Settings,
    client: Client,
    controller: ControllerClient<tonic::transport::Channel>,
    calls: Calls,
    events: Publisher,
    /// By the claim that they are of, and by the content that they name.
    snapshots: Arc<Cache<VolumeSnapshot>>,
    contents: Arc<Cache<VolumeSnapshotContent>>,
    classes: Arc<Cache<VolumeSnapshotClass>>,
    claims: Arc<Cache<PersistentVolumeClaim>>,
    volumes: Arc<Cache<PersistentVolume>>,
    lanes: Lanes<Key>,
}

/// Runs until `stop`, or until the driver is lost. A driver without snapshots is left alone.
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
        if !about.can(Rpc::CreateDeleteSnapshot) {
            tracing::info!(driver = about.name, "it makes no snapshots");
            return std::future::pending().await;
        }
        let names = Arc::<Names>::default();
        let events = Publisher::new(client.clone(), settings.clock.clone(), NAME, &settings.identity, names);
        let snapshotter = Arc::new(Snapshotter {
            calls: Calls::new(metrics, &about.name),
            controller: ControllerClient::new(connection.channel.clone()),
            lists: about.can(Rpc::ListSnapshots),
            driver: about.name,
            client,
            events,
            snapshots: Cache::whole(Some(snapshot_words)),
            contents: Cache::whole(None),
            classes: Cache::whole(None),
            claims: Cache::new(),
            volumes: Cache::new(),
            lanes: Lanes::new(2, settings.backoff, settings.clock.clone()),
            settings,
        });
        snapshotter.subscribe();
        snapshotter.run().await
    };
    tokio::select! {
        ended = working => ended,
        () = stop.cancelled() => Ok(()),
        () = lost.cancelled() => Err(Ended::LostDriver),
    }
}

/// Snapshots are looked up by their claim and by their content.
fn snapshot_words(snapshot: &VolumeSnapshot) -> Vec<String> {
    let namespace = snapshot.metadata.namespace.as_deref().unwrap_or_default();
    let claim = snapshot.spec.source.persistent_volume_claim_name.as_deref().map(|claim| of_claim(namespace, claim));
    claim.into_iter().chain([of_content(&content_name(snapshot))]).collect()
}

fn of_claim(namespace: &str, claim: &str) -> String {
    format!("claim {namespace}/{claim}")
}

fn of_content(content: &str) -> String {
    format!("content {content}")
}

impl Worker for Snapshotter {
    type Key = Key;

    fn lanes(&self) -> &Lanes<Key> {
        &self.lanes
    }

    fn at_once(&self) -> usize {
        self.settings.workers
    }

    async fn work(&self, key: &Key) -> Result<(), Failed> {
        match key {
            Key::Snapshot(namespace, name) => self.snapshot(namespace, name).await,
            Key::Content(name) => self.content(name).await,
        }
    }
}

impl Snapshotter {
    fn subscribe(self: &Arc<Self>) {
        let this = Arc::downgrade(self);
        self.snapshots.subscribe(move |seen| {
            let Some(this) = this.upgrade() else { return };
            let key = Key::Snapshot(seen.object().namespace().unwrap_or_default(), seen.object().name_any());
            match seen {
                Seen::Applied { .. } => this.lanes.add(key, SNAPSHOTS),
                Seen::Deleted(_) => {
                    this.lanes.remove(&key);
                    // It may have kept its content from going.
                    this.lanes.add(Key::Content(content_name(seen.object())), CONTENTS);
                }
            }
        });
        let this = Arc::downgrade(self);
        self.contents.subscribe(move |seen| {
            let Some(this) = this.upgrade() else { return };
            let name = seen.object().name_any();
            this.wake(&of_content(&name));
            match seen {
                Seen::Applied { .. } => this.lanes.add(Key::Content(name), CONTENTS),
                Seen::Deleted(_) => this.lanes.remove(&Key::Content(name)),
            }
        });
        let this = Arc::downgrade(self);
        self.claims.subscribe(move |seen| {
            let Some(this) = this.upgrade() else { return };
            let claim = seen.object();
            this.wake(&of_claim(&claim.namespace().unwrap_or_default(), &claim.name_any()));
        });
        let this = Arc::downgrade(self);
        self.classes.subscribe(move |_| {
            let Some(this) = this.upgrade() else { return };
            for content in this.contents.list() {
                this.lanes.add(Key::Content(content.name_any()), CONTENTS);
            }
            for snapshot in this.snapshots.list() {
                this.lanes.add(Key::Snapshot(snapshot.namespace().unwrap_or_default(), snapshot.name_any()), SNAPSHOTS);
            }
        });
    }

    /// Looks at the snapshots that are found under a word.
    fn wake(&self, word: &str) {
        for snapshot in self.snapshots.find(word) {
            self.lanes.add(Key::Snapshot(snapshot.namespace().unwrap_or_default(), snapshot.name_any()), SNAPSHOTS);
        }
    }

    async fn run(self: Arc<Self>) -> Result<(), Ended> {
        let mut tasks = JoinSet::new();
        macro_rules! follow {
            ($($cache:ident),+) => {
                $(tasks.spawn(self.$cache.clone().run(Api::all(self.client.clone()), watcher::Config::default()));)+
                $(self.$cache.ready().await;)+
            };
        }
        follow!(volumes, claims, classes, contents, snapshots);
        for lane in [SNAPSHOTS, CONTENTS] {
            tasks.spawn(serve(self.clone(), lane));
        }
        while let Some(ended) = tasks.join_next().await {
            ended?;
        }
        Ok(())
    }

    /// The volume of a claim.
    fn volume_of(&self, claim: &PersistentVolumeClaim) -> Option<Arc<PersistentVolume>> {
        self.volumes.get("", volume_name(claim))
    }
}
