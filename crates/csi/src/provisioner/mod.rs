//! The external-provisioner for any CSI driver: makes volumes for claims, and deletes them when their claims are gone.

pub mod capacity;
mod steps;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSINode, StorageClass, VolumeAttachment};
use kube::api::Api;
use kube::{Client, ResourceExt as _};
use tether_controllers::cache::{Cache, Seen};
use tether_controllers::publish::Publisher;
use tether_plan::binding::claim_class;
use tether_plan::provisioner::Driver;
use tether_plan::provisioner::capacity::Room;
use tokio_util::sync::CancellationToken;

use self::capacity::Published;
use crate::connect::Connection;
use crate::handshake::About;
use crate::lanes::{Failed, Lanes, Worker};
use crate::metrics::Metrics;
use crate::proto::controller_service_capability::rpc::Type as Rpc;
use crate::sidecar::{self, Controller, Ended, Tasks};

const NAME: &str = "csi-provisioner";

/// What may be set; the defaults are the external-provisioner's.
#[derive(Clone)]
pub struct Settings {
    pub common: sidecar::Settings,
    /// The file system of volumes whose class names none.
    pub default_fs_type: String,
    /// Publish the driver's capacity for schedulers.
    pub capacity: Option<capacity::Settings>,
}

impl Default for Settings {
    fn default() -> Self {
        let common = sidecar::Settings::new("external-provisioner", Duration::from_secs(10), 100);
        Self { common, default_fs_type: String::new(), capacity: None }
    }
}

/// What is worked on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Claim(String, String),
    Volume(String),
    Room(Room),
}

/// Making and deleting do not wait for each other.
const CLAIMS: usize = 0;
const VOLUMES: usize = 1;
const CAPACITY: usize = 2;
const LANES: usize = 3;

/// What all workers share.
struct Provisioner {
    driver: Driver,
    settings: sidecar::Settings,
    client: Client,
    controller: Controller,
    events: Publisher,
    claims: Arc<Cache<PersistentVolumeClaim>>,
    volumes: Arc<Cache<PersistentVolume>>,
    classes: Arc<Cache<StorageClass>>,
    nodes: Arc<Cache<Node>>,
    csi_nodes: Arc<Cache<CSINode>>,
    attachments: Arc<Cache<VolumeAttachment>>,
    /// None where nobody is to know of the driver's capacity.
    published: Option<Published>,
    lanes: Arc<Lanes<Key>>,
}

/// Runs until `stop`, or until the driver is lost.
pub async fn run(
    client: Client,
    connection: Connection,
    settings: Settings,
    metrics: &Metrics,
    stop: CancellationToken,
) -> Result<(), Ended> {
    let Settings { common: settings, default_fs_type, capacity } = settings;
    let timeout = settings.timeout;
    let start = async |about: About| {
        let published = capacity.filter(|_| about.can(Rpc::GetCapacity)).map(Published::new);
        let provisioner = Arc::new(Provisioner {
            controller: Controller::new(&connection, &about.name, metrics, timeout),
            driver: Driver {
                topology: about.topology,
                single_node_multi_writer: about.can(Rpc::SingleNodeMultiWriter),
                default_fs_type,
                name: about.name,
            },
            events: settings.publisher(&client, NAME),
            client,
            claims: Cache::new(),
            volumes: Cache::new(),
            classes: Cache::new(),
            nodes: Cache::new(),
            csi_nodes: Cache::new(),
            attachments: Cache::indexed(Some(|attachment| {
                attachment.spec.source.persistent_volume_name.clone().into_iter().collect()
            })),
            published,
            lanes: Arc::new(Lanes::new(LANES, settings.backoff, settings.clock.clone())),
            settings,
        });
        provisioner.subscribe();
        provisioner.subscribe_capacity();
        provisioner.run().await
    };
    sidecar::run(&connection, timeout, &stop, start).await
}

impl Worker for Provisioner {
    type Key = Key;

    fn lanes(&self) -> &Lanes<Key> {
        &self.lanes
    }

    fn at_once(&self) -> usize {
        self.settings.workers
    }

    async fn work(&self, key: &Key) -> Result<(), Failed> {
        match key {
            Key::Claim(namespace, name) => self.claim(namespace, name).await,
            Key::Volume(name) => self.volume(name).await,
            Key::Room(room) => self.room(room).await,
        }
    }
}

impl Provisioner {
    fn subscribe(self: &Arc<Self>) {
        self.lanes.follow(&self.claims, CLAIMS, claim_key);
        self.lanes.follow(&self.volumes, VOLUMES, |volume| Key::Volume(volume.name_any()));
        let this = Arc::downgrade(self);
        self.classes.subscribe(move |seen| {
            let Some(this) = this.upgrade() else { return };
            let class = seen.object().name_any();
            for claim in this.claims.list().iter().filter(|claim| claim_class(claim) == class) {
                this.lanes.add(claim_key(claim), CLAIMS);
            }
        });
        let this = Arc::downgrade(self);
        self.attachments.subscribe(move |seen| {
            if let (Some(this), Seen::Deleted(gone)) = (this.upgrade(), seen)
                && let Some(volume) = &gone.spec.source.persistent_volume_name
            {
                this.lanes.add(Key::Volume(volume.clone()), VOLUMES);
            }
        });
    }

    async fn run(self: Arc<Self>) -> Result<(), Ended> {
        let mut tasks = Tasks::default();
        tasks.watch(&self.claims, Api::all(self.client.clone()));
        tasks.watch(&self.volumes, Api::all(self.client.clone()));
        tasks.watch(&self.classes, Api::all(self.client.clone()));
        tasks.watch(&self.nodes, Api::all(self.client.clone()));
        tasks.watch(&self.csi_nodes, Api::all(self.client.clone()));
        tasks.watch(&self.attachments, Api::all(self.client.clone()));
        if let Some(published) = &self.published {
            tasks.watch(&published.objects, published.api(self.client.clone()));
            tasks.watch(&published.drivers, Api::all(self.client.clone()));
        }
        tasks.listed().await;
        tasks.work(&self, LANES);
        self.begin_capacity();
        tasks.spawn(self.clone().refresh());
        tasks.join().await
    }
}

fn claim_key(claim: &PersistentVolumeClaim) -> Key {
    Key::Claim(claim.namespace().unwrap_or_default(), claim.name_any())
}
