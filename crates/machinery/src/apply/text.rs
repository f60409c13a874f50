//! `managedFields` as text. None of them is made into JSON values on the way: a write changes one entry or two of many, and what
//! fields the others name was read before, for another object of the kind.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::element::PathElement;
use super::managers::{Managed, ManagerId, Managers, Operation};
use super::set::{FieldSet, MAX_DEPTH, Node};
use super::{Write, unchanged, updated};

/// What a write makes of `managedFields`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Retracked {
    /// They stay as they are.
    Kept,
    /// The new ones, as text.
    Changed(String),
    /// There are none any more.
    Gone,
}

/// [`track_update`](super::track_update) for an object whose `managedFields` are kept apart, as text: `kept` is what `live` has, and
/// neither `live` nor `new` have them.
pub fn retrack(live: &Value, kept: Option<&str>, new: &Value, write: &Write<'_>) -> Retracked {
    if unchanged(live, new) {
        return Retracked::Kept;
    }
    let managers = kept.and_then(read).unwrap_or_default();
    // An object that exists without entries is not tracked until it is applied to.
    if managers.0.is_empty() {
        return Retracked::Gone;
    }
    let updated = updated(managers, live, new, write.manager, write).ok();
    updated.and_then(|managers| managers.write()).map_or(Retracked::Gone, Retracked::Changed)
}

/// The managers that a text tells of; none if it cannot be read.
fn read(text: &str) -> Option<Managers> {
    let entries: Result<Vec<Entry<'_>>, _> = serde_json::from_str(text);
    let managers: Option<BTreeMap<_, _>> =
        entries.ok().and_then(|entries| entries.into_iter().map(Entry::managed).collect());
    match managers {
        Some(managers) => Some(Managers(managers)),
        // Written by somebody else: the thorough reader knows what to make of it.
        None => Managers::decode(&serde_json::from_str(text).ok()?).ok(),
    }
}

/// An entry as it is written here.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry<'a> {
    #[serde(borrow, default)]
    manager: Cow<'a, str>,
    #[serde(borrow)]
    operation: Cow<'a, str>,
    #[serde(borrow)]
    api_version: Cow<'a, str>,
    #[serde(borrow)]
    fields_type: Cow<'a, str>,
    #[serde(borrow, default)]
    subresource: Cow<'a, str>,
    #[serde(default)]
    time: Option<String>,
    #[serde(borrow, rename = "fieldsV1")]
    fields: &'a RawValue,
}

impl Entry<'_> {
    /// `None` for what is not written so here.
    fn managed(self) -> Option<(ManagerId, Managed)> {
        let operation = match &*self.operation {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return None,
        };
        if self.api_version.is_empty() || self.fields_type != "FieldsV1" {
            return None;
        }
        let id = ManagerId::of_entry(&self.manager, operation, &self.api_version, &self.subresource);
        let (set, text) = known(self.fields.get())?;
        Some((id, Managed::known(set, text, &self.api_version, self.time)))
    }
}

/// A set of fields and its text, shared by all who have the same.
type Shared = (Arc<FieldSet>, Arc<str>);

/// Sets that are remembered. An object has a few, and all objects of a kind mostly have the same.
const MAX_KNOWN: usize = 512;
/// Longer texts are seldom those of two objects.
const MAX_KNOWN_BYTES: usize = 4096;

thread_local! {
    static KNOWN: RefCell<HashMap<Box<str>, Shared>> = RefCell::default();
}

/// The set that a `FieldsV1` tells of, and its text as it is written here; `None` if it cannot be read.
fn known(text: &str) -> Option<Shared> {
    if let Some(known) = KNOWN.with_borrow(|known| known.get(text).cloned()) {
        return Some(known);
    }
    let Fields(set) = serde_json::from_str(text).ok()?;
    let written = set.encode().to_string().into();
    let shared: Shared = (Arc::new(set), written);
    if text.len() <= MAX_KNOWN_BYTES {
        KNOWN.with_borrow_mut(|known| {
            if known.len() >= MAX_KNOWN {
                known.clear();
            }
            known.insert(text.into(), shared.clone());
        });
    }
    Some(shared)
}

/// A `FieldsV1`.
struct Fields(FieldSet);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(Level { depth: MAX_DEPTH }.deserialize(deserializer)?.0))
    }
}

/// The fields below a node, and whether the node itself is a member.
struct Level {
    /// Levels that there may still be.
    depth: usize,
}

impl<'de> DeserializeSeed<'de> for Level {
    type Value = (FieldSet, bool);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Level {
    type Value = (FieldSet, bool);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of fields")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok((FieldSet::new(), true))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let depth = self.depth.checked_sub(1).ok_or_else(|| de::Error::custom("nested too deeply"))?;
        let mut nodes = Vec::new();
        let mut member = false;
        while let Some(name) = access.next_key_seed(Name)? {
            match name {
                Key::Element(element) => {
                    let (below, member) = access.next_value_seed(Level { depth })?;
                    nodes.push(Node { element, member, below });
                }
                Key::Itself => {
                    member = true;
                    access.next_value::<IgnoredAny>()?;
                }
                Key::Later => {
                    access.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(FieldSet::decoded(nodes, member))
    }
}

/// A key of `FieldsV1`.
enum Key {
    /// `.`: the node itself.
    Itself,
    Element(PathElement),
    /// Something that a later version may know.
    Later,
}

struct Name;

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Key;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Key, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Name {
    type Value = Key;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<Key, E> {
        if name == "." {
            return Ok(Key::Itself);
        }
        let element = PathElement::decode(name).map_err(E::custom)?;
        Ok(element.map_or(Key::Later, Key::Element))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(fields: &Value) -> Value {
        json!({"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "time": "2026-01-01T00:00:00Z",
            "fieldsV1": fields})
    }

    #[test]
    fn text_is_read_as_values_are() {
        let odd = |name: &str, value: Value| {
            let mut entry = entry(&json!({"f:a": {}}));
            entry[name] = value;
            json!([entry])
        };
        let cases = [
            json!([]),
            json!([entry(
                &json!({"f:a": {".": {}, "f:b": {}}, "k:{\"n\":10}": {"f:c": {}}, "k:{\"n\":9}": {}, "x:later": {"f:d": 1}})
            )]),
            json!([entry(&Value::Null), {"manager": "", "operation": "Apply", "apiVersion": "v2", "fieldsType": "FieldsV1"}]),
            odd("operation", json!("Delete")),
            odd("apiVersion", json!("")),
            odd("apiVersion", Value::Null),
            odd("fieldsType", json!("FieldsV2")),
            odd("fieldsV1", json!({"f:a": 1})),
            odd("fieldsV1", json!({"a": {}})),
            odd("manager", json!(1)),
            odd("time", json!(1)),
            odd("more", json!({"x": [1]})),
        ];
        for entries in cases {
            let plainly = Managers::decode(&entries).ok();
            let text = read(&entries.to_string());
            assert_eq!(text.as_ref().map(Managers::encode), plainly.as_ref().map(Managers::encode), "{entries}");
        }
        assert!(read("[1").is_none());
    }

    #[test]
    fn what_was_read_is_written_as_values_are() {
        let entries = json!([
            entry(&json!({"f:b": {".": {}, "f:\"": {}}, "f:a": {}, "k:{\"n\":10}": {}, "k:{\"n\":9}": {}})),
            {"manager": "a \"b\"", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "subresource": "status", "fieldsV1": {"f:x": {}}},
        ]);
        for text in [entries.to_string(), serde_json::to_string_pretty(&entries).unwrap()] {
            let managers = read(&text).unwrap();
            assert_eq!(managers.write(), managers.encode().map(|entries| entries.to_string()));
        }
    }
}
