//! Admission: what is added to an object on its way to the store, and what is refused.
//!
//! A pure function of the write and of what it has to be compared with, so that the same rules run inside the embedded API server and behind a
//! webhook of any other. First [`mutate`], then [`validate`]; what is to be looked up before either is said by [`Review::needs`].
//!
//! A refusal names the field. Texts that Longhorn's users know are Longhorn's.

mod attachment;
mod others;
mod volume;

use std::fmt;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::settings::Settings;
use crate::{Engine, FINALIZER, Node, Replica, Setting, Snapshot, Volume, VolumeAttachment, labels};

/// The kinds that have a finalizer, because something has to be cleaned up after them and a controller does it.
const FINALIZED: [&str; 4] = ["volumes", "volumeattachments", "engines", "replicas"];

/// What a write does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A new object.
    Create,
    /// A change of an object that exists.
    Update,
    /// The beginning of an object's end.
    Delete,
}

/// A write that is to be admitted.
#[derive(Clone, Copy, Debug)]
pub struct Review<'a> {
    /// What it does.
    pub operation: Operation,
    /// The plural of the kind.
    pub resource: &'a str,
    /// The object's name; empty if it is to be generated.
    pub name: &'a str,
    /// The object as it is to be; null when it is deleted.
    pub object: &'a Value,
    /// The object as it is.
    pub old: Option<&'a Value>,
}

/// What an object has to be compared with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// The volume that it belongs to.
    pub volume: Option<String>,
    /// That volume's engines.
    pub engines: bool,
    /// That volume's replicas.
    pub replicas: bool,
    /// The settings.
    pub settings: bool,
}

/// What was found of it.
#[derive(Clone, Debug, Default)]
pub struct Related {
    /// None: it does not exist, or was not needed.
    pub volume: Option<Volume>,
    /// Those of the volume.
    pub engines: Vec<Engine>,
    /// Those of the volume.
    pub replicas: Vec<Replica>,
    /// All of them.
    pub settings: Settings,
}

/// Why a write is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The field, as `spec.size`.
    pub field: String,
    /// What is wrong with it, and what would be right.
    pub message: String,
}

impl Refusal {
    fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

impl std::error::Error for Refusal {}

impl Review<'_> {
    /// What has to be looked up before the rules can tell.
    pub fn needs(&self) -> Needs {
        let text = |pointer: &str| {
            let object = if self.object.is_null() { self.old } else { Some(self.object) };
            object.and_then(|object| object.pointer(pointer)).and_then(Value::as_str).map(str::to_owned)
        };
        match (self.resource, self.operation) {
            ("volumes", Operation::Create) => Needs { settings: true, ..Needs::default() },
            ("volumeattachments", Operation::Create | Operation::Update) => {
                Needs { volume: text("/spec/volume"), replicas: true, ..Needs::default() }
            }
            ("engines", Operation::Create) => {
                Needs { volume: text("/spec/volumeName"), engines: true, ..Needs::default() }
            }
            ("replicas", Operation::Delete) => {
                Needs { volume: text("/spec/volumeName"), replicas: true, ..Needs::default() }
            }
            ("snapshots", Operation::Create) => Needs { volume: text("/spec/volume"), ..Needs::default() },
            _ => Needs::default(),
        }
    }

    fn is_deleting(&self) -> bool {
        self.object.pointer("/metadata/deletionTimestamp").is_some()
    }
}

/// Mutation and validation in one: the object as it is to be stored, or why not.
pub fn admit(review: &Review<'_>, related: &Related) -> Result<Value, Refusal> {
    let object = mutate(review, related)?;
    validate(&Review { object: &object, ..*review }, related)?;
    Ok(object)
}

/// The object with what is added to it.
pub fn mutate(review: &Review<'_>, related: &Related) -> Result<Value, Refusal> {
    let mut object = review.object.clone();
    if review.operation == Operation::Delete || review.is_deleting() {
        return Ok(object);
    }
    if FINALIZED.contains(&review.resource) {
        add_finalizer(&mut object);
    }
    match review.resource {
        "volumes" => volume::mutate(review, related, &mut object)?,
        "volumeattachments" => attachment::mutate(review, related, &mut object)?,
        "engines" | "replicas" => belongs_to(&mut object, "/spec/volumeName", None),
        "snapshots" => belongs_to(&mut object, "/spec/volume", related.volume.as_ref()),
        _ => {}
    }
    Ok(object)
}

/// Whether the object may be stored as it is, or deleted.
pub fn validate(review: &Review<'_>, related: &Related) -> Result<(), Refusal> {
    // What is on its way out only loses finalizers; rules about its content would keep it for ever.
    if review.operation != Operation::Delete && review.is_deleting() {
        return Ok(());
    }
    match (review.resource, review.operation) {
        ("replicas", Operation::Delete) => others::last_replica(&old::<Replica>(review)?, related),
        (_, Operation::Delete) => Ok(()),
        ("volumes", _) => volume::validate(review, &new(review)?),
        ("volumeattachments", _) => attachment::validate(review, &new::<VolumeAttachment>(review)?, related),
        ("engines", Operation::Create) => others::engine_count(&new::<Engine>(review)?, related),
        ("snapshots", _) => others::snapshot(review, &new::<Snapshot>(review)?, related),
        ("nodes", _) => others::node(&new::<Node>(review)?),
        ("settings", _) => others::setting(&new::<Setting>(review)?),
        _ => Ok(()),
    }
}

fn new<K: DeserializeOwned>(review: &Review<'_>) -> Result<K, Refusal> {
    read(review.object)
}

fn old<K: DeserializeOwned>(review: &Review<'_>) -> Result<K, Refusal> {
    read(review.old.unwrap_or(&Value::Null))
}

fn read<K: DeserializeOwned>(object: &Value) -> Result<K, Refusal> {
    K::deserialize(object).map_err(|error| Refusal::new("spec", error.to_string()))
}

fn add_finalizer(object: &mut Value) {
    let metadata = &mut object["metadata"];
    if !metadata["finalizers"].is_array() {
        metadata["finalizers"] = json!([]);
    }
    let finalizers = metadata["finalizers"].as_array_mut().expect("it must be a list: it was just made one");
    if !finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
        finalizers.push(FINALIZER.into());
    }
}

/// Labels an object with its volume, and ties it to the volume's life if that is known.
fn belongs_to(object: &mut Value, field: &str, volume: Option<&Volume>) {
    let Some(name) = object.pointer(field).and_then(Value::as_str).map(str::to_owned) else { return };
    if name.is_empty() {
        return;
    }
    set_label(object, labels::VOLUME, &name);
    let Some(uid) = volume.and_then(|volume| volume.metadata.uid.as_deref()) else { return };
    let owners = &mut object["metadata"]["ownerReferences"];
    if !owners.as_array().is_some_and(|owners| owners.iter().any(|owner| owner["uid"] == uid)) {
        let owner = json!({"apiVersion": crate::API_VERSION, "kind": "Volume", "name": name, "uid": uid});
        match owners.as_array_mut() {
            Some(owners) => owners.push(owner),
            None => *owners = json!([owner]),
        }
    }
}

fn set_label(object: &mut Value, label: &str, value: &str) {
    let labels = &mut object["metadata"]["labels"];
    if !labels.is_object() {
        *labels = Value::Object(Map::new());
    }
    labels[label] = value.into();
}
