//! From OpenAPI v3 JSON, as a CustomResourceDefinition carries it, to a [`Schema`].

use std::sync::Arc;

use serde_json::Value;

use super::props::{Additional, Items, Props};
use super::{Limits, ListType, Pattern, Rule, Schema, Type, validate_structural};
use crate::builtin;
use crate::field::{FieldError, Path};

/// Nodes on top of each other in one schema. Request bodies cannot nest deeper than this either; it is
/// checked again because a schema is walked recursively for as long as it is stored.
pub const MAX_SCHEMA_DEPTH: usize = 128;

/// Checks that `openapi` is a structural schema and compiles it for objects of that kind: `apiVersion`,
/// `kind` and `metadata` are what Kubernetes says they are, whatever the schema says of them.
pub fn compile(openapi: &Value) -> Result<Arc<Schema>, Vec<FieldError>> {
    let path = Path::new("openAPIV3Schema");
    let errors = validate_structural(openapi, &path);
    if !errors.is_empty() {
        return Err(errors);
    }
    let props = Props::new(openapi).ok_or_else(|| vec![FieldError::required(path.clone(), "must be a schema")])?;
    let mut schema = build(props, &path, 0).map_err(|e| vec![e])?;
    embed_object_fields(&mut schema);
    Ok(Arc::new(schema))
}

/// Compiles one node and everything below it, without asking whether it is structural.
pub(crate) fn build(props: Props<'_>, path: &Path, depth: usize) -> Result<Schema, FieldError> {
    if depth >= MAX_SCHEMA_DEPTH {
        return Err(FieldError::forbidden(path.clone(), "schema is nested too deeply"));
    }
    let child = |props: Props<'_>, name: &str| build(props, &path.child(name), depth + 1).map(Arc::new);
    let branches = |name: &str| -> Result<Vec<Arc<Schema>>, FieldError> {
        props.schemas(name).map(|branch| child(branch, name)).collect()
    };
    let mut schema = Schema {
        ty: type_of(props, path)?,
        nullable: props.flag("nullable"),
        format: Some(props.text("format")).filter(|f| !f.is_empty()).map(str::to_owned),
        description: props.text("description").to_owned(),
        required: props.texts("required").into_iter().map(str::to_owned).collect(),
        default: props.get("default").cloned(),
        preserve_unknown: props.preserve_unknown(),
        embedded_resource: props.embedded(),
        list: list_type(props),
        atomic_map: props.map_type() == Some("atomic"),
        limits: limits(props),
        rules: props.schemas("x-kubernetes-validations").map(rule).collect(),
        all_of: branches("allOf")?,
        any_of: branches("anyOf")?,
        one_of: branches("oneOf")?,
        not: props.schema("not").map(|not| child(not, "not")).transpose()?,
        ..Schema::default()
    };
    for (name, property) in props.properties() {
        let property = build(property, &path.child("properties").key(name), depth + 1)?;
        schema.properties.insert(name.to_owned(), Arc::new(property));
    }
    schema.additional = match props.additional() {
        Additional::Absent => None,
        Additional::Schema(values) => Some(child(values, "additionalProperties")?),
        Additional::Allowed | Additional::Forbidden => Some(Arc::new(Schema { plain: true, ..Schema::anything() })),
    };
    schema.forbid_additional = matches!(props.additional(), Additional::Forbidden);
    schema.items = match props.items() {
        Items::Schema(items) => Some(child(items, "items")?),
        Items::Absent | Items::Tuple => None,
    };
    let below = schema.properties.values().chain(&schema.additional).chain(&schema.items);
    schema.plain = schema.list == ListType::Atomic
        && !schema.embedded_resource
        && schema.definition.is_none()
        && below.clone().all(|node| node.plain);
    schema.has_rules = !schema.rules.is_empty() || below.into_iter().any(|node| node.has_rules);
    if schema.embedded_resource {
        embed_object_fields(&mut schema);
    }
    Ok(schema)
}

fn type_of(props: Props<'_>, path: &Path) -> Result<Type, FieldError> {
    if props.int_or_string() {
        return Ok(Type::IntOrString);
    }
    Ok(match props.ty() {
        "object" => Type::Object,
        "array" => Type::Array,
        "string" => Type::String,
        "integer" => Type::Integer,
        "number" => Type::Number,
        "boolean" => Type::Boolean,
        "" => Type::Any,
        other => {
            let allowed = ["array", "boolean", "integer", "number", "object", "string"];
            return Err(FieldError::not_supported(path.child("type"), other, &allowed));
        }
    })
}

fn list_type(props: Props<'_>) -> ListType {
    match props.list_type() {
        Some("set") => ListType::Set,
        Some("map") => {
            let keys = props.texts("x-kubernetes-list-map-keys");
            ListType::Map(keys.into_iter().map(str::to_owned).collect())
        }
        _ => ListType::Atomic,
    }
}

fn limits(props: Props<'_>) -> Limits {
    Limits {
        minimum: props.number("minimum"),
        exclusive_minimum: props.flag("exclusiveMinimum"),
        maximum: props.number("maximum"),
        exclusive_maximum: props.flag("exclusiveMaximum"),
        multiple_of: props.number("multipleOf"),
        min_length: props.count("minLength"),
        max_length: props.count("maxLength"),
        min_items: props.count("minItems"),
        max_items: props.count("maxItems"),
        unique_items: props.flag("uniqueItems"),
        min_properties: props.count("minProperties"),
        max_properties: props.count("maxProperties"),
        pattern: Some(props.text("pattern")).filter(|p| !p.is_empty()).map(Pattern::new),
        enumeration: Some(props.list("enum")).filter(|e| !e.is_empty()).map(<[Value]>::to_vec),
    }
}

fn rule(props: Props<'_>) -> Rule {
    let optional = |name: &str| Some(props.text(name)).filter(|text| !text.is_empty()).map(str::to_owned);
    Rule {
        rule: props.text("rule").to_owned(),
        message: optional("message"),
        message_expression: optional("messageExpression"),
        reason: optional("reason"),
        field_path: optional("fieldPath"),
        optional_old_self: props.flag("optionalOldSelf"),
        ..Rule::default()
    }
}

/// Gives the root of an object the fields that every object has. What the schema says about
/// `metadata.name` and `metadata.generateName` (and, in an embedded resource, about more) stays in force.
pub(crate) fn embed_object_fields(schema: &mut Schema) {
    schema.plain = false;
    for name in ["apiVersion", "kind"] {
        let known = schema.properties.get(name).is_some_and(|field| field.ty == Type::String);
        if !known {
            schema.properties.insert(name.to_owned(), builtin::type_meta_field(name));
        }
    }
    let standard = builtin::object_meta();
    let described = builtin::type_meta_field("metadata");
    let metadata = match schema.properties.get("metadata") {
        Some(given) if given.definition.is_some() => return,
        Some(given) if !given.properties.is_empty() || !given.rules.is_empty() => {
            let mut merged = Schema::clone(&described);
            for (name, restriction) in &given.properties {
                let mut field = Schema::clone(restriction);
                if let Some(known) = standard.properties.get(name) {
                    field.description.clone_from(&known.description);
                    field.list = known.list.clone();
                    field.patch = known.patch.clone();
                }
                merged.properties.insert(name.clone(), Arc::new(field));
            }
            merged.rules.clone_from(&given.rules);
            merged.required.clone_from(&given.required);
            Arc::new(merged)
        }
        _ => described,
    };
    schema.properties.insert("metadata".to_owned(), metadata);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn everything_a_node_can_say_is_read() {
        let schema = compile(&json!({
            "type": "object",
            "properties": {"spec": {"type": "object", "required": ["size"], "properties": {
                "size": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]},
                "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
                "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port"],
                    "items": {"type": "object", "required": ["port"],
                        "properties": {"port": {"type": "integer", "minimum": 1, "maximum": 65535}}}},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}, "x-kubernetes-map-type": "atomic"},
                "any": {"x-kubernetes-preserve-unknown-fields": true},
                "mode": {"type": "string", "enum": ["a", "b"], "default": "a", "nullable": true, "pattern": "^[ab]$"},
            }, "x-kubernetes-validations": [{"rule": "self.size > 0", "message": "no", "optionalOldSelf": true}]}},
        }))
        .unwrap();
        let spec = &schema.properties["spec"];
        assert_eq!(spec.required, ["size"]);
        assert_eq!(spec.rules[0].rule, "self.size > 0");
        assert!(spec.rules[0].optional_old_self);
        assert_eq!(spec.properties["size"].ty, Type::IntOrString);
        assert_eq!(spec.properties["tags"].list, ListType::Set);
        assert_eq!(spec.properties["ports"].list, ListType::Map(vec!["port".to_owned()]));
        let port = &spec.properties["ports"].items.as_ref().unwrap().properties["port"];
        assert_eq!((port.limits.minimum, port.limits.maximum), (Some(1.0), Some(65535.0)));
        assert!(spec.properties["labels"].atomic_map);
        assert_eq!(spec.properties["labels"].additional.as_ref().unwrap().ty, Type::String);
        assert!(spec.properties["any"].preserve_unknown);
        assert_eq!(spec.properties["mode"].default, Some(json!("a")));
        assert!(spec.properties["mode"].nullable);
    }

    #[test]
    fn objects_have_the_metadata_of_kubernetes() {
        let schema = compile(&json!({"type": "object", "properties": {"metadata": {"type": "object",
            "properties": {"name": {"type": "string", "maxLength": 10}}}}}))
        .unwrap();
        let metadata = &schema.properties["metadata"];
        assert_eq!(metadata.properties["name"].limits.max_length, Some(10));
        assert_eq!(metadata.properties["finalizers"].list, ListType::Set);
        assert_eq!(schema.properties["apiVersion"].ty, Type::String);
    }

    #[test]
    fn a_schema_that_never_ends_is_refused() {
        let mut value = json!({"type": "string"});
        for _ in 0..=MAX_SCHEMA_DEPTH {
            value = json!({"type": "object", "properties": {"a": value}});
        }
        let errors = compile(&value).unwrap_err();
        assert!(errors[0].to_string().contains("nested too deeply"), "{errors:?}");
    }
}
