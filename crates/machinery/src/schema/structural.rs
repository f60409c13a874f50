//! What makes a schema structural: every field has a type, and the logical junctors only restrict values.
//!
//! A structural schema says, without looking at an object, which fields exist. Pruning, defaulting and
//! server-side apply need that; Kubernetes demands it of every custom resource.

use serde_json::Value;

use super::compile::MAX_SCHEMA_DEPTH;
use super::pattern::Pattern;
use super::props::{Additional, Items, Props};
use crate::field::{FieldError, Path};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

/// Errors for everything that is not structural in `openapi`, sorted by their text.
pub fn validate_structural(openapi: &Value, path: &Path) -> Vec<FieldError> {
    let Some(props) = Props::new(openapi) else {
        return vec![FieldError::required(path.clone(), "must be a schema")];
    };
    if let Some(error) = unsupported(openapi, path) {
        return vec![error];
    }
    let mut errors = Vec::new();
    invariants(props, Level::Root, path, &mut errors);
    complete_junctors(props, Some(props), path, path, &mut errors);
    errors.sort_by_cached_key(ToString::to_string);
    errors
}

/// The first keyword that no structural schema has. Everything else here relies on its bound of the depth.
pub(crate) fn unsupported(openapi: &Value, path: &Path) -> Option<FieldError> {
    let found = Props::new(openapi).and_then(|props| unsupported_keyword(props, 0));
    found.map(|what| FieldError::invalid(path.clone(), "", what))
}

fn unsupported_keyword(props: Props<'_>, depth: usize) -> Option<String> {
    if depth >= MAX_SCHEMA_DEPTH {
        return Some("schema is nested too deeply".to_owned());
    }
    let refuse = |name: &str| Some(format!("OpenAPIV3Schema '{name}' is not supported"));
    for (keyword, name) in [("id", "id"), ("$schema", "schema"), ("$ref", "$ref")] {
        if !props.text(keyword).is_empty() {
            return refuse(name);
        }
    }
    for keyword in ["patternProperties", "dependencies", "definitions"] {
        if props.get(keyword).and_then(Value::as_object).is_some_and(|map| !map.is_empty()) {
            return refuse(keyword);
        }
    }
    if props.get("additionalItems").is_some() {
        return refuse("additionalItems");
    }
    if props.get("x-kubernetes-preserve-unknown-fields").is_some_and(|flag| *flag == false) {
        let why = "internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined";
        return Some(why.to_owned());
    }
    let items = match props.items() {
        Items::Tuple => return Some("OpenAPIV3Schema 'items' must be a schema, but is an array".to_owned()),
        Items::Schema(items) => Some(items),
        Items::Absent => None,
    };
    let additional = match props.additional() {
        Additional::Schema(values) => Some(values),
        _ => None,
    };
    let properties = props.properties().map(|(_, property)| property);
    let junctors = ["allOf", "anyOf", "oneOf"].into_iter().flat_map(|name| props.schemas(name));
    let mut below = items.into_iter().chain(additional).chain(properties).chain(junctors).chain(props.schema("not"));
    below.find_map(|schema| unsupported_keyword(schema, depth + 1))
}

/// Every schema under `allOf`, `anyOf`, `oneOf` and `not`, with its path.
fn junctors<'a>(props: Props<'a>, path: &Path) -> Vec<(Props<'a>, Path)> {
    let mut found: Vec<_> = props.schema("not").map(|not| (not, path.child("not"))).into_iter().collect();
    for name in ["allOf", "anyOf", "oneOf"] {
        found.extend(props.schemas(name).enumerate().map(|(i, branch)| (branch, path.child(name).index(i))));
    }
    found
}

fn invariants(props: Props<'_>, level: Level, path: &Path, errors: &mut Vec<FieldError>) {
    match props.items() {
        Items::Schema(items) => invariants(items, Level::Item, &path.child("items"), errors),
        _ if props.ty() == "array" => errors.push(FieldError::required(path.child("items"), "must be specified")),
        _ => {}
    }
    for (name, property) in props.properties() {
        invariants(property, Level::Field, &path.child("properties").key(name), errors);
    }
    let additional = path.child("additionalProperties");
    if !matches!(props.additional(), Additional::Absent) {
        if level == Level::Root {
            errors.push(FieldError::forbidden(additional.clone(), "must not be used at the root"));
        }
        if props.embedded() {
            let why = "must not be used if x-kubernetes-embedded-resource is set";
            errors.push(FieldError::forbidden(additional.clone(), why));
        }
    }
    if let Additional::Schema(values) = props.additional() {
        invariants(values, Level::Field, &additional, errors);
    }
    extensions(props, path, errors);
    let (skip_any, skip_first_all) = int_or_string_patterns(props);
    value_validation(props, skip_any, skip_first_all, path, errors);
    types(props, level, path, errors);
    object_fields(props, level, path, errors);
}

fn extensions(props: Props<'_>, path: &Path, errors: &mut Vec<FieldError>) {
    if !props.int_or_string() {
        return;
    }
    let why = "must be false if x-kubernetes-int-or-string is true";
    for name in ["x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"] {
        if props.flag(name) {
            errors.push(FieldError::invalid(path.child(name), true, why));
        }
    }
}

fn types(props: Props<'_>, level: Level, path: &Path, errors: &mut Vec<FieldError>) {
    let (ty, at) = (props.ty(), path.child("type"));
    if props.embedded() && ty != "object" {
        let why = "must be object if x-kubernetes-embedded-resource is true";
        errors.push(if ty.is_empty() {
            FieldError::required(at.clone(), why)
        } else {
            FieldError::invalid(at.clone(), ty, why)
        });
    } else if ty.is_empty() && !props.int_or_string() && !props.preserve_unknown() {
        let why = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        errors.push(FieldError::required(at.clone(), why));
    }
    if level == Level::Root && !ty.is_empty() && ty != "object" {
        errors.push(FieldError::invalid(at, ty, "must be object at the root"));
    }
}

/// `kind`, `apiVersion` and `metadata` are given; a schema may only repeat them, or restrict names.
fn object_fields(props: Props<'_>, level: Level, path: &Path, errors: &mut Vec<FieldError>) {
    let is_object = level == Level::Root || props.embedded();
    let property_path = |name: &str| path.child("properties").key(name);
    for name in ["kind", "apiVersion"] {
        if let Some(field) = props.property(name).filter(|field| is_object && field.ty() != "string") {
            errors.push(FieldError::invalid(property_path(name).child("type"), field.ty(), "must be string"));
        }
    }
    if let Some(metadata) = props.property("metadata") {
        let at = property_path("metadata");
        if is_object && metadata.ty() != "object" {
            errors.push(FieldError::invalid(at.child("type"), metadata.ty(), "must be object"));
        }
        if level == Level::Root && !only_restricts_names(metadata) {
            let why =
                "must not specify anything other than name and generateName, but metadata is implicitly specified";
            errors.push(FieldError::forbidden(at, why));
        }
    }
    if props.embedded() && !props.preserve_unknown() && props.properties().next().is_none() {
        let why =
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        errors.push(FieldError::required(path.child("properties"), why));
    }
}

fn only_restricts_names(metadata: Props<'_>) -> bool {
    let names_only = metadata.properties().all(|(name, _)| name == "name" || name == "generateName");
    names_only && metadata.keys().all(|key| matches!(key, "type" | "properties" | "default"))
}

/// The two ways of writing an integer-or-string that may name types inside a junctor.
fn int_or_string_patterns(props: Props<'_>) -> (bool, bool) {
    let is_pattern = |at: Props<'_>| {
        let types: Vec<Props<'_>> = at.schemas("anyOf").collect();
        let only = |branch: &Props<'_>, ty: &str| branch.ty() == ty && branch.keys().count() == 1;
        types.len() == 2 && only(&types[0], "integer") && only(&types[1], "string")
    };
    (is_pattern(props), props.schemas("allOf").next().is_some_and(is_pattern))
}

fn value_validation(props: Props<'_>, skip_any: bool, skip_first_all: bool, path: &Path, errors: &mut Vec<FieldError>) {
    for (name, skip) in [("anyOf", skip_any), ("allOf", false), ("oneOf", false)] {
        if skip {
            continue;
        }
        for (i, branch) in props.schemas(name).enumerate() {
            let skip_any = name == "allOf" && i == 0 && skip_first_all;
            nested(branch, skip_any, &path.child(name).index(i), errors);
        }
    }
    if let Some(not) = props.schema("not") {
        nested(not, false, &path.child("not"), errors);
    }
    let pattern = props.text("pattern");
    if !pattern.is_empty()
        && let Err(reason) = Pattern::new(pattern).check()
    {
        let why = format!("must be a valid regular expression, but isn't: {reason}");
        errors.push(FieldError::invalid(path.child("pattern"), pattern, why));
    }
}

/// A schema below a junctor may restrict values, and nothing else.
fn nested(props: Props<'_>, skip_any: bool, path: &Path, errors: &mut Vec<FieldError>) {
    value_validation(props, skip_any, false, path, errors);
    if let Items::Schema(items) = props.items() {
        nested(items, false, &path.child("items"), errors);
    }
    for (name, property) in props.properties() {
        nested(property, false, &path.child("properties").key(name), errors);
    }
    let mut forbid = |name: &str, must: &str, present: bool| {
        if present {
            errors.push(FieldError::forbidden(path.child(name), format!("must be {must} to be structural")));
        }
    };
    forbid("type", "empty", !props.ty().is_empty());
    let additional = matches!(props.additional(), Additional::Allowed | Additional::Schema(_));
    forbid("additionalProperties", "undefined", additional);
    forbid("default", "undefined", props.get("default").is_some());
    for name in ["title", "description"] {
        forbid(name, "empty", !props.text(name).is_empty());
    }
    for name in [
        "nullable",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-embedded-resource",
        "x-kubernetes-int-or-string",
    ] {
        forbid(name, "false", props.flag(name));
    }
    forbid("x-kubernetes-list-map-keys", "empty", !props.list("x-kubernetes-list-map-keys").is_empty());
    forbid("x-kubernetes-list-type", "undefined", props.list_type().is_some());
    forbid("x-kubernetes-map-type", "undefined", props.map_type().is_some());
    forbid("x-kubernetes-validations", "empty", !props.list("x-kubernetes-validations").is_empty());
    if props.property("metadata").is_some() {
        let at = path.child("properties").key("metadata");
        errors.push(FieldError::forbidden(at, "must not be specified in a nested context"));
    }
}

/// What a junctor speaks about must exist outside of it.
fn complete_junctors(
    validation: Props<'_>,
    schema: Option<Props<'_>>,
    schema_path: &Path,
    path: &Path,
    errors: &mut Vec<FieldError>,
) {
    for (branch, at) in junctors(validation, path) {
        complete(branch, schema, schema_path, &at, errors);
    }
}

fn complete(
    validation: Props<'_>,
    schema: Option<Props<'_>>,
    schema_path: &Path,
    path: &Path,
    errors: &mut Vec<FieldError>,
) {
    let Some(schema) = schema else {
        errors.push(FieldError::required(schema_path.clone(), format!("because it is defined in {path}")));
        return;
    };
    complete_junctors(validation, Some(schema), schema_path, path, errors);
    if let Items::Schema(items) = validation.items() {
        let of_schema = match schema.items() {
            Items::Schema(items) => Some(items),
            _ => None,
        };
        complete(items, of_schema, &schema_path.child("items"), &path.child("items"), errors);
    }
    for (name, property) in validation.properties() {
        let at = schema_path.child("properties").key(name);
        complete(property, schema.property(name), &at, &path.child("properties").key(name), errors);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(schema: &Value) -> Vec<String> {
        validate_structural(schema, &Path::new("s")).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn structural_schemas_pass() {
        for schema in [
            json!({"type": "object"}),
            json!({"type": "object", "properties": {"a": {"x-kubernetes-int-or-string": true,
                "anyOf": [{"type": "integer"}, {"type": "string"}]}}}),
            json!({"type": "object", "properties": {"a": {"x-kubernetes-int-or-string": true,
                "allOf": [{"anyOf": [{"type": "integer"}, {"type": "string"}]}, {"pattern": "^a"}]}}}),
            json!({"type": "object", "properties": {"metadata": {"type": "object",
                "properties": {"name": {"type": "string", "pattern": "^a"}}}}}),
            json!({"type": "object", "properties": {"a": {"type": "string"}},
                "oneOf": [{"required": ["a"]}, {"properties": {"a": {"maxLength": 3}}}]}),
        ] {
            assert_eq!(check(&schema), Vec::<String>::new(), "{schema}");
        }
    }

    #[test]
    fn each_rule_has_its_message() {
        for (schema, want) in [
            (json!({}), "s.type: Required value: must not be empty at the root"),
            (
                json!({"type": "array", "items": {"type": "string"}}),
                "s.type: Invalid value: \"array\": must be object at the root",
            ),
            (
                json!({"type": "object", "additionalProperties": {"type": "string"}}),
                "s.additionalProperties: Forbidden: must not be used at the root",
            ),
            (
                json!({"type": "object", "properties": {"a": {}}}),
                "s.properties[a].type: Required value: must not be empty for specified object fields",
            ),
            (
                json!({"type": "object", "properties": {"a": {"type": "array", "items": {}}}}),
                "s.properties[a].items.type: Required value: must not be empty for specified array items",
            ),
            (
                json!({"type": "object", "properties": {"a": {"type": "array"}}}),
                "s.properties[a].items: Required value: must be specified",
            ),
            (
                json!({"type": "object", "properties": {"a": {"type": "string", "anyOf": [{"type": "string"}]}}}),
                "s.properties[a].anyOf[0].type: Forbidden: must be empty to be structural",
            ),
            (
                json!({"type": "object", "properties": {"a": {"type": "string", "not": {"default": 1}}}}),
                "s.properties[a].not.default: Forbidden: must be undefined to be structural",
            ),
            (
                json!({"type": "object", "allOf": [{"properties": {"b": {"minLength": 1}}}]}),
                "s.properties[b]: Required value: because it is defined in s.allOf[0].properties[b]",
            ),
            (
                json!({"type": "object", "properties": {"metadata": {"type": "object", "properties":
                {"labels": {"type": "object"}}}}}),
                "s.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified",
            ),
            (
                json!({"type": "object", "properties": {"kind": {"type": "integer"}}}),
                "s.properties[kind].type: Invalid value: \"integer\": must be string",
            ),
            (
                json!({"type": "object", "properties": {"a": {"type": "object", "x-kubernetes-embedded-resource": true}}}),
                "s.properties[a].properties: Required value: must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
            ),
            (
                json!({"type": "object", "properties": {"a": {"x-kubernetes-int-or-string": true,
                "x-kubernetes-preserve-unknown-fields": true}}}),
                "s.properties[a].x-kubernetes-preserve-unknown-fields: Invalid value: true: must be false if x-kubernetes-int-or-string is true",
            ),
            (
                json!({"type": "object", "properties": {"a": {"$ref": "#/b"}}}),
                "s: Invalid value: \"\": OpenAPIV3Schema '$ref' is not supported",
            ),
            (
                json!({"type": "object", "properties": {"a": {"type": "array", "items": [{"type": "string"}]}}}),
                "s: Invalid value: \"\": OpenAPIV3Schema 'items' must be a schema, but is an array",
            ),
        ] {
            assert_eq!(check(&schema), [want], "{schema}");
        }
    }

    #[test]
    fn a_bad_pattern_is_named() {
        let errors = check(&json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}));
        assert!(errors[0].starts_with(
            "s.properties[a].pattern: Invalid value: \"(\": must be a valid regular expression, but isn't: error parsing regexp: "
        ));
    }
}
