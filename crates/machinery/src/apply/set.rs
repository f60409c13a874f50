//! A set of fields: who owns what, as `FieldsV1` writes it down.
//!
//! A tree of [`PathElement`]s. A node can be a member itself (someone owns the map as such, or the list
//! element's existence), have members below it, or both. Nodes are kept sorted, so that all set operations
//! are one walk over both sides, and no node is empty: it is a member or something below it is.

use std::cmp::Ordering;
use std::fmt;

use serde_json::{Map, Value};

use super::element::{ElementError, PathElement};

/// How deep a field set may nest; deeper than any object that can be stored.
pub(super) const MAX_DEPTH: usize = 128;

/// Fields of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet {
    nodes: Vec<Node>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) element: PathElement,
    pub(super) member: bool,
    pub(super) below: FieldSet,
}

/// Why a `FieldsV1` cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("parsing key as path element: {0}")]
    Element(String),
    #[error("expected an object below {0:?}")]
    NotAnObject(String),
    #[error("nested too deeply")]
    TooDeep,
}

impl From<ElementError> for DecodeError {
    fn from(e: ElementError) -> Self {
        Self::Element(e.to_string())
    }
}

impl FieldSet {
    /// The set of no fields.
    pub fn new() -> Self {
        Self::default()
    }

    /// A set of fields by their names from the root: `&[&["status"], &["metadata", "name"]]`.
    pub fn of_fields(paths: &[&[&str]]) -> Self {
        let mut set = Self::new();
        for path in paths {
            let path: Vec<PathElement> = path.iter().map(|name| PathElement::Field((*name).to_owned())).collect();
            set.insert(&path);
        }
        set
    }

    /// A set from nodes in order; empty ones are dropped.
    pub(super) fn from_sorted(nodes: Vec<Node>) -> Self {
        debug_assert!(nodes.is_sorted_by(|a, b| a.element < b.element), "nodes must be sorted and distinct");
        Self { nodes }
    }

    pub(super) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Adds a field. The whole object is no field, and is not added.
    pub fn insert(&mut self, path: &[PathElement]) {
        let Some((first, rest)) = path.split_first() else {
            return;
        };
        let at = match self.find(first) {
            Ok(at) => at,
            Err(at) => {
                let node = Node { element: first.clone(), member: false, below: Self::new() };
                self.nodes.insert(at, node);
                at
            }
        };
        if rest.is_empty() {
            self.nodes[at].member = true;
        } else {
            self.nodes[at].below.insert(rest);
        }
    }

    /// Whether exactly this field is in it.
    pub fn has(&self, path: &[PathElement]) -> bool {
        match path {
            [] => false,
            [last] => self.node(last).is_some_and(|node| node.member),
            [first, rest @ ..] => self.node(first).is_some_and(|node| node.below.has(rest)),
        }
    }

    fn find(&self, element: &PathElement) -> Result<usize, usize> {
        self.nodes.binary_search_by(|node| node.element.cmp(element))
    }

    pub(super) fn node(&self, element: &PathElement) -> Option<&Node> {
        self.find(element).ok().map(|at| &self.nodes[at])
    }

    /// The node of a field, without making an element of its name first.
    pub(super) fn field(&self, name: &str) -> Option<&Node> {
        let order = |node: &Node| match &node.element {
            PathElement::Field(field) => field.as_str().cmp(name),
            _ => Ordering::Greater,
        };
        self.nodes.binary_search_by(order).ok().map(|at| &self.nodes[at])
    }

    /// What is in either.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        self.zip(other, |a, b| match (a, b) {
            (Some(a), Some(b)) => keep(&a.element, a.member || b.member, a.below.union(&b.below)),
            (a, b) => a.or(b).cloned(),
        })
    }

    /// What is in both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        self.zip(other, |a, b| {
            let (a, b) = (a?, b?);
            keep(&a.element, a.member && b.member, a.below.intersection(&b.below))
        })
    }

    /// What is in this set and not in the other; a field that the other has stands for itself only.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        self.zip(other, |a, b| match (a?, b) {
            (a, Some(b)) => keep(&a.element, a.member && !b.member, a.below.difference(&b.below)),
            (a, None) => Some(a.clone()),
        })
    }

    /// What is in this set and not in the other; a field that the other has stands for everything below, too.
    #[must_use]
    pub fn difference_below(&self, other: &Self) -> Self {
        self.zip(other, |a, b| match (a?, b) {
            (_, Some(b)) if b.member => None,
            (a, Some(b)) => keep(&a.element, a.member, a.below.difference_below(&b.below)),
            (a, None) => Some(a.clone()),
        })
    }

    /// Whether some field is in both.
    pub fn meets(&self, other: &Self) -> bool {
        let (fewer, more) = if self.nodes.len() <= other.nodes.len() { (self, other) } else { (other, self) };
        fewer
            .nodes
            .iter()
            .any(|a| more.node(&a.element).is_some_and(|b| (a.member && b.member) || a.below.meets(&b.below)))
    }

    /// Whether everything in this set is in the other.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.nodes
            .iter()
            .all(|a| other.node(&a.element).is_some_and(|b| (!a.member || b.member) && a.below.is_subset(&b.below)))
    }

    fn zip<'a>(&'a self, other: &'a Self, pick: impl Fn(Option<&'a Node>, Option<&'a Node>) -> Option<Node>) -> Self {
        let mut nodes = Vec::with_capacity(self.nodes.len().max(other.nodes.len()));
        let (mut left, mut right) = (self.nodes.iter().peekable(), other.nodes.iter().peekable());
        loop {
            let order = match (left.peek(), right.peek()) {
                (None, None) => return Self { nodes },
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(a), Some(b)) => a.element.cmp(&b.element),
            };
            let a = if order.is_le() { left.next() } else { None };
            let b = if order.is_ge() { right.next() } else { None };
            nodes.extend(pick(a, b));
        }
    }

    /// Every field, members of a level before those below, as Kubernetes lists them.
    pub fn paths(&self) -> Vec<FieldPath> {
        let mut paths = Vec::new();
        self.collect(&mut Vec::new(), &mut paths);
        paths
    }

    fn collect(&self, prefix: &mut Vec<PathElement>, paths: &mut Vec<FieldPath>) {
        for node in self.nodes.iter().filter(|node| node.member) {
            let mut path = prefix.clone();
            path.push(node.element.clone());
            paths.push(FieldPath(path));
        }
        for node in &self.nodes {
            prefix.push(node.element.clone());
            node.below.collect(prefix, paths);
            prefix.pop();
        }
    }

    /// Reads a `FieldsV1`.
    pub fn decode(fields: &Value) -> Result<Self, DecodeError> {
        match fields {
            Value::Null => Ok(Self::new()),
            Value::Object(map) => Ok(Self::decode_map(map, MAX_DEPTH)?.0),
            _ => Err(DecodeError::NotAnObject(".".to_owned())),
        }
    }

    /// The set below a node, and whether the node itself is a member: if it says so, or says nothing else.
    fn decode_map(map: &Map<String, Value>, depth: usize) -> Result<(Self, bool), DecodeError> {
        let below = depth.checked_sub(1).ok_or(DecodeError::TooDeep)?;
        let mut nodes: Vec<Node> = Vec::with_capacity(map.len());
        let mut member = false;
        for (key, value) in map {
            if key == "." {
                member = true;
                continue;
            }
            let Some(element) = PathElement::decode(key)? else { continue };
            let (set, is_member) = match value {
                Value::Null => (Self::new(), true),
                Value::Object(map) => Self::decode_map(map, below)?,
                _ => return Err(DecodeError::NotAnObject(key.clone())),
            };
            nodes.push(Node { element, member: is_member, below: set });
        }
        Ok(Self::decoded(nodes, member))
    }

    /// A level that was read: the set, and whether the node above is a member.
    pub(super) fn decoded(mut nodes: Vec<Node>, member: bool) -> (Self, bool) {
        let member = member || nodes.is_empty();
        // JSON is sorted by text, a set by element: keys with numbers come in another order.
        if !nodes.is_sorted_by(|a, b| a.element < b.element) {
            nodes.sort_by(|a, b| a.element.cmp(&b.element));
            nodes.dedup_by(|b, a| {
                let same = a.element == b.element;
                if same {
                    a.member |= b.member;
                    a.below = a.below.union(&b.below);
                }
                same
            });
        }
        (Self { nodes }, member)
    }

    /// Writes a `FieldsV1`.
    pub fn encode(&self) -> Value {
        Value::Object(self.encode_map(false))
    }

    fn encode_map(&self, member: bool) -> Map<String, Value> {
        let mut map = Map::new();
        if member && !self.is_empty() {
            map.insert(".".to_owned(), Value::Object(Map::new()));
        }
        for node in &self.nodes {
            map.insert(node.element.encode(), Value::Object(node.below.encode_map(node.member)));
        }
        map
    }
}

/// A node, unless nothing is left of it.
pub(super) fn keep(element: &PathElement, member: bool, below: FieldSet) -> Option<Node> {
    (member || !below.is_empty()).then(|| Node { element: element.clone(), member, below })
}

/// A path from the root of an object, printed as `.spec.containers[name="web"].image`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FieldPath(pub Vec<PathElement>);

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|element| element.fmt(f))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::testing::{any_json, any_scalar};

    fn set(fields: &Value) -> FieldSet {
        FieldSet::decode(fields).unwrap()
    }

    fn paths(set: &FieldSet) -> Vec<String> {
        set.paths().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn reading_and_writing() {
        let fields = json!({
            "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
            "f:spec": {"f:containers": {
                r#"k:{"name":"web"}"#: {".": {}, "f:image": {}, "f:ports": {
                    r#"k:{"containerPort":443,"protocol":"TCP"}"#: {},
                    r#"k:{"containerPort":80,"protocol":"TCP"}"#: {".": {}, "f:name": {}},
                }},
            }},
        });
        let set = set(&fields);
        assert_eq!(set.encode(), fields);
        assert_eq!(
            paths(&set),
            [
                ".metadata.labels",
                ".metadata.labels.app",
                r#".spec.containers[name="web"]"#,
                r#".spec.containers[name="web"].image"#,
                r#".spec.containers[name="web"].ports[containerPort=80,protocol="TCP"]"#,
                r#".spec.containers[name="web"].ports[containerPort=443,protocol="TCP"]"#,
                r#".spec.containers[name="web"].ports[containerPort=80,protocol="TCP"].name"#,
            ],
            "members of a level come first, and ports in the order of numbers"
        );
    }

    #[test]
    fn what_cannot_be_read() {
        assert_eq!(
            set(&json!({"x:later": {}, "f:a": {}})).encode(),
            json!({"f:a": {}}),
            "later versions may know more"
        );
        assert_eq!(set(&Value::Null), FieldSet::new());
        for bad in [json!([]), json!({"a": {}}), json!({"f:a": 1}), json!({"k:x": {}})] {
            assert!(FieldSet::decode(&bad).is_err(), "{bad}");
        }
        let deep = (0..200).fold(json!({}), |below, _| json!({"f:a": below}));
        assert_eq!(FieldSet::decode(&deep), Err(DecodeError::TooDeep));
    }

    #[test]
    fn the_two_differences() {
        let all = set(&json!({"f:spec": {".": {}, "f:a": {}}, "f:status": {"f:b": {}}}));
        let spec = FieldSet::of_fields(&[&["spec"]]);
        assert_eq!(paths(&all.difference(&spec)), [".spec.a", ".status.b"]);
        assert_eq!(paths(&all.difference_below(&spec)), [".status.b"]);
    }

    fn any_set() -> impl Strategy<Value = FieldSet> {
        let element = prop_oneof![
            "[a-c]".prop_map(PathElement::Field),
            (0..3i64).prop_map(|n| PathElement::Key(vec![("n".to_owned(), n.into())])),
            any_scalar().prop_map(PathElement::Value),
        ];
        prop::collection::vec(prop::collection::vec(element, 1..4), 0..8).prop_map(|paths| {
            let mut set = FieldSet::new();
            for path in &paths {
                set.insert(path);
            }
            set
        })
    }

    fn oracle(set: &FieldSet) -> BTreeSet<FieldPath> {
        set.paths().into_iter().collect()
    }

    proptest! {
        #[test]
        fn written_sets_are_read_back(set in any_set()) {
            prop_assert_eq!(FieldSet::decode(&set.encode()), Ok(set));
        }

        #[test]
        fn operations_are_those_of_sets(a in any_set(), b in any_set()) {
            let (x, y) = (oracle(&a), oracle(&b));
            prop_assert_eq!(oracle(&a.union(&b)), x.union(&y).cloned().collect());
            prop_assert_eq!(oracle(&a.intersection(&b)), x.intersection(&y).cloned().collect());
            prop_assert_eq!(oracle(&a.difference(&b)), x.difference(&y).cloned().collect());
            let below = |path: &FieldPath| (1..=path.0.len()).all(|n| !b.has(&path.0[..n]));
            prop_assert_eq!(oracle(&a.difference_below(&b)), x.iter().filter(|p| below(p)).cloned().collect());
            prop_assert_eq!(a.is_subset(&b), x.is_subset(&y));
            prop_assert_eq!(a.meets(&b), !x.is_disjoint(&y));
            prop_assert_eq!(a.difference(&b).is_empty(), a.is_subset(&b));
            for path in &x {
                prop_assert!(a.has(&path.0));
            }
        }

        #[test]
        fn any_fields_are_read_or_refused(fields in any_json(), key in "[fvik.]:?[a-c0-9{}\":]{0,8}") {
            let _ = FieldSet::decode(&fields);
            if let Ok(set) = FieldSet::decode(&json!({ key: fields })) {
                prop_assert_eq!(FieldSet::decode(&set.encode()), Ok(set));
            }
        }
    }
}
