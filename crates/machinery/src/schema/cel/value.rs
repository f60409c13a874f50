//! Values while a rule runs: borrowed from the object where they can be, seen through its schema.
//!
//! The schema decides what a JSON value is: a whole number under `type: number` is a double, a string of
//! `format: date-time` a timestamp, a list of type set is equal to its permutations.

use core::net::IpAddr;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use jiff::Timestamp;
use serde_json::Value;

use super::escape::unescape;
use super::library::{Cidr, NamedFormat, Semver, Url};
use super::time;
use crate::builtin;
use crate::quantity::Quantity;
use crate::schema::{ListType, Schema, Type};

/// Values that are what their JSON is, and lists and maps of such.
static DYNAMIC: LazyLock<Arc<Schema>> = LazyLock::new(|| Arc::new(Schema::anything()));
static DYNAMIC_LIST: LazyLock<Schema> =
    LazyLock::new(|| Schema { ty: Type::Array, items: Some(Arc::clone(&DYNAMIC)), ..Schema::default() });
static DYNAMIC_MAP: LazyLock<Schema> =
    LazyLock::new(|| Schema { ty: Type::Object, additional: Some(Arc::clone(&DYNAMIC)), ..Schema::default() });

/// Why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// An error of the expression; `false && error` is still false.
    Error(String),
    /// The rule used up what it may spend: nothing more is evaluated.
    CostLimit,
}

impl Fault {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self::Error(text.into())
    }

    pub(super) fn no_such_overload() -> Self {
        Self::new("no such overload")
    }
}

pub(super) type Outcome<T> = Result<T, Fault>;

/// A value of the expression language.
#[derive(Clone, Debug)]
pub(super) enum Val<'a> {
    Null,
    Bool(bool),
    Int(i64),
    UInt(u64),
    Double(f64),
    Text(Cow<'a, str>),
    Bytes(Rc<[u8]>),
    List(List<'a>),
    Map(Map<'a>),
    Optional(Option<Rc<Val<'a>>>),
    /// Nanoseconds.
    Duration(i64),
    Timestamp(Timestamp),
    Type(&'static str),
    /// Data that no schema describes: it can be compared, and nothing else.
    Opaque(&'a Value),
    Quantity(Rc<Quantity>),
    Url(Rc<Url>),
    Ip(IpAddr),
    Cidr(Cidr),
    Format(&'static NamedFormat),
    Semver(Rc<Semver>),
}

#[derive(Clone, Debug)]
pub(super) enum List<'a> {
    /// A list of the object, with the schema of the list.
    Json(&'a [Value], &'a Schema),
    /// A list that was made, with how its elements are told apart: the union of a set is a set.
    Own(Rc<Vec<Val<'a>>>, &'a ListType),
}

#[derive(Clone, Debug)]
pub(super) enum Map<'a> {
    /// An object or a map of the object, with its schema.
    Json(&'a serde_json::Map<String, Value>, &'a Schema, View),
    Own(Rc<Vec<(Val<'a>, Val<'a>)>>),
}

/// How much of an object a rule sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// What the schema names.
    Plain,
    /// A whole object: its metadata is [`View::Metadata`].
    Object,
    /// Of what Kubernetes puts into metadata, only the names.
    Metadata,
}

impl View {
    /// The view on a node that is a value of its own, not a field.
    pub(super) fn of(schema: &Schema) -> Self {
        if schema.embedded_resource { Self::Object } else { Self::Plain }
    }

    /// The view on a field of an object seen like this.
    pub(super) fn of_field(self, name: &str, schema: &Schema) -> Self {
        if self == Self::Object && name == "metadata" { Self::Metadata } else { Self::of(schema) }
    }

    /// Whether the field is there for rules.
    pub(super) fn shows(self, name: &str, field: &Arc<Schema>) -> bool {
        if self != Self::Metadata || matches!(name, "name" | "generateName") {
            return true;
        }
        let standard = builtin::object_meta().properties.get(name);
        standard.is_none_or(|standard| !Arc::ptr_eq(standard, field))
    }
}

impl<'a> Val<'a> {
    pub(super) fn text(text: impl Into<Cow<'a, str>>) -> Self {
        Self::Text(text.into())
    }

    pub(super) fn list(items: Vec<Val<'a>>) -> Self {
        Self::List(List::Own(Rc::new(items), &ListType::Atomic))
    }

    pub(super) fn some(value: Val<'a>) -> Self {
        Self::Optional(Some(Rc::new(value)))
    }

    /// The value that `json` is under `schema`.
    pub(super) fn from_json(json: &'a Value, schema: &'a Schema, view: View) -> Outcome<Self> {
        let schema = schema.resolve();
        let wrong = |want: &str| Err(Fault::new(format!("invalid data, expected {want}, got {}", json_type(json))));
        if json.is_null() {
            let why = "invalid data, got null for schema with nullable=false";
            return if schema.nullable { Ok(Self::Null) } else { Err(Fault::new(why)) };
        }
        match (schema.ty, json) {
            (Type::Object, Value::Object(map)) => Ok(Self::Map(Map::Json(map, schema, view))),
            (Type::Object, _) => wrong("a map for the provided schema with type=object"),
            (Type::Array, Value::Array(list)) => Ok(Self::List(List::Json(list, schema))),
            (Type::Array, _) => wrong("an array for the provided schema with type=array"),
            (Type::String | Type::IntOrString, Value::String(text)) => Self::from_text(text, schema),
            (Type::String, _) => wrong("string"),
            (Type::Integer | Type::IntOrString, Value::Number(n)) => match n.as_i64() {
                Some(n) => Ok(Self::Int(n)),
                None => wrong("int"),
            },
            (Type::Integer, _) => wrong("int"),
            (Type::IntOrString, _) => wrong("XIntOrString value to be either a string or integer"),
            (Type::Number, Value::Number(n)) => Ok(Self::Double(n.as_f64().unwrap_or_default())),
            (Type::Number, _) => wrong("float"),
            (Type::Boolean, Value::Bool(flag)) => Ok(Self::Bool(*flag)),
            (Type::Boolean, _) => wrong("bool"),
            (Type::Any, _) if std::ptr::eq(schema, DYNAMIC.as_ref()) => Ok(Self::dynamic(json)),
            (Type::Any, _) => Ok(Self::Opaque(json)),
        }
    }

    /// The value that `json` is where nothing describes it but itself.
    pub(super) fn dynamic(json: &'a Value) -> Self {
        match json {
            Value::Null => Self::Null,
            Value::Bool(flag) => Self::Bool(*flag),
            Value::Number(n) => n.as_i64().map_or_else(|| Self::Double(n.as_f64().unwrap_or_default()), Self::Int),
            Value::String(text) => Self::text(text.as_str()),
            Value::Array(list) => Self::List(List::Json(list, &DYNAMIC_LIST)),
            Value::Object(map) => Self::Map(Map::Json(map, &DYNAMIC_MAP, View::Plain)),
        }
    }

    fn from_text(text: &'a str, schema: &Schema) -> Outcome<Self> {
        let format = schema.format.as_deref().filter(|_| schema.ty == Type::String);
        let invalid = |what: &str| Fault::new(format!("Invalid {what} formatted string {text}"));
        match format {
            Some("duration") => {
                let found = time::parse_duration(text).or_else(|| time::parse_worded_duration(text));
                found.map(Self::Duration).ok_or_else(|| Fault::new(format!("Invalid duration {text}")))
            }
            Some("date") => {
                let date: Option<jiff::civil::Date> = text.parse().ok();
                let start = date.and_then(|date| date.to_zoned(jiff::tz::TimeZone::UTC).ok());
                start.map(|at| Self::Timestamp(at.timestamp())).ok_or_else(|| invalid("date"))
            }
            Some("date-time") => text.parse().map(Self::Timestamp).map_err(|_| invalid("date-time")),
            Some("byte") => {
                let bytes = STANDARD.decode(text).or_else(|_| URL_SAFE.decode(text));
                bytes.map(|bytes| Self::Bytes(bytes.into())).map_err(|_| invalid("byte"))
            }
            _ => Ok(Self::text(text)),
        }
    }

    /// The name of the type, as `type()` and errors print it.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null_type",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::UInt(_) => "uint",
            Self::Double(_) => "double",
            Self::Text(_) => "string",
            Self::Bytes(_) => "bytes",
            Self::List(_) => "list",
            Self::Map(_) => "map",
            Self::Optional(_) => "optional_type",
            Self::Duration(_) => "google.protobuf.Duration",
            Self::Timestamp(_) => "google.protobuf.Timestamp",
            Self::Type(_) => "type",
            Self::Opaque(_) => "unknown",
            Self::Quantity(_) => "kubernetes.Quantity",
            Self::Url(_) => "kubernetes.URL",
            Self::Ip(_) => "net.IP",
            Self::Cidr(_) => "net.CIDR",
            Self::Format(_) => "kubernetes.NamedFormat",
            Self::Semver(_) => "kubernetes.Semver",
        }
    }

    /// Whether this is what `optional.ofNonZeroValue` calls zero.
    pub(super) fn is_zero(&self) -> bool {
        match self {
            Self::Null => true,
            Self::Bool(flag) => !flag,
            Self::Int(n) | Self::Duration(n) => *n == 0,
            Self::UInt(n) => *n == 0,
            Self::Double(n) => *n == 0.0,
            Self::Text(text) => text.is_empty(),
            Self::Bytes(bytes) => bytes.is_empty(),
            Self::List(list) => list.len() == 0,
            Self::Map(map) => map.len() == 0,
            Self::Optional(inner) => inner.is_none(),
            // Go's zero time is the first second of the first year.
            Self::Timestamp(at) => at.as_second() == -62_135_596_800 && at.subsec_nanosecond() == 0,
            _ => false,
        }
    }

    /// What tells this element from the others of its list.
    fn identity(&self, kind: &ListType) -> String {
        match (self, kind) {
            (Self::Map(map), ListType::Map(keys)) => {
                let field = |key: &String| map.field(key).and_then(Result::ok).unwrap_or(Self::Null);
                keys.iter().map(|key| field(key).identity(&ListType::Set)).collect()
            }
            (Self::Text(text), _) => format!("{text:?}"),
            (Self::Int(n), _) => format!("{} ", *n as f64),
            (Self::Double(n), _) => format!("{n} "),
            (other, _) => format!("{other:?}"),
        }
    }

    /// How much work it is to look at all of this, for the meter.
    pub(super) fn weight(&self) -> u64 {
        match self {
            Self::Text(text) => 1 + text.len() as u64 / 10,
            Self::Bytes(bytes) => 1 + bytes.len() as u64 / 10,
            Self::List(List::Json(items, _)) => 1 + items.iter().map(json_weight).sum::<u64>(),
            Self::List(List::Own(items, _)) => 1 + items.iter().map(Val::weight).sum::<u64>(),
            Self::Map(Map::Json(map, ..)) => 1 + map.values().map(json_weight).sum::<u64>(),
            Self::Map(Map::Own(entries)) => 1 + entries.iter().map(|(_, value)| value.weight()).sum::<u64>(),
            Self::Opaque(json) => json_weight(json),
            _ => 1,
        }
    }

    /// `==`: numbers of all kinds are one line; sets and map lists have no order.
    pub(super) fn equals(&self, other: &Val<'a>) -> bool {
        match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::Text(a), Self::Text(b)) => a == b,
            (Self::Bytes(a), Self::Bytes(b)) => a == b,
            (Self::List(a), Self::List(b)) => a.equals(b),
            (Self::Map(a), Self::Map(b)) => a.equals(b),
            (Self::Optional(a), Self::Optional(b)) => match (a, b) {
                (None, None) => true,
                (Some(a), Some(b)) => a.equals(b),
                _ => false,
            },
            (Self::Duration(a), Self::Duration(b)) => a == b,
            (Self::Timestamp(a), Self::Timestamp(b)) => a == b,
            (Self::Type(a), Self::Type(b)) => a == b,
            (Self::Opaque(a), Self::Opaque(b)) => a == b,
            (Self::Quantity(a), Self::Quantity(b)) => a == b,
            (Self::Url(a), Self::Url(b)) => a == b,
            (Self::Ip(a), Self::Ip(b)) => a == b,
            (Self::Cidr(a), Self::Cidr(b)) => a == b,
            (Self::Format(a), Self::Format(b)) => a.name == b.name,
            (Self::Semver(a), Self::Semver(b)) => a == b,
            _ => compare_numbers(self, other) == Some(Ordering::Equal),
        }
    }

    /// `<` and its like; none where the types have no order between them.
    pub(super) fn compare(&self, other: &Val<'a>) -> Outcome<Option<Ordering>> {
        Ok(match (self, other) {
            (Self::Bool(a), Self::Bool(b)) => Some(a.cmp(b)),
            (Self::Text(a), Self::Text(b)) => Some(a.cmp(b)),
            (Self::Bytes(a), Self::Bytes(b)) => Some(a.cmp(b)),
            (Self::Duration(a), Self::Duration(b)) => Some(a.cmp(b)),
            (Self::Timestamp(a), Self::Timestamp(b)) => Some(a.cmp(b)),
            (Self::Int(_) | Self::UInt(_) | Self::Double(_), Self::Int(_) | Self::UInt(_) | Self::Double(_)) => {
                compare_numbers(self, other)
            }
            _ => return Err(Fault::no_such_overload()),
        })
    }
}

fn compare_numbers(a: &Val<'_>, b: &Val<'_>) -> Option<Ordering> {
    let whole = |value: &Val<'_>| match value {
        Val::Int(n) => Some(i128::from(*n)),
        Val::UInt(n) => Some(i128::from(*n)),
        _ => None,
    };
    let float = |value: &Val<'_>| match value {
        Val::Int(n) => Some(*n as f64),
        Val::UInt(n) => Some(*n as f64),
        Val::Double(n) => Some(*n),
        _ => None,
    };
    match (whole(a), whole(b)) {
        (Some(a), Some(b)) => Some(a.cmp(&b)),
        _ => float(a)?.partial_cmp(&float(b)?),
    }
}

fn json_type(json: &Value) -> &'static str {
    match json {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "map",
    }
}

fn json_weight(json: &Value) -> u64 {
    match json {
        Value::String(text) => 1 + text.len() as u64 / 10,
        Value::Array(list) => 1 + list.iter().map(json_weight).sum::<u64>(),
        Value::Object(map) => 1 + map.values().map(json_weight).sum::<u64>(),
        _ => 1,
    }
}

impl<'a> List<'a> {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Json(items, _) => items.len(),
            Self::Own(items, _) => items.len(),
        }
    }

    pub(super) fn get(&self, index: usize) -> Option<Outcome<Val<'a>>> {
        match self {
            Self::Json(items, schema) => {
                let item = items.get(index)?;
                Some(match &schema.items {
                    Some(items) => Val::from_json(item, items, View::of(items)),
                    None => Ok(Val::Opaque(item)),
                })
            }
            Self::Own(items, _) => items.get(index).cloned().map(Ok),
        }
    }

    pub(super) fn items(&self) -> Outcome<Vec<Val<'a>>> {
        (0..self.len()).filter_map(|index| self.get(index)).collect()
    }

    /// How elements are told apart, if order does not.
    pub(super) fn kind(&self) -> &'a ListType {
        match self {
            Self::Json(_, schema) => &schema.list,
            Self::Own(_, kind) => kind,
        }
    }

    fn equals(&self, other: &List<'a>) -> bool {
        if self.len() != other.len() {
            return false;
        }
        let (Ok(mine), Ok(theirs)) = (self.items(), other.items()) else { return false };
        match self.kind() {
            ListType::Atomic => mine.iter().zip(&theirs).all(|(a, b)| a.equals(b)),
            kind => {
                let theirs: BTreeMap<String, &Val<'a>> = theirs.iter().map(|b| (b.identity(kind), b)).collect();
                mine.iter().all(|a| theirs.get(&a.identity(kind)).is_some_and(|b| a.equals(b)))
            }
        }
    }
}

impl<'a> Map<'a> {
    /// Whether fields have schemas of their own: an object, not a map.
    fn is_object(schema: &Schema) -> bool {
        !schema.properties.is_empty() || schema.additional.is_none()
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Json(map, schema, view) if Self::is_object(schema) => {
                map.keys().filter(|key| field_of(schema, *view, key).is_some()).count()
            }
            Self::Json(map, ..) => map.len(),
            Self::Own(entries) => entries.len(),
        }
    }

    /// A field, by the name that rules call it.
    pub(super) fn field(&self, name: &str) -> Option<Outcome<Val<'a>>> {
        let Self::Json(map, schema, view) = self else { return self.get(&Val::text(name.to_owned())) };
        if !Self::is_object(schema) {
            return self.get(&Val::text(name.to_owned()));
        }
        let name = unescape(name)?;
        // A field that is null is one that is not there.
        let value = map.get(name.as_ref()).filter(|value| !value.is_null())?;
        let field = field_of(schema, *view, &name)?;
        Some(Val::from_json(value, field, view.of_field(&name, field)))
    }

    /// The value of a key.
    pub(super) fn get(&self, key: &Val<'a>) -> Option<Outcome<Val<'a>>> {
        match (self, key) {
            (Self::Json(_, schema, _), Val::Text(name)) if Self::is_object(schema) => self.field(name),
            (Self::Json(map, schema, _), Val::Text(name)) => {
                let (value, values) = (map.get(name.as_ref())?, schema.additional.as_ref()?);
                Some(Val::from_json(value, values, View::of(values)))
            }
            (Self::Json(..), _) => None,
            (Self::Own(entries), _) => {
                entries.iter().find(|(known, _)| known.equals(key)).map(|(_, value)| Ok(value.clone()))
            }
        }
    }

    pub(super) fn keys(&self) -> Vec<Val<'a>> {
        match self {
            Self::Json(map, schema, view) if Self::is_object(schema) => map
                .keys()
                .filter(|key| field_of(schema, *view, key).is_some())
                .map(|key| Val::text(key.as_str()))
                .collect(),
            Self::Json(map, ..) => map.keys().map(|key| Val::text(key.as_str())).collect(),
            Self::Own(entries) => entries.iter().map(|(key, _)| key.clone()).collect(),
        }
    }

    fn equals(&self, other: &Map<'a>) -> bool {
        // Two values of the object are what their JSON is, whatever rules can see of it.
        if let (Self::Json(mine, schema, view), Self::Json(theirs, ..)) = (self, other) {
            return json_objects_equal(mine, theirs, schema, *view);
        }
        let keys = self.keys();
        keys.len() == other.len()
            && keys.iter().all(|key| match (self.get(key), other.get(key)) {
                (Some(Ok(a)), Some(Ok(b))) => a.equals(&b),
                _ => false,
            })
    }
}

fn json_objects_equal(
    mine: &serde_json::Map<String, Value>,
    theirs: &serde_json::Map<String, Value>,
    schema: &Schema,
    view: View,
) -> bool {
    mine.len() == theirs.len()
        && mine.iter().all(|(name, a)| {
            let Some(b) = theirs.get(name) else { return false };
            match schema.field(name) {
                Some(field) => {
                    let view = view.of_field(name, field);
                    match (Val::from_json(a, field, view), Val::from_json(b, field, view)) {
                        (Ok(a), Ok(b)) => a.equals(&b),
                        _ => a == b,
                    }
                }
                None => a == b,
            }
        })
}

fn field_of<'a>(schema: &'a Schema, view: View, name: &str) -> Option<&'a Schema> {
    schema.properties.get(name).filter(|field| view.shows(name, field)).map(AsRef::as_ref)
}
