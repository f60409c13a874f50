//! The live object with an applied configuration merged into it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Map, Value};

use super::element::PathElement;
use super::types::{Atom, Fields, Keys, Ty, TypeError};

/// Merges `config` into `live`: leaves of the configuration win, everything else stays.
pub(super) fn merge(live: &Value, config: &Value, ty: Ty<'_>) -> Result<Value, TypeError> {
    Ok(node(Some(live), Some(config), ty)?.unwrap_or(Value::Object(Map::new())))
}

fn node(live: Option<&Value>, config: Option<&Value>, ty: Ty<'_>) -> Result<Option<Value>, TypeError> {
    let Some(decides) = config.or(live) else { return Ok(None) };
    let leaf = || Ok(Some(decides.clone()));
    match ty.atom(decides) {
        Atom::Scalar | Atom::Map(Fields::Atomic) => leaf(),
        Atom::Map(fields) => {
            let (live, config) = (live.and_then(Value::as_object), config.and_then(Value::as_object));
            // Two empty ones are a leaf, so that {} and null stay apart.
            if live.is_none_or(Map::is_empty) && config.is_none_or(Map::is_empty) {
                return leaf();
            }
            maps(live, config, fields)
        }
        Atom::List(list) => {
            let (live, config) = (live.and_then(Value::as_array), config.and_then(Value::as_array));
            let (live, config) = (live.map_or(&[][..], Vec::as_slice), config.map_or(&[][..], Vec::as_slice));
            match list.parts() {
                Some((keys, items)) if !(live.is_empty() && config.is_empty()) => lists(live, config, keys, items),
                _ => leaf(),
            }
        }
    }
}

fn maps(
    live: Option<&Map<String, Value>>,
    config: Option<&Map<String, Value>>,
    fields: Fields<'_>,
) -> Result<Option<Value>, TypeError> {
    let empty = Map::new();
    let (live, config) = (live.unwrap_or(&empty), config.unwrap_or(&empty));
    let mut merged = Map::new();
    for (name, value) in live {
        let change = config.get(name);
        // Nothing of the configuration in here: it stays as it is.
        let value = match change {
            None => Some(value.clone()),
            Some(_) => node(Some(value), change, fields.field(name).ty)?,
        };
        merged.extend(value.map(|value| (name.clone(), value)));
    }
    for (name, value) in config.iter().filter(|(name, _)| !live.contains_key(*name)) {
        let value = node(None, Some(value), fields.field(name).ty)?;
        merged.extend(value.map(|value| (name.clone(), value)));
    }
    Ok((!merged.is_empty()).then_some(Value::Object(merged)))
}

/// Elements of both lists, in an order that keeps the configuration's and puts elements that only the
/// live object has where they were relative to shared ones.
fn lists(live: &[Value], config: &[Value], keys: Keys<'_>, items: Ty<'_>) -> Result<Option<Value>, TypeError> {
    let (wanted, new) = index(config, keys, false)?;
    let (present, old) = index(live, keys, true)?;
    let mut shared: VecDeque<&PathElement> = wanted.iter().filter(|element| old.contains_key(element)).collect();
    let mut next_shared = shared.pop_front();
    let mut merged = Vec::with_capacity(live.len().max(config.len()));
    let mut taken: BTreeSet<&PathElement> = BTreeSet::new();
    let (mut l, mut r) = (0, 0);
    let both = |element: &PathElement| node(old.get(element).copied(), new.get(element).copied(), items);
    while l < present.len() || r < wanted.len() {
        if let (Some(here), Some(want)) = (present.get(l), wanted.get(r)) {
            if here == want {
                taken.insert(here);
                merged.extend(both(here)?);
                (l, r) = (l + 1, r + 1);
                next_shared = shared.pop_front();
                continue;
            }
            if new.contains_key(here) && next_shared.is_some_and(|next| next != here) {
                // Shared, but its turn comes later.
                l += 1;
                continue;
            }
        }
        if let Some(here) = present.get(l) {
            if !new.contains_key(here) {
                merged.extend(node(Some(&live[l]), None, items)?);
                l += 1;
                continue;
            }
            if taken.contains(here) {
                l += 1;
            }
        }
        if let Some(want) = wanted.get(r) {
            taken.insert(want);
            merged.extend(both(want)?);
            r += 1;
            if next_shared == Some(want) {
                next_shared = shared.pop_front();
            }
        }
    }
    Ok((!merged.is_empty()).then_some(Value::Array(merged)))
}

type Index<'a> = (Vec<PathElement>, BTreeMap<PathElement, &'a Value>);

/// The elements in order, and the value of each. Elements that occur more than once in the live object are
/// not merged with the configuration's: they stand as null, so that it replaces them.
fn index<'a>(list: &'a [Value], keys: Keys<'_>, duplicates: bool) -> Result<Index<'a>, TypeError> {
    let mut elements = Vec::with_capacity(list.len());
    let mut values = BTreeMap::new();
    for item in list {
        let element = keys.element(item)?;
        if values.contains_key(&element) {
            if !duplicates {
                return Err(TypeError::Duplicate(element.to_string()));
            }
            values.insert(element.clone(), &Value::Null);
        } else {
            values.insert(element.clone(), item);
        }
        elements.push(element);
    }
    Ok((elements, values))
}
