//! PATCH in its four kinds: JSON patch, merge patch, strategic merge patch, and server-side apply.

use http::Response;
use serde_json::Value;
use tether_machinery::field::{FieldError, Path};
use tether_machinery::status::{ApiError, Named};
use tether_machinery::{apply, go, patch};

use super::write::{self, Tracking};
use super::{Context, decode};
use crate::body;
use crate::object::meta_str;
use crate::options::{FieldValidation, Write, WriteOptions};
use crate::response::Body;

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
            "application/apply-patch+yaml" => Some(Self::Apply),
            _ => None,
        }
    }
}

/// Answers a PATCH.
pub async fn patch(cx: &Context<'_>) -> Result<Response<Body>, ApiError> {
    let kind = Kind::of(body::media_type(cx.headers));
    let supported = match kind {
        Some(Kind::Strategic) => !cx.resource.is_custom(),
        Some(_) => true,
        None => false,
    };
    let Some(kind) = kind.filter(|_| supported) else {
        let strategic = if cx.resource.is_custom() { "" } else { ", application/strategic-merge-patch+json" };
        return Err(ApiError::unsupported_media_type(format!(
            "the body of the request was in an unknown format - accepted media types include: \
             application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml{strategic}"
        )));
    };
    if kind == Kind::Apply {
        return apply(cx, &cx.options_of(Write::Apply)?).await;
    }
    let options = cx.options_of(Write::Patch)?;
    let decoded = body::decode_json(&cx.body)?;
    let complaints = std::sync::Mutex::new(Vec::new());
    let compute = |current: &Value| {
        let mut wished = match kind {
            Kind::Json => patch::json(current, &decoded.value)?,
            Kind::Merge => {
                let mut wished = current.clone();
                patch::merge(&mut wished, &decoded.value);
                wished
            }
            _ => patch::strategic(current, &decoded.value, &cx.resource.schema)?,
        };
        // Upstream shows the patch where it works on values, and the result where it works on text.
        let shown = if kind == Kind::Strategic { go::shown(&decoded.value) } else { wished.to_string() };
        let found = decode::clean(cx, &mut wished, decoded.complaints.clone(), options.validation)
            .map_err(|why| invalid_patch(shown, why))?;
        *complaints.lock().expect("no panic happens under this lock") = found;
        check_name(cx, &wished)?;
        check_kind(cx, &wished)?;
        Ok(wished)
    };
    let mut written = write::change(cx, &options, Tracking::Update, compute).await?;
    let complaints = complaints.into_inner().expect("no panic happens under this lock");
    written.warnings.splice(0..0, complaints);
    written.respond(cx)
}

/// 422 for a patch whose result is no object of the kind.
fn invalid_patch(shown: String, why: String) -> ApiError {
    let nothing = Named { group: "", resource: "", name: "" };
    ApiError::invalid(nothing, &[FieldError::invalid(Path::new("patch"), shown, why)])
}

/// A patch changes an object; it does not make it another one.
fn check_name(cx: &Context<'_>, wished: &Value) -> Result<(), ApiError> {
    let (name, namespace) = (meta_str(wished, "name"), meta_str(wished, "namespace"));
    let (at, within) = (&cx.info.name, &cx.info.namespace);
    if name.is_empty() {
        let why = format!("the name of the object ({at} based on URL) was undeterminable: name must be provided");
        return Err(ApiError::bad_request(why));
    }
    if name != at {
        let why = format!("the name of the object ({name}) does not match the name on the URL ({at})");
        return Err(ApiError::bad_request(why));
    }
    if cx.resource.namespaced && !namespace.is_empty() && namespace != within {
        let why =
            format!("the namespace of the object ({namespace}) does not match the namespace on the request ({within})");
        return Err(ApiError::bad_request(why));
    }
    Ok(())
}

fn check_kind(cx: &Context<'_>, wished: &Value) -> Result<(), ApiError> {
    let (api_version, kind) = cx.resource.body_kind("");
    for (field, expected) in [("apiVersion", api_version), ("kind", kind)] {
        if wished.get(field).and_then(Value::as_str).is_some_and(|given| given != expected) {
            return Err(ApiError::bad_request(format!("{field} of the object must stay {expected:?}")));
        }
    }
    Ok(())
}

async fn apply(cx: &Context<'_>, options: &WriteOptions) -> Result<Response<Body>, ApiError> {
    let decoded = body::decode_yaml(&cx.body)?;
    let config = decoded.value;
    if !config.is_object() {
        return Err(ApiError::bad_request("the applied configuration must be one object with apiVersion and kind"));
    }
    let duplicates = refuse_duplicates(decoded.complaints, options.validation)?;
    let (api_version, reset) = (cx.resource.api_version(), cx.resource.reset_fields(&cx.info.subresource));
    let ownership = cx.ownership(options, &api_version, &reset);
    // The configuration is taken as it is: what it does not say is not applied, not even as a default.
    let merge = |live: Option<&Value>| {
        let mut object = apply::apply(live, &config, options.force, &ownership)?.object;
        check_name(cx, &object)?;
        cx.resource.clean(&cx.info.subresource, &mut object).map_err(ApiError::bad_request)?;
        Ok(object)
    };
    let mut written = if cx.server.store().get(&cx.key()).is_none() && cx.info.subresource.is_empty() {
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
    written.warnings.splice(0..0, duplicates);
    written.respond(cx)
}

/// Fields that the configuration names twice: warnings, or the error of a strict reader.
fn refuse_duplicates(complaints: Vec<String>, validation: FieldValidation) -> Result<Vec<String>, ApiError> {
    match validation {
        FieldValidation::Ignore => Ok(Vec::new()),
        FieldValidation::Strict if !complaints.is_empty() => {
            Err(ApiError::bad_request(format!("error strict decoding YAML: {}", complaints.join(", "))))
        }
        FieldValidation::Warn | FieldValidation::Strict => Ok(complaints),
    }
}
