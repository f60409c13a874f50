//! The external-attacher for any CSI driver: makes what VolumeAttachments ask for, and says so in their status.
//!
//! ```text
//!   watch: attachments, volumes, CSINodes ──► lanes: attach │ detach │ volumes ──► steps of the plan
//!   every minute: ListVolumes ──► attachments that the driver sees differently ──┘   API writes, driver's calls
//! ```
//!
//! One attachment is worked on by one worker at a time; attaches and detaches have workers of their own, so that a burst of
//! one never starves the other. What to do is decided by `tether_plan::attacher` alone.

mod drift;
mod keeper;
mod lean;
mod steps;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::api::Api;
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;
use tether_controllers::cache::{Cache, Seen};
use tether_controllers::clock::{Clock, SystemClock};
use tether_controllers::leader;
use tether_plan::attacher::{Driver, Kind, is_news, is_volume_of_interest, lane};
use tokio_util::sync::CancellationToken;

use self::keeper::Keeper;
use self::lean::{Attachment, Volume};
use crate::connect::Connection;
use crate::handshake::About;
use crate::lanes::{Backoff, Failed, Lanes, Worker};
use crate::metrics::{Calls, Metrics};
use crate::proto::controller_client::ControllerClient;
use crate::proto::controller_service_capability::rpc::Type as Rpc;
pub use crate::sidecar::Ended;
use crate::sidecar::{self, Tasks};

/// What may be set; the defaults are the external-attacher's.
#[derive(Clone)]
pub struct Settings {
    /// For each call to the driver.
    pub timeout: Duration,
    /// Calls at a time, for each lane.
    pub workers: usize,
    pub backoff: Backoff,
    /// Between two comparisons with what the driver lists.
    pub reconcile_every: SignedDuration,
    /// How many volumes are asked for at a time; 0 leaves it to the driver.
    pub max_entries: i32,
    /// The file system of volumes that name none.
    pub default_fs_type: String,
    /// Run only while leading.
    pub leader_election: Option<Lead>,
    pub clock: Arc<dyn Clock>,
    /// Called when the work begins.
    pub on_leading: Arc<dyn Fn() + Send + Sync>,
}

/// How to become the one attacher of a driver.
#[derive(Clone, Debug)]
pub struct Lead {
    pub identity: String,
    /// The name is left empty: it follows from the driver's.
    pub settings: leader::Settings,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(15),
            workers: 10,
            backoff: Backoff { first: SignedDuration::from_secs(1), longest: SignedDuration::from_mins(5) },
            reconcile_every: SignedDuration::from_mins(1),
            max_entries: 0,
            default_fs_type: String::new(),
            leader_election: None,
            clock: Arc::new(SystemClock::default()),
            on_leading: Arc::new(|| ()),
        }
    }
}

/// What is worked on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Attachment(String),
    Volume(String),
}

/// Volumes that are let go of have a lane of their own.
const VOLUMES: usize = 2;
const LANES: [&str; 3] = ["attach", "detach", "volume"];

/// What all workers share.
struct Attacher {
    driver: Driver,
    /// Whether the driver can list who uses its volumes.
    lists: bool,
    settings: Settings,
    client: Client,
    controller: ControllerClient<tonic::transport::Channel>,
    calls: Calls,
    attachments: Arc<Cache<Attachment>>,
    volumes: Arc<Cache<Volume>>,
    nodes: Arc<Cache<CSINode>>,
    /// Attachments as this process last wrote them, until the watch has caught up.
    written: Keeper,
    /// Attachments that the driver sees differently.
    again: Mutex<BTreeSet<String>>,
    lanes: Lanes<Key>,
}

/// Runs until `stop`, or until the driver or the lead is lost.
pub async fn run(
    client: Client,
    connection: Connection,
    settings: Settings,
    metrics: &Metrics,
    stop: CancellationToken,
) -> Result<(), Ended> {
    let timeout = settings.timeout;
    let start = async |about: About| start(client, &connection, &about, settings, metrics).await;
    sidecar::run(&connection, timeout, &stop, start).await
}

async fn start(
    client: Client,
    connection: &Connection,
    about: &About,
    settings: Settings,
    metrics: &Metrics,
) -> Result<(), Ended> {
    tracing::info!(driver = about.name, "attaching volumes");
    let lead = settings.leader_election.clone();
    let clock = settings.clock.clone();
    let attacher = Attacher::new(client.clone(), connection, about, settings, metrics);
    let Some(mut lead) = lead else { return attacher.run().await };
    lead.settings.name = tether_plan::attacher::lease_name(&about.name);
    let mut election = leader::Election::new(client, clock, lead.settings, &lead.identity);
    election.acquire().await;
    tokio::select! {
        ended = attacher.run() => ended,
        () = election.keep() => Err(Ended::LostLead),
    }
}

impl Worker for Attacher {
    type Key = Key;

    fn lanes(&self) -> &Lanes<Key> {
        &self.lanes
    }

    fn at_once(&self) -> usize {
        self.settings.workers
    }

    async fn work(&self, key: &Key) -> Result<(), Failed> {
        match key {
            Key::Attachment(name) => self.attachment(name).await,
            Key::Volume(name) => self.volume(name).await,
        }
    }
}

impl Attacher {
    fn new(client: Client, connection: &Connection, about: &About, settings: Settings, metrics: &Metrics) -> Arc<Self> {
        let driver = Driver {
            name: about.name.clone(),
            trivial: !about.can(Rpc::PublishUnpublishVolume),
            read_only: about.can(Rpc::PublishReadonly),
            single_node_multi_writer: about.can(Rpc::SingleNodeMultiWriter),
            default_fs_type: settings.default_fs_type.clone(),
        };
        let attacher = Arc::new(Self {
            lists: about.can(Rpc::ListVolumes) && about.can(Rpc::ListVolumesPublishedNodes),
            client,
            controller: ControllerClient::new(connection.channel.clone()),
            calls: Calls::new(metrics, &about.name),
            attachments: Cache::whole(Some(attachment_words)),
            volumes: Cache::whole(None),
            nodes: Cache::new(),
            written: Keeper::default(),
            again: Mutex::default(),
            lanes: Lanes::new(LANES.len(), settings.backoff, settings.clock.clone()),
            driver,
            settings,
        });
        attacher.subscribe();
        metrics.registry.lock().register_collector(Box::new(Backlogs(attacher.clone())));
        attacher
    }

    /// Watches and works until a task ends.
    async fn run(self: Arc<Self>) -> Result<(), Ended> {
        let mut tasks = Tasks::default();
        tasks.watch(&self.attachments, Api::all(self.client.clone()));
        tasks.watch(&self.volumes, Api::all(self.client.clone()));
        tasks.watch(&self.nodes, Api::all(self.client.clone()));
        tasks.listed().await;
        tasks.work(&self, LANES.len());
        if self.lists && !self.driver.trivial {
            tasks.spawn(self.clone().compare());
        }
        (self.settings.on_leading)();
        tasks.join().await
    }

    /// Puts into the lanes what a change concerns.
    fn subscribe(self: &Arc<Self>) {
        let this = Arc::downgrade(self);
        self.attachments.subscribe(move |seen| {
            let Some(this) = this.upgrade() else { return };
            match seen {
                Seen::Applied { old, new } => {
                    this.written.seen(new);
                    let new = VolumeAttachment::from(*new);
                    if old.is_none_or(|old| is_news(&old.into(), &new)) {
                        this.look_at(&new);
                    }
                }
                Seen::Deleted(gone) => {
                    this.written.gone(gone);
                    this.lanes.remove(&Key::Attachment(gone.name_any()));
                    if let Some(volume) = gone.volume.as_deref().and_then(|name| this.volumes.get("", name)) {
                        this.look_at_volume(&volume);
                    }
                }
            }
        });
        let this = Arc::downgrade(self);
        self.volumes.subscribe(move |seen| {
            let Some(this) = this.upgrade() else { return };
            let Seen::Applied { old, new } = seen else { return };
            this.look_at_volume(new);
            // Whoever waits for it need not wait out its delay.
            if old.is_none() {
                this.wake(&by_volume(&new.name_any()));
            }
        });
        let this = Arc::downgrade(self);
        self.nodes.subscribe(move |seen| {
            let Some(this) = this.upgrade() else { return };
            let id = |node: &CSINode| {
                node.spec.drivers.iter().find(|d| d.name == this.driver.name).map(|d| d.node_id.clone())
            };
            if let Seen::Applied { old, new } = seen
                && old.and_then(id) != id(new)
            {
                this.wake(&by_node(&new.name_any()));
            }
        });
    }

    /// Looks at attachments that are found under a word, if there is something to be done for them.
    fn wake(&self, word: &str) {
        for attachment in self.attachments.find(word) {
            self.look_at(&(&*attachment).into());
        }
    }

    fn look_at(&self, attachment: &VolumeAttachment) {
        let name = attachment.name_any();
        let again = self.again.lock().contains(&name);
        if let Some(kind) = lane(&self.driver, attachment, again) {
            self.lanes.add(Key::Attachment(name), number(kind));
        }
    }

    fn look_at_volume(&self, volume: &Volume) {
        if is_volume_of_interest(&self.driver, &PersistentVolume::from(volume)) {
            self.lanes.add(Key::Volume(volume.name_any()), VOLUMES);
        }
    }
}

fn number(kind: Kind) -> usize {
    match kind {
        Kind::Attach => 0,
        Kind::Detach => 1,
    }
}

/// Attachments are looked up by their volume and by their node.
fn attachment_words(attachment: &Attachment) -> Vec<String> {
    let volume = attachment.volume.as_deref().map(by_volume);
    volume.into_iter().chain([by_node(&attachment.node)]).collect()
}

fn by_volume(name: &str) -> String {
    format!("volume/{name}")
}

fn by_node(name: &str) -> String {
    format!("node/{name}")
}

/// Backlog and age of the lanes, counted when somebody asks.
struct Backlogs(Arc<Attacher>);

impl std::fmt::Debug for Backlogs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Backlogs")
    }
}

impl Collector for Backlogs {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let now = self.0.settings.clock.now();
        let all = LANES.map(|lane| [("lane", lane)]);
        let kind = prometheus_client::metrics::MetricType::Gauge;
        let help = "Attachments and volumes that wait for their turn or for another attempt";
        let mut backlog = encoder.encode_descriptor("tether_attacher_backlog", help, None, kind)?;
        for (number, labels) in all.iter().enumerate() {
            let waiting = i64::try_from(self.0.lanes.backlog(number).waiting).unwrap_or(i64::MAX);
            ConstGauge::new(waiting).encode(backlog.encode_family(labels)?)?;
        }
        let help = "Seconds since something was to be done for the one that has been there longest";
        let mut ages = encoder.encode_descriptor("tether_attacher_oldest_seconds", help, None, kind)?;
        for (number, labels) in all.iter().enumerate() {
            let oldest = self.0.lanes.backlog(number).oldest;
            let age = oldest.map_or(0.0, |since| now.duration_since(since).as_secs_f64().max(0.0));
            ConstGauge::new(age).encode(ages.encode_family(labels)?)?;
        }
        Ok(())
    }
}
