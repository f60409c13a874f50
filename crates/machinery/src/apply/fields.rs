//! From objects to field sets, and what a schema has to say about a field set.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::element::PathElement;
use super::set::{FieldSet, Node, keep};
use super::types::{Atom, Fields, Keys, List, Ty, TypeError};

/// Every field that `object` sets.
pub(super) fn fields_of(object: &Value, ty: Ty<'_>) -> Result<FieldSet, TypeError> {
    Ok(below(object, ty)?.unwrap_or_default())
}

/// The fields below `value`, or `None` if it is a leaf.
fn below(value: &Value, ty: Ty<'_>) -> Result<Option<FieldSet>, TypeError> {
    match ty.atom(value) {
        Atom::Scalar | Atom::Map(Fields::Atomic) | Atom::List(List::Atomic) => Ok(None),
        Atom::Map(fields) => match value {
            Value::Object(map) => below_map(map, fields).map(Some),
            _ => Ok(Some(FieldSet::new())),
        },
        Atom::List(list) => match (list.parts(), value) {
            (Some((keys, items)), Value::Array(list)) => below_list(list, keys, items).map(Some),
            _ => Ok(Some(FieldSet::new())),
        },
    }
}

fn below_map(map: &Map<String, Value>, fields: Fields<'_>) -> Result<FieldSet, TypeError> {
    let mut nodes = Vec::with_capacity(map.len());
    for (name, value) in map {
        let field = fields.field(name);
        let below = below(value, field.ty)?;
        let empty = value.is_null() || value.as_object().is_some_and(Map::is_empty);
        let member = below.is_none() || empty || !field.named;
        nodes.extend(keep(&PathElement::Field(name.clone()), member, below.unwrap_or_default()));
    }
    Ok(FieldSet::from_sorted(nodes))
}

fn below_list(list: &[Value], keys: Keys<'_>, items: Ty<'_>) -> Result<FieldSet, TypeError> {
    let mut elements: BTreeMap<PathElement, Option<&Value>> = BTreeMap::new();
    for item in list {
        // What occurs more than once is owned as one element, and nothing in it by itself.
        elements.entry(keys.element(item)?).and_modify(|first| *first = None).or_insert(Some(item));
    }
    let mut nodes = Vec::with_capacity(elements.len());
    for (element, item) in elements {
        let below = item.map(|item| below(item, items)).transpose()?.flatten().unwrap_or_default();
        nodes.push(Node { element, member: true, below });
    }
    Ok(FieldSet::from_sorted(nodes))
}

/// The set with every field of a struct that has members below it: removing all of them removes the field.
pub(super) fn with_named(set: &FieldSet, ty: Option<Ty<'_>>) -> FieldSet {
    let nodes = set.nodes().iter().map(|node| {
        let (named, below) = match (&node.element, ty) {
            (PathElement::Field(name), Some(ty)) => match ty.declared() {
                Some(fields) => {
                    let field = fields.field(name);
                    (field.named, Some(field.ty))
                }
                None => (false, matches!(ty, Ty::Deduced).then_some(Ty::Deduced)),
            },
            (PathElement::Key(_), Some(ty)) => (false, ty.items().and_then(List::parts).map(|(_, items)| items)),
            _ => (false, None),
        };
        let member = node.member || (named && !node.below.is_empty());
        Node { element: node.element.clone(), member, below: with_named(&node.below, below) }
    });
    FieldSet::from_sorted(nodes.collect())
}

/// The set for a schema that calls atomic what it called granular before: whoever owned parts owns the
/// whole. `None` if there is nothing to change, which is almost always.
pub(super) fn reconciled(set: &FieldSet, ty: Ty<'_>) -> Option<FieldSet> {
    let mut changed: Vec<(usize, Node)> = Vec::new();
    for (at, node) in set.nodes().iter().enumerate() {
        let Some(ty) = type_below(&node.element, ty) else { continue };
        let atomic = matches!(ty.items(), Some(List::Atomic)) || matches!(ty.declared(), Some(Fields::Atomic));
        let node = if atomic && !node.below.is_empty() {
            Node { element: node.element.clone(), member: true, below: FieldSet::new() }
        } else {
            let Some(below) = reconciled(&node.below, ty) else { continue };
            Node { element: node.element.clone(), member: node.member, below }
        };
        changed.push((at, node));
    }
    if changed.is_empty() {
        return None;
    }
    let mut nodes = set.nodes().to_vec();
    for (at, node) in changed {
        nodes[at] = node;
    }
    Some(FieldSet::from_sorted(nodes))
}

fn type_below<'a>(element: &PathElement, ty: Ty<'a>) -> Option<Ty<'a>> {
    match element {
        PathElement::Field(name) => {
            let field = ty.declared()?.field(name);
            field.allowed.then_some(field.ty)
        }
        _ => ty.items()?.parts().map(|(_, items)| items),
    }
}
