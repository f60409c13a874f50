//! Strategic merge patch: a merge patch that knows which lists are sets and which are maps.
//!
//! The schema says how a list merges ([`crate::schema::PatchMeta`]); the patch may carry directives:
//!
//! | directive | where | meaning |
//! |---|---|---|
//! | `$patch: delete` | object, list element | empty the object; remove the element with this key |
//! | `$patch: replace` | object, list element | take the patch as it is; drop every other element |
//! | `$retainKeys: […]` | object | drop the fields that are not listed |
//! | `$deleteFromPrimitiveList/f: […]` | object | remove these scalars from the list `f` |
//! | `$setElementOrder/f: […]` | object | bring the elements of `f` into this order |
//!
//! Null removes a field. Elements that only the server knows keep their place between their neighbours.

use std::collections::{BTreeSet, HashMap};
use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::{does_not_apply, plain_error};
use crate::json::go_kind;
use crate::schema::{PatchMeta, Schema};
use crate::status::ApiError;

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList";
const ORDER: &str = "$setElementOrder";

/// For fields that the schema does not know: objects merge, lists are replaced.
static UNKNOWN: LazyLock<Schema> = LazyLock::new(Schema::default);

/// Why a strategic merge patch does not apply.
#[derive(Debug, thiserror::Error)]
enum StrategicError {
    #[error("invalid patch format of primitive list")]
    PrimitiveList,
    #[error("invalid patch format of retainKeys")]
    RetainKeys,
    #[error("invalid patch format of setElementOrder list")]
    ElementOrder,
    #[error("lists of lists are not supported")]
    ListOfLists,
    #[error("map: {} does not contain declared merge key: {key}", go(map))]
    NoMergeKey { map: Value, key: String },
    #[error("unknown patch type: {} in map: {}", go(directive), go(map))]
    UnknownDirective { directive: Value, map: Value },
    #[error("merging lists cannot yet be specified in the patch")]
    MergeDirective,
    #[error("cannot merge lists without merge key for struct")]
    UnknownMergeKey,
    #[error("list element types are not identical: {}", go(lists))]
    MixedElements { lists: Value },
    #[error("no elements in any of the given slices")]
    NoElements,
    #[error("value for key {0} is not a map")]
    NotAMap(usize),
    #[error("expected a {expected}, but received a {}", go_type(actual))]
    WrongType { expected: &'static str, actual: Value },
    #[error("The order in patch list:\n{}\n doesn't match {ORDER} list:\n{}\n", go(patch), go(order))]
    OrderMismatch { patch: Value, order: Value },
}

impl From<StrategicError> for ApiError {
    fn from(e: StrategicError) -> Self {
        match e {
            StrategicError::PrimitiveList | StrategicError::RetainKeys | StrategicError::ElementOrder => {
                Self::bad_request(e.to_string())
            }
            StrategicError::ListOfLists => does_not_apply(),
            _ => plain_error(e.to_string()),
        }
    }
}

type Result<T> = std::result::Result<T, StrategicError>;

/// Applies a strategic merge patch to a copy of `current`.
pub fn strategic(current: &Value, patch: &Value, schema: &Schema) -> std::result::Result<Value, ApiError> {
    match (current, patch) {
        (_, Value::Null) => Ok(current.clone()),
        (Value::Object(current), Value::Object(patch)) => Ok(Value::Object(merge_map(current.clone(), patch, schema)?)),
        (_, Value::Object(patch)) => Ok(Value::Object(merge_map(Map::new(), patch, schema)?)),
        _ => Err(ApiError::bad_request(format!(
            "json: cannot unmarshal {} into Go value of type map[string]interface {{}}",
            go_kind(patch)
        ))),
    }
}

fn merge_map(
    mut original: Map<String, Value>,
    patch: &Map<String, Value>,
    schema: &Schema,
) -> Result<Map<String, Value>> {
    if let Some(directive) = patch.get(DIRECTIVE) {
        return match directive.as_str() {
            Some("replace") => Ok(plain_fields(patch)),
            Some("delete") => Ok(Map::new()),
            _ => Err(StrategicError::UnknownDirective { directive: directive.clone(), map: patch.clone().into() }),
        };
    }
    retain_keys(&mut original, patch)?;
    let ordered = order_lists(&mut original, patch, schema)?;
    for (key, change) in patch {
        if key == RETAIN_KEYS || key.starts_with(ORDER) || ordered.contains(key.as_str()) {
            continue;
        }
        let (name, deletes) = match key.strip_prefix(DELETE_FROM) {
            Some(rest) => (rest.strip_prefix('/').ok_or(StrategicError::PrimitiveList)?, true),
            None => (key.as_str(), false),
        };
        if change.is_null() {
            original.remove(name);
            continue;
        }
        let merged = match (original.remove(name), change) {
            (Some(Value::Object(old)), Value::Object(change)) => {
                Some(Value::Object(merge_map(old, change, field(schema, name))?))
            }
            (Some(Value::Array(old)), Value::Array(change)) => {
                Some(Value::Array(merge_list(old, change, field(schema, name), deletes)?))
            }
            (old, _) if deletes => old,
            (_, change) => taken(change),
        };
        if let Some(merged) = merged {
            original.insert(name.to_owned(), merged);
        }
    }
    Ok(original)
}

fn field<'a>(schema: &'a Schema, name: &str) -> &'a Schema {
    schema.field(name).map_or(&UNKNOWN, |schema| schema.resolve())
}

/// A value that the original does not have: without nulls and directives; nothing if it is a directive itself.
fn taken(value: &Value) -> Option<Value> {
    match value {
        Value::Object(fields) if fields.contains_key(DIRECTIVE) => None,
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(key, value)| !value.is_null() && !is_directive(key));
            Some(kept.filter_map(|(key, value)| Some((key.clone(), taken(value)?))).collect())
        }
        Value::Array(list) => Some(list.iter().filter_map(taken).collect()),
        other => Some(other.clone()),
    }
}

/// A value that replaces another as it is: directives in it mean nothing, and go like any unknown field.
fn plain(value: &Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(plain_fields(fields)),
        Value::Array(list) => list.iter().map(plain).collect(),
        other => other.clone(),
    }
}

fn plain_fields(fields: &Map<String, Value>) -> Map<String, Value> {
    let kept = fields.iter().filter(|(key, value)| !value.is_null() && *key != DIRECTIVE && !is_directive(key));
    kept.map(|(key, value)| (key.clone(), plain(value))).collect()
}

/// Directives that are fields beside others; [`DIRECTIVE`] says something about the whole object.
fn is_directive(key: &str) -> bool {
    key == RETAIN_KEYS || key.starts_with(DELETE_FROM) || key.starts_with(ORDER)
}

/// `$retainKeys`: drops what is not listed; the patch must not set anything else.
fn retain_keys(original: &mut Map<String, Value>, patch: &Map<String, Value>) -> Result<()> {
    let Some(keys) = patch.get(RETAIN_KEYS) else {
        return Ok(());
    };
    let keys = keys.as_array().ok_or(StrategicError::RetainKeys)?;
    let keys: BTreeSet<&str> = keys.iter().filter_map(Value::as_str).collect();
    let stray = patch.iter().any(|(key, value)| !value.is_null() && !is_directive(key) && !keys.contains(key.as_str()));
    if stray {
        return Err(StrategicError::RetainKeys);
    }
    original.retain(|key, _| keys.contains(key.as_str()));
    Ok(())
}

/// `$setElementOrder`: merges the lists that have one and orders them. Returns the names of merged lists.
fn order_lists<'a>(
    original: &mut Map<String, Value>,
    patch: &'a Map<String, Value>,
    schema: &Schema,
) -> Result<BTreeSet<&'a str>> {
    let mut done = BTreeSet::new();
    for (key, order) in patch {
        let Some(rest) = key.strip_prefix(ORDER) else { continue };
        let order = list(order)?;
        let name = rest.strip_prefix('/').ok_or(StrategicError::ElementOrder)?;
        let old = original.get(name).map(list).transpose()?.map(<[Value]>::to_vec);
        let change = patch.get(name).map(list).transpose()?;
        let schema = field(schema, name);
        check_order(change.unwrap_or_default(), order, &schema.patch)?;
        let merged = match (&old, change) {
            (Some(old), Some(change)) => merge_list(old.clone(), change, schema, false)?,
            (Some(old), None) => old.clone(),
            (None, Some(change)) => change.iter().filter_map(taken).collect(),
            (None, None) => continue,
        };
        let old = old.unwrap_or_default();
        let elements = element_kind(&old, change.unwrap_or_default())?;
        let key = schema.patch.merge_key.as_deref();
        let merged = match key {
            None if elements == Elements::Maps => {
                // Objects without a key have no identity to order them by; only nothing is in order.
                let first = order.iter().chain(&merged).chain(&old).next();
                first.map_or(Ok(merged.clone()), |first| Err(no_merge_key(first, "")))?
            }
            _ => {
                let server = server_order(&old, &merged, key)?;
                in_order(merged, order, &server, key)?
            }
        };
        original.insert(name.to_owned(), Value::Array(merged));
        done.insert(name);
    }
    Ok(done)
}

/// The order that the server knows: elements that were added while others were deleted take their places.
fn server_order(old: &[Value], merged: &[Value], key: Option<&str>) -> Result<Vec<Value>> {
    let (before, after) = (positions(old, key)?, positions(merged, key)?);
    let mut order = Vec::with_capacity(old.len());
    for element in old {
        if after.contains_key(&identity(element, key)?) {
            order.push(element.clone());
        }
    }
    if key.is_some() {
        for element in merged {
            if order.len() < old.len() && !before.contains_key(&identity(element, key)?) {
                order.push(element.clone());
            }
        }
    }
    Ok(order)
}

fn list(value: &Value) -> Result<&[Value]> {
    match value {
        Value::Array(list) => Ok(list),
        other => Err(StrategicError::WrongType { expected: "[]interface {}", actual: other.clone() }),
    }
}

/// The elements of the patch must come in the order that the patch asks for.
fn check_order(change: &[Value], order: &[Value], meta: &PatchMeta) -> Result<()> {
    if change.is_empty() || order.is_empty() {
        return Ok(());
    }
    let key = meta.merge_key.as_deref();
    let mut order_left = order.iter();
    for element in change {
        if key.is_some() && object(element)?.contains_key(DIRECTIVE) {
            continue;
        }
        let wanted = identity(element, key)?;
        loop {
            let Some(next) = order_left.next() else {
                return Err(StrategicError::OrderMismatch {
                    patch: change.to_vec().into(),
                    order: order.to_vec().into(),
                });
            };
            if identity(next, key)? == wanted {
                break;
            }
        }
    }
    Ok(())
}

/// What the elements of both lists are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Elements {
    Maps,
    Scalars,
}

fn element_kind(old: &[Value], change: &[Value]) -> Result<Elements> {
    let mut all = old.iter().chain(change);
    let first = all.next().ok_or(StrategicError::NoElements)?;
    if first.is_array() {
        return Err(StrategicError::ListOfLists);
    }
    let kind = go_type(first);
    if first.is_null() || all.any(|v| go_type(v) != kind) {
        let lists = Value::from(vec![Value::from(old.to_vec()), Value::from(change.to_vec())]);
        return Err(StrategicError::MixedElements { lists });
    }
    Ok(if first.is_object() { Elements::Maps } else { Elements::Scalars })
}

fn merge_list(old: Vec<Value>, change: &[Value], schema: &Schema, deletes: bool) -> Result<Vec<Value>> {
    let meta = &schema.patch;
    if !meta.merge && !deletes {
        return Ok(change.iter().map(plain).collect());
    }
    if old.is_empty() && change.is_empty() {
        return Ok(old);
    }
    match (element_kind(&old, change)?, meta.merge_key.as_deref()) {
        (Elements::Scalars, _) => Ok(merge_scalars(old, change, deletes)),
        (Elements::Maps, None) => Err(StrategicError::UnknownMergeKey),
        (Elements::Maps, Some(key)) => {
            merge_maps(old, change, key, schema.items.as_deref().map_or(&*UNKNOWN, Schema::resolve))
        }
    }
}

fn merge_scalars(old: Vec<Value>, change: &[Value], deletes: bool) -> Vec<Value> {
    let listed: BTreeSet<String> = change.iter().map(Value::to_string).collect();
    if deletes {
        return old.into_iter().filter(|v| !listed.contains(&v.to_string())).collect();
    }
    let mut seen = BTreeSet::new();
    let both = old.iter().chain(change).filter(|v| seen.insert(v.to_string())).cloned().collect();
    in_order(both, change, &old, None).expect("scalars must have an identity")
}

fn merge_maps(mut old: Vec<Value>, change: &[Value], key: &str, items: &Schema) -> Result<Vec<Value>> {
    let mut plain = Vec::new();
    let mut replace = false;
    for element in change {
        let map = object(element)?;
        let Some(directive) = map.get(DIRECTIVE) else {
            plain.push(element);
            continue;
        };
        match directive.as_str() {
            Some("replace") => replace = true,
            Some("delete") => {
                let gone = map.get(key).ok_or_else(|| no_merge_key(element, key))?;
                only_maps(&old)?;
                old.retain(|v| v.get(key) != Some(gone));
            }
            Some("merge") => return Err(StrategicError::MergeDirective),
            _ => return Err(StrategicError::UnknownDirective { directive: directive.clone(), map: element.clone() }),
        }
    }
    if replace {
        plain.iter().try_for_each(|element| identity(element, Some(key)).map(drop))?;
        return Ok(plain.into_iter().filter_map(taken).collect());
    }
    only_maps(&old)?;
    let order: Vec<Value> = plain.iter().copied().cloned().collect();
    let server = old.clone();
    let mut places = HashMap::new();
    for (i, element) in old.iter().enumerate() {
        if let Some(value) = element.get(key) {
            places.entry(value.to_string()).or_insert(i);
        }
    }
    for element in plain {
        let map = object(element)?;
        let place = identity(element, Some(key))?;
        if let Some(&i) = places.get(&place) {
            old[i] = Value::Object(merge_map(object(&old[i])?.clone(), map, items)?);
        } else {
            places.insert(place, old.len());
            old.extend(taken(element));
        }
    }
    in_order(old, &order, &server, Some(key))
}

fn only_maps(list: &[Value]) -> Result<()> {
    list.iter().position(|v| !v.is_object()).map_or(Ok(()), |i| Err(StrategicError::NotAMap(i)))
}

fn object(value: &Value) -> Result<&Map<String, Value>> {
    let wrong = || StrategicError::WrongType { expected: "map[string]interface {}", actual: value.clone() };
    value.as_object().ok_or_else(wrong)
}

fn no_merge_key(map: &Value, key: &str) -> StrategicError {
    StrategicError::NoMergeKey { map: map.clone(), key: key.to_owned() }
}

/// What tells an element from the others: the value of its merge key, or the scalar itself.
fn identity(element: &Value, key: Option<&str>) -> Result<String> {
    let Some(key) = key else {
        return Ok(element.to_string());
    };
    object(element)?.get(key).map(Value::to_string).ok_or_else(|| no_merge_key(element, key))
}

/// Orders `merged`: elements named in `order` follow it, the others follow `server`, and each of those
/// comes before the first of `order` that it preceded on the server.
fn in_order(merged: Vec<Value>, order: &[Value], server: &[Value], key: Option<&str>) -> Result<Vec<Value>> {
    let order = positions(order, key)?;
    let server = positions(server, key)?;
    let (mut named, mut others) = (Vec::new(), Vec::new());
    for element in merged {
        let id = identity(&element, key)?;
        match order.get(&id) {
            Some(&place) => named.push((place, server.get(&id).copied(), element)),
            None => others.push((server.get(&id).copied(), element)),
        }
    }
    named.sort_by_key(|(place, ..)| *place);
    others.sort_by_key(|(place, _)| *place);
    let mut ordered = Vec::with_capacity(named.len() + others.len());
    let mut others = others.into_iter().peekable();
    for (_, place, element) in named {
        while let Some((_, other)) = others.next_if(|(other, _)| other.is_some() && place.is_some() && *other < place) {
            ordered.push(other);
        }
        ordered.push(element);
    }
    ordered.extend(others.map(|(_, other)| other));
    Ok(ordered)
}

fn positions(list: &[Value], key: Option<&str>) -> Result<HashMap<String, usize>> {
    let mut positions = HashMap::with_capacity(list.len());
    for (i, element) in list.iter().enumerate() {
        positions.entry(identity(element, key)?).or_insert(i);
    }
    Ok(positions)
}

/// A value as Go's `%v` prints it, which is how Kubernetes shows maps in these errors.
fn go(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(list) => format!("[{}]", list.iter().map(go).collect::<Vec<_>>().join(" ")),
        Value::Object(fields) => {
            let fields: Vec<String> = fields.iter().map(|(key, value)| format!("{key}:{}", go(value))).collect();
            format!("map[{}]", fields.join(" "))
        }
        other => other.to_string(),
    }
}

fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "%!s(<nil>)",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

#[cfg(test)]
#[path = "strategic_tests.rs"]
mod tests;
