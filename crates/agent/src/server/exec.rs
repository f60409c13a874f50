//! `GET /exec/NAMESPACE/POD/CONTAINER` and `/attach/…`: from the request to an open WebSocket, or to a clear refusal.

use http::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use tether_machinery::remote_command::{Protocol, Streams};
use tether_plan::object::uid;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use super::session::{self, Task};
use super::{Body, Node, text};
use crate::container::files::{PodDir, RunDir, State};

/// A client's messages are a few KiB of input each; nobody may make us hold more.
const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// The version of WebSockets that there is.
const WEBSOCKET_VERSION: &str = "13";

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A further command.
    Exec,
    /// The streams of the container's own process.
    Attach,
}

/// Why a request is refused, and with which status.
type Refusal = (StatusCode, String);

fn bad(why: impl Into<String>) -> Refusal {
    (StatusCode::BAD_REQUEST, why.into())
}

/// Opens the WebSocket, and has the command run.
pub(super) fn answer(node: &Node, what: What, at: [&str; 3], mut request: Request<Incoming>) -> Response<Body> {
    let opened = open(node, what, at, &request);
    let (task, protocol, accept) = match opened {
        Ok(opened) => opened,
        Err((status, why)) => return text(status, why),
    };
    let Ok(place) = node.commands.clone().try_acquire_owned() else {
        return text(StatusCode::TOO_MANY_REQUESTS, "too many commands run in containers of this node");
    };
    let connection = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        match connection.await {
            Ok(connection) => {
                let config = WebSocketConfig::default()
                    .max_message_size(Some(MAX_MESSAGE_BYTES))
                    .max_frame_size(Some(MAX_MESSAGE_BYTES));
                let socket =
                    WebSocketStream::from_raw_socket(TokioIo::new(connection), Role::Server, Some(config)).await;
                session::run(socket, protocol, task).await;
            }
            Err(error) => tracing::debug!(%error, "the client of a command went away"),
        }
        drop(place);
    });
    switching(protocol, &accept)
}

fn switching(protocol: Protocol, accept: &str) -> Response<Body> {
    let mut response = Response::new(Empty::new().boxed_unsync());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol.name()));
    if let Ok(accept) = HeaderValue::from_str(accept) {
        headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    }
    response
}

/// What is to be done, how it is spoken of, and the answer to the client's key.
fn open(
    node: &Node,
    what: What,
    [namespace, pod, container]: [&str; 3],
    request: &Request<Incoming>,
) -> Result<(Task, Protocol, String), Refusal> {
    let (streams, argv) = wanted(request.uri().query().unwrap_or_default()).map_err(bad)?;
    let missing = || (StatusCode::NOT_FOUND, format!("pod \"{pod}\" not found"));
    let found = node.pods.get(namespace, pod).ok_or_else(missing)?;
    let run = running(node, &found, container)?;
    let task = match what {
        What::Exec if argv.is_empty() => return Err(bad("you must specify the command to run: command=…")),
        What::Exec => Task::Exec { run, argv, streams },
        What::Attach if streams.stdin || streams.tty => {
            let words = "standard input and terminals of containers cannot be attached to: their standard input is \
                         closed; leave -i and -t out, or run a shell with kubectl exec";
            return Err(bad(words));
        }
        What::Attach => Task::Attach { run, streams },
    };
    let (protocol, accept) = handshake(request.headers())?;
    Ok((task, protocol, accept))
}

/// The streams and the command of a request.
fn wanted(query: &str) -> Result<(Streams, Vec<String>), String> {
    let (mut streams, mut argv) = (Streams::default(), Vec::new());
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        let on = value == "1";
        match &*key {
            "input" => streams.stdin = on,
            "output" => streams.stdout = on,
            "error" => streams.stderr = on,
            "tty" => streams.tty = on,
            "command" => argv.push(value.into_owned()),
            _ => {}
        }
    }
    Ok((streams.checked()?, argv))
}

/// The run of a container that a command can be run in.
fn running(node: &Node, pod: &Pod, container: &str) -> Result<RunDir, Refusal> {
    let dir = PodDir { path: crate::volumes::pod_dir(&node.root, uid(pod)) };
    let last = dir.runs_of(container).pop();
    match last.map(|run| (run.state(), run)) {
        Some((Ok(State::Alive { started: Some(_), .. }), run)) => Ok(run),
        _ => Err((StatusCode::INTERNAL_SERVER_ERROR, format!("container not found (\"{container}\")"))),
    }
}

/// The protocol that is spoken, and the answer to the client's key.
fn handshake(headers: &HeaderMap) -> Result<(Protocol, String), Refusal> {
    let values = |name| headers.get_all(name).into_iter().filter_map(|value: &HeaderValue| value.to_str().ok());
    let names = |name, wanted: &str| {
        values(name).flat_map(|value| value.split(',')).any(|word| word.trim().eq_ignore_ascii_case(wanted))
    };
    if !names(UPGRADE, "websocket") || !names(CONNECTION, "upgrade") {
        let words = "commands in containers go over WebSockets here, not over SPDY: use kubectl 1.31 or newer (1.29 \
                     and 1.30 with KUBECTL_REMOTE_COMMAND_WEBSOCKETS=true)";
        return Err(bad(words));
    }
    let key = values(SEC_WEBSOCKET_KEY).next().ok_or_else(|| bad("the header Sec-WebSocket-Key is missing"))?;
    if values(SEC_WEBSOCKET_VERSION).next() != Some(WEBSOCKET_VERSION) {
        return Err(bad(format!("Sec-WebSocket-Version must be {WEBSOCKET_VERSION}")));
    }
    let known = || {
        let known = Protocol::ALL.map(Protocol::name).join(", ");
        bad(format!("Sec-WebSocket-Protocol must name one of: {known}"))
    };
    let protocol = Protocol::negotiate(values(SEC_WEBSOCKET_PROTOCOL)).ok_or_else(known)?;
    Ok((protocol, derive_accept_key(key.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn a_request_says_what_to_run() {
        let (streams, argv) = wanted("command=sh&command=-c&command=a+b%26&input=1&output=1&error=1&tty=1").unwrap();
        assert_eq!(argv, ["sh", "-c", "a b&"]);
        assert_eq!(streams, Streams { stdin: true, stdout: true, stderr: false, tty: true });
        assert!(wanted("command=ls&input=0").is_err(), "nothing to talk over");
    }

    #[test]
    fn a_websocket_is_opened_as_its_specification_says() {
        let asked = [
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "WebSocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("sec-websocket-protocol", "v5.channel.k8s.io"),
        ];
        let opened = handshake(&headers(&asked)).unwrap();
        assert_eq!(opened, (Protocol::V5, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=".to_owned()));
        let without = |name: &str| {
            let left: Vec<_> = asked.into_iter().filter(|(held, _)| *held != name).collect();
            handshake(&headers(&left)).unwrap_err().1
        };
        assert!(without("upgrade").contains("not over SPDY: use kubectl 1.31"));
        assert!(without("connection").contains("WebSockets"));
        assert!(without("sec-websocket-key").contains("Sec-WebSocket-Key"));
        assert!(without("sec-websocket-version").contains("must be 13"));
        assert!(without("sec-websocket-protocol").contains("v5.channel.k8s.io, v4.channel.k8s.io"));
    }
}
