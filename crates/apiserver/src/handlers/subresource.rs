//! Subresources that are more than a part of their object: bindings, evictions, scales, finalization, tokens.

use http::{Response, StatusCode};
use serde_json::{Value, json};
use tether_machinery::status::ApiError;
use tether_machinery::{crd, kinds};

use super::patch::Patch;
use super::write::{self, Outcome, Tracking, Written};
use super::{Context, decode, evict, proxy, view};
use crate::admission::Operation;
use crate::object::meta_str;
use crate::random;
use crate::resource::Source;
use crate::response::{self, Body};

/// Answers a request for a subresource other than `status`.
pub async fn answer(cx: &Context<'_>) -> Result<Response<Body>, ApiError> {
    match (cx.resource.storage.as_str(), cx.info.subresource.as_str(), cx.info.verb) {
        ("pods", "binding", "create") => bind(cx, &cx.info.name).await,
        ("pods", "eviction", "create") => evict::evict(cx).await,
        ("pods", "log", "get") => proxy::log(cx).await,
        ("pods", "exec" | "attach", "get" | "create") => proxy::connect(cx).await,
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
    let binding = decode::object(cx, &cx.write_options()?)?;
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

pub(super) fn success() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})
}

async fn token(cx: &Context<'_>) -> Result<Response<Body>, ApiError> {
    let options = cx.write_options()?;
    let wish = decode::object(cx, &options)?;
    let (security, now) = (cx.server.security(), cx.server.now());
    let prepared = security.prepare_token(&cx.info.namespace, &cx.info.name, &wish, now)?;
    let mut request = cx.admission(Operation::Create, prepared, None, options.dry_run);
    cx.mutate(&mut request).await?;
    cx.validate(&request).await?;
    let issued = security.issue_token(request.object, &random::uid(), now)?;
    view::object(cx, StatusCode::CREATED, issued)
}

/// `PUT /api/v1/namespaces/x/finalize`: only `spec.finalizers` counts.
async fn finalize(cx: &Context<'_>) -> Result<Response<Body>, ApiError> {
    let options = cx.write_options()?;
    let wish = decode::object(cx, &options)?;
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

fn scale_paths(cx: &Context<'_>) -> Result<crd::Scale, ApiError> {
    match &cx.resource.source {
        Source::Custom(custom) => custom.version().scale.clone().ok_or_else(ApiError::no_such_path),
        Source::Builtin(_) => Err(ApiError::no_such_path()),
    }
}

fn scale_of(cx: &Context<'_>, object: &Value) -> Result<Value, ApiError> {
    scale_paths(cx)?.read(object).map_err(ApiError::internal)
}

/// What a request does to a Scale.
enum Change {
    Put(Value),
    Patch(Patch),
}

/// PUT and PATCH of a Scale: the number that it wishes goes to where the definition says.
async fn scale(cx: &Context<'_>) -> Result<Response<Body>, ApiError> {
    let options = cx.write_options()?;
    let paths = scale_paths(cx)?;
    let change = match cx.info.verb {
        "patch" => Change::Patch(Patch::read(cx)?),
        _ => Change::Put(decode::object(cx, &options)?),
    };
    let written = write::change(cx, &options, Tracking::Update, |current| {
        let scale = match &change {
            Change::Put(scale) => scale.clone(),
            Change::Patch(patch) => patch.applied(cx, &scale_of(cx, current)?, &options)?,
        };
        decode::check_name(cx, &scale)?;
        let mut next = current.clone();
        paths.write(&mut next, &scale);
        let revision = meta_str(&scale, "resourceVersion");
        if !revision.is_empty() {
            next["metadata"]["resourceVersion"] = revision.into();
        }
        Ok(next)
    });
    let written = written.await?;
    let created = written.created;
    let scale = scale_of(cx, &written.into_value(cx))?;
    Written { outcome: Outcome::Value(scale), created }.respond(cx)
}
