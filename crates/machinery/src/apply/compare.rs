//! What changed between two versions of an object, as sets of fields.

use serde_json::{Map, Value};

use super::element::{PathElement, same};
use super::set::{FieldSet, Node, keep};
use super::types::{Atom, Fields, Keys, Ty, TypeError};

/// The fields that differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Comparison {
    pub(super) removed: FieldSet,
    pub(super) modified: FieldSet,
    pub(super) added: FieldSet,
}

impl Comparison {
    /// Without the fields in `ignored` and everything below them.
    pub(super) fn without(mut self, ignored: &FieldSet) -> Self {
        if !ignored.is_empty() {
            self.removed = self.removed.difference_below(ignored);
            self.modified = self.modified.difference_below(ignored);
            self.added = self.added.difference_below(ignored);
        }
        self
    }

    pub(super) fn is_same(&self) -> bool {
        self.removed.is_empty() && self.modified.is_empty() && self.added.is_empty()
    }
}

/// What happened to a value itself, apart from what happened below it.
#[derive(Clone, Copy, Default)]
struct Marks {
    removed: bool,
    modified: bool,
    added: bool,
}

impl Marks {
    const NONE: Self = Self { removed: false, modified: false, added: false };
}

/// Nodes of the three sets while they are collected, in order.
#[derive(Default)]
struct Nodes {
    removed: Vec<Node>,
    modified: Vec<Node>,
    added: Vec<Node>,
}

impl Nodes {
    fn push(&mut self, element: &PathElement, marks: Marks, below: Comparison) {
        self.removed.extend(keep(element, marks.removed, below.removed));
        self.modified.extend(keep(element, marks.modified, below.modified));
        self.added.extend(keep(element, marks.added, below.added));
    }

    fn finish(self) -> Comparison {
        Comparison {
            removed: FieldSet::from_sorted(self.removed),
            modified: FieldSet::from_sorted(self.modified),
            added: FieldSet::from_sorted(self.added),
        }
    }
}

/// Compares `old` with `new`.
pub(super) fn compare(old: &Value, new: &Value, ty: Ty<'_>) -> Result<Comparison, TypeError> {
    if old == new {
        return Ok(Comparison::default());
    }
    Ok(node(Some(old), Some(new), ty)?.1)
}

fn node(old: Option<&Value>, new: Option<&Value>, ty: Ty<'_>) -> Result<(Marks, Comparison), TypeError> {
    let (was, is) = match (old, new) {
        (None, None) => return Ok((Marks::NONE, Comparison::default())),
        // A value that only one side has is added or removed as such, besides everything in it.
        (Some(was), None) => {
            let (_, below) = part(old, new, ty.atom(was))?;
            return Ok((Marks { removed: true, ..Marks::NONE }, below));
        }
        (None, Some(is)) => {
            let (_, below) = part(old, new, ty.atom(is))?;
            return Ok((Marks { added: true, ..Marks::NONE }, below));
        }
        (Some(was), Some(is)) => (was, is),
    };
    let (before, after) = (ty.atom(was), ty.atom(is));
    if std::mem::discriminant(&before) == std::mem::discriminant(&after) {
        return part(old, new, after);
    }
    // A value of unknown type that became something else: it is compared as what it was and as what it is.
    let ((first, a), (second, b)) = (part(old, new, before)?, part(old, new, after)?);
    let below = Comparison {
        removed: a.removed.union(&b.removed),
        modified: a.modified.union(&b.modified),
        added: a.added.union(&b.added),
    };
    Ok((Marks { modified: first.modified || second.modified, ..Marks::NONE }, below))
}

/// Compares both sides as one kind of thing.
fn part(old: Option<&Value>, new: Option<&Value>, atom: Atom<'_>) -> Result<(Marks, Comparison), TypeError> {
    let leaf = || {
        let marks = match (old, new) {
            (None, _) => Marks { added: true, ..Marks::NONE },
            (_, None) => Marks { removed: true, ..Marks::NONE },
            (Some(old), Some(new)) => Marks { modified: !same(old, new), ..Marks::NONE },
        };
        Ok((marks, Comparison::default()))
    };
    match atom {
        Atom::Scalar | Atom::Map(Fields::Atomic) => leaf(),
        Atom::Map(fields) => {
            let (old, new) = (old.and_then(Value::as_object), new.and_then(Value::as_object));
            // Two empty ones are a leaf, so that {} and null stay apart.
            if old.is_none_or(Map::is_empty) && new.is_none_or(Map::is_empty) {
                return leaf();
            }
            Ok((Marks::NONE, maps(old, new, fields)?))
        }
        Atom::List(list) => {
            let (old, new) = (old.and_then(Value::as_array), new.and_then(Value::as_array));
            let (old, new) = (old.map_or(&[][..], Vec::as_slice), new.map_or(&[][..], Vec::as_slice));
            match list.parts() {
                Some((keys, items)) if !(old.is_empty() && new.is_empty()) => {
                    Ok((Marks::NONE, lists(old, new, keys, items)?))
                }
                _ => leaf(),
            }
        }
    }
}

fn maps(
    old: Option<&Map<String, Value>>,
    new: Option<&Map<String, Value>>,
    fields: Fields<'_>,
) -> Result<Comparison, TypeError> {
    let mut nodes = Nodes::default();
    let mut before = old.into_iter().flatten().peekable();
    let mut after = new.into_iter().flatten().peekable();
    loop {
        let order = match (before.peek(), after.peek()) {
            (None, None) => return Ok(nodes.finish()),
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some(a), Some(b)) => a.0.cmp(b.0),
        };
        let was = if order.is_le() { before.next() } else { None };
        let is = if order.is_ge() { after.next() } else { None };
        let Some((name, _)) = was.or(is) else { continue };
        let (mut was, mut is) = (was.map(|(_, value)| value), is.map(|(_, value)| value));
        match (was, is) {
            (None, Some(is)) if old.is_some() => was = fields.zero(name, is),
            (Some(was), None) if new.is_some() => is = fields.zero(name, was),
            _ => {}
        }
        // Most of an object does not change, and the same value has the same fields.
        if was == is {
            continue;
        }
        let (marks, below) = node(was, is, fields.field(name).ty)?;
        if marks.removed || marks.modified || marks.added || !below.is_same() {
            nodes.push(&PathElement::Field(name.clone()), marks, below);
        }
    }
}

fn lists(old: &[Value], new: &[Value], keys: Keys<'_>, items: Ty<'_>) -> Result<Comparison, TypeError> {
    let (before, after) = (by_element(old, keys)?, by_element(new, keys)?);
    let mut nodes = Nodes::default();
    let mut elements: Vec<&PathElement> = before.keys().chain(after.keys()).collect();
    elements.sort();
    elements.dedup();
    for element in elements {
        let was = before.get(element).map_or(&[][..], Vec::as_slice);
        let is = after.get(element).map_or(&[][..], Vec::as_slice);
        let (marks, below) = match (was, is) {
            ([] | [_], [] | [_]) => node(was.first().copied(), is.first().copied(), items)?,
            // Elements that occur more than once are owned together, as if they were one.
            ([_, _, ..], [_, _, ..]) => {
                let equal = was.len() == is.len() && was.iter().zip(is).all(|(a, b)| same(a, b));
                (Marks { modified: !equal, ..Marks::NONE }, Comparison::default())
            }
            ([_, _, ..], _) => {
                let (mut marks, below) = node(None, is.first().copied(), items)?;
                marks.removed = true;
                (marks, below)
            }
            (_, _) => {
                let (mut marks, below) = node(was.first().copied(), None, items)?;
                marks.added = true;
                (marks, below)
            }
        };
        nodes.push(element, marks, below);
    }
    Ok(nodes.finish())
}

type ByElement<'a> = std::collections::BTreeMap<PathElement, Vec<&'a Value>>;

fn by_element<'a>(list: &'a [Value], keys: Keys<'_>) -> Result<ByElement<'a>, TypeError> {
    let mut elements = ByElement::new();
    for item in list {
        elements.entry(keys.element(item)?).or_default().push(item);
    }
    Ok(elements)
}
