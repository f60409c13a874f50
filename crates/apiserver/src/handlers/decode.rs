//! From a body to an object of the resource: readable, of the right kind, in the right namespace, with the fields
//! that the schema knows. What is wrong is told in the words of Kubernetes' decoders.

use serde_json::Value;
use tether_machinery::field::{FieldError, Path};
use tether_machinery::status::ApiError;
use tether_machinery::{json, kinds};

use super::Context;
use crate::body::{self, Decoded};
use crate::object::meta_str;
use crate::options::{FieldValidation, WriteOptions};

/// How much of a body that makes no sense is shown.
const SUMMARY_BYTES: usize = 30;
/// What Go calls the part of a body that says what it is.
const TYPE_META: &str =
    r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;

/// The body as an object of this resource, unknown fields treated as the request wishes. Returns the warnings for
/// them.
pub(super) fn object(cx: &Context<'_>, options: &WriteOptions) -> Result<(Value, Vec<String>), ApiError> {
    let (api_version, kind) = cx.resource.body_kind(&cx.info.subresource);
    let Decoded { value: mut object, complaints } = recognized(cx, &kind)?;
    check_kind(cx, &mut object, &api_version, &kind)?;
    let version = api_version.rsplit('/').next().unwrap_or_default();
    let complaints = clean(cx, &mut object, complaints, options.validation)
        .map_err(|why| ApiError::bad_request(misfit(&kind, version, &kind, &why)))?;
    check_namespace(cx, &mut object)?;
    Ok((object, complaints))
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
            "the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; {why} ({summary})"
        ))
    };
    match body::decode(cx.headers, &cx.body) {
        Ok(decoded) if decoded.value.is_object() => Ok(decoded),
        Ok(decoded) => {
            let found = json::go_kind(&decoded.value);
            let why = format!("json parse error: json: cannot unmarshal {found} into Go value of type {TYPE_META}");
            Err(unrecognized(&why))
        }
        Err(error) if error.code == 400 && body::is_json(cx.headers) => {
            Err(unrecognized(&format!("json parse error: {}", error.message)))
        }
        Err(error) => Err(error),
    }
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
    let other_version = || {
        ApiError::bad_request(format!(
            "the API version in the data ({given_version}) does not match the expected API version ({api_version})"
        ))
    };
    match (given_version == api_version, given_kind == kind) {
        (true, true) => Ok(()),
        (false, _) if resource.is_custom() => Err(other_version()),
        (true, false) if resource.is_custom() => {
            let why = FieldError::invalid(Path::new("kind"), given_kind.as_str(), format!("must be {kind}"));
            Err(ApiError::invalid(resource.kind_named(meta_str(object, "name")), &[why]))
        }
        _ => {
            let (group, version) = given_version.split_once('/').unwrap_or(("", &given_version));
            let why = match kinds::by_kind(group, version, &given_kind) {
                // Two faces of one kind: readable, but not at this path.
                Some(known) if known.storage_resource() == resource.storage => return Err(other_version()),
                Some(_) => format!(
                    "converting ({version}.{given_kind}) to ({}.{kind}): unknown conversion",
                    internal_package(&resource.group)
                ),
                None => format!(
                    "no kind {given_kind:?} is registered for version {given_version:?} in scheme \
                     \"pkg/api/legacyscheme/scheme.go:30\""
                ),
            };
            Err(ApiError::bad_request(misfit(&given_kind, version, kind, &why)))
        }
    }
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
        _ => {
            return Err(ApiError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
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
) -> Result<Vec<String>, String> {
    let unknown = cx.resource.clean(&cx.info.subresource, object)?;
    complaints.extend(unknown.iter().map(|path| json::unknown_field(path)));
    match validation {
        FieldValidation::Ignore => Ok(Vec::new()),
        FieldValidation::Strict if !complaints.is_empty() => Err(json::strict_decoding_error(&complaints)),
        FieldValidation::Warn | FieldValidation::Strict => Ok(complaints),
    }
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
