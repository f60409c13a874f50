//! Publishing how much room the driver has: which rooms there are, when each is looked at, and what is done for one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use jiff::SignedDuration;
use k8s_openapi::api::storage::v1::{CSIDriver, CSIStorageCapacity};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use parking_lot::Mutex;
use serde_json::json;
use tether_controllers::cache::{Cache, Seen};
use tether_controllers::worker::log;
use tether_controllers::write::code;
use tether_plan::provisioner::capacity::{
    Answer, Room, RoomChange, RoomObserved, decide_room, is_ours, owner, place, quantities, room_of, rooms,
};
use tokio::sync::Notify;

use super::{CAPACITY, Key, NAME, Provisioner};
use crate::call::words;
use crate::lanes::Failed;
use crate::proto::{GetCapacityRequest, Topology};

const GET: &str = "/csi.v1.Controller/GetCapacity";
/// Between two looks at rooms that change again and again: so often, and no more, is an object written.
const PAUSE: SignedDuration = SignedDuration::from_secs(1);

/// What may be set.
#[derive(Clone)]
pub struct Settings {
    /// Where the objects are.
    pub namespace: String,
    /// Also for classes that bind at once, by which nobody schedules.
    pub immediate: bool,
    pub refresh: Refresh,
}

/// How it is known that a driver's capacity may have changed.
#[derive(Clone)]
pub enum Refresh {
    /// It is not: the driver is asked again and again.
    Every(SignedDuration),
    /// Somebody tells.
    Told(Arc<News>),
}

/// Nodes where room came or went. Who knows tells, who publishes takes; what was told twice is taken once.
#[derive(Default)]
pub struct News {
    told: Mutex<Told>,
    bell: Notify,
}

#[derive(Default)]
struct Told {
    nodes: BTreeSet<String>,
    everywhere: bool,
}

impl News {
    pub fn tell(&self, node: &str) {
        self.told.lock().nodes.insert(node.to_owned());
        self.bell.notify_one();
    }

    pub fn tell_everywhere(&self) {
        self.told.lock().everywhere = true;
        self.bell.notify_one();
    }

    async fn next(&self) -> Told {
        self.bell.notified().await;
        std::mem::take(&mut self.told.lock())
    }
}

/// What is published, and what is to be.
pub(super) struct Published {
    settings: Settings,
    /// By their rooms.
    pub(super) objects: Arc<Cache<CSIStorageCapacity>>,
    /// The one of the driver owns the objects.
    pub(super) drivers: Arc<Cache<CSIDriver>>,
    rooms: Mutex<Arc<BTreeSet<Room>>>,
    /// Rooms are not counted before everything was listed: none is gone that was only not seen yet.
    is_listed: AtomicBool,
}

impl Published {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            objects: Cache::whole(Some(|capacity| vec![word(&room_of(capacity))])),
            drivers: Cache::new(),
            rooms: Mutex::default(),
            is_listed: AtomicBool::new(false),
        }
    }

    pub(super) fn api(&self, client: kube::Client) -> Api<CSIStorageCapacity> {
        Api::namespaced(client, &self.settings.namespace)
    }
}

/// Under which an object is found.
fn word(room: &Room) -> String {
    format!("{room:?}")
}

impl Provisioner {
    pub(super) fn subscribe_capacity(self: &Arc<Self>) {
        let Some(published) = &self.published else { return };
        let this = Arc::downgrade(self);
        self.nodes.subscribe(move |seen| {
            let is_news = match seen {
                Seen::Applied { old: Some(old), new } => old.metadata.labels != new.metadata.labels,
                _ => true,
            };
            if let Some(this) = this.upgrade().filter(|_| is_news) {
                this.count_rooms();
            }
        });
        let this = Arc::downgrade(self);
        self.csi_nodes.subscribe(move |_| {
            if let Some(this) = this.upgrade() {
                this.count_rooms();
            }
        });
        let this = Arc::downgrade(self);
        self.classes.subscribe(move |seen| {
            let Some(this) = this.upgrade() else { return };
            this.count_rooms();
            this.look_at_class(&seen.object().name_any());
        });
        let this = Arc::downgrade(self);
        published.drivers.subscribe(move |seen| {
            let Some(this) = this.upgrade() else { return };
            if seen.object().name_any() == this.driver.name {
                this.look_at_rooms(|_| true);
            }
        });
        let this = Arc::downgrade(self);
        published.objects.subscribe(move |seen| {
            let Some(this) = this.upgrade() else { return };
            if is_ours(&this.driver, seen.object()) {
                this.lanes.add(Key::Room(room_of(seen.object())), CAPACITY);
            }
        });
    }

    /// Everything was listed: from here on rooms come and go.
    pub(super) fn begin_capacity(&self) {
        if let Some(published) = &self.published {
            published.is_listed.store(true, Ordering::Release);
            self.count_rooms();
        }
    }

    /// Finds out which rooms there are, and looks at those that came or went.
    fn count_rooms(&self) {
        let Some(published) = self.published.as_ref().filter(|held| held.is_listed.load(Ordering::Acquire)) else {
            return;
        };
        let (classes, nodes) = (self.classes.list(), self.nodes.list());
        let drivers = nodes.iter().map(|node| self.csi_nodes.get("", &node.name_any())).collect::<Vec<_>>();
        let nodes = nodes.iter().zip(&drivers).filter_map(|(node, drivers)| Some((&**node, &**drivers.as_ref()?)));
        let classes = classes.iter().map(AsRef::as_ref);
        let counted = Arc::new(rooms(&self.driver, classes, nodes, published.settings.immediate));
        let before = std::mem::replace(&mut *published.rooms.lock(), counted.clone());
        for room in before.symmetric_difference(&counted) {
            self.lanes.add(Key::Room(room.clone()), CAPACITY);
        }
    }

    /// Looks at rooms again.
    fn look_at_rooms(&self, which: impl Fn(&Room) -> bool) {
        let Some(published) = &self.published else { return };
        let rooms = published.rooms.lock().clone();
        for room in rooms.iter().filter(|room| which(room)) {
            self.lanes.add(Key::Room(room.clone()), CAPACITY);
        }
    }

    fn look_at_class(&self, class: &str) {
        self.look_at_rooms(|room| room.class == class);
    }

    /// A volume of the class came or went; a driver that does not tell is asked.
    pub(super) fn used_room(&self, class: &str) {
        if self.published.as_ref().is_some_and(|held| matches!(held.settings.refresh, Refresh::Every(_))) {
            self.look_at_class(class);
        }
    }

    /// Looks at rooms whenever their capacity may have changed, until dropped.
    pub(super) async fn refresh(self: Arc<Self>) {
        let Some(published) = &self.published else { return };
        let clock = &self.settings.clock;
        loop {
            match &published.settings.refresh {
                Refresh::Every(period) => {
                    clock.sleep_until(clock.now() + *period).await;
                    self.look_at_rooms(|_| true);
                }
                Refresh::Told(news) => {
                    let told = news.next().await;
                    self.look_at_rooms(|room| told.everywhere || told.nodes.iter().any(|node| self.is_at(room, node)));
                    clock.sleep_until(clock.now() + PAUSE).await;
                }
            }
        }
    }

    /// Whether what happens on the node can matter for the room: they share a node, a zone, or whatever places are made of.
    fn is_at(&self, room: &Room, node: &str) -> bool {
        let (object, drivers) = (self.nodes.get("", node), self.csi_nodes.get("", node));
        let here = object.zip(drivers).and_then(|(node, drivers)| place(&self.driver, &node, &drivers));
        room.place.is_empty()
            || here.is_some_and(|here| here.iter().any(|(key, value)| room.place.get(key) == Some(value)))
    }

    pub(super) async fn room(&self, room: &Room) -> Result<(), Failed> {
        let Some(published) = &self.published else { return Ok(()) };
        let held = published.objects.find(&word(room));
        let is_wanted = published.rooms.lock().contains(room);
        let class = self.classes.get("", &room.class).filter(|_| is_wanted);
        let owner = published.drivers.get("", &self.driver.name).map(|driver| owner(&driver));
        let observe = |answer| RoomObserved {
            room,
            class: class.as_deref(),
            held: held.iter().map(AsRef::as_ref).filter(|capacity| is_ours(&self.driver, capacity)).collect(),
            answer,
            owner: owner.clone(),
        };
        let mut plan = decide_room(&self.driver, &observe(None));
        if let Some(RoomChange::Ask { parameters }) = plan.changes.last() {
            let request = GetCapacityRequest {
                parameters: parameters.clone().into_iter().collect(),
                accessible_topology: self
                    .driver
                    .topology
                    .then(|| Topology { segments: room.place.clone().into_iter().collect() }),
                ..Default::default()
            };
            let asking = self
                .controller
                .call(GET, request, |mut controller, request| async move { controller.get_capacity(request).await });
            let said = asking.await.map_err(|status| {
                tracing::warn!(?room, error = words(&status), "the capacity is not known, trying again later");
                Failed
            })?;
            let answer = Answer { bytes: said.available_capacity, largest: said.maximum_volume_size };
            plan = decide_room(&self.driver, &observe(Some(answer)));
        }
        log(NAME, &plan);
        for change in plan.changes {
            self.change_room(published, change).await.map_err(|error| {
                tracing::warn!(?room, %error, "trying again later");
                Failed
            })?;
        }
        Ok(())
    }

    async fn change_room(&self, published: &Published, change: RoomChange) -> Result<(), kube::Error> {
        let api = published.api(self.client.clone());
        match change {
            RoomChange::Ask { .. } => {}
            RoomChange::Create(object) => {
                published.objects.wrote(api.create(&PostParams::default(), &object).await?);
            }
            RoomChange::Update { capacity, answer, owners } => {
                let (bytes, largest) = quantities(answer);
                let mut body = json!({
                    "metadata": { "uid": capacity.uid, "resourceVersion": capacity.resource_version },
                    "capacity": bytes,
                    "maximumVolumeSize": largest,
                });
                if let Some(owners) = owners {
                    body["metadata"]["ownerReferences"] = json!(owners);
                }
                let written = api.patch(&capacity.name, &PatchParams::default(), &Patch::Merge(body)).await?;
                published.objects.wrote(written);
            }
            RoomChange::Delete { capacity } => {
                let same = Preconditions { uid: Some(capacity.uid), resource_version: None };
                match api.delete(&capacity.name, &DeleteParams::default().preconditions(same)).await {
                    Err(error) if code(&error) != Some(404) => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}
