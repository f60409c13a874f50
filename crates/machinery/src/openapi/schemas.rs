//! Schemas as documents spell them: references instead of repetition.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Number, Value, json};

use super::Resource;
use super::paths::PATCH;
use crate::builtin;
use crate::schema::{ListType, Rule, Schema, Type};

/// Which version of OpenAPI is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    V2,
    V3,
}

impl Dialect {
    pub(super) fn reference(self, definition: &str) -> String {
        match self {
            Self::V2 => format!("#/definitions/{definition}"),
            Self::V3 => format!("#/components/schemas/{definition}"),
        }
    }
}

/// The definitions of a document, collected as they are referred to.
pub(super) struct Definitions {
    dialect: Dialect,
    done: BTreeMap<String, Value>,
    wanted: BTreeSet<String>,
}

impl Definitions {
    pub(super) fn new(dialect: Dialect) -> Self {
        Self { dialect, done: BTreeMap::new(), wanted: BTreeSet::new() }
    }

    /// A reference to a definition that Kubernetes brings.
    pub(super) fn refer(&mut self, definition: &str) -> Value {
        self.wanted.insert(definition.to_owned());
        json!({"$ref": self.dialect.reference(definition)})
    }

    /// Adds the types of a resource: the object, its list, and what subresources exchange.
    pub(super) fn add(&mut self, resource: &Resource) {
        let name = resource.definition();
        if resource.schema.definition.is_some() {
            self.wanted.insert(name);
        } else if !self.done.contains_key(&name) {
            let mut object = self.spelled_out(&resource.schema);
            object["x-kubernetes-group-version-kind"] =
                json!([gvk(&resource.group, &resource.version, &resource.kind)]);
            self.done.insert(name.clone(), object);
        }
        if resource.verbs.iter().any(|verb| verb == "list") {
            self.add_list(resource);
        }
        for sub in &resource.subresources {
            if let Some(name) = &sub.schema.definition {
                self.wanted.insert(name.clone());
            }
        }
    }

    fn add_list(&mut self, resource: &Resource) {
        let name = resource.list_definition();
        if resource.schema.definition.is_some() {
            self.wanted.insert(name);
            return;
        }
        let type_meta = |name: &str| builtin::type_meta_field(name);
        let item = json!({"$ref": self.dialect.reference(&resource.definition())});
        let list = json!({
            "description": format!("{} is a list of {}", resource.list_kind, resource.kind),
            "type": "object",
            "required": ["items"],
            "properties": {
                "apiVersion": self.spelled_out(&type_meta("apiVersion")),
                "kind": self.spelled_out(&type_meta("kind")),
                "metadata": self.refer("io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta"),
                "items": {"description": format!("List of {}.", resource.plural), "type": "array", "items": item},
            },
            "x-kubernetes-group-version-kind": [gvk(&resource.group, &resource.version, &resource.list_kind)],
        });
        self.done.insert(name, list);
    }

    /// Everything that was referred to, and everything that refers to in turn.
    pub(super) fn finish(mut self) -> Map<String, Value> {
        while let Some(name) = self.wanted.pop_first() {
            if self.done.contains_key(&name) {
                continue;
            }
            let written = if name == PATCH {
                json!({"description": "The body of a PATCH request.", "type": "object"})
            } else {
                let Some(definition) = builtin::definition(&name) else { continue };
                self.definition(&name, definition)
            };
            self.done.insert(name, written);
        }
        self.done.into_iter().collect()
    }

    fn definition(&mut self, name: &str, schema: &Schema) -> Value {
        let short = name.rsplit('.').next().unwrap_or(name);
        let mut written = match (short, self.dialect) {
            ("Quantity", Dialect::V2) => json!({"type": "string"}),
            ("Quantity", Dialect::V3) => json!({"oneOf": [{"type": "string"}, {"type": "number"}]}),
            ("IntOrString", Dialect::V2) => json!({"type": "string", "format": "int-or-string"}),
            ("IntOrString", Dialect::V3) => {
                json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]})
            }
            ("JSONSchemaPropsOrBool" | "JSONSchemaPropsOrArray" | "JSONSchemaPropsOrStringArray" | "JSON", _) => {
                json!({})
            }
            ("RawExtension" | "FieldsV1", _) => json!({"type": "object"}),
            _ => self.spelled_out(schema),
        };
        if !schema.description.is_empty() {
            written["description"] = schema.description.as_str().into();
        }
        let kinds = builtin::KINDS.iter().filter_map(|kind| {
            let list = || name.strip_suffix("List").is_some_and(|item| kind.listable && item == kind.definition);
            let of = |kind_name: &str| Some(gvk(kind.group, kind.version, kind_name));
            match kind.definition == name {
                true => of(kind.kind),
                false if list() => of(&format!("{}List", kind.kind)),
                false => None,
            }
        });
        let kinds: Vec<Value> = kinds.collect();
        if !kinds.is_empty() {
            written["x-kubernetes-group-version-kind"] = kinds.into();
        }
        written
    }

    /// A node inside a definition: a reference if it has a name.
    fn node(&mut self, schema: &Schema) -> Value {
        let Some(name) = &schema.definition else { return self.spelled_out(schema) };
        let reference = self.refer(name);
        let own = builtin::definition(name).is_none_or(|whole| whole.description != schema.description);
        if schema.description.is_empty() || !own {
            return reference;
        }
        match self.dialect {
            Dialect::V2 => json!({"$ref": reference["$ref"], "description": schema.description}),
            Dialect::V3 => json!({"allOf": [reference], "description": schema.description}),
        }
    }

    fn spelled_out(&mut self, schema: &Schema) -> Value {
        let mut out = Map::new();
        let mut put = |name: &str, value: Value| out.insert(name.to_owned(), value);
        if !schema.description.is_empty() {
            put("description", schema.description.as_str().into());
        }
        // Version 2 knows no null: a field that takes it cannot say anything about its type.
        let typed = self.dialect == Dialect::V3 || !schema.nullable;
        if let Some(ty) = type_name(schema.ty).filter(|_| typed) {
            put("type", ty.into());
        }
        if let Some(format) = &schema.format {
            put("format", format.as_str().into());
        }
        if self.dialect == Dialect::V3 {
            if schema.nullable && schema.ty != Type::Any {
                put("nullable", true.into());
            }
            if let Some(default) = &schema.default {
                put("default", default.clone());
            }
        }
        if !schema.required.is_empty() {
            put("required", schema.required.clone().into());
        }
        limits(schema, &mut out);
        if typed {
            self.below(schema, &mut out);
        }
        if self.dialect == Dialect::V3 {
            self.junctors(schema, &mut out);
        }
        extensions(schema, &mut out);
        Value::Object(out)
    }

    fn below(&mut self, schema: &Schema, out: &mut Map<String, Value>) {
        if !schema.properties.is_empty() {
            let properties: Map<String, Value> =
                schema.properties.iter().map(|(name, property)| (name.clone(), self.node(property))).collect();
            out.insert("properties".to_owned(), properties.into());
        }
        if let Some(items) = &schema.items {
            let items = self.node(items);
            out.insert("items".to_owned(), items);
        }
        match &schema.additional {
            Some(_) if schema.forbid_additional => {
                out.insert("additionalProperties".to_owned(), false.into());
            }
            Some(values) if **values == Schema::anything() => {
                out.insert("additionalProperties".to_owned(), true.into());
            }
            Some(values) => {
                let values = self.node(values);
                out.insert("additionalProperties".to_owned(), values);
            }
            None => {}
        }
    }

    fn junctors(&mut self, schema: &Schema, out: &mut Map<String, Value>) {
        for (name, branches) in [("allOf", &schema.all_of), ("anyOf", &schema.any_of), ("oneOf", &schema.one_of)] {
            if !branches.is_empty() {
                let branches: Vec<Value> = branches.iter().map(|branch| self.spelled_out(branch)).collect();
                out.insert(name.to_owned(), branches.into());
            }
        }
        if let Some(not) = &schema.not {
            let not = self.spelled_out(not);
            out.insert("not".to_owned(), not);
        }
    }
}

/// A group, version and kind as the extension spells it.
pub(super) fn gvk(group: &str, version: &str, kind: &str) -> Value {
    json!({"group": group, "version": version, "kind": kind})
}

fn type_name(ty: Type) -> Option<&'static str> {
    Some(match ty {
        Type::Object => "object",
        Type::Array => "array",
        Type::String => "string",
        Type::Integer => "integer",
        Type::Number => "number",
        Type::Boolean => "boolean",
        Type::IntOrString | Type::Any => return None,
    })
}

fn limits(schema: &Schema, out: &mut Map<String, Value>) {
    let limits = &schema.limits;
    let mut put = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            out.insert(name.to_owned(), value);
        }
    };
    let flag = |set: bool| set.then_some(Value::Bool(true));
    put("minimum", limits.minimum.map(number));
    put("exclusiveMinimum", flag(limits.exclusive_minimum));
    put("maximum", limits.maximum.map(number));
    put("exclusiveMaximum", flag(limits.exclusive_maximum));
    put("multipleOf", limits.multiple_of.map(number));
    put("minLength", limits.min_length.map(Value::from));
    put("maxLength", limits.max_length.map(Value::from));
    put("minItems", limits.min_items.map(Value::from));
    put("maxItems", limits.max_items.map(Value::from));
    put("uniqueItems", flag(limits.unique_items));
    put("minProperties", limits.min_properties.map(Value::from));
    put("maxProperties", limits.max_properties.map(Value::from));
    put("pattern", limits.pattern.as_ref().map(|pattern| pattern.as_str().into()));
    put("enum", limits.enumeration.clone().map(Value::from));
}

fn number(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 1e15 {
        return Value::from(value as i64);
    }
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

fn extensions(schema: &Schema, out: &mut Map<String, Value>) {
    let mut put = |name: &str, value: Value| out.insert(format!("x-kubernetes-{name}"), value);
    if schema.ty == Type::IntOrString {
        put("int-or-string", true.into());
    }
    if schema.preserve_unknown {
        put("preserve-unknown-fields", true.into());
    }
    if schema.embedded_resource {
        put("embedded-resource", true.into());
    }
    match &schema.list {
        ListType::Atomic => {}
        ListType::Set => {
            put("list-type", "set".into());
        }
        ListType::Map(keys) => {
            put("list-type", "map".into());
            put("list-map-keys", keys.clone().into());
        }
    }
    if schema.atomic_map {
        put("map-type", "atomic".into());
    }
    if schema.patch.merge {
        put("patch-strategy", if schema.patch.retain_keys { "merge,retainKeys" } else { "merge" }.into());
    }
    if let Some(key) = &schema.patch.merge_key {
        put("patch-merge-key", key.as_str().into());
    }
    if !schema.rules.is_empty() {
        put("validations", schema.rules.iter().map(rule).collect());
    }
}

fn rule(rule: &Rule) -> Value {
    let mut out = json!({"rule": rule.rule});
    for (name, text) in [
        ("message", &rule.message),
        ("messageExpression", &rule.message_expression),
        ("reason", &rule.reason),
        ("fieldPath", &rule.field_path),
    ] {
        if let Some(text) = text {
            out[name] = text.as_str().into();
        }
    }
    if rule.optional_old_self {
        out["optionalOldSelf"] = true.into();
    }
    out
}
