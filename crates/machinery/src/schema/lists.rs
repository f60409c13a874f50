//! Lists that are sets or maps: no element twice, and which element of an old list is meant by a new one.
//! Also the objects inside objects, which must be complete.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{ListType, Schema};
use crate::field::{FieldError, Path};
use crate::meta;
use crate::names::{self, NameRule};

/// Elements that occur twice in lists where none may.
pub(super) fn duplicates(value: &Value, schema: &Schema) -> Vec<FieldError> {
    let mut errors = Vec::new();
    walk(value, schema, At::Root, &mut errors);
    errors
}

/// Where a value stands. It becomes a path when there is something to complain about, which is seldom.
#[derive(Clone, Copy)]
enum At<'a> {
    Root,
    Below(&'a Path),
    Child(&'a At<'a>, &'a str),
    Key(&'a At<'a>, &'a str),
    Index(&'a At<'a>, usize),
}

impl At<'_> {
    fn path(self) -> Path {
        match self {
            Self::Root => Path::root(),
            Self::Below(path) => path.clone(),
            Self::Child(parent, name) => parent.path().child(name),
            Self::Key(parent, key) => parent.path().key(key),
            Self::Index(parent, index) => parent.path().index(index),
        }
    }
}

fn walk(value: &Value, schema: &Schema, at: At<'_>, errors: &mut Vec<FieldError>) {
    if schema.plain {
        return;
    }
    let schema = schema.resolve();
    match value {
        Value::Object(map) => {
            for (name, field) in map {
                if let Some(known) = schema.properties.get(name) {
                    walk(field, known, At::Child(&at, name), errors);
                } else if let Some(values) = &schema.additional {
                    walk(field, values, At::Key(&at, name), errors);
                }
            }
        }
        Value::Array(list) => {
            check(list, &schema.list, at, errors);
            if let Some(items) = &schema.items {
                for (index, item) in list.iter().enumerate() {
                    walk(item, items, At::Index(&at, index), errors);
                }
            }
        }
        _ => {}
    }
}

fn check(list: &[Value], kind: &ListType, at: At<'_>, errors: &mut Vec<FieldError>) {
    let keys: Vec<Value> = match kind {
        ListType::Atomic => return,
        // Nothing can occur twice.
        ListType::Set if list.len() < 2 => return,
        ListType::Set => list.to_vec(),
        ListType::Map(names) => {
            if let Some(index) = list.iter().position(|item| !item.is_null() && !item.is_object()) {
                let why = "must be an object for an array of list-type map";
                errors.push(FieldError::invalid(at.path().index(index), list[index].clone(), why));
                return;
            }
            list.iter().map(|item| Value::Object(key_of(item, names))).collect()
        }
    };
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for (index, key) in keys.into_iter().enumerate() {
        let times = seen.entry(key.to_string()).or_default();
        *times += 1;
        // A third occurrence says nothing new.
        if *times == 2 {
            errors.push(FieldError::duplicate(at.path().index(index), key));
        }
    }
}

fn key_of(item: &Value, names: &[String]) -> Map<String, Value> {
    names.iter().filter_map(|name| Some((name.clone(), item.get(name)?.clone()))).collect()
}

/// The element of an old list that a new element continues: the one with the same keys. Elements of
/// other lists have no identity.
pub(crate) fn correlated<'a>(item: &Value, old: &'a [Value], kind: &ListType) -> Option<&'a Value> {
    let ListType::Map(names) = kind else { return None };
    if !item.is_object() {
        return None;
    }
    let same =
        |candidate: &&Value| candidate.is_object() && names.iter().all(|name| candidate.get(name) == item.get(name));
    old.iter().find(same)
}

/// What an object inside an object must have: a version, a kind, and a name that could be one.
/// `whole` says that the value itself is one.
pub(crate) fn embedded_resources(
    value: &Value,
    schema: &Schema,
    whole: bool,
    path: &Path,
    errors: &mut Vec<FieldError>,
) {
    embedded(value, schema, whole, At::Below(path), errors);
}

fn embedded(value: &Value, schema: &Schema, whole: bool, at: At<'_>, errors: &mut Vec<FieldError>) {
    if schema.plain && !whole {
        return;
    }
    let schema = schema.resolve();
    match value {
        Value::Object(map) => {
            if whole || schema.embedded_resource {
                embedded_resource(map, &at.path(), errors);
            }
            for (name, field) in map {
                if let Some(known) = schema.properties.get(name) {
                    embedded(field, known, false, At::Child(&at, name), errors);
                } else if let Some(values) = &schema.additional {
                    embedded(field, values, false, At::Key(&at, name), errors);
                }
            }
        }
        Value::Array(list) => {
            let Some(items) = &schema.items else { return };
            for (index, item) in list.iter().enumerate() {
                embedded(item, items, false, At::Index(&at, index), errors);
            }
        }
        _ => {}
    }
}

fn embedded_resource(map: &Map<String, Value>, path: &Path, errors: &mut Vec<FieldError>) {
    for name in ["apiVersion", "kind"] {
        let at = path.child(name);
        match map.get(name) {
            None => errors.push(FieldError::required(at, "")),
            Some(Value::String(text)) if text.is_empty() => {
                errors.push(FieldError::invalid(at, "", "must not be empty"));
            }
            Some(Value::String(text)) if name == "apiVersion" => {
                if text.matches('/').count() > 1 {
                    let why = format!("unexpected GroupVersion string: {text}");
                    errors.push(FieldError::invalid(at, text.as_str(), why));
                }
            }
            Some(Value::String(text)) => {
                let wrong = names::dns1035_label(&text.to_lowercase());
                if !wrong.is_empty() {
                    let why = format!("may have mixed case, but should otherwise match: {}", wrong.join(","));
                    errors.push(FieldError::invalid(at, text.as_str(), why));
                }
            }
            Some(other) => errors.push(FieldError::invalid(at, other.clone(), "must be a string")),
        }
    }
    let Some(metadata) = map.get("metadata").filter(|metadata| metadata.is_object()) else { return };
    let path = path.child("metadata");
    let mut check = |field: &str, rule: fn(&str) -> Vec<String>| {
        let text = metadata[field].as_str().unwrap_or_default();
        if !text.is_empty() {
            errors.extend(rule(text).into_iter().map(|why| FieldError::invalid(path.child(field), text, why)));
        }
    };
    check("generateName", |prefix| NameRule::PathSegment.check(prefix, true));
    check("name", |name| NameRule::PathSegment.check(name, false));
    check("namespace", names::dns1123_label);
    errors.extend(meta::labels(&metadata["labels"], &path.child("labels")));
    errors.extend(meta::annotations(&metadata["annotations"], &path.child("annotations")));
    errors.extend(meta::owner_references(&metadata["ownerReferences"], &path.child("ownerReferences")));
    errors.extend(meta::finalizers(&metadata["finalizers"], &path.child("finalizers")));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{compile, validate};
    use super::*;

    fn texts(value: &Value, schema: &Schema) -> Vec<String> {
        validate(value, schema).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn sets_and_maps_hold_nothing_twice() {
        let schema = compile(&json!({"type": "object", "properties": {
            "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "ports": {"type": "array", "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["port", "protocol"],
                "items": {"type": "object", "required": ["port"], "properties": {
                    "port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"},
                    "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}}}},
            "free": {"type": "array", "items": {"type": "string"}},
        }}))
        .unwrap();
        let plain = |name: &str| schema.properties[name].plain;
        assert_eq!((plain("tags"), plain("ports"), plain("free"), schema.plain), (false, false, true, false));
        let value = json!({
            "tags": ["a", "b", "a", "a"],
            "ports": [{"port": 1, "protocol": "TCP"}, {"port": 1, "protocol": "UDP"},
                {"port": 1, "protocol": "TCP", "tags": ["x", "x"]}],
            "free": ["a", "a"],
        });
        assert_eq!(
            texts(&value, &schema),
            [
                "ports[2]: Duplicate value: {\"port\":1,\"protocol\":\"TCP\"}",
                "ports[2].tags[1]: Duplicate value: \"x\"",
                "tags[2]: Duplicate value: \"a\"",
            ]
        );
    }

    #[test]
    fn an_object_in_an_object_is_a_whole_one() {
        let schema = compile(&json!({"type": "object", "properties": {"o": {"type": "object",
            "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}}}))
        .unwrap();
        assert_eq!(
            texts(&json!({"o": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}}), &schema).len(),
            0
        );
        assert_eq!(
            texts(&json!({"o": {"apiVersion": "a/b/c", "metadata": {"name": "a/b"}}}), &schema),
            [
                "o.apiVersion: Invalid value: \"a/b/c\": unexpected GroupVersion string: a/b/c",
                "o.kind: Required value",
                "o.metadata.name: Invalid value: \"a/b\": may not contain '/'",
            ]
        );
    }
}
