//! How much room a driver has, told to schedulers: one CSIStorageCapacity for each class and each place of the driver's nodes.
//!
//! ```text
//!   classes of the driver that wait for a consumer  ×  places of its nodes  =  rooms
//!   a room ──► GetCapacity ──► object made, changed, or right as it is        no room any more ──► object deleted
//! ```
//!
//! Labels, owner and fields are those of Kubernetes' external-provisioner. The name of an object follows from its room, so
//! that making it twice makes one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use k8s_openapi::Resource as _;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use sha2::{Digest as _, Sha256};
use tether_model::reason::Reason;
use tether_model::report::{Rule, Subject};

use super::Driver;
use super::claim::{binary, parameters};
use crate::Plan;
use crate::amount::units;
use crate::binding::waits_for_consumer;
use crate::object::{Target, name, uid};

/// On an object: the driver that it is about.
pub const DRIVER_LABEL: &str = "csi.storage.k8s.io/drivername";
/// On an object: who keeps it up to date, and deletes it.
pub const MANAGER_LABEL: &str = "csi.storage.k8s.io/managed-by";
/// What that says for a provisioner that serves all nodes.
pub const MANAGER: &str = "external-provisioner";

const PUBLISH: Rule = Rule("publish-capacity");

/// Where volumes can be, in the words of the driver: labels of nodes. Empty where the driver does not care.
pub type Place = BTreeMap<String, String>;

/// What one object is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Room {
    pub class: String,
    pub place: Place,
}

/// What the driver said of a room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub bytes: i64,
    /// The largest volume, where the driver knows.
    pub largest: Option<i64>,
}

/// What the decision looks at.
#[derive(Clone, Debug)]
pub struct RoomObserved<'a> {
    pub room: &'a Room,
    /// The room's class, if schedulers are to know of the room.
    pub class: Option<&'a StorageClass>,
    /// Objects of ours that are about the room.
    pub held: Vec<&'a CSIStorageCapacity>,
    /// None: the driver was not asked yet.
    pub answer: Option<Answer>,
    /// With whom the objects go; they are kept for as long as somebody keeps them if there is nobody.
    pub owner: Option<OwnerReference>,
}

/// What is to be done for a room.
#[derive(Clone, Debug, PartialEq)]
pub enum RoomChange {
    /// Ask the driver, and decide again.
    Ask {
        parameters: BTreeMap<String, String>,
    },
    Create(Box<CSIStorageCapacity>),
    /// Make the object say what the driver said.
    Update {
        capacity: Target,
        answer: Answer,
        owners: Option<Vec<OwnerReference>>,
    },
    Delete {
        capacity: Target,
    },
}

/// All rooms of a driver. A node is no place before it has all the labels that the driver named on it. Classes that bind at
/// once are left out unless asked for: nobody schedules by them.
pub fn rooms<'a>(
    driver: &Driver,
    classes: impl IntoIterator<Item = &'a StorageClass>,
    nodes: impl IntoIterator<Item = (&'a Node, &'a CSINode)>,
    immediate: bool,
) -> BTreeSet<Room> {
    let places: BTreeSet<Place> = if driver.topology {
        nodes.into_iter().filter_map(|(node, drivers)| place(driver, node, drivers)).collect()
    } else {
        [Place::new()].into()
    };
    let ours =
        |class: &&StorageClass| class.provisioner == driver.name && (immediate || waits_for_consumer(Some(class)));
    let classes = classes.into_iter().filter(ours);
    let of = |class: &StorageClass| {
        let class = name(class).to_owned();
        places.iter().map(move |place| Room { class: class.clone(), place: place.clone() }).collect::<Vec<_>>()
    };
    classes.flat_map(of).collect()
}

/// The place of a node; none if the driver is not there.
pub fn place(driver: &Driver, node: &Node, drivers: &CSINode) -> Option<Place> {
    let registered = drivers.spec.drivers.iter().find(|d| d.name == driver.name)?;
    let labels = node.metadata.labels.as_ref();
    let keys = registered.topology_keys.as_ref()?.iter();
    keys.map(|key| Some((key.clone(), labels?.get(key)?.clone()))).collect()
}

/// Whether the object is kept by this provisioner.
pub fn is_ours(driver: &Driver, capacity: &CSIStorageCapacity) -> bool {
    let label = |key: &str| capacity.metadata.labels.as_ref().and_then(|labels| labels.get(key)).map(String::as_str);
    label(DRIVER_LABEL) == Some(driver.name.as_str()) && label(MANAGER_LABEL) == Some(MANAGER)
}

/// The room that an object is about. One that was not made here, and selects nodes in another way, is about a place that
/// cannot be: no label has an empty key.
pub fn room_of(capacity: &CSIStorageCapacity) -> Room {
    let plain = |selector: &&LabelSelector| selector.match_expressions.as_ref().is_none_or(Vec::is_empty);
    let place = capacity.node_topology.as_ref().filter(plain).map_or_else(
        || [(String::new(), name(capacity).to_owned())].into(),
        |selector| selector.match_labels.clone().unwrap_or_default(),
    );
    Room { class: capacity.storage_class_name.clone(), place }
}

/// Decides what becomes of the objects of one room.
pub fn decide_room(driver: &Driver, observed: &RoomObserved<'_>) -> Plan<RoomChange> {
    let mut plan = Plan::default();
    let about = || Subject::new("CSIStorageCapacity", "", object_name(driver, observed.room));
    let mut held = observed.held.clone();
    held.sort_by_key(|capacity| (capacity.metadata.creation_timestamp.as_ref().map(|time| time.0), name(*capacity)));
    let Some(class) = observed.class else {
        for capacity in held {
            let words = "No class or no node of the driver is there for it.";
            let change = RoomChange::Delete { capacity: Target::of(capacity) };
            plan.acts(PUBLISH, about(), Reason::ObjectMissing, words, change);
        }
        return plan;
    };
    for capacity in held.iter().skip(1) {
        let change = RoomChange::Delete { capacity: Target::of(*capacity) };
        plan.acts(PUBLISH, about(), Reason::UpToDate, "Another object says the same.", change);
    }
    let Some(answer) = observed.answer else {
        let question = RoomChange::Ask { parameters: parameters(class) };
        plan.asks(PUBLISH, about(), Reason::StatusFollows, "The driver is asked for its capacity.", question);
        return plan;
    };
    match held.first() {
        None => {
            let words = format!("{} bytes are to be published.", answer.bytes);
            let made = object(driver, observed.room, answer, observed.owner.clone());
            plan.acts(PUBLISH, about(), Reason::StatusFollows, words, RoomChange::Create(Box::new(made)));
        }
        Some(capacity) => {
            let owners = missing_owner(capacity, observed.owner.as_ref());
            if said(capacity) == Some(answer) && owners.is_none() {
                plan.rests(PUBLISH, about(), Reason::UpToDate, format!("{} bytes are published.", answer.bytes));
                return plan;
            }
            let words = format!("{} bytes are to be published.", answer.bytes);
            let change = RoomChange::Update { capacity: Target::of(*capacity), answer, owners };
            plan.acts(PUBLISH, about(), Reason::StatusFollows, words, change);
        }
    }
    plan
}

/// What an object says.
fn said(capacity: &CSIStorageCapacity) -> Option<Answer> {
    let bytes = units(Some(capacity.capacity.as_ref()?));
    Some(Answer { bytes, largest: capacity.maximum_volume_size.as_ref().map(|size| units(Some(size))) })
}

/// The owners of an object with the one that it lacks; none if it lacks none.
fn missing_owner(capacity: &CSIStorageCapacity, owner: Option<&OwnerReference>) -> Option<Vec<OwnerReference>> {
    let owner = owner?;
    let mut owners = capacity.metadata.owner_references.clone().unwrap_or_default();
    if owners.iter().any(|held| held.uid == owner.uid) {
        return None;
    }
    owners.push(owner.clone());
    Some(owners)
}

/// Amounts as the object holds them.
pub fn quantities(answer: Answer) -> (Quantity, Option<Quantity>) {
    (Quantity(binary(answer.bytes)), answer.largest.map(|bytes| Quantity(binary(bytes))))
}

fn object(driver: &Driver, room: &Room, answer: Answer, owner: Option<OwnerReference>) -> CSIStorageCapacity {
    let labels = [(DRIVER_LABEL, driver.name.as_str()), (MANAGER_LABEL, MANAGER)];
    let (capacity, maximum_volume_size) = quantities(answer);
    CSIStorageCapacity {
        metadata: ObjectMeta {
            name: Some(object_name(driver, room)),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            owner_references: owner.map(|owner| vec![owner]),
            ..Default::default()
        },
        storage_class_name: room.class.clone(),
        node_topology: Some(LabelSelector {
            match_labels: Some(room.place.clone()).filter(|place| !place.is_empty()),
            match_expressions: None,
        }),
        capacity: Some(capacity),
        maximum_volume_size,
    }
}

/// Follows from driver and room; a `=` or a newline can be in neither names nor labels.
fn object_name(driver: &Driver, room: &Room) -> String {
    let mut hash = Sha256::new();
    hash.update(format!("{}\n{}\n", driver.name, room.class));
    for (key, value) in &room.place {
        hash.update(format!("{key}={value}\n"));
    }
    // Sixteen digits: rooms are thousands at most.
    let digits = hash.finalize().iter().take(8).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    });
    format!("csisc-{digits}")
}

/// The driver's object as an owner: what is known of its capacity goes with it.
pub fn owner(driver: &CSIDriver) -> OwnerReference {
    OwnerReference {
        api_version: CSIDriver::API_VERSION.into(),
        kind: CSIDriver::KIND.into(),
        name: name(driver).to_owned(),
        uid: uid(driver).to_owned(),
        controller: Some(true),
        block_owner_deletion: None,
    }
}
