//! Subresources that are more than a part of their object: bindings, evictions, scales, finalization, tokens.

use http::{Response, StatusCode};
use serde_json::{Value, json};
use tether_machinery::status::ApiError;
use tether_machinery::{kinds, patch};

use super::write::{self, Tracking, Written};
use super::{Context, decode, delete, view};
use crate::admission::Operation;
use crate::object::meta_str;
use crate::random;
use crate::resource::Source;
use crate::response::{self, Body};

/// Answers a request for a subresource other than `status`.
pub async fn answer(cx: &Context<'_>) -> Result<Response<Body>, ApiError> {
    match (cx.resource.storage.as_str(), cx.info.subresource.as_str(), cx.info.verb) {
        ("pods", "binding", "create") => bind(cx, &cx.info.name).await,
        ("pods", "eviction", "create") => evict(cx).await,
        ("serviceaccounts", "token", "create") => token(cx).await,
        ("namespaces", "finalize", "update") => finalize(cx).await,
        (_, "scale", "get") => {
            let entry = cx.existing()?;
            view::object(cx, StatusCode::OK, scale_of(cx, &cx.resource.read(&entry))?)
        }
        (_, "scale", "update" | "patch") => scale(cx).await,
        _ => Err(super::not_allowed()),
    }
}

/// `POST …/bindings`: the old way to bind, with the pod's name in the body.
pub async fn bind_collection(cx: &Context<'_>) -> Result<Response<Body>, ApiError> {
    let (binding, _) = decode::object(cx, &cx.write_options()?)?;
    let name = meta_str(&binding, "name").to_owned();
    let pods = cx.of_resource("", "v1", "pods", &name)?;
    bind(&pods, &name).await
}

async fn bind(cx: &Context<'_>, name: &str) -> Result<Response<Body>, ApiError> {
    let options = cx.write_options()?;
    let binding = crate::body::decode(cx.headers, &cx.body)?.value;
    let given = meta_str(&binding, "name");
    if !given.is_empty() && given != name {
        return Err(ApiError::bad_request("name in URL does not match name in Binding object"));
    }
    let now = cx.server.now();
    write::change(cx, &options, Tracking::Update, |pod| {
        kinds::pod::bind(pod, &binding, now).map_err(|why| match why {
            kinds::pod::BindError::Invalid(errors) => {
                let at = tether_machinery::status::Named { group: "", resource: "Binding", name };
                ApiError::invalid(at, &errors)
            }
            kinds::pod::BindError::Conflict(why) => {
                ApiError::conflict(tether_machinery::status::Named { group: "", resource: "pods/binding", name }, why)
            }
        })
    })
    .await?;
    Ok(response::json(StatusCode::CREATED, &success()))
}

async fn evict(cx: &Context<'_>) -> Result<Response<Body>, ApiError> {
    let eviction = crate::body::decode(cx.headers, &cx.body)?.value;
    let given = meta_str(&eviction, "name");
    if !given.is_empty() && given != cx.info.name {
        return Err(ApiError::bad_request("name in URL does not match name in Eviction object"));
    }
    let options = delete::Options::from_value(eviction.get("deleteOptions").unwrap_or(&Value::Null))?;
    let mut warnings = Vec::new();
    let by_eviction = (Operation::Create, eviction);
    delete::delete_named(cx, &cx.info.name, &options, by_eviction, &mut warnings).await?;
    let mut response = response::json(StatusCode::CREATED, &success());
    response::warn(&mut response, &warnings);
    Ok(response)
}

fn success() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})
}

async fn token(cx: &Context<'_>) -> Result<Response<Body>, ApiError> {
    let options = cx.write_options()?;
    let (wish, _) = decode::object(cx, &options)?;
    let (security, now) = (cx.server.security(), cx.server.now());
    let prepared = security.prepare_token(&cx.info.namespace, &cx.info.name, &wish, now)?;
    let mut warnings = Vec::new();
    let mut request = cx.admission(Operation::Create, prepared, None, options.dry_run);
    cx.server.admission().mutate(&mut request, &mut warnings).await?;
    cx.server.admission().validate(&request, &mut warnings).await?;
    let issued = security.issue_token(request.object, &random::uid(), now)?;
    view::object(cx, StatusCode::CREATED, issued)
}

/// `PUT /api/v1/namespaces/x/finalize`: only `spec.finalizers` counts.
async fn finalize(cx: &Context<'_>) -> Result<Response<Body>, ApiError> {
    let options = cx.write_options()?;
    let (wish, _) = decode::object(cx, &options)?;
    let finalizers = wish.pointer("/spec/finalizers").cloned().unwrap_or_default();
    let revision = meta_str(&wish, "resourceVersion").to_owned();
    let written = write::change(cx, &options, Tracking::Update, |current| {
        let mut next = current.clone();
        next["spec"]["finalizers"] = finalizers.clone();
        if !revision.is_empty() {
            next["metadata"]["resourceVersion"] = revision.as_str().into();
        }
        Ok(next)
    });
    written.await?.respond(cx)
}

fn scale_paths(cx: &Context<'_>) -> Result<tether_machinery::crd::Scale, ApiError> {
    match &cx.resource.source {
        Source::Custom(custom) => custom.version().scale.clone().ok_or_else(ApiError::no_such_path),
        Source::Builtin(_) => Err(ApiError::no_such_path()),
    }
}

/// The pointer behind a path such as `.spec.replicas`.
fn pointer(path: &str) -> String {
    path.replace('.', "/")
}

/// An `autoscaling/v1` Scale of a custom object.
fn scale_of(cx: &Context<'_>, object: &Value) -> Result<Value, ApiError> {
    let paths = scale_paths(cx)?;
    let number = |path: &str| object.pointer(&pointer(path)).and_then(Value::as_i64);
    let Some(replicas) = number(&paths.spec_path) else {
        return Err(ApiError::internal(format!("the spec replicas field {:?} does not exist", paths.spec_path)));
    };
    let meta = &object["metadata"];
    let mut scale = json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"], "creationTimestamp": meta["creationTimestamp"],
        },
        "spec": {"replicas": replicas},
        "status": {"replicas": number(&paths.status_path).unwrap_or(0)},
    });
    if !cx.resource.namespaced
        && let Some(meta) = scale["metadata"].as_object_mut()
    {
        meta.remove("namespace");
    }
    let selector = paths.selector_path.and_then(|p| object.pointer(&pointer(&p))?.as_str().map(str::to_owned));
    if let Some(selector) = selector {
        scale["status"]["selector"] = selector.into();
    }
    Ok(scale)
}

async fn scale(cx: &Context<'_>) -> Result<Response<Body>, ApiError> {
    let options = cx.write_options()?;
    let paths = scale_paths(cx)?;
    let sent = match cx.info.verb {
        "patch" => crate::body::decode_json(&cx.body)?.value,
        _ => decode::object(cx, &options)?.0,
    };
    let media = crate::body::media_type(cx.headers).to_owned();
    let wished_scale = |current: &Value| -> Result<Value, ApiError> {
        let mut scale = scale_of(cx, current)?;
        match (cx.info.verb, media.as_str()) {
            ("update", _) => scale.clone_from(&sent),
            (_, "application/json-patch+json") => scale = patch::json(&scale, &sent)?,
            _ => patch::merge(&mut scale, &sent),
        }
        Ok(scale)
    };
    let written = write::change(cx, &options, Tracking::Update, |current| {
        let scale = wished_scale(current)?;
        let replicas = scale.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(0);
        if replicas < 0 {
            let at = tether_machinery::status::Named { group: "autoscaling", resource: "Scale", name: &cx.info.name };
            let path = tether_machinery::field::Path::new("spec.replicas");
            let why = "should be a non-negative integer";
            return Err(ApiError::invalid(at, &[tether_machinery::field::FieldError::invalid(path, replicas, why)]));
        }
        let mut next = current.clone();
        set_pointer(&mut next, &paths.spec_path, replicas.into());
        let revision = meta_str(&scale, "resourceVersion");
        if cx.info.verb == "update" && !revision.is_empty() {
            next["metadata"]["resourceVersion"] = revision.into();
        }
        Ok(next)
    });
    let Written { object, created, warnings } = written.await?;
    Written { object: scale_of(cx, &object)?, created, warnings }.respond(cx)
}

fn set_pointer(object: &mut Value, path: &str, value: Value) {
    let mut at = object;
    for part in path.split('.').filter(|p| !p.is_empty()) {
        at = &mut at[part];
    }
    *at = value;
}
