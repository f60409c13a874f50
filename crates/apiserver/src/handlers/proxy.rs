//! What a pod's node answers: its log. The answer is passed on as it comes.

use form_urlencoded::Serializer;
use http::header::{CONTENT_TYPE, HOST};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use serde_json::Value;
use tether_machinery::status::ApiError;

use super::Context;
use crate::kubelet::{KubeletError, endpoint};
use crate::object::meta_str;
use crate::response::Body;
use crate::store::Key;

/// The longest text of an error of a node that is passed on.
const MAX_ERROR_BYTES: usize = 64 << 10;
/// Options of `log` that a node understands; the container is in the path.
const LOG_OPTIONS: [&str; 8] =
    ["follow", "previous", "sinceSeconds", "sinceTime", "timestamps", "tailLines", "limitBytes", "stream"];

/// `GET …/pods/NAME/log`
pub async fn log(cx: &Context<'_>) -> Result<Response<Body>, ApiError> {
    let pod = cx.existing()?;
    let pod = cx.resource.read(&pod);
    let container = container(cx, &pod)?;
    let path = path("containerLogs", cx, &container, &options(cx));
    let answer = ask(cx, &pod, Request::get(path)).await?;
    let (parts, body) = answer.into_parts();
    if parts.status != StatusCode::OK {
        let text = http_body_util::Limited::new(body, MAX_ERROR_BYTES).collect().await;
        let text = text.map(|text| String::from_utf8_lossy(&text.to_bytes()).into_owned()).unwrap_or_default();
        return Err(ApiError::bad_request(text.trim()));
    }
    let mut response = Response::new(body.map_err(Into::into).boxed_unsync());
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("text/plain"));
    Ok(response)
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
async fn ask(
    cx: &Context<'_>,
    pod: &Value,
    request: http::request::Builder,
) -> Result<Response<hyper::body::Incoming>, ApiError> {
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
