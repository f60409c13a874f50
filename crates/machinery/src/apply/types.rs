//! How a schema is seen by field ownership: what is a leaf, what has parts, and what tells parts apart.

use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::element::PathElement;
use crate::builtin;
use crate::schema::{ListType, Schema, Type};

/// Opaque values inside of built-in types: one owner for the whole.
const RAW_EXTENSION: &str = "io.k8s.apimachinery.pkg.runtime.RawExtension";

/// Why a value does not have the shape that ownership needs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TypeError {
    #[error("associative list with keys may not have a null element")]
    NullElement,
    #[error("associative list with keys may not have non-map elements")]
    NotAMap,
    #[error("associative list with keys has an element that omits all key fields {} (and doesn't have default values for any key fields)", quoted(.0))]
    NoKeys(Vec<String>),
    #[error("associative list without keys has an element that's a map type")]
    MapInSet,
    #[error("not supported: associative list with lists as elements")]
    ListInSet,
    #[error("associative list without keys has an element that's an explicit null")]
    NullInSet,
    #[error("duplicate entries for key {0}")]
    Duplicate(String),
}

fn quoted(names: &[String]) -> String {
    format!("[{}]", names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(" "))
}

/// The type of a value, as far as it is known.
#[derive(Clone, Copy)]
pub(super) enum Ty<'a> {
    Known(&'a Schema),
    /// A whole object: its metadata is always that of Kubernetes, whatever the schema says about it.
    Object(&'a Schema),
    /// No schema: maps have parts, lists are leaves.
    Deduced,
    /// One leaf, whatever it is.
    Opaque,
}

/// What kind of thing a value is.
#[derive(Clone, Copy)]
pub(super) enum Atom<'a> {
    Scalar,
    List(List<'a>),
    Map(Fields<'a>),
}

/// How a list is taken apart.
#[derive(Clone, Copy)]
pub(super) enum List<'a> {
    Atomic,
    /// Scalars, each an element of its own.
    Set(Ty<'a>),
    /// Objects, told apart by these fields.
    Map(&'a [String], Ty<'a>),
}

/// How an object is taken apart.
#[derive(Clone, Copy)]
pub(super) enum Fields<'a> {
    Atomic,
    Known(&'a Schema),
    /// Known, and a whole object.
    Object(&'a Schema),
    Deduced,
}

impl<'a> Ty<'a> {
    fn of(schema: &'a Schema) -> Self {
        let schema = schema.resolve();
        if schema.definition.as_deref() == Some(RAW_EXTENSION) {
            Self::Opaque
        } else if schema.embedded_resource {
            Self::Object(schema)
        } else {
            Self::Known(schema)
        }
    }

    /// What `value` is. The schema decides where it names a type, else the value does.
    pub(super) fn atom(self, value: &Value) -> Atom<'a> {
        let schema = match self {
            Self::Known(schema) | Self::Object(schema) => schema,
            Self::Deduced => return deduced(value, Fields::Deduced),
            Self::Opaque => return deduced(value, Fields::Atomic),
        };
        match schema.ty {
            Type::Object => Atom::Map(self.fields(schema)),
            Type::Array => Atom::List(list(schema)),
            Type::String | Type::Integer | Type::Number | Type::Boolean | Type::IntOrString => Atom::Scalar,
            Type::Any => match value {
                Value::Array(_) => Atom::List(list(schema)),
                Value::Object(_) | Value::Null => Atom::Map(self.fields(schema)),
                _ => Atom::Scalar,
            },
        }
    }

    fn fields(self, schema: &'a Schema) -> Fields<'a> {
        match self {
            _ if schema.atomic_map => Fields::Atomic,
            Self::Object(_) => Fields::Object(schema),
            _ => Fields::Known(schema),
        }
    }

    /// The type of a list's elements, for walks along a field set, where there is no value to ask.
    pub(super) fn items(self) -> Option<List<'a>> {
        match self {
            Self::Known(schema) | Self::Object(schema) if schema.ty == Type::Array => Some(list(schema)),
            _ => None,
        }
    }

    /// The type's fields, likewise. Free-form objects are not taken apart here.
    pub(super) fn declared(self) -> Option<Fields<'a>> {
        match self {
            Self::Known(schema) | Self::Object(schema) if matches!(schema.ty, Type::Object | Type::Any) => {
                Some(self.fields(schema))
            }
            Self::Opaque => Some(Fields::Atomic),
            _ => None,
        }
    }
}

fn deduced<'a>(value: &Value, fields: Fields<'a>) -> Atom<'a> {
    match value {
        Value::Array(_) => Atom::List(List::Atomic),
        Value::Object(_) | Value::Null => Atom::Map(fields),
        _ => Atom::Scalar,
    }
}

fn list(schema: &Schema) -> List<'_> {
    let items = || schema.items.as_deref().map_or(Ty::Opaque, Ty::of);
    match &schema.list {
        ListType::Atomic => List::Atomic,
        ListType::Set => List::Set(items()),
        ListType::Map(keys) => List::Map(keys, items()),
    }
}

/// A field of an object: its type, and whether the schema names it (a map's entries are not named).
#[derive(Clone, Copy)]
pub(super) struct Field<'a> {
    pub(super) ty: Ty<'a>,
    pub(super) named: bool,
    /// Whether it may exist at all.
    pub(super) allowed: bool,
}

impl<'a> Fields<'a> {
    pub(super) fn field(self, name: &str) -> Field<'a> {
        let unknown = Field { ty: Ty::Deduced, named: false, allowed: true };
        let schema = match self {
            Self::Atomic => return Field { ty: Ty::Opaque, ..unknown },
            Self::Deduced => return unknown,
            Self::Known(schema) => schema,
            Self::Object(schema) => {
                if let Some(ty) = object_field(schema, name) {
                    return Field { ty, named: true, allowed: true };
                }
                schema
            }
        };
        if let Some(field) = schema.properties.get(name) {
            return Field { ty: Ty::of(field), named: true, allowed: true };
        }
        if let Some(entry) = &schema.additional {
            return Field { ty: Ty::of(entry), named: false, allowed: true };
        }
        let allowed = schema.preserve_unknown || (schema.properties.is_empty() && !schema.forbid_additional);
        Field { allowed, ..unknown }
    }

    /// What stands for a field that is not there, in an object of a built-in kind that is, when the other
    /// version of the object has `other`.
    ///
    /// Kubernetes compares Go structs, and those always have their struct fields. So no one comes to own
    /// `spec` as such by setting something in it, while `csi` of a volume, a pointer, is owned.
    pub(super) fn zero(self, name: &str, other: &Value) -> Option<&'static Value> {
        static STRUCT: LazyLock<Value> = LazyLock::new(|| Value::Object(Map::new()));
        static TEXT: Value = Value::String(String::new());
        let (Self::Known(schema) | Self::Object(schema)) = self else { return None };
        let definition = schema.definition.as_deref()?;
        if other.is_null() {
            return Some(&Value::Null);
        }
        let field = schema.properties.get(name)?;
        let always = schema.required.iter().any(|required| required == name)
            || always_there(definition.rsplit('.').next().unwrap_or(definition), name)
            || (matches!(name, "metadata" | "spec" | "status") && schema.properties.contains_key("metadata"));
        match field.ty {
            Type::Object if always && field.definition.is_some() => Some(&STRUCT),
            Type::Array if always => Some(&Value::Null),
            Type::String if always => Some(&TEXT),
            _ => None,
        }
    }
}

/// Fields that Go writes even when they are empty, although the schema calls them optional.
fn always_there(definition: &str, name: &str) -> bool {
    matches!(
        (definition, name),
        ("Container" | "EphemeralContainer" | "PersistentVolumeClaimSpec", "resources")
            | ("ContainerStatus", "state" | "lastState")
            | ("CustomResourceDefinitionStatus", "acceptedNames" | "conditions" | "storedVersions")
            | (
                "Event",
                "deprecatedSource"
                    | "involvedObject"
                    | "regarding"
                    | "reportingComponent"
                    | "reportingInstance"
                    | "source"
            )
            | ("NodeDaemonEndpoints", "kubeletEndpoint")
            | ("NodeStatus", "daemonEndpoints" | "nodeInfo")
            | ("Role" | "ClusterRole", "rules")
    )
}

/// Fields that every object has, where its own schema does not describe them.
fn object_field<'a>(schema: &'a Schema, name: &str) -> Option<Ty<'a>> {
    let described = schema.properties.get(name).is_some_and(|field| !field.properties.is_empty());
    match name {
        "metadata" if !described => Some(Ty::Known(builtin::object_meta())),
        "apiVersion" | "kind" => Some(Ty::Known(&TEXT)),
        _ => None,
    }
}

static TEXT: LazyLock<Schema> = LazyLock::new(|| Schema { ty: Type::String, ..Schema::default() });

impl<'a> List<'a> {
    /// What tells `item` from the other elements, and the type of elements. `None` for atomic lists.
    pub(super) fn parts(self) -> Option<(Keys<'a>, Ty<'a>)> {
        match self {
            Self::Atomic => None,
            Self::Set(ty) => Some((Keys::Itself, ty)),
            Self::Map(keys, ty) => Some((Keys::Fields(keys, ty), ty)),
        }
    }
}

/// What tells the elements of a list apart.
#[derive(Clone, Copy)]
pub(super) enum Keys<'a> {
    Itself,
    Fields(&'a [String], Ty<'a>),
}

impl Keys<'_> {
    /// The path element of `item`; missing key fields take their default.
    pub(super) fn element(self, item: &Value) -> Result<PathElement, TypeError> {
        let Self::Fields(names, ty) = self else {
            return match item {
                Value::Object(_) => Err(TypeError::MapInSet),
                Value::Array(_) => Err(TypeError::ListInSet),
                Value::Null => Err(TypeError::NullInSet),
                scalar => Ok(PathElement::Value(scalar.clone())),
            };
        };
        let fields = match item {
            Value::Object(fields) => fields,
            Value::Null => return Err(TypeError::NullElement),
            _ => return Err(TypeError::NotAMap),
        };
        let default = |name: &str| match ty {
            Ty::Known(schema) | Ty::Object(schema) => schema.properties.get(name)?.default.clone(),
            Ty::Deduced | Ty::Opaque => None,
        };
        let mut keys: Vec<(String, Value)> = names
            .iter()
            .filter_map(|name| Some((name.clone(), fields.get(name).cloned().or_else(|| default(name))?)))
            .collect();
        if keys.is_empty() {
            return Err(TypeError::NoKeys(names.to_vec()));
        }
        keys.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(PathElement::Key(keys))
    }
}
