//! From a body to an object of the resource: readable, of the right kind, in the right namespace, with the fields
//! that the schema knows. What is wrong is told in the words of Kubernetes' decoders.

use serde_json::Value;
use tether_machinery::field::{FieldError, Path};
use tether_machinery::status::{ApiError, Named};
use tether_machinery::{json, kinds};

use super::Context;
use crate::body::{self, Decoded};
use crate::object::meta_str;
use crate::options::{FieldValidation, WriteOptions};
use crate::resource::{Reading, Resource};

/// How much of a body that makes no sense is shown.
const SUMMARY_BYTES: usize = 30;
/// What Go calls the part of a body that says what it is.
const TYPE_META: &str =
    r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;

/// The body as an object of this resource, unknown fields treated as the request wishes.
pub(super) fn object(cx: &Context<'_>, options: &WriteOptions) -> Result<Value, ApiError> {
    let (api_version, kind) = cx.resource.body_kind(&cx.info.subresource);
    let Decoded { value: mut object, complaints } = recognized(cx, &kind)?;
    check_kind(cx, &mut object, &api_version, &kind)?;
    let version = api_version.rsplit('/').next().unwrap_or_default();
    clean(cx, &mut object, complaints, options.validation, Reading::Text)
        .map_err(|why| ApiError::bad_request(misfit(&kind, version, &kind, &why)))?;
    check_namespace(cx, &mut object)?;
    Ok(object)
}

/// The words for a body of one kind that cannot be taken for another, or not for itself.
fn misfit(given: &str, version: &str, expected: &str, why: &str) -> String {
    format!("{given} in version {version:?} cannot be handled as a {expected}: {why}")
}

/// The body, if it is a document that could be of some kind.
fn recognized(cx: &Context<'_>, kind: &str) -> Result<Decoded, ApiError> {
    let unrecognized = |why: &str| {
        let summary = summary(&cx.body);
        ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): {why} ({summary})"
        ))
    };
    let mut decoded = match body::decode(cx.headers, &cx.body) {
        Ok(decoded) => decoded,
        Err(error) if error.code == 400 && body::is_json(cx.headers) => {
            return Err(unrecognized(&parse_error(&error.message)));
        }
        Err(error) => {
            return Err(match error.message.strip_prefix(body::YAML_ERROR) {
                Some(why) => unrecognized(why),
                None => error,
            });
        }
    };
    if cx.resource.is_custom() && kind == cx.resource.kind && meta_is_missing(&decoded.value, "kind") {
        let text = String::from_utf8_lossy(&cx.body);
        return Err(unrecognized(&format!("Object 'Kind' is missing in '{text}'")));
    }
    if decoded.value.is_null() {
        decoded.value = serde_json::json!({});
    }
    if !decoded.value.is_object() {
        return Err(unrecognized(&not_an_object(&decoded.value)));
    }
    for field in ["apiVersion", "kind"] {
        let found = decoded.value.get(field).filter(|value| !value.is_null() && !value.is_string());
        if let Some(found) = found.map(json::go_kind) {
            let why = format!("json: cannot unmarshal {found} into Go struct field .{field} of type string");
            return Err(unrecognized(&parse_error(&why)));
        }
    }
    Ok(decoded)
}

fn meta_is_missing(value: &Value, field: &str) -> bool {
    value.is_null()
        || (value.is_object() && value[field].as_str().is_none_or(str::is_empty) && !value[field].is_number())
}

fn parse_error(why: &str) -> String {
    format!("couldn't get version/kind; json parse error: {why}")
}

/// What the decoder says to a value that is no object.
pub(super) fn not_an_object(value: &Value) -> String {
    parse_error(&format!("json: cannot unmarshal {} into Go value of type {TYPE_META}", json::go_kind(value)))
}

/// The beginning of a body; what does not begin like JSON is shown in hexadecimal digits.
fn summary(body: &[u8]) -> String {
    let (start, more) = match body.get(..SUMMARY_BYTES) {
        Some(start) if body.len() > SUMMARY_BYTES => (start, " ..."),
        _ => (body, ""),
    };
    match body.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => format!("{}{more}", String::from_utf8_lossy(start)),
        Some(_) => start.iter().map(|byte| format!("{byte:02x}")).chain([more.to_owned()]).collect::<Vec<_>>().concat(),
    }
}

/// A body that does not say what it is, is what the path says; one that does must agree.
fn check_kind(cx: &Context<'_>, object: &mut Value, api_version: &str, kind: &str) -> Result<(), ApiError> {
    let (resource, mut given) = (&cx.resource, [api_version.to_owned(), kind.to_owned()]);
    for (field, given) in ["apiVersion", "kind"].into_iter().zip(&mut given) {
        match object.get(field).and_then(Value::as_str) {
            None | Some("") => object[field] = given.as_str().into(),
            Some(text) => text.clone_into(given),
        }
    }
    let [given_version, given_kind] = given;
    let (given, expected) = ((given_version.as_str(), given_kind.as_str()), (api_version, kind));
    let other_version = || {
        ApiError::bad_request(format!(
            "the API version in the data ({given_version}) does not match the expected API version ({api_version})"
        ))
    };
    match (given_version == api_version, given_kind == kind) {
        (true, true) => Ok(()),
        (false, _) if resource.is_custom() => Err(other_version()),
        (true, false) if resource.is_custom() => Err(other_kind(given, expected, meta_str(object, "name"))),
        _ => {
            let (group, version) = given_version.split_once('/').unwrap_or(("", &given_version));
            // Two faces of one kind: readable, but not at this path.
            if kinds::by_kind(group, version, &given_kind).is_some_and(|k| k.storage_resource() == resource.storage) {
                return Err(other_version());
            }
            let why = unknown_kind(resource, given, kind);
            Err(ApiError::bad_request(misfit(&given_kind, version, kind, &why)))
        }
    }
}

/// 422 for a custom object that says it is something else; errors then call it what it says.
pub(super) fn other_kind(given: (&str, &str), expected: (&str, &str), name: &str) -> ApiError {
    let mut errors = Vec::new();
    for (field, given, expected) in [("apiVersion", given.0, expected.0), ("kind", given.1, expected.1)] {
        if given != expected {
            errors.push(FieldError::invalid(Path::new(field), given, format!("must be {expected}")));
        }
    }
    let group = given.0.split_once('/').map_or("", |(group, _)| group);
    ApiError::invalid(Named { group, resource: given.1, name }, &errors)
}

/// Why an object of one kind is not read as one of another.
pub(super) fn unknown_kind(resource: &Resource, (api_version, given): (&str, &str), kind: &str) -> String {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    match kinds::by_kind(group, version, given) {
        Some(_) => {
            let package = internal_package(&resource.group);
            format!("converting ({version}.{given}) to ({package}.{kind}): unknown conversion")
        }
        None => format!(
            "no kind {given:?} is registered for version {api_version:?} in scheme \"pkg/api/legacyscheme/scheme.go:30\""
        ),
    }
}

/// A write to a path is about the object of that name.
pub(super) fn check_name(cx: &Context<'_>, object: &Value) -> Result<(), ApiError> {
    let (name, namespace, at) = (meta_str(object, "name"), meta_str(object, "namespace"), &cx.info.name);
    if name.is_empty() {
        let why = format!("the name of the object ({at} based on URL) was undeterminable: name must be provided");
        return Err(ApiError::bad_request(why));
    }
    if name != at {
        let why = format!("the name of the object ({name}) does not match the name on the URL ({at})");
        return Err(ApiError::bad_request(why));
    }
    if cx.resource.namespaced && !namespace.is_empty() && namespace != cx.info.namespace {
        return Err(other_namespace());
    }
    Ok(())
}

fn other_namespace() -> ApiError {
    ApiError::bad_request("the namespace of the provided object does not match the namespace sent on the request")
}

/// The name of the package in which a group's types are defined upstream.
fn internal_package(group: &str) -> &str {
    match group {
        "" | "events.k8s.io" => "core",
        group => group.split('.').next().unwrap_or_default(),
    }
}

fn check_namespace(cx: &Context<'_>, object: &mut Value) -> Result<(), ApiError> {
    if !cx.resource.namespaced {
        return Ok(());
    }
    match meta_str(object, "namespace") {
        "" => object["metadata"]["namespace"] = cx.info.namespace.as_str().into(),
        given if given == cx.info.namespace => {}
        _ => return Err(other_namespace()),
    }
    Ok(())
}

/// Drops what the schema does not know, and complains as the request wishes: with warnings, or with the error that
/// a strict decoder makes of them. A value of the wrong type is an error in any case.
pub(super) fn clean(
    cx: &Context<'_>,
    object: &mut Value,
    mut complaints: Vec<String>,
    validation: FieldValidation,
    reading: Reading,
) -> Result<(), String> {
    let unknown = cx.resource.clean(&cx.info.subresource, object, reading)?;
    complaints.extend(unknown.iter().map(|path| json::unknown_field(path)));
    match validation {
        FieldValidation::Ignore => {}
        FieldValidation::Strict if !complaints.is_empty() => return Err(json::strict_decoding_error(&complaints)),
        FieldValidation::Warn | FieldValidation::Strict => cx.warnings.add(complaints),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_short_and_printable() {
        assert_eq!(summary(b""), "<empty>");
        assert_eq!(summary(b"{\n"), "{\n");
        assert_eq!(summary(&[b'{'; 31]), format!("{} ...", "{".repeat(30)));
        assert_eq!(summary(b"\x00\xff"), "00ff");
    }

    #[test]
    fn packages_are_named_after_their_group() {
        assert_eq!(internal_package(""), "core");
        assert_eq!(internal_package("storage.k8s.io"), "storage");
    }
}
