//! Snapshots of claims for any CSI driver: the snapshot-controller's half for the driver's volumes, and the sidecar
//! csi-snapshotter's.

mod steps;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::Api;
use kube::{Client, ResourceExt as _};
use tether_controllers::cache::{Cache, Seen};
use tether_controllers::publish::Publisher;
use tether_crd::volume_snapshot::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent};
use tether_plan::binding::volume_name;
use tether_plan::volume_snapshot::snapshot::content_name;
use tokio_util::sync::CancellationToken;

use crate::connect::Connection;
use crate::handshake::About;
use crate::lanes::{Failed, Lanes, Worker};
use crate::metrics::Metrics;
use crate::proto::controller_service_capability::rpc::Type as Rpc;
use crate::sidecar::{self, Controller, Ended, Settings, Tasks};

const NAME: &str = "csi-snapshotter";

/// The upstream sidecar's.
pub fn defaults() -> Settings {
    Settings::new("external-snapshotter", Duration::from_secs(60), 10)
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
    controller: Controller,
    events: Publisher,
    /// By the claim that they are of, and by the content that they name.
    snapshots: Arc<Cache<VolumeSnapshot>>,
    contents: Arc<Cache<VolumeSnapshotContent>>,
    classes: Arc<Cache<VolumeSnapshotClass>>,
    claims: Arc<Cache<PersistentVolumeClaim>>,
    volumes: Arc<Cache<PersistentVolume>>,
    lanes: Arc<Lanes<Key>>,
}

/// Runs until `stop`, or until the driver is lost. A driver without snapshots is left alone.
pub async fn run(
    client: Client,
    connection: Connection,
    settings: Settings,
    metrics: &Metrics,
    stop: CancellationToken,
) -> Result<(), Ended> {
    let timeout = settings.timeout;
    let start = async |about: About| {
        if !about.can(Rpc::CreateDeleteSnapshot) {
            return sidecar::idle(&about.name, "it makes no snapshots").await;
        }
        let snapshotter = Arc::new(Snapshotter {
            controller: Controller::new(&connection, &about.name, metrics, timeout),
            lists: about.can(Rpc::ListSnapshots),
            driver: about.name,
            events: settings.publisher(&client, NAME),
            client,
            snapshots: Cache::whole(Some(snapshot_words)),
            contents: Cache::whole(None),
            classes: Cache::whole(None),
            claims: Cache::new(),
            volumes: Cache::new(),
            lanes: Arc::new(Lanes::new(2, settings.backoff, settings.clock.clone())),
            settings,
        });
        snapshotter.subscribe();
        snapshotter.run().await
    };
    sidecar::run(&connection, timeout, &stop, start).await
}

/// Snapshots are looked up by their claim and by their content.
fn snapshot_words(snapshot: &VolumeSnapshot) -> Vec<String> {
    let namespace = snapshot.metadata.namespace.as_deref().unwrap_or_default();
    let claim = snapshot.spec.source.persistent_volume_claim_name.as_deref().map(|claim| of_claim(namespace, claim));
    claim.into_iter().chain([of_content(&content_name(snapshot))]).collect()
}

fn snapshot_key(snapshot: &VolumeSnapshot) -> Key {
    Key::Snapshot(snapshot.namespace().unwrap_or_default(), snapshot.name_any())
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
        self.lanes.follow(&self.snapshots, SNAPSHOTS, snapshot_key);
        self.lanes.follow(&self.contents, CONTENTS, |content| Key::Content(content.name_any()));
        let this = Arc::downgrade(self);
        self.snapshots.subscribe(move |seen| {
            if let (Some(this), Seen::Deleted(gone)) = (this.upgrade(), seen) {
                // It may have kept its content from going.
                this.lanes.add(Key::Content(content_name(gone)), CONTENTS);
            }
        });
        let this = Arc::downgrade(self);
        self.contents.subscribe(move |seen| {
            let Some(this) = this.upgrade() else { return };
            this.wake(&of_content(&seen.object().name_any()));
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
                this.lanes.add(snapshot_key(&snapshot), SNAPSHOTS);
            }
        });
    }

    /// Looks at the snapshots that are found under a word.
    fn wake(&self, word: &str) {
        for snapshot in self.snapshots.find(word) {
            self.lanes.add(snapshot_key(&snapshot), SNAPSHOTS);
        }
    }

    async fn run(self: Arc<Self>) -> Result<(), Ended> {
        let mut tasks = Tasks::default();
        tasks.watch(&self.volumes, Api::all(self.client.clone()));
        tasks.watch(&self.claims, Api::all(self.client.clone()));
        tasks.watch(&self.classes, Api::all(self.client.clone()));
        tasks.watch(&self.contents, Api::all(self.client.clone()));
        tasks.watch(&self.snapshots, Api::all(self.client.clone()));
        tasks.listed().await;
        tasks.work(&self, 2);
        tasks.join().await
    }

    /// The volume of a claim.
    fn volume_of(&self, claim: &PersistentVolumeClaim) -> Option<Arc<PersistentVolume>> {
        self.volumes.get("", volume_name(claim))
    }
}
