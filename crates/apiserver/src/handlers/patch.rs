//! PATCH in its four kinds: JSON patch, merge patch, strategic merge patch, and server-side apply.

use http::Response;
use serde_json::{Value, json};
use tether_machinery::field::{FieldError, Path};
use tether_machinery::json::go_kind;
use tether_machinery::status::{ApiError, Named};
use tether_machinery::{apply, go, patch};

use super::decode::check_name;
use super::write::{self, Tracking};
use super::{Context, decode};
use crate::body::{self, Decoded};
use crate::object::meta_str;
use crate::options::{FieldValidation, Write, WriteOptions};
use crate::resource::Reading;
use crate::response::Body;

const APPLY_PATCH: &str = "application/apply-patch+yaml";

/// The kinds of patch, by content type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Json,
    Merge,
    Strategic,
    Apply,
}

impl Kind {
    fn of(media_type: &str) -> Option<Self> {
        match media_type {
            "application/json-patch+json" => Some(Self::Json),
            "application/merge-patch+json" => Some(Self::Merge),
            "application/strategic-merge-patch+json" => Some(Self::Strategic),
            APPLY_PATCH => Some(Self::Apply),
            _ => None,
        }
    }
}

/// Answers a PATCH.
pub async fn patch(cx: &Context<'_>) -> Result<Response<Body>, ApiError> {
    if Kind::of(body::media_type(cx.headers)) == Some(Kind::Apply) {
        return apply(cx, &cx.options_of(Write::Apply)?).await;
    }
    let options = cx.options_of(Write::Patch)?;
    let patch = Patch::read(cx)?;
    let tracking = if patch.leaves_managers(cx) { Tracking::Apart } else { Tracking::Update };
    write::change(cx, &options, tracking, |current| patch.applied(cx, current, &options)).await?.respond(cx)
}

/// A patch that says what to change; a configuration to apply is none.
pub(super) struct Patch {
    kind: Kind,
    decoded: Decoded,
}

impl Patch {
    pub(super) fn read(cx: &Context<'_>) -> Result<Self, ApiError> {
        let kind = match Kind::of(body::media_type(cx.headers)) {
            Some(Kind::Strategic) if cx.resource.is_custom() => None,
            Some(Kind::Apply) | None => None,
            kind => kind,
        };
        let Some(kind) = kind else {
            return Err(match cx.resource.is_custom() {
                true => {
                    body::unknown_format(&["application/json-patch+json", "application/merge-patch+json", APPLY_PATCH])
                }
                false => ApiError::new(415, "UnsupportedMediaType", "415: Unsupported Media Type", json!({})),
            });
        };
        Ok(Self { kind, decoded: decode_patch(cx, kind)? })
    }

    /// What the patch makes of `current`, which is what the path names: the object, or its Scale.
    pub(super) fn applied(&self, cx: &Context<'_>, current: &Value, options: &WriteOptions) -> Result<Value, ApiError> {
        let mut wished = self.result(cx, current)?;
        let reading = if self.kind == Kind::Strategic { Reading::Merged } else { Reading::Text };
        let cleaned = keep_kind(cx, &mut wished, self.kind)?.and_then(|()| {
            decode::clean(cx, &mut wished, self.decoded.complaints.clone(), options.validation, reading)
        });
        if let Err(why) = cleaned {
            // Upstream shows the patch where it works on values, and the result where it works on text.
            let shown = match self.kind {
                Kind::Strategic => go::shown(&self.decoded.value),
                _ => self.result(cx, current)?.to_string(),
            };
            return Err(invalid_patch(shown, why));
        }
        check_name(cx, &wished)?;
        Ok(wished)
    }

    /// Whether the patch leaves it to the server who manages which fields, and does not look at that either.
    fn leaves_managers(&self, cx: &Context<'_>) -> bool {
        const FIELD: &[u8] = b"managedFields";
        let names_them = cx.body.windows(FIELD.len()).any(|found| found == FIELD) || has_escapes(&cx.body);
        !names_them && (self.kind != Kind::Json || !moves_metadata(&self.decoded.value))
    }

    /// What the patch makes of `current`.
    fn result(&self, cx: &Context<'_>, current: &Value) -> Result<Value, ApiError> {
        let patch = &self.decoded.value;
        Ok(match self.kind {
            Kind::Json => patch::json(current, patch)?,
            Kind::Strategic => patch::strategic(current, patch, &cx.resource.schema)?,
            Kind::Merge | Kind::Apply => {
                let mut wished = current.clone();
                patch::merge(&mut wished, patch);
                wished
            }
        })
    }
}

/// Whether a name in the body may be spelled in more than one way.
fn has_escapes(body: &[u8]) -> bool {
    body.contains(&b'\\')
}

/// Whether a JSON patch takes all of the metadata in its hands, or the whole object.
fn moves_metadata(operations: &Value) -> bool {
    let whole = |path: &Value| path.as_str().is_none_or(|path| matches!(path, "" | "/" | "/metadata"));
    let moves = |operation: &Value| ["path", "from"].iter().any(|name| operation.get(name).is_some_and(whole));
    operations.as_array().is_none_or(|operations| operations.iter().any(moves))
}

/// The patch itself; one that is applied to text has to be text of the right kind.
fn decode_patch(cx: &Context<'_>, kind: Kind) -> Result<Decoded, ApiError> {
    let undecodable = |why: &str| ApiError::bad_request(format!("error decoding patch: {why}"));
    match body::decode_json(&cx.body) {
        Ok(decoded) if kind == Kind::Merge && !decoded.value.is_object() => {
            let found = go_kind(&decoded.value);
            let why = format!("json: cannot unmarshal {found} into Go value of type map[string]interface {{}}");
            Err(undecodable(&why))
        }
        Err(error) if kind != Kind::Strategic && error.code == 400 => Err(undecodable(&error.message)),
        other => other,
    }
}

/// 422 for a patch whose result is no object of the kind.
fn invalid_patch(shown: String, why: String) -> ApiError {
    let nothing = Named { group: "", resource: "", name: "" };
    ApiError::invalid(nothing, &[FieldError::invalid(Path::new("patch"), shown, why)])
}

/// A patch changes an object; it does not make it one of another kind. What it did to `apiVersion` and `kind` is
/// undone if it only removed them; the inner error is the decoder's for a result that says something else.
fn keep_kind(cx: &Context<'_>, wished: &mut Value, patch: Kind) -> Result<Result<(), String>, ApiError> {
    let (api_version, kind) = cx.resource.body_kind(&cx.info.subresource);
    if !wished.is_object() {
        return Ok(Err(decode::not_an_object(wished)));
    }
    let given = |field: &str| wished.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (given_version, given_kind) = (given("apiVersion"), given("kind"));
    let says = |given: &str, expected: &str| given.is_empty() || given == expected;
    if patch == Kind::Strategic || (says(&given_version, &api_version) && says(&given_kind, &kind)) {
        wished["apiVersion"] = api_version.into();
        wished["kind"] = kind.into();
        return Ok(Ok(()));
    }
    if cx.resource.is_custom() {
        return Err(decode::other_kind((&given_version, &given_kind), (&api_version, &kind), &cx.info.name));
    }
    Ok(Err(decode::unknown_kind(&cx.resource, (&given_version, &given_kind), &kind)))
}

async fn apply(cx: &Context<'_>, options: &WriteOptions) -> Result<Response<Body>, ApiError> {
    let decoded = body::decode_yaml(&cx.body)?;
    let config = decoded.value;
    let config = match config {
        // An empty document is an object without fields, of no kind at all.
        Value::Null => json!({}),
        Value::Object(_) => config,
        other => {
            let found = go_kind(&other);
            return Err(ApiError::bad_request(format!(
                "error decoding YAML: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {found} \
                 into Go value of type map[string]interface {{}}"
            )));
        }
    };
    cx.warnings.add(refuse_duplicates(decoded.complaints, options.validation)?);
    let (api_version, reset) = (cx.resource.api_version(), cx.resource.reset_fields(&cx.info.subresource));
    let ownership = cx.ownership(options, &api_version, &reset);
    // The configuration is taken as it is: what it does not say is not applied, not even as a default.
    let merge = |live: Option<&Value>| {
        let mut object = apply::apply(live, &config, options.force, &ownership)?.object;
        check_name(cx, &object)?;
        cx.resource.clean(&cx.info.subresource, &mut object, Reading::Merged).map_err(ApiError::bad_request)?;
        Ok(object)
    };
    let written = if cx.server.store().get(&cx.key()).is_none() && cx.info.subresource.is_empty() {
        if !meta_str(&config, "resourceVersion").is_empty() || !meta_str(&config, "uid").is_empty() {
            let why =
                "uid mismatch: the provided object specified uid or resourceVersion, and no existing object was found";
            return Err(ApiError::conflict(cx.resource.named(&cx.info.name), why));
        }
        cx.may_create()?;
        let mut object = merge(None)?;
        if cx.resource.namespaced {
            object["metadata"]["namespace"] = cx.info.namespace.as_str().into();
        }
        write::create_object(cx, object, options, Tracking::Applied).await?
    } else {
        write::change(cx, options, Tracking::Applied, |current| merge(Some(current))).await?
    };
    written.respond(cx)
}

/// Fields that the configuration names twice: warnings, or the error of a strict reader.
fn refuse_duplicates(complaints: Vec<String>, validation: FieldValidation) -> Result<Vec<String>, ApiError> {
    match validation {
        FieldValidation::Ignore => Ok(Vec::new()),
        FieldValidation::Strict if !complaints.is_empty() => {
            Err(ApiError::bad_request(format!("error strict decoding YAML: {}", complaints.join("\n  "))))
        }
        FieldValidation::Warn | FieldValidation::Strict => Ok(complaints),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_moved_as_a_whole_or_not_at_all() {
        let op = |path: &str| json!([{"op": "test", "path": "/spec/a"}, {"op": "replace", "path": path, "value": 1}]);
        for path in ["/metadata/labels/a", "/spec", "/metadata/managers"] {
            assert!(!moves_metadata(&op(path)), "{path}");
        }
        for odd in [
            op(""),
            op("/metadata"),
            json!([{"op": "copy", "path": "/spec", "from": "/metadata"}]),
            json!({}),
            json!([{"path": 1}]),
        ] {
            assert!(moves_metadata(&odd), "{odd}");
        }
    }
}
