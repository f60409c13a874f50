//! What a pod's node answers: its log, and commands in its containers. The answer is passed on as it comes; for a command
//! the connection itself is handed on, and both ends speak to each other.

use form_urlencoded::Serializer;
use http::header::{
    CONNECTION, CONTENT_TYPE, HOST, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{HeaderName, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tether_machinery::status::ApiError;

use super::Context;
use crate::kubelet::{KubeletError, endpoint};
use crate::object::meta_str;
use crate::response::{self, Body};
use crate::store::Key;

/// The longest text of an error of a node that is passed on.
const MAX_ERROR_BYTES: usize = 64 << 10;
/// Options of `log` that a node understands; the container is in the path.
const LOG_OPTIONS: [&str; 8] =
    ["follow", "previous", "sinceSeconds", "sinceTime", "timestamps", "tailLines", "limitBytes", "stream"];

/// What a node is told of how the client wants to speak to it.
const ASKED: [HeaderName; 5] = [CONNECTION, UPGRADE, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, SEC_WEBSOCKET_PROTOCOL];
/// What a client is told of the node's answer.
const ANSWERED: [HeaderName; 4] = [CONNECTION, UPGRADE, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_PROTOCOL];

/// `GET …/pods/NAME/log`
pub async fn log(cx: &Context<'_>) -> Result<Response<Body>, ApiError> {
    let pod = cx.existing()?;
    let pod = cx.resource.read(&pod);
    let container = container(cx, &pod)?;
    let path = path("containerLogs", cx, &container, &options(cx));
    let answer = ask(cx, &pod, Request::get(path)).await?;
    if answer.status() != StatusCode::OK {
        return Err(ApiError::bad_request(refusal(answer).await));
    }
    let mut response = Response::new(answer.into_body().map_err(Into::into).boxed_unsync());
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("text/plain"));
    Ok(response)
}

/// Why a node said no.
async fn refusal(answer: Response<Incoming>) -> String {
    let text = http_body_util::Limited::new(answer.into_body(), MAX_ERROR_BYTES).collect().await;
    let text = text.map(|text| String::from_utf8_lossy(&text.to_bytes()).into_owned()).unwrap_or_default();
    text.trim().to_owned()
}

/// `GET` and `POST …/pods/NAME/exec`, `…/attach`
pub async fn connect(cx: &Context<'_>) -> Result<Response<Body>, ApiError> {
    if cx.info.verb == "get" {
        // A WebSocket opens with a GET, and does what a POST does: whoever may only look, may not run commands.
        cx.may_create()?;
    }
    let pod = cx.existing()?;
    let pod = cx.resource.read(&pod);
    let container = container(cx, &pod)?;
    let path = path(&cx.info.subresource, cx, &container, &stream_options(cx));
    let mut request = if cx.info.verb == "get" { Request::get(path) } else { Request::post(path) };
    for name in ASKED {
        for value in cx.headers.get_all(&name) {
            request = request.header(&name, value);
        }
    }
    let answer = ask(cx, &pod, request).await?;
    match answer.status() {
        StatusCode::SWITCHING_PROTOCOLS => hand_over(cx, answer),
        StatusCode::BAD_REQUEST => Err(ApiError::bad_request(refusal(answer).await)),
        // In plain text, by which clients know that it is the node that speaks.
        status => Ok(response::text(status, refusal(answer).await)),
    }
}

/// Lets the client speak to the node.
fn hand_over(cx: &Context<'_>, mut answer: Response<Incoming>) -> Result<Response<Body>, ApiError> {
    let no_connection = || ApiError::bad_request("this connection cannot be upgraded: use HTTP/1.1");
    let client = cx.upgrade.clone().ok_or_else(no_connection)?;
    let crowded = || ApiError::too_many_requests("too many commands run in containers at the same time", 1);
    let place = cx.server.stream().ok_or_else(crowded)?;
    let node = hyper::upgrade::on(&mut answer);
    let shutdown = cx.server.shutdown_token();
    tokio::spawn(async move {
        if let Some(Err(error)) = shutdown.run_until_cancelled(copy(client, node)).await {
            tracing::debug!(%error, "a connection to a node ended");
        }
        drop(place);
    });
    let mut response = Response::new(Empty::new().map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    for name in ANSWERED {
        if let Some(value) = answer.headers().get(&name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    Ok(response)
}

async fn copy(client: OnUpgrade, node: OnUpgrade) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let (client, node) = tokio::try_join!(client, node)?;
    tokio::io::copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(node)).await?;
    Ok(())
}

/// The options of a command, by the names that nodes have for them.
fn stream_options(cx: &Context<'_>) -> String {
    let mut query = Serializer::new(String::new());
    for word in cx.query.all("command") {
        query.append_pair("command", word);
    }
    for (option, name) in [("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty")] {
        if cx.query.flag(option).unwrap_or(false) {
            query.append_pair(name, "1");
        }
    }
    query.finish()
}

fn options(cx: &Context<'_>) -> String {
    let mut query = Serializer::new(String::new());
    for option in LOG_OPTIONS {
        if let Some(value) = cx.query.get(option) {
            query.append_pair(option, value);
        }
    }
    query.finish()
}

fn path(what: &str, cx: &Context<'_>, container: &str, query: &str) -> String {
    let question = if query.is_empty() { "" } else { "?" };
    format!("/{what}/{}/{}/{container}{question}{query}", cx.info.namespace, cx.info.name)
}

/// The container that is meant: the one that is named, or the only one.
fn container(cx: &Context<'_>, pod: &Value) -> Result<String, ApiError> {
    let of = |list: &str| {
        let containers = pod.pointer(&format!("/spec/{list}")).and_then(Value::as_array);
        let names = containers.into_iter().flatten().filter_map(|container| container["name"].as_str());
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    let (main, init) = (of("containers"), of("initContainers"));
    let name = &cx.info.name;
    let wanted = cx.query.get("container").filter(|container| !container.is_empty());
    let default = || pod.pointer("/metadata/annotations/kubectl.kubernetes.io~1default-container")?.as_str();
    match wanted.or_else(default) {
        Some(wanted) if main.iter().chain(&init).any(|held| held == wanted) => Ok(wanted.to_owned()),
        Some(wanted) => Err(ApiError::bad_request(format!("container {wanted} is not valid for pod {name}"))),
        None if main.len() == 1 => Ok(main[0].clone()),
        None => {
            let more = match init.is_empty() {
                true => String::new(),
                false => format!(" or one of the init containers: [{}]", init.join(" ")),
            };
            let choice = main.join(" ");
            let words = format!("a container name must be specified for pod {name}, choose one of: [{choice}]{more}");
            Err(ApiError::bad_request(words))
        }
    }
}

/// Sends a request to the pod's node.
async fn ask(cx: &Context<'_>, pod: &Value, request: http::request::Builder) -> Result<Response<Incoming>, ApiError> {
    let node = pod.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default();
    if node.is_empty() {
        return Err(ApiError::bad_request(format!("pod {} does not have a host assigned", meta_str(pod, "name"))));
    }
    let entry = cx.server.store().get(&Key::new("nodes", "", node));
    let object: Option<Value> = entry.and_then(|entry| serde_json::from_slice(&entry.value).ok());
    let failed = |error: KubeletError| {
        let request = format!("Get \"https://{node}/\": {error}");
        ApiError::internal(format!("the node of the pod cannot be asked: {request}"))
    };
    let missing = || failed(KubeletError::NoEndpoint(node.to_owned()));
    let address = object.as_ref().and_then(endpoint).ok_or_else(missing)?;
    let client = cx.server.kubelets().ok_or_else(missing)?;
    let request = request.header(HOST, address.to_string()).body(Empty::new());
    let request = request.map_err(|error| ApiError::bad_request(error.to_string()))?;
    client.send(address, request).await.map_err(failed)
}
