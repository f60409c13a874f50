//! Reading one `JSONSchemaProps` object: absent and zero are the same thing, as they are in Go.

use serde_json::{Map, Value};

/// A schema as a client wrote it.
#[derive(Clone, Copy)]
pub(crate) struct Props<'a>(&'a Map<String, Value>);

/// What Go leaves out: null, false, and empty texts, lists and maps.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Number(_) => false,
    }
}

/// The four shapes of `additionalProperties`.
#[derive(Clone, Copy)]
pub(crate) enum Additional<'a> {
    Absent,
    Allowed,
    Forbidden,
    Schema(Props<'a>),
}

/// The three shapes of `items`.
#[derive(Clone, Copy)]
pub(crate) enum Items<'a> {
    Absent,
    Schema(Props<'a>),
    /// One schema for each position: never structural.
    Tuple,
}

impl<'a> Props<'a> {
    pub(crate) fn new(value: &'a Value) -> Option<Self> {
        value.as_object().map(Self)
    }

    /// The keywords that say something.
    pub(crate) fn keys(self) -> impl Iterator<Item = &'a str> + use<'a> {
        // Defaults and examples say something even if it is nothing.
        let says =
            |key: &str, value: &Value| !is_zero(value) || (matches!(key, "default" | "example") && !value.is_null());
        self.0.iter().filter(move |(key, value)| says(key, value)).map(|(key, _)| key.as_str())
    }

    pub(crate) fn get(self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    pub(crate) fn text(self, name: &str) -> &'a str {
        self.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    pub(crate) fn flag(self, name: &str) -> bool {
        self.get(name).and_then(Value::as_bool).unwrap_or_default()
    }

    pub(crate) fn number(self, name: &str) -> Option<f64> {
        self.get(name).and_then(Value::as_f64)
    }

    pub(crate) fn count(self, name: &str) -> Option<u64> {
        // A negative limit can only be met by everything or nothing; zero is the closest that is.
        self.get(name).and_then(Value::as_i64).map(|n| u64::try_from(n).unwrap_or(0))
    }

    pub(crate) fn list(self, name: &str) -> &'a [Value] {
        self.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn texts(self, name: &str) -> Vec<&'a str> {
        self.list(name).iter().filter_map(Value::as_str).collect()
    }

    pub(crate) fn ty(self) -> &'a str {
        self.text("type")
    }

    pub(crate) fn int_or_string(self) -> bool {
        self.flag("x-kubernetes-int-or-string")
    }

    pub(crate) fn preserve_unknown(self) -> bool {
        self.flag("x-kubernetes-preserve-unknown-fields")
    }

    pub(crate) fn embedded(self) -> bool {
        self.flag("x-kubernetes-embedded-resource")
    }

    pub(crate) fn list_type(self) -> Option<&'a str> {
        self.get("x-kubernetes-list-type").and_then(Value::as_str)
    }

    pub(crate) fn map_type(self) -> Option<&'a str> {
        self.get("x-kubernetes-map-type").and_then(Value::as_str)
    }

    pub(crate) fn schema(self, name: &str) -> Option<Props<'a>> {
        self.get(name).and_then(Props::new)
    }

    pub(crate) fn schemas(self, name: &str) -> impl Iterator<Item = Props<'a>> + use<'a> {
        self.list(name).iter().filter_map(Props::new)
    }

    pub(crate) fn properties(self) -> impl Iterator<Item = (&'a str, Props<'a>)> + use<'a> {
        self.map("properties")
    }

    pub(crate) fn property(self, name: &str) -> Option<Props<'a>> {
        self.get("properties").and_then(|properties| properties.get(name)).and_then(Props::new)
    }

    pub(crate) fn map(self, name: &str) -> impl Iterator<Item = (&'a str, Props<'a>)> + use<'a> {
        let map = self.get(name).and_then(Value::as_object);
        map.into_iter().flatten().filter_map(|(key, value)| Some((key.as_str(), Props::new(value)?)))
    }

    pub(crate) fn additional(self) -> Additional<'a> {
        match self.get("additionalProperties") {
            None => Additional::Absent,
            Some(Value::Bool(true)) => Additional::Allowed,
            Some(value) => Props::new(value).map_or(Additional::Forbidden, Additional::Schema),
        }
    }

    pub(crate) fn items(self) -> Items<'a> {
        match self.get("items") {
            None => Items::Absent,
            Some(Value::Array(list)) if !list.is_empty() => Items::Tuple,
            Some(value) => Props::new(value).map_or(Items::Absent, Items::Schema),
        }
    }
}
