//! What a new cluster holds before anybody has asked for anything: its namespaces and its roles.

use bytes::Bytes;
use futures::future::join_all;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

use crate::auth::{GROUP_MASTERS, User, bootstrap as policy};
use crate::server::Server;

const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// The cluster could not be made ready for its first request.
#[derive(Debug, thiserror::Error)]
#[error("{method} {path} answered {code}: {message}")]
pub struct BootstrapError {
    method: Method,
    path: String,
    code: u16,
    message: String,
}

/// Makes what is missing and brings roles up to date. Safe to repeat; on a cluster that is complete it writes nothing.
pub async fn bootstrap(server: &Server) -> Result<(), BootstrapError> {
    let namespaces = NAMESPACES.map(|name| {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        ensure(server, "/api/v1/namespaces".to_owned(), object)
    });
    for result in join_all(namespaces).await {
        result?;
    }
    // Roles before what binds them, and within that all at once: they share their commits.
    let (bindings, roles): (Vec<_>, Vec<_>) = policy::objects().into_iter().partition(|(r, _)| r.contains("bindings"));
    for batch in [roles, bindings] {
        for result in
            join_all(batch.into_iter().map(|(resource, object)| ensure_policy(server, resource, object))).await
        {
            result?;
        }
    }
    Ok(())
}

async fn ensure_policy(server: &Server, resource: &str, object: Value) -> Result<(), BootstrapError> {
    let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
    let root = if group.is_empty() { "/api/v1".to_owned() } else { format!("/apis/{group}/v1") };
    let path = match object["metadata"]["namespace"].as_str() {
        Some(ns) => format!("{root}/namespaces/{ns}/{plural}"),
        None => format!("{root}/{plural}"),
    };
    ensure(server, path, object).await
}

/// Makes the objects that a cluster has beside those of Kubernetes, in order. Safe to repeat: a definition or a role is brought up to
/// date, anything else is left as it is when it exists.
pub async fn install(server: &Server, objects: &[Value]) -> Result<(), BootstrapError> {
    for object in objects {
        let path = collection(server, object)?;
        if object["kind"] == "CustomResourceDefinition" {
            ensure_definition(server, path, object).await?;
        } else {
            ensure(server, path, object.clone()).await?;
        }
    }
    Ok(())
}

/// Where objects of this one's kind are.
fn collection(server: &Server, object: &Value) -> Result<String, BootstrapError> {
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    let (group, version) = text("apiVersion").split_once('/').unwrap_or(("", text("apiVersion")));
    let registry = server.registry();
    let resource = registry.group_version(group, version).into_iter().find(|resource| resource.kind == text("kind"));
    let Some(resource) = resource else {
        let message = format!("{} of {} is not served", text("kind"), text("apiVersion"));
        return Err(BootstrapError { method: Method::POST, path: String::new(), code: 404, message });
    };
    let root = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
    Ok(match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{root}/namespaces/{namespace}/{}", resource.plural),
        None => format!("{root}/{}", resource.plural),
    })
}

async fn ensure_definition(server: &Server, path: String, object: &Value) -> Result<(), BootstrapError> {
    let named = format!("{path}/{}", object["metadata"]["name"].as_str().unwrap_or_default());
    let (code, _) = call(server, Method::GET, &named, None).await;
    if code == StatusCode::NOT_FOUND {
        return succeed(server, Method::POST, path, object).await;
    }
    merge(server, &named, &json!({"metadata": {"labels": object["metadata"]["labels"]}, "spec": object["spec"]})).await
}

/// Creates `object` unless it exists; one that exists gets what it lacks.
async fn ensure(server: &Server, path: String, object: Value) -> Result<(), BootstrapError> {
    let named = format!("{path}/{}", object["metadata"]["name"].as_str().unwrap_or_default());
    let (code, current) = call(server, Method::GET, &named, None).await;
    if code == StatusCode::NOT_FOUND {
        succeed(server, Method::POST, path, &object).await?;
        // A status is not taken with the rest.
        return match object.get("status") {
            Some(status) => merge(server, &format!("{named}/status"), &json!({ "status": status })).await,
            None => Ok(()),
        };
    }
    let is_policy =
        object["apiVersion"].as_str().is_some_and(|version| version.starts_with("rbac.authorization.k8s.io/"));
    match policy::reconcile(Some(&current), &object) {
        Some(updated) if is_policy => succeed(server, Method::PUT, named, &updated).await,
        _ => Ok(()),
    }
}

/// Merges `patch` into the object at `path`, as the server itself.
pub(crate) async fn merge(server: &Server, path: &str, patch: &Value) -> Result<(), BootstrapError> {
    succeed(server, Method::PATCH, path.to_owned(), patch).await
}

async fn succeed(server: &Server, method: Method, path: String, object: &Value) -> Result<(), BootstrapError> {
    let (code, body) = call(server, method.clone(), &path, Some(object)).await;
    if code.is_success() {
        return Ok(());
    }
    let message = body["message"].as_str().unwrap_or_default().to_owned();
    Err(BootstrapError { method, path, code: code.as_u16(), message })
}

async fn call(server: &Server, method: Method, path: &str, body: Option<&Value>) -> (StatusCode, Value) {
    let body = body.map(|b| Bytes::from(b.to_string())).unwrap_or_default();
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = method;
    *request.uri_mut() = path.parse().expect("a path of built-in names must parse");
    let agent = http::HeaderValue::from_static("tether-apiserver");
    request.headers_mut().insert(http::header::USER_AGENT, agent);
    if request.method() == Method::PATCH {
        let merge = http::HeaderValue::from_static("application/merge-patch+json");
        request.headers_mut().insert(http::header::CONTENT_TYPE, merge);
    }
    request.extensions_mut().insert(User::new("system:apiserver", [GROUP_MASTERS]));
    let response = server.handle(request).await;
    let code = response.status();
    let bytes = response.into_body().collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    (code, serde_json::from_slice(&bytes).unwrap_or_default())
}
