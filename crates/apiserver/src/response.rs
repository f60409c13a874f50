//! Responses: what the client accepts, and bodies that stream without copying the store.

use std::error::Error;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::stream;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WARNING};
use http::{HeaderMap, Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use parking_lot::Mutex;
use serde_json::Value;
use tether_machinery::status::ApiError;

/// The error of a response body; the server's own bodies never fail.
pub type BodyError = Box<dyn Error + Send + Sync>;
/// The body of every response.
pub type Body = UnsyncBoxBody<Bytes, BodyError>;

/// Long bodies are sent in pieces of about this size: large enough that framing costs little, small
/// enough that a list of everything needs no second copy of everything.
const CHUNK_BYTES: usize = 64 * 1024;

/// The shape that the client wants its objects in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    #[default]
    Object,
    Table,
    Metadata,
}

/// What `Accept` settled on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accepted {
    pub view: View,
    pub yaml: bool,
}

impl Accepted {
    /// The first media range of the header that this server can answer in. Protobuf never is: clients that
    /// ask for it list JSON behind it.
    pub fn negotiate(headers: &HeaderMap) -> Result<Self, ApiError> {
        let header = headers.get(ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
        if header.trim().is_empty() {
            return Ok(Self::default());
        }
        header.split(',').find_map(Self::range).ok_or_else(|| {
            ApiError::not_acceptable(
                "only the following media types are accepted: application/json, application/yaml, \
                 application/json;as=Table;v=v1;g=meta.k8s.io, \
                 application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
            )
        })
    }

    fn range(range: &str) -> Option<Self> {
        let mut params = range.split(';').map(str::trim);
        let yaml = match params.next()? {
            "application/json" | "*/*" | "application/*" => false,
            "application/yaml" => true,
            _ => return None,
        };
        let mut accepted = Self { view: View::Object, yaml };
        for param in params {
            match param.split_once('=') {
                Some(("as", "Table")) => accepted.view = View::Table,
                Some(("as", "PartialObjectMetadata" | "PartialObjectMetadataList")) => accepted.view = View::Metadata,
                Some(("as", _)) => return None,
                Some(("v", "v1" | "v1beta1") | ("g", "meta.k8s.io")) => {}
                Some(("v" | "g", _)) if accepted.view != View::Object => return None,
                _ => {}
            }
        }
        Some(accepted)
    }
}

fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

fn with_type(status: StatusCode, content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// A JSON document that is already in bytes.
pub fn json_bytes(status: StatusCode, bytes: impl Into<Bytes>) -> Response<Body> {
    with_type(status, "application/json", full(bytes))
}

/// A JSON document.
pub fn json(status: StatusCode, value: &Value) -> Response<Body> {
    json_bytes(status, value.to_string())
}

/// A document of another type.
pub fn document(content_type: &'static str, bytes: impl Into<Bytes>) -> Response<Body> {
    with_type(StatusCode::OK, content_type, full(bytes))
}

/// Plain text, for health checks and metrics.
pub fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    with_type(status, "text/plain; charset=utf-8", full(text))
}

/// An error, as a Status; a path that leads nowhere at all, in plain text.
pub fn error(error: &ApiError) -> Response<Body> {
    if *error == ApiError::no_such_page() {
        return text(StatusCode::NOT_FOUND, format!("{}\n", error.message));
    }
    let status = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = json(status, &error.to_json());
    if let Some(seconds) = error.details.get("retryAfterSeconds").and_then(Value::as_u64) {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// What the client is told besides its answer, be that a success or not; nothing is said twice.
#[derive(Clone, Debug, Default)]
pub struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    pub fn add(&self, texts: impl IntoIterator<Item = String>) {
        let mut all = self.0.lock();
        for text in texts {
            if !all.contains(&text) {
                all.push(text);
            }
        }
    }

    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock())
    }
}

/// Adds `Warning: 299` headers, as kubectl prints them.
pub fn warn(response: &mut Response<Body>, warnings: &[String]) {
    for warning in warnings {
        let escaped: String =
            warning.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>().replace('\\', "\\\\");
        let line = format!("299 - \"{}\"", escaped.replace('"', "\\\""));
        if let Ok(value) = HeaderValue::from_bytes(line.as_bytes()) {
            response.headers_mut().append(WARNING, value);
        }
    }
}

/// A stream of chunks, for watches.
pub fn streaming<S>(content_type: &'static str, chunks: S) -> Response<Body>
where
    S: futures::Stream<Item = Bytes> + Send + 'static,
{
    use futures::StreamExt;
    let frames = chunks.map(|bytes| Ok::<_, BodyError>(Frame::data(bytes)));
    with_type(StatusCode::OK, content_type, StreamBody::new(frames).boxed_unsync())
}

/// A JSON list: `head`, the items separated by commas, `tail`. Items are drawn while the client reads.
pub fn json_list<I>(head: String, items: I, tail: &'static str) -> Response<Body>
where
    I: Iterator<Item = Bytes> + Send + 'static,
{
    let state = ListState { head: Some(head), items, first: true, tail: Some(tail) };
    let chunks = stream::unfold(state, |mut state| async move { state.next_chunk().map(|chunk| (chunk, state)) });
    streaming("application/json", chunks)
}

struct ListState<I> {
    head: Option<String>,
    items: I,
    first: bool,
    tail: Option<&'static str>,
}

impl<I: Iterator<Item = Bytes>> ListState<I> {
    fn next_chunk(&mut self) -> Option<Bytes> {
        let tail = self.tail?;
        let mut chunk = BytesMut::new();
        if let Some(head) = self.head.take() {
            chunk.extend_from_slice(head.as_bytes());
        }
        while chunk.len() < CHUNK_BYTES {
            let Some(item) = self.items.next() else {
                chunk.extend_from_slice(tail.as_bytes());
                self.tail = None;
                break;
            };
            if !std::mem::take(&mut self.first) {
                chunk.extend_from_slice(b",");
            }
            chunk.extend_from_slice(&item);
        }
        Some(chunk.freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accept(text: &str) -> Result<Accepted, ApiError> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, text.parse().expect("header"));
        Accepted::negotiate(&headers)
    }

    #[test]
    fn the_first_range_that_can_be_answered_wins() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
        assert_eq!(accept(table).expect("table").view, View::Table);
        let proto_first = "application/vnd.kubernetes.protobuf,application/json";
        assert_eq!(accept(proto_first).expect("json"), Accepted::default());
        let meta = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,\
                    application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
        assert_eq!(accept(meta).expect("metadata").view, View::Metadata);
        assert_eq!(accept("application/xml").expect_err("xml").code, 406);
        assert!(accept("application/yaml").expect("yaml").yaml);
    }

    #[tokio::test]
    async fn lists_are_whole_json_whatever_their_size() {
        for count in [0_usize, 1, 3, 20_000] {
            let items = (0..count).map(|i| Bytes::from(format!("{{\"n\":{i}}}")));
            let response = json_list("{\"items\":[".to_owned(), items, "]}");
            let bytes = response.into_body().collect().await.expect("body").to_bytes();
            let value: Value = serde_json::from_slice(&bytes).expect("json");
            assert_eq!(value["items"].as_array().map(Vec::len), Some(count));
        }
    }
}
