//! An object without a set of fields.

use serde_json::{Map, Value};

use super::element::PathElement;
use super::set::FieldSet;
use super::types::{Atom, Fields, Keys, List, Ty};

/// `value` without the fields in `set`. What has nothing left becomes null, so that a caller can tell a map
/// that lost its last field from one that was empty.
pub(super) fn remove(value: Value, set: &FieldSet, ty: Ty<'_>) -> Value {
    match (ty.atom(&value), value) {
        (Atom::Scalar, value) => value,
        (Atom::Map(Fields::Atomic) | Atom::List(List::Atomic), _) => Value::Null,
        (Atom::Map(fields), Value::Object(map)) if !map.is_empty() => from_map(map, set, fields),
        (Atom::List(list), Value::Array(items)) if !items.is_empty() => match list.parts() {
            Some((keys, ty)) => from_list(items, set, keys, ty),
            None => Value::Null,
        },
        _ => Value::Null,
    }
}

fn from_map(map: Map<String, Value>, set: &FieldSet, fields: Fields<'_>) -> Value {
    let mut kept = Map::new();
    for (name, value) in map {
        let value = match set.field(&name) {
            Some(node) if node.member => continue,
            Some(node) if !node.below.is_empty() => remove(value, &node.below, fields.field(&name).ty),
            _ => value,
        };
        kept.insert(name, value);
    }
    if kept.is_empty() { Value::Null } else { Value::Object(kept) }
}

fn from_list(items: Vec<Value>, set: &FieldSet, keys: Keys<'_>, ty: Ty<'_>) -> Value {
    let mut kept = Vec::new();
    for item in items {
        // Elements without an identity were refused when the object was checked.
        let node = keys.element(&item).ok().and_then(|element: PathElement| set.node(&element));
        kept.push(match node {
            Some(node) if node.member => continue,
            Some(node) if !node.below.is_empty() => remove(item, &node.below, ty),
            _ => item,
        });
    }
    if kept.is_empty() { Value::Null } else { Value::Array(kept) }
}
