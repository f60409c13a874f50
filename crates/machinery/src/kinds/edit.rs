//! Reading and editing JSON objects without panics: what is absent, null or of another type reads as
//! empty, and is left alone by edits that cannot apply to it.

use jiff::Timestamp;
use serde_json::{Map, Value};

const NOTHING: &[Value] = &[];

/// The string at `pointer` (RFC 6901), or "" if there is none.
pub(crate) fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The elements of the list at `pointer`; none if it is not a list.
pub(crate) fn items<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(NOTHING, Vec::as_slice)
}

/// The elements of the list at `pointer`, for editing.
pub(crate) fn items_mut<'a>(value: &'a mut Value, pointer: &str) -> &'a mut [Value] {
    value.pointer_mut(pointer).and_then(Value::as_array_mut).map(Vec::as_mut_slice).unwrap_or_default()
}

/// The entries of the object at `pointer`; none if it is not an object.
pub(crate) fn entries<'a>(value: &'a Value, pointer: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    value.pointer(pointer).and_then(Value::as_object).into_iter().flatten()
}

/// The boolean at `pointer`, false if there is none.
pub(crate) fn flag(value: &Value, pointer: &str) -> bool {
    value.pointer(pointer).and_then(Value::as_bool).unwrap_or_default()
}

/// The integer at `pointer`.
pub(crate) fn integer(value: &Value, pointer: &str) -> Option<i64> {
    value.pointer(pointer).and_then(Value::as_i64)
}

/// The value at `pointer` unless it is null.
pub(crate) fn present<'a>(value: &'a Value, pointer: &str) -> Option<&'a Value> {
    value.pointer(pointer).filter(|v| !v.is_null())
}

/// The object at `key`, created if absent; none if `value` or what is there is something else.
pub(crate) fn child<'a>(value: &'a mut Value, key: &str) -> Option<&'a mut Map<String, Value>> {
    let entry = value.as_object_mut()?.entry(key).or_insert(Value::Null);
    if entry.is_null() {
        *entry = Value::Object(Map::new());
    }
    entry.as_object_mut()
}

/// Sets `key` if `value` is an object; null removes it.
pub(crate) fn set(value: &mut Value, key: &str, to: Value) {
    if let Some(map) = value.as_object_mut() {
        if to.is_null() {
            map.remove(key);
        } else {
            map.insert(key.to_owned(), to);
        }
    }
}

/// Sets `section.key`; null removes it.
pub(crate) fn set_in(value: &mut Value, section: &str, key: &str, to: Value) {
    if to.is_null() {
        if let Some(map) = value.get_mut(section).and_then(Value::as_object_mut) {
            map.remove(key);
        }
    } else if let Some(map) = child(value, section) {
        map.insert(key.to_owned(), to);
    }
}

/// A pointer field's default: set where the field is absent or null.
pub(crate) fn fill(map: &mut Map<String, Value>, key: &str, default: impl Into<Value>) {
    if map.get(key).is_none_or(Value::is_null) {
        map.insert(key.to_owned(), default.into());
    }
}

/// A plain field's default: set where the field is absent, null or has its type's zero value, which Go
/// cannot tell apart from absent.
pub(crate) fn fill_zero(map: &mut Map<String, Value>, key: &str, default: impl Into<Value>) {
    if map.get(key).is_none_or(is_zero) {
        map.insert(key.to_owned(), default.into());
    }
}

/// Null, false, 0, "", [] and {}.
pub(crate) fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(s) => s.is_empty(),
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.is_empty(),
    }
}

/// Makes the section `key` of `new` what it is in `old`.
pub(crate) fn keep(new: &mut Value, old: &Value, key: &str) {
    set(new, key, old.get(key).cloned().unwrap_or_default());
}

/// Puts back what the status endpoint of newer kinds may not touch: all metadata but the managed fields.
pub(crate) fn keep_metadata(new: &mut Value, old: &Value) {
    for field in
        ["deletionTimestamp", "generation", "selfLink", "labels", "annotations", "finalizers", "ownerReferences"]
    {
        let before = old.get("metadata").and_then(|m| m.get(field)).cloned().unwrap_or_default();
        set_in(new, "metadata", field, before);
    }
}

/// One more than the generation of `old`.
pub(crate) fn bump_generation(new: &mut Value, old: &Value) {
    let generation = integer(old, "/metadata/generation").unwrap_or_default();
    set_in(new, "metadata", "generation", generation.saturating_add(1).into());
}

/// Adds a finalizer unless the object has it.
pub(crate) fn add_finalizer(object: &mut Value, finalizer: &str) {
    if items(object, "/metadata/finalizers").iter().any(|f| f == finalizer) {
        return;
    }
    if let Some(metadata) = child(object, "metadata") {
        fill_zero(metadata, "finalizers", Value::Array(Vec::new()));
        if let Some(list) = metadata.get_mut("finalizers").and_then(Value::as_array_mut) {
            list.push(finalizer.into());
        }
    }
}

/// Equality that tells absent, null, and empty lists and objects not apart, as Kubernetes compares
/// before and after of an update.
pub(crate) fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            a.iter().all(|(k, v)| same(v, b.get(k).unwrap_or(&Value::Null)))
                && b.iter().all(|(k, v)| a.contains_key(k) || hollow(v))
        }
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Null, other) | (other, Value::Null) => hollow(other),
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        _ => a == b,
    }
}

fn hollow(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.values().all(hollow),
        _ => false,
    }
}

/// Whether `new` and `old` are the same at `pointer`.
pub(crate) fn same_at(new: &Value, old: &Value, pointer: &str) -> bool {
    same(new.pointer(pointer).unwrap_or(&Value::Null), old.pointer(pointer).unwrap_or(&Value::Null))
}

/// `metav1.Time` on the wire: UTC, whole seconds.
pub(crate) fn rfc3339(at: Timestamp) -> Value {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn absent_and_empty_are_the_same() {
        assert!(same(&json!({"a": 1, "b": [], "c": {"d": null}}), &json!({"a": 1})));
        assert!(same(&json!({"a": 1}), &json!({"a": 1.0, "b": {}})));
        assert!(!same(&json!({"a": false}), &json!({})));
        assert!(!same(&json!([1, 2]), &json!([2, 1])));
    }

    #[test]
    fn edits_leave_other_types_alone() {
        let mut v = json!("text");
        set(&mut v, "a", 1.into());
        set_in(&mut v, "a", "b", 1.into());
        assert!(child(&mut v, "a").is_none());
        assert_eq!(v, json!("text"));
    }
}
