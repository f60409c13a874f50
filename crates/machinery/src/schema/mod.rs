//! The structural schema: what both built-in kinds and custom resources are described by.
//!
//! A [`Schema`] is compiled once from OpenAPI v3 JSON and then shared. It answers the questions that
//! pruning, defaulting, validation, patches and server-side apply ask: which fields exist, how a list
//! merges, what is missing.
//!
//! A schema is a tree of shared nodes. The one type of Kubernetes that contains itself, `JSONSchemaProps`,
//! is cut where it would recur: such a node is marked [`Schema::recursive`] and names its definition;
//! [`Schema::resolve`] goes on from there. Code that does not resolve sees a node that accepts anything.

pub mod cel;
mod compile;
mod decode;
mod defaults;
mod formats;
mod lists;
pub mod pattern;
mod props;
mod prune;
mod structural;
mod validate;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

pub use compile::{MAX_SCHEMA_DEPTH, compile};
pub(crate) use compile::{build, embed_object_fields};
pub use decode::{decode, decode_merged};
pub use defaults::apply_defaults;
pub use formats::is_known as is_known_format;
pub(crate) use lists::embedded_resources;
pub use pattern::Pattern;
pub(crate) use props::{Additional, Items, Props};
pub use prune::{prune, unknown_fields};
pub(crate) use structural::unsupported;
pub use structural::validate_structural;
pub use validate::{validate, validate_status_update, validate_update, validate_value};
pub(crate) use validate::{validate_fields, validate_lists};

/// What kind of JSON value a node takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Type {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
    /// `x-kubernetes-int-or-string`, quantities included.
    IntOrString,
    /// No type given: anything goes (`x-kubernetes-preserve-unknown-fields` without a type).
    #[default]
    Any,
}

/// How two versions of a list become one (`x-kubernetes-list-type`).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum ListType {
    /// Replaced as a whole; one owner.
    #[default]
    Atomic,
    /// Scalars, each its own owner.
    Set,
    /// Objects told apart by these fields.
    Map(Vec<String>),
}

/// What strategic merge patch does with a field (`x-kubernetes-patch-strategy`, `-merge-key`).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct PatchMeta {
    /// Elements are merged, by `merge_key` if they are objects, as a set if they are scalars.
    pub merge: bool,
    /// Fields that the patch does not name in `$retainKeys` are dropped.
    pub retain_keys: bool,
    pub merge_key: Option<String>,
}

/// Limits on a value, as OpenAPI v3 names them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    pub minimum: Option<f64>,
    pub exclusive_minimum: bool,
    pub maximum: Option<f64>,
    pub exclusive_maximum: bool,
    pub multiple_of: Option<f64>,
    pub min_length: Option<u64>,
    pub max_length: Option<u64>,
    pub min_items: Option<u64>,
    pub max_items: Option<u64>,
    pub unique_items: bool,
    pub min_properties: Option<u64>,
    pub max_properties: Option<u64>,
    pub pattern: Option<Pattern>,
    pub enumeration: Option<Vec<Value>>,
}

/// One CEL rule (`x-kubernetes-validations`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rule {
    pub rule: String,
    pub message: Option<String>,
    pub message_expression: Option<String>,
    pub reason: Option<String>,
    pub field_path: Option<String>,
    pub optional_old_self: bool,
    /// Compiled at their first use.
    pub(crate) program: cel::Cached,
    pub(crate) message_program: cel::Cached,
}

/// One node of a structural schema.
#[allow(clippy::struct_excessive_bools, reason = "the keywords of OpenAPI are independent flags")]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Schema {
    pub ty: Type,
    pub nullable: bool,
    pub format: Option<String>,
    pub description: String,
    pub properties: BTreeMap<String, Arc<Schema>>,
    /// `additionalProperties`: the schema of every value of a map.
    pub additional: Option<Arc<Schema>>,
    /// `additionalProperties: false`: names that are not properties are an error.
    pub forbid_additional: bool,
    pub items: Option<Arc<Schema>>,
    pub required: Vec<String>,
    pub default: Option<Value>,
    /// `x-kubernetes-preserve-unknown-fields`: what the schema does not name is kept.
    pub preserve_unknown: bool,
    /// `x-kubernetes-embedded-resource`: the value is an object with its own apiVersion, kind and metadata.
    pub embedded_resource: bool,
    pub list: ListType,
    /// `x-kubernetes-map-type: atomic`: the object or map is replaced as a whole.
    pub atomic_map: bool,
    pub patch: PatchMeta,
    pub limits: Limits,
    pub rules: Vec<Rule>,
    /// This node or one below it has rules.
    pub has_rules: bool,
    /// Neither this node nor one below it is a list in which nothing may occur twice, or an embedded resource. False says nothing.
    pub plain: bool,
    pub all_of: Vec<Arc<Schema>>,
    pub any_of: Vec<Arc<Schema>>,
    pub one_of: Vec<Arc<Schema>>,
    pub not: Option<Arc<Schema>>,
    /// For built-in types: the OpenAPI definition's name (`io.k8s.api.core.v1.PodSpec`), so that documents
    /// can refer to it instead of repeating it.
    pub definition: Option<String>,
    /// The definition contains itself here: see [`Schema::resolve`].
    pub recursive: bool,
}

impl Schema {
    /// A node that takes any value and says nothing about it.
    pub fn anything() -> Self {
        Self { nullable: true, ..Self::default() }
    }

    /// This node, or what stands behind it where a definition contains itself.
    pub fn resolve(&self) -> &Schema {
        match (&self.definition, self.recursive) {
            (Some(name), true) => crate::builtin::definition(name).map_or(self, |whole| whole),
            _ => self,
        }
    }

    /// The schema of `field` in this object or map, if it has one.
    pub fn field(&self, field: &str) -> Option<&Arc<Schema>> {
        self.properties.get(field).or(self.additional.as_ref())
    }
}

#[cfg(test)]
mod proptests;
