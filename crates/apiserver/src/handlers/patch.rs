//! PATCH in its four kinds: JSON patch, merge patch, strategic merge patch, and server-side apply.

use http::Response;
use serde_json::Value;
use tether_machinery::status::ApiError;
use tether_machinery::{apply, patch};

use super::Context;
use super::write::{self, Tracking};
use crate::body;
use crate::object::meta_str;
use crate::options::{Write, WriteOptions};
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
        let found = write::clean(cx, &mut wished, decoded.complaints.clone(), options.validation)?;
        *complaints.lock().expect("no panic happens under this lock") = found;
        same_identity(cx, &wished, current)?;
        Ok(wished)
    };
    let mut written = write::change(cx, &options, Tracking::Update, compute).await?;
    let complaints = complaints.into_inner().expect("no panic happens under this lock");
    written.warnings.splice(0..0, complaints);
    written.respond(cx)
}

/// A patch changes an object; it does not make it another one.
fn same_identity(cx: &Context<'_>, wished: &Value, current: &Value) -> Result<(), ApiError> {
    for field in ["name", "namespace"] {
        let (is, was) = (meta_str(wished, field), meta_str(current, field));
        if is != was && !is.is_empty() {
            let why = format!("the {field} of the object ({is}) does not match the {field} on the URL ({was})");
            return Err(ApiError::bad_request(why));
        }
    }
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
    let mut config = decoded.value;
    if !config.is_object() {
        return Err(ApiError::bad_request("the applied configuration must be one object with apiVersion and kind"));
    }
    same_identity(cx, &config, &named_object(cx))?;
    let complaints = write::clean(cx, &mut config, decoded.complaints, options.validation)?;
    let (api_version, reset) = (cx.resource.api_version(), cx.resource.reset_fields(&cx.info.subresource));
    let ownership = cx.ownership(options, &api_version, &reset);
    let merge = |live: Option<&Value>| apply::apply(live, &config, options.force, &ownership);
    let mut written = if cx.server.store().get(&cx.key()).is_none() && cx.info.subresource.is_empty() {
        if !meta_str(&config, "resourceVersion").is_empty() || !meta_str(&config, "uid").is_empty() {
            let why =
                "uid mismatch: the provided object specified uid or resourceVersion, and no existing object was found";
            return Err(ApiError::conflict(cx.resource.named(&cx.info.name), why));
        }
        cx.may_create()?;
        let mut object = merge(None)?.object;
        object["metadata"]["name"] = cx.info.name.as_str().into();
        if cx.resource.namespaced {
            object["metadata"]["namespace"] = cx.info.namespace.as_str().into();
        }
        write::create_object(cx, object, options, Tracking::Applied).await?
    } else {
        write::change(cx, options, Tracking::Applied, |current| Ok(merge(Some(current))?.object)).await?
    };
    written.warnings.splice(0..0, complaints);
    written.respond(cx)
}

fn named_object(cx: &Context<'_>) -> Value {
    serde_json::json!({"metadata": {"name": cx.info.name, "namespace": cx.info.namespace}})
}
