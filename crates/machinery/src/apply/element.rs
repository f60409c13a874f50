//! One step of a path into an object: a field, or an element of a list by its keys, its value or its index.

use std::cmp::Ordering;
use std::fmt;

use serde_json::{Map, Value};

/// A step, ordered as `FieldsV1` orders them: fields, keyed elements, values, indexes.
#[derive(Clone, Debug)]
pub enum PathElement {
    /// A field of an object or an entry of a map.
    Field(String),
    /// The element of a list that has these fields, sorted by name.
    Key(Vec<(String, Value)>),
    /// The scalar in a set.
    Value(Value),
    /// The element of a list by its place. Nothing here makes one; other servers may have.
    Index(i64),
}

/// Why a key of `FieldsV1` is no path element.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ElementError {
    #[error("key must be 2 characters long")]
    TooShort,
    #[error("missing colon: {0}")]
    NoColon(String),
    #[error("unable to parse {0:?} as a path element")]
    Malformed(String),
}

impl PathElement {
    /// Reads a key of `FieldsV1`; `None` for a kind of element that a later version may know.
    pub(super) fn decode(text: &str) -> Result<Option<Self>, ElementError> {
        let malformed = || ElementError::Malformed(text.to_owned());
        let bytes = text.as_bytes();
        if bytes.len() < 2 {
            return Err(ElementError::TooShort);
        }
        if bytes[1] != b':' {
            return Err(ElementError::NoColon(text.to_owned()));
        }
        let rest = &text[2..];
        Ok(Some(match bytes[0] {
            b'f' => Self::Field(rest.to_owned()),
            b'v' => Self::Value(serde_json::from_str(rest).map_err(|_| malformed())?),
            b'i' => Self::Index(rest.parse().map_err(|_| malformed())?),
            b'k' => {
                let keys: Map<String, Value> = serde_json::from_str(rest).map_err(|_| malformed())?;
                Self::Key(keys.into_iter().collect())
            }
            _ => return Ok(None),
        }))
    }

    /// The key of `FieldsV1`.
    pub(super) fn encode(&self) -> String {
        match self {
            Self::Field(name) => {
                let mut key = String::with_capacity(name.len() + 2);
                key.push_str("f:");
                key.push_str(name);
                key
            }
            Self::Key(keys) => {
                let keys: Map<String, Value> = keys.iter().cloned().collect();
                format!("k:{}", Value::Object(keys))
            }
            Self::Value(value) => format!("v:{value}"),
            Self::Index(index) => format!("i:{index}"),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Field(_) => 0,
            Self::Key(_) => 1,
            Self::Value(_) => 2,
            Self::Index(_) => 3,
        }
    }
}

impl Ord for PathElement {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Field(a), Self::Field(b)) => a.cmp(b),
            (Self::Key(a), Self::Key(b)) => compare_fields(a.iter(), b.iter()),
            (Self::Value(a), Self::Value(b)) => compare_values(a, b),
            (Self::Index(a), Self::Index(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PartialOrd for PathElement {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PathElement {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for PathElement {}

/// The element as it is shown to people: `.spec`, `[name="web"]`, `[="a"]`.
impl fmt::Display for PathElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(keys) => {
                let keys: Vec<String> = keys.iter().map(|(name, value)| format!("{name}={value}")).collect();
                write!(f, "[{}]", keys.join(","))
            }
            Self::Value(value) => write!(f, "[={value}]"),
            Self::Index(index) => write!(f, "[{index}]"),
        }
    }
}

fn compare_fields<'a>(
    mut a: impl Iterator<Item = &'a (String, Value)>,
    mut b: impl Iterator<Item = &'a (String, Value)>,
) -> Ordering {
    loop {
        let ((name_a, value_a), (name_b, value_b)) = match (a.next(), b.next()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (Some(a), Some(b)) => (a, b),
        };
        let order = name_a.cmp(name_b).then_with(|| compare_values(value_a, value_b));
        if order.is_ne() {
            return order;
        }
    }
}

/// A total order over JSON: numbers by value, then strings, booleans, lists, maps, null.
pub(super) fn compare_values(a: &Value, b: &Value) -> Ordering {
    fn rank(value: &Value) -> u8 {
        match value {
            Value::Number(_) => 0,
            Value::String(_) => 1,
            Value::Bool(_) => 2,
            Value::Array(_) => 3,
            Value::Object(_) => 4,
            Value::Null => 5,
        }
    }
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => compare_numbers(a, b),
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Array(a), Value::Array(b)) => {
            let pairs = a.iter().zip(b).map(|(a, b)| compare_values(a, b));
            pairs.into_iter().find(|order| order.is_ne()).unwrap_or_else(|| a.len().cmp(&b.len()))
        }
        (Value::Object(a), Value::Object(b)) => {
            let pairs = a.iter().zip(b).map(|((k, v), (l, w))| k.cmp(l).then_with(|| compare_values(v, w)));
            pairs.into_iter().find(|order| order.is_ne()).unwrap_or_else(|| a.len().cmp(&b.len()))
        }
        _ => rank(a).cmp(&rank(b)),
    }
}

fn compare_numbers(a: &serde_json::Number, b: &serde_json::Number) -> Ordering {
    if let (Some(a), Some(b)) = (a.as_i64(), b.as_i64()) {
        return a.cmp(&b);
    }
    if let (Some(a), Some(b)) = (a.as_u64(), b.as_u64()) {
        return a.cmp(&b);
    }
    // JSON knows no NaN, so two numbers always compare.
    a.as_f64().partial_cmp(&b.as_f64()).unwrap_or(Ordering::Equal)
}

/// Whether two values are the same to a client: 1 and 1.0 are.
pub(super) fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || compare_numbers(a, b).is_eq(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|((k, v), (l, w))| k == l && same(v, w))
        }
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::testing::any_json;

    fn decode(text: &str) -> PathElement {
        PathElement::decode(text).unwrap().unwrap()
    }

    #[test]
    fn keys_of_fields_v1() {
        for (text, shown) in [
            ("f:spec", ".spec"),
            ("f:", "."),
            ("f:a/b.c:d", ".a/b.c:d"),
            (r#"k:{"containerPort":80,"protocol":"TCP"}"#, r#"[containerPort=80,protocol="TCP"]"#),
            (r#"v:"a""#, r#"[="a"]"#),
            ("v:1.5", "[=1.5]"),
            ("i:3", "[3]"),
        ] {
            let element = decode(text);
            assert_eq!(element.encode(), text);
            assert_eq!(element.to_string(), shown);
        }
        assert_eq!(decode(r#"k:{"b":1,"a":2}"#), decode(r#"k:{"a":2,"b":1}"#), "keys are sorted");
        assert_eq!(PathElement::decode("x:later"), Ok(None));
        for bad in ["", "f", "field", "v:", "v:{", "i:x", "k:1", "k:{", "é:"] {
            assert!(PathElement::decode(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn order() {
        let sorted = [
            "f:a",
            "f:b",
            r#"k:{"n":2}"#,
            r#"k:{"n":10}"#,
            r#"k:{"n":"1"}"#,
            r#"k:{"n":"1","o":1}"#,
            "v:1",
            "v:\"1\"",
            "v:true",
            "i:0",
        ];
        for pair in sorted.windows(2) {
            assert!(decode(pair[0]) < decode(pair[1]), "{pair:?}");
        }
        assert_eq!(decode("v:1"), decode("v:1.0"), "numbers are compared by value");
        assert!(same(&json!({"a": [1]}), &json!({"a": [1.0]})) && !same(&json!([1]), &json!([1, 2])));
    }

    proptest! {
        #[test]
        fn any_key_is_decoded_or_refused(text in "([fvik]:)?\\PC{0,12}") {
            if let Ok(Some(element)) = PathElement::decode(&text) {
                prop_assert_eq!(decode(&element.encode()), element);
            }
        }

        #[test]
        fn the_order_is_total(a in any_json(), b in any_json()) {
            prop_assert_eq!(compare_values(&a, &b), compare_values(&b, &a).reverse());
            prop_assert_eq!(compare_values(&a, &b).is_eq(), same(&a, &b));
        }
    }
}
