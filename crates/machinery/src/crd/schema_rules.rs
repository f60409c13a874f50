//! What the schema of a custom resource may say beyond being structural: where defaults may stand, how list
//! and map types fit together, which rules compile.

use std::collections::BTreeSet;

use serde_json::Value;

use super::defaults;
use crate::field::{ErrorKind, FieldError, Path};
use crate::schema::cel::{self, field_path};
use crate::schema::{
    Additional, Items, Props, Rule, Schema, build, embed_object_fields, is_known_format, unsupported,
    validate_structural,
};

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
const REASONS: [&str; 4] = ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

/// Keywords that may stand at the root when `status` is a subresource, by the names that Kubernetes lists:
/// whatever restricts the root would be lost when the status is validated alone.
const ALLOWED_AT_ROOT: [(&str, &str); 22] = [
    ("description", "Description"),
    ("type", "Type"),
    ("format", "Format"),
    ("title", "Title"),
    ("maximum", "Maximum"),
    ("exclusiveMaximum", "ExclusiveMaximum"),
    ("minimum", "Minimum"),
    ("exclusiveMinimum", "ExclusiveMinimum"),
    ("maxLength", "MaxLength"),
    ("minLength", "MinLength"),
    ("pattern", "Pattern"),
    ("maxItems", "MaxItems"),
    ("minItems", "MinItems"),
    ("uniqueItems", "UniqueItems"),
    ("multipleOf", "MultipleOf"),
    ("required", "Required"),
    ("items", "Items"),
    ("properties", "Properties"),
    ("externalDocs", "ExternalDocs"),
    ("example", "Example"),
    ("x-kubernetes-preserve-unknown-fields", "XPreserveUnknownFields"),
    ("x-kubernetes-validations", "XValidations"),
];

/// Checks the schema in `validation` (`{"openAPIV3Schema": …}`), which stands at `path`.
pub(super) fn validate(validation: &Value, has_status: bool, path: &Path, errors: &mut Vec<FieldError>) {
    let openapi = &validation["openAPIV3Schema"];
    let Some(props) = Props::new(openapi) else { return };
    let path = path.child("openAPIV3Schema");
    let mut found = Vec::new();
    if has_status {
        root_keywords(props, openapi, &path, &mut found);
    }
    if props.flag("nullable") {
        found.push(FieldError::forbidden(path.child("nullable"), "nullable cannot be true at the root"));
    }
    let unsupported = unsupported(openapi, &path);
    let mut compiled = None;
    if unsupported.is_none() {
        let structural = validate_structural(openapi, &path);
        if structural.is_empty() {
            // What makes it fail to compile is reported below.
            if let Ok(mut schema) = build(props, &path, 0) {
                embed_object_fields(&mut schema);
                let wrong = defaults::validate(&schema, &path);
                compiled = wrong.is_empty().then_some(schema);
                found.extend(wrong);
            }
        } else {
            found.extend(structural);
        }
    }
    let at = At { root: true, ..At::default() };
    let findings = walk(props, &path, &at, compiled.as_ref(), 0);
    found.extend(findings.schema);
    found.extend(findings.rules);
    if found.is_empty() {
        found.extend(unsupported);
    }
    errors.extend(found);
}

fn root_keywords(props: Props<'_>, openapi: &Value, path: &Path, errors: &mut Vec<FieldError>) {
    let allowed = |key: &str| ALLOWED_AT_ROOT.iter().any(|(name, _)| *name == key);
    let ty = props.ty();
    if !ty.is_empty() && ty != "object" {
        let why =
            "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
        errors.push(FieldError::invalid(path.child("type"), ty, why));
    } else if !props.keys().all(allowed) {
        let names: Vec<&str> = ALLOWED_AT_ROOT.iter().map(|(_, name)| *name).collect();
        let why = format!(
            "only [{}] fields are allowed at the root of the schema if the status subresource is enabled",
            names.join(" ")
        );
        errors.push(FieldError::invalid(path.clone(), openapi.clone(), why));
    }
}

/// Errors about schemas, and errors about rules, which are only looked for where there are none of the former.
#[derive(Default)]
struct Findings {
    schema: Vec<FieldError>,
    rules: Vec<FieldError>,
}

impl Findings {
    fn merge(&mut self, other: Findings) {
        self.schema.extend(other.schema);
        self.rules.extend(other.rules);
    }
}

/// What a node is inside of.
#[derive(Clone, Default)]
struct At {
    root: bool,
    inside_metadata: bool,
    /// Why there may be no default here.
    no_defaults: Option<String>,
    /// The closest list or map around whose elements have no identity across an update.
    uncorrelatable: Option<Path>,
}

fn walk(props: Props<'_>, path: &Path, at: &At, compiled: Option<&Schema>, depth: usize) -> Findings {
    let mut found = Findings::default();
    if depth >= crate::schema::MAX_SCHEMA_DEPTH {
        found.schema.push(FieldError::forbidden(path.clone(), "schema is nested too deeply"));
        return found;
    }
    keywords(props, path, at, &mut found.schema);
    children(props, path, at, compiled, depth, &mut found);
    extensions(props, path, &mut found.schema);
    rule_texts(props, path, compiled, &mut found.schema);
    if found.schema.is_empty()
        && let Some(compiled) = compiled
    {
        compile_rules(props, path, at, compiled, &mut found.rules);
    }
    found
}

fn keywords(props: Props<'_>, path: &Path, at: &At, errors: &mut Vec<FieldError>) {
    let mut forbid = |name: &str, why: &str| errors.push(FieldError::forbidden(path.child(name), why));
    if props.get("default").is_some()
        && let Some(reason) = &at.no_defaults
    {
        forbid("default", &format!("must not be set {reason}"));
    }
    for (keyword, shown) in [("id", "id"), ("additionalItems", "additionalItems"), ("$ref", "$ref")] {
        if props.get(keyword).is_some_and(|value| *value != "" || keyword == "$ref") {
            forbid(shown, &format!("{shown} is not supported"));
        }
    }
    for keyword in ["patternProperties", "definitions", "dependencies"] {
        if props.get(keyword).and_then(Value::as_object).is_some_and(|map| !map.is_empty()) {
            forbid(keyword, &format!("{keyword} is not supported"));
        }
    }
    if props.ty() == "null" {
        forbid("type", "type cannot be set to null, use nullable as an alternative");
    }
    if matches!(props.items(), Items::Tuple) {
        forbid("items", "items must be a schema object and not an array");
    }
    if at.inside_metadata && props.embedded() {
        forbid("x-kubernetes-embedded-resource", "must not be used inside of resource meta");
    }
    if props.flag("uniqueItems") {
        let why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        forbid("uniqueItems", why);
    }
    let ty = props.ty();
    if !ty.is_empty() && !TYPES.contains(&ty) {
        errors.push(FieldError::not_supported(path.child("type"), ty, &TYPES));
    }
    if props.get("x-kubernetes-preserve-unknown-fields").is_some_and(|flag| *flag == false) {
        let at = path.child("x-kubernetes-preserve-unknown-fields");
        errors.push(FieldError::invalid(at, false, "must be true or undefined"));
    }
}

fn children(props: Props<'_>, path: &Path, at: &At, compiled: Option<&Schema>, depth: usize, found: &mut Findings) {
    let inner = At { root: false, ..at.clone() };
    let has_properties = props.properties().next().is_some();
    let additional = path.child("additionalProperties");
    if has_properties && matches!(props.additional(), Additional::Forbidden | Additional::Schema(_)) {
        let why = "additionalProperties and properties are mutual exclusive";
        found.schema.push(FieldError::forbidden(additional.clone(), why));
    }
    if let Additional::Schema(values) = props.additional() {
        let mut below = inner.clone();
        if at.inside_metadata {
            below.no_defaults = Some("inside additionalProperties applying to object metadata".to_owned());
        }
        let node = compiled.and_then(|schema| schema.additional.as_deref());
        found.merge(walk(values, &additional, &below, node, depth + 1));
    }
    for (name, property) in props.properties() {
        let mut below = inner.clone();
        if (at.root || props.embedded()) && matches!(name, "metadata" | "kind" | "apiVersion") {
            below.inside_metadata = true;
            if at.root {
                below.no_defaults = Some(format!("in top-level {name}"));
            }
        }
        let node = compiled.and_then(|schema| schema.properties.get(name)).map(AsRef::as_ref);
        found.merge(walk(property, &path.child("properties").key(name), &below, node, depth + 1));
    }
    if let Some(not) = props.schema("not") {
        found.merge(walk(not, &path.child("not"), &inner, None, depth + 1));
    }
    for junctor in ["allOf", "oneOf", "anyOf"] {
        for (i, branch) in props.schemas(junctor).enumerate() {
            found.merge(walk(branch, &path.child(junctor).index(i), &inner, None, depth + 1));
        }
    }
    if let Items::Schema(items) = props.items() {
        let mut below = inner;
        if props.list_type() != Some("map") {
            below.uncorrelatable.get_or_insert_with(|| path.clone());
        }
        let node = compiled.and_then(|schema| schema.items.as_deref());
        found.merge(walk(items, &path.child("items"), &below, node, depth + 1));
    }
}

fn required_or_invalid(path: Path, value: &str, why: &str) -> FieldError {
    if value.is_empty() { FieldError::required(path, why) } else { FieldError::invalid(path, value, why) }
}

/// List and map types: on lists and maps, with keys that exist, of elements that can be told apart.
fn extensions(props: Props<'_>, path: &Path, errors: &mut Vec<FieldError>) {
    let (list_type, map_type) = (props.list_type(), props.map_type());
    let list_at = path.child("x-kubernetes-list-type");
    if map_type.is_some() && props.ty() != "object" {
        let why = "must be object if x-kubernetes-map-type is specified";
        errors.push(required_or_invalid(path.child("type"), props.ty(), why));
    }
    if let Some(other) = map_type.filter(|ty| !matches!(*ty, "atomic" | "granular")) {
        errors.push(unsupported_value(path.child("x-kubernetes-map-type"), other, &["atomic", "granular"]));
    }
    if list_type.is_some() && props.ty() != "array" {
        let why = "must be array if x-kubernetes-list-type is specified";
        errors.push(required_or_invalid(path.child("type"), props.ty(), why));
    } else if list_type == Some("set")
        && let Items::Schema(items) = props.items()
    {
        set_items(items, &path.child("items"), errors);
    }
    if let Some(other) = list_type.filter(|ty| !matches!(*ty, "atomic" | "set" | "map")) {
        errors.push(unsupported_value(list_at.clone(), other, &["atomic", "set", "map"]));
    }
    let keys = props.texts("x-kubernetes-list-map-keys");
    if !keys.is_empty() && list_type != Some("map") {
        let why = "must be map if x-kubernetes-list-map-keys is non-empty";
        errors.push(required_or_invalid(list_at, list_type.unwrap_or_default(), why));
    }
    if list_type == Some("map") {
        map_keys(props, &keys, path, errors);
    }
    if let (Some(kind @ ("set" | "map")), Items::Schema(items)) = (list_type, props.items()) {
        identifiable_items(kind, items, &keys, &path.child("items"), errors);
    }
}

/// The order in which Kubernetes names the values here is not the alphabet's.
fn unsupported_value(path: Path, value: &str, allowed: &[&str]) -> FieldError {
    let names: Vec<String> = allowed.iter().map(|name| format!("{name:?}")).collect();
    let detail = format!("supported values: {}", names.join(", "));
    FieldError { kind: ErrorKind::NotSupported, path, value: Some(value.into()), detail }
}

fn set_items(items: Props<'_>, path: &Path, errors: &mut Vec<FieldError>) {
    let why = "must be atomic as item of a list with x-kubernetes-list-type=set";
    let list_type = items.list_type().map_or(Value::Null, Value::from);
    match items.ty() {
        "array" if items.list_type().is_some_and(|ty| ty != "atomic") => {
            errors.push(FieldError::invalid(path.child("x-kubernetes-list-type"), list_type, why));
        }
        "object" if items.map_type() != Some("atomic") => {
            errors.push(FieldError::invalid(path.child("x-kubernetes-map-type"), list_type, why));
        }
        _ => {}
    }
}

fn map_keys(props: Props<'_>, keys: &[&str], path: &Path, errors: &mut Vec<FieldError>) {
    let keys_at = path.child("x-kubernetes-list-map-keys");
    if keys.is_empty() {
        errors.push(FieldError::required(keys_at.clone(), "must not be empty if x-kubernetes-list-type is map"));
    }
    let Items::Schema(items) = props.items() else {
        let why = "must have a schema if x-kubernetes-list-type is map";
        errors.push(FieldError::required(path.child("items"), why));
        return;
    };
    let items_at = path.child("items");
    if items.ty() != "object" {
        let why = "must be object if parent array's x-kubernetes-list-type is map";
        errors.push(FieldError::invalid(items_at.child("type"), items.ty(), why));
        return;
    }
    let mut seen = BTreeSet::new();
    for key in keys {
        match items.property(key) {
            Some(property) if matches!(property.ty(), "array" | "object") => {
                let why = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                let at = items_at.child("properties").key(key).child("type");
                errors.push(FieldError::invalid(at, items.ty(), why));
            }
            Some(_) => {}
            None => {
                let why = "entries must all be names of item properties";
                errors.push(FieldError::invalid(keys_at.clone(), keys.to_vec(), why));
            }
        }
        if !seen.insert(key) {
            errors.push(FieldError::invalid(keys_at.clone(), keys.to_vec(), "must not contain duplicate entries"));
        }
    }
}

fn identifiable_items(kind: &str, items: Props<'_>, keys: &[&str], path: &Path, errors: &mut Vec<FieldError>) {
    if items.flag("nullable") {
        let why = format!("cannot be nullable when x-kubernetes-list-type is {kind}");
        errors.push(FieldError::forbidden(path.child("nullable"), why));
    }
    if kind != "map" {
        return;
    }
    let required = items.texts("required");
    for key in keys {
        let Some(property) = items.property(key) else { continue };
        let at = path.child("properties").key(key);
        if !required.contains(key) && property.get("default").is_none() {
            let why =
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            errors.push(FieldError::required(at.child("default"), why));
        }
        if property.flag("nullable") {
            let why = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            errors.push(FieldError::forbidden(at.child("nullable"), why));
        }
    }
}

/// The parts of a rule that are not expressions.
fn rule_texts(props: Props<'_>, path: &Path, compiled: Option<&Schema>, errors: &mut Vec<FieldError>) {
    let has_newline = |text: &str| text.contains(['\n', '\r']);
    for (i, rule) in props.schemas("x-kubernetes-validations").enumerate() {
        let at = path.child("x-kubernetes-validations").index(i);
        let (expression, message) = (rule.text("rule").trim(), rule.text("message"));
        if expression.is_empty() {
            errors.push(FieldError::required(at.child("rule"), "rule is not specified"));
        } else if !message.is_empty() && message.trim().is_empty() {
            errors.push(FieldError::invalid(at.child("message"), message, "must be non-empty if specified"));
        } else if has_newline(message.trim()) {
            errors.push(FieldError::invalid(at.child("message"), message, "must not contain line breaks"));
        } else if has_newline(expression) && message.trim().is_empty() {
            let why = "message must be specified if rule contains line breaks";
            errors.push(FieldError::required(at.child("message"), why));
        }
        let message_expression = rule.text("messageExpression");
        if !message_expression.is_empty() && message_expression.trim().is_empty() {
            let why = "messageExpression must be non-empty if specified";
            errors.push(FieldError::required(at.child("messageExpression"), why));
        }
        if let Some(reason) = rule.get("reason").and_then(Value::as_str).filter(|reason| !REASONS.contains(reason)) {
            errors.push(FieldError::not_supported(at.child("reason"), reason, &REASONS));
        }
        let field = rule.text("fieldPath");
        if !field.is_empty() {
            let mut invalid = |why: &str| errors.push(FieldError::invalid(at.child("fieldPath"), field, why));
            if field.trim().is_empty() {
                invalid("must be non-empty if specified");
            }
            if has_newline(field) {
                invalid("must not contain line breaks");
            }
            if compiled.is_some_and(|schema| field_path::resolve(field, schema, true).is_err()) {
                invalid("must be a valid path");
            }
        }
    }
}

fn compile_rules(props: Props<'_>, path: &Path, at: &At, compiled: &Schema, errors: &mut Vec<FieldError>) {
    for (i, (rule, given)) in compiled.rules.iter().zip(props.list("x-kubernetes-validations")).enumerate() {
        let here = path.child("x-kubernetes-validations").index(i);
        let checked = cel::check(rule, compiled, at.root);
        let complain = |name: &str, why: String| FieldError {
            kind: ErrorKind::Invalid,
            path: here.child(name),
            value: None,
            detail: format!("{}: {why}", shown(rule, given)),
        };
        errors.extend(checked.rule_error.map(|why| complain("rule", why)));
        errors.extend(checked.message_error.map(|why| complain("messageExpression", why)));
        if checked.uses_old_self {
            if let Some(around) = &at.uncorrelatable {
                let why = format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {around}");
                errors.push(FieldError::invalid(here.child("rule"), rule.rule.as_str(), why));
            }
        } else if let Some(flag) = given.get("optionalOldSelf").filter(|flag| flag.is_boolean()) {
            let why = "may not be set if oldSelf is not used in rule";
            errors.push(FieldError::invalid(here.child("optionalOldSelf"), flag.clone(), why));
        }
    }
}

/// A rule as Kubernetes prints it: the fields of its internal type, in their order.
fn shown(rule: &Rule, given: &Value) -> String {
    let text = |value: &Option<String>| go_json(&value.as_deref().unwrap_or_default().into());
    let optional = |name: &str| go_json(given.get(name).unwrap_or(&Value::Null));
    format!(
        "{{\"Rule\":{},\"Message\":{},\"MessageExpression\":{},\"Reason\":{},\"FieldPath\":{},\"OptionalOldSelf\":{}}}",
        go_json(&rule.rule.as_str().into()),
        text(&rule.message),
        text(&rule.message_expression),
        optional("reason"),
        text(&rule.field_path),
        optional("optionalOldSelf"),
    )
}

/// JSON as Go writes it: fit for a web page.
fn go_json(value: &Value) -> String {
    value.to_string().replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

/// `Warning` headers for a definition that is valid but will not do what it says.
pub fn warnings(crd: &Value) -> Vec<String> {
    let (mut formats, mut sets) = (Vec::new(), BTreeSet::new());
    let versions = crd["spec"]["versions"].as_array().map_or(&[][..], Vec::as_slice);
    let mut schemas: Vec<&Value> = Vec::new();
    for version in versions {
        let schema = &version["schema"]["openAPIV3Schema"];
        if !schemas.contains(&schema) {
            schemas.push(schema);
        }
    }
    for props in schemas.into_iter().filter_map(Props::new) {
        collect_warnings(props, 0, &mut formats, &mut sets);
    }
    formats.into_iter().chain(sets).collect()
}

fn collect_warnings(props: Props<'_>, depth: usize, formats: &mut Vec<String>, sets: &mut BTreeSet<String>) {
    if depth >= crate::schema::MAX_SCHEMA_DEPTH {
        return;
    }
    let format = props.text("format");
    let recognized = match props.ty() {
        "" | "string" => is_known_format(format),
        "integer" => matches!(format, "int32" | "int64"),
        "number" => matches!(format, "float" | "double"),
        _ => false,
    };
    if !format.is_empty() && !recognized {
        formats.push(format!("unrecognized format {format:?}"));
    }
    let mut below: Vec<Props<'_>> = props.properties().map(|(_, property)| property).collect();
    if let Items::Schema(items) = props.items() {
        if props.list_type() == Some("set") && matches!(items.ty(), "object" | "array") {
            sets.insert(format!(
                "x-kubernetes-list-type: set for items of type {:?} is not supported by server-side apply or CEL validation rules",
                items.ty()
            ));
        }
        below.push(items);
    }
    if let Additional::Schema(values) = props.additional() {
        below.push(values);
    }
    below.extend(props.schema("not"));
    below.extend(["allOf", "anyOf", "oneOf"].into_iter().flat_map(|name| props.schemas(name)));
    for schema in below {
        collect_warnings(schema, depth + 1, formats, sets);
    }
}
