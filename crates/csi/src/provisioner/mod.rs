//! The external-provisioner for any CSI driver: makes volumes for claims, and deletes them when their claims are gone.

mod steps;

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSINode, StorageClass, VolumeAttachment};
use kube::api::Api;
use kube::runtime::watcher;
use kube::{Client, ResourceExt as _};
use tether_controllers::cache::{Cache, Seen};
use tether_controllers::clock::{Clock, SystemClock};
use tether_controllers::publish::{Names, Publisher};
use tether_plan::binding::claim_class;
use tether_plan::provisioner::Driver;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::attacher::Ended;
use crate::connect::Connection;
use crate::handshake::handshake;
use crate::lanes::{Backoff, Failed, Lanes, Worker, serve};
use crate::metrics::{Calls, Metrics};
use crate::proto::controller_client::ControllerClient;
use crate::proto::controller_service_capability::rpc::Type as Rpc;

/// What may be set; the defaults are the external-provisioner's.
#[derive(Clone)]
pub struct Settings {
    /// For each call to the driver.
    pub timeout: Duration,
    /// Calls at a time: so many volumes are made, and so many deleted beside them.
    pub workers: usize,
    pub backoff: Backoff,
    /// The file system of volumes whose class names none.
    pub default_fs_type: String,
    /// Who this process is, in events.
    pub identity: String,
    pub clock: Arc<dyn Clock>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(10),
            workers: 100,
            backoff: Backoff { first: SignedDuration::from_secs(1), longest: SignedDuration::from_mins(5) },
            default_fs_type: String::new(),
            identity: "external-provisioner".into(),
            clock: Arc::new(SystemClock::default()),
        }
    }
}

/// What is worked on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Claim(String, String),
    Volume(String),
}

/// Making and deleting do not wait for each other.
const CLAIMS: usize = 0;
const VOLUMES: usize = 1;

/// What all workers share.
struct Provisioner {
    driver: Driver,
    settings: Settings,
    client: Client,
    controller: ControllerClient<tonic::transport::Channel>,
    calls: Calls,
    events: Publisher,
    claims: Arc<Cache<PersistentVolumeClaim>>,
    volumes: Arc<Cache<PersistentVolume>>,
    classes: Arc<Cache<StorageClass>>,
    nodes: Arc<Cache<Node>>,
    csi_nodes: Arc<Cache<CSINode>>,
    attachments: Arc<Cache<VolumeAttachment>>,
    lanes: Lanes<Key>,
}

/// Runs until `stop`, or until the driver is lost.
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
        let driver = Driver {
            name: about.name.clone(),
            topology: about.topology,
            single_node_multi_writer: about.can(Rpc::SingleNodeMultiWriter),
            default_fs_type: settings.default_fs_type.clone(),
        };
        let names = Arc::<Names>::default();
        let events =
            Publisher::new(client.clone(), settings.clock.clone(), "csi-provisioner", &settings.identity, names);
        let provisioner = Arc::new(Provisioner {
            calls: Calls::new(metrics, &about.name),
            controller: ControllerClient::new(connection.channel.clone()),
            client,
            driver,
            events,
            claims: Cache::new(),
            volumes: Cache::new(),
            classes: Cache::new(),
            nodes: Cache::new(),
            csi_nodes: Cache::new(),
            attachments: Cache::indexed(Some(|attachment| {
                attachment.spec.source.persistent_volume_name.clone().into_iter().collect()
            })),
            lanes: Lanes::new(2, settings.backoff, settings.clock.clone()),
            settings,
        });
        provisioner.subscribe();
        provisioner.run().await
    };
    tokio::select! {
        ended = working => ended,
        () = stop.cancelled() => Ok(()),
        () = lost.cancelled() => Err(Ended::LostDriver),
    }
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
        }
    }
}

impl Provisioner {
    fn subscribe(self: &Arc<Self>) {
        let this = Arc::downgrade(self);
        self.claims.subscribe(move |seen| {
            let Some(this) = this.upgrade() else { return };
            let key = Key::Claim(seen.object().namespace().unwrap_or_default(), seen.object().name_any());
            match seen {
                Seen::Applied { .. } => this.lanes.add(key, CLAIMS),
                Seen::Deleted(_) => this.lanes.remove(&key),
            }
        });
        let this = Arc::downgrade(self);
        self.volumes.subscribe(move |seen| {
            let Some(this) = this.upgrade() else { return };
            let key = Key::Volume(seen.object().name_any());
            match seen {
                Seen::Applied { .. } => this.lanes.add(key, VOLUMES),
                Seen::Deleted(_) => this.lanes.remove(&key),
            }
        });
        let this = Arc::downgrade(self);
        self.classes.subscribe(move |seen| {
            let Some(this) = this.upgrade() else { return };
            let class = seen.object().name_any();
            for claim in this.claims.list().iter().filter(|claim| claim_class(claim) == class) {
                let key = Key::Claim(claim.namespace().unwrap_or_default(), claim.name_any());
                this.lanes.add(key, CLAIMS);
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
        let mut tasks = JoinSet::new();
        macro_rules! follow {
            ($($cache:ident),+) => {
                $(tasks.spawn(self.$cache.clone().run(Api::all(self.client.clone()), watcher::Config::default()));)+
                $(self.$cache.ready().await;)+
            };
        }
        follow!(claims, volumes, classes, nodes, csi_nodes, attachments);
        for lane in [CLAIMS, VOLUMES] {
            tasks.spawn(serve(self.clone(), lane));
        }
        while let Some(ended) = tasks.join_next().await {
            ended?;
        }
        Ok(())
    }
}
