//! The interface files, compiled once into tables that decoding and shaping walk along.

use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;

use prost_reflect::{DescriptorPool, FieldDescriptor, Kind, MessageDescriptor, Value as OptionValue};

use crate::kinds;

static TYPES: LazyLock<Types> = LazyLock::new(Types::load);

/// The descriptor set that the build script made of `proto/`.
const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kubernetes.bin"));

/// Package of the interface files, and the `apiVersion` of its kinds.
const GROUPS: [(&str, &str); 12] = [
    ("core.v1", "v1"),
    ("meta.v1", "v1"),
    ("admissionregistration.v1", "admissionregistration.k8s.io/v1"),
    ("apiextensions.v1", "apiextensions.k8s.io/v1"),
    ("authentication.v1", "authentication.k8s.io/v1"),
    ("authorization.v1", "authorization.k8s.io/v1"),
    ("autoscaling.v1", "autoscaling/v1"),
    ("coordination.v1", "coordination.k8s.io/v1"),
    ("events.v1", "events.k8s.io/v1"),
    ("policy.v1", "policy/v1"),
    ("rbac.v1", "rbac.authorization.k8s.io/v1"),
    ("storage.v1", "storage.k8s.io/v1"),
];

/// Bodies that are not kinds of their own: of subresources, and of answers.
const BODIES: [(&str, &str); 4] = [
    ("policy/v1", "Eviction"),
    ("authentication.k8s.io/v1", "TokenRequest"),
    ("autoscaling/v1", "Scale"),
    ("v1", "Status"),
];

/// Index of a message in [`Types`].
pub(super) type Id = usize;

/// All messages.
pub(super) struct Types {
    messages: Vec<Message>,
    by_name: HashMap<String, Id>,
}

/// A message, by field number for the wire and by name for JSON.
pub(super) struct Message {
    pub(super) special: Option<Special>,
    pub(super) by_number: BTreeMap<u32, Field>,
    /// Fields as they stand in JSON: those of inlined messages among the others.
    pub(super) by_name: BTreeMap<String, Field>,
}

#[derive(Clone, Debug)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) ty: Type,
    pub(super) count: Count,
    /// Zero differs from absent.
    pub(super) presence: bool,
    pub(super) shape: Shape,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Bool,
    Int32,
    Int64,
    Double,
    String,
    Bytes,
    Message(Id),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Count {
    One,
    Many,
    /// A map from strings to values of the field's type.
    Map,
}

/// How a field stands in JSON: `tether.Shape` of the interface files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Left out where it is absent.
    Plain,
    /// Written even when it is zero or absent.
    Always,
    /// Its fields stand among those of the message around it.
    Inline,
    /// Written as null where it is absent.
    Null,
}

impl Shape {
    fn of(number: i32) -> Self {
        match number {
            1 => Self::Always,
            2 => Self::Inline,
            3 => Self::Null,
            _ => Self::Plain,
        }
    }
}

/// Messages whose JSON is not an object of their fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Special {
    Time,
    MicroTime,
    Quantity,
    IntOrString,
    /// JSON text in one field of bytes.
    Json,
    /// The one list that the message has.
    Items,
    SchemaOrArray,
    SchemaOrBool,
    SchemaOrStringArray,
}

impl Special {
    fn of(name: &str) -> Option<Self> {
        Some(match name {
            "meta.v1.Time" => Self::Time,
            "meta.v1.MicroTime" => Self::MicroTime,
            "resource.Quantity" => Self::Quantity,
            "intstr.IntOrString" => Self::IntOrString,
            "meta.v1.FieldsV1" | "runtime.RawExtension" | "apiextensions.v1.JSON" => Self::Json,
            "authentication.v1.ExtraValue" | "authorization.v1.ExtraValue" => Self::Items,
            "apiextensions.v1.JSONSchemaPropsOrArray" => Self::SchemaOrArray,
            "apiextensions.v1.JSONSchemaPropsOrBool" => Self::SchemaOrBool,
            "apiextensions.v1.JSONSchemaPropsOrStringArray" => Self::SchemaOrStringArray,
            _ => return None,
        })
    }
}

impl Types {
    pub(super) fn get() -> &'static Self {
        &TYPES
    }

    pub(super) fn message(&self, id: Id) -> &Message {
        &self.messages[id]
    }

    /// The message of a kind. Every group has the options of requests under its own version.
    pub(super) fn by_kind(&self, api_version: &str, kind: &str) -> Option<&Message> {
        if kind == "DeleteOptions" {
            return self.by_name("meta.v1.DeleteOptions");
        }
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let served = kinds::by_kind(group, version, kind).is_some() || BODIES.contains(&(api_version, kind));
        let mut packages = GROUPS.iter().filter(|(_, v)| served && *v == api_version);
        packages.find_map(|(package, _)| self.by_name(&format!("{package}.{kind}")))
    }

    pub(super) fn by_name(&self, name: &str) -> Option<&Message> {
        self.by_name.get(name).map(|id| self.message(*id))
    }

    fn load() -> Self {
        let pool = DescriptorPool::decode(DESCRIPTORS).expect("the compiled descriptor set must decode");
        let descriptors: Vec<MessageDescriptor> =
            pool.all_messages().filter(|m| !m.is_map_entry() && !m.package_name().starts_with("google.")).collect();
        let by_name: HashMap<String, Id> =
            descriptors.iter().enumerate().map(|(id, m)| (m.full_name().to_owned(), id)).collect();
        let shape = pool.get_extension_by_name("tether.shape").expect("shape.proto must declare its option");
        let shape_of = |field: &FieldDescriptor| match field.options().get_extension(&shape).as_ref() {
            OptionValue::EnumNumber(number) => *number,
            _ => 0,
        };
        let mut messages: Vec<Message> = descriptors
            .iter()
            .map(|descriptor| Message {
                special: Special::of(descriptor.full_name()),
                by_number: descriptor
                    .fields()
                    .map(|f| (f.number(), Field::compile(&f, shape_of(&f), &by_name)))
                    .collect(),
                by_name: BTreeMap::new(),
            })
            .collect();
        for id in 0..messages.len() {
            messages[id].by_name = flatten(&messages, id);
        }
        Self { messages, by_name }
    }
}

/// Fields by JSON name. Inlined messages inline nothing themselves.
fn flatten(messages: &[Message], id: Id) -> BTreeMap<String, Field> {
    let mut fields = BTreeMap::new();
    for field in messages[id].by_number.values() {
        match field.ty {
            Type::Message(inner) if field.shape == Shape::Inline => {
                fields.extend(messages[inner].by_number.values().map(|f| (f.name.clone(), f.clone())));
            }
            _ => {
                fields.insert(field.name.clone(), field.clone());
            }
        }
    }
    fields
}

impl Field {
    fn compile(field: &FieldDescriptor, shape: i32, ids: &HashMap<String, Id>) -> Self {
        let (count, kind) = match field.kind() {
            Kind::Message(entry) if field.is_map() => (Count::Map, entry.map_entry_value_field().kind()),
            kind if field.is_list() => (Count::Many, kind),
            kind => (Count::One, kind),
        };
        let ty = match kind {
            Kind::Bool => Type::Bool,
            Kind::Int32 => Type::Int32,
            Kind::Int64 => Type::Int64,
            Kind::Double => Type::Double,
            Kind::String => Type::String,
            Kind::Bytes => Type::Bytes,
            Kind::Message(message) => Type::Message(ids[message.full_name()]),
            other => panic!("{}: interface files must not use {other:?}", field.full_name()),
        };
        Self {
            name: field.json_name().to_owned(),
            ty,
            count,
            presence: field.supports_presence(),
            shape: Shape::of(shape),
        }
    }
}
