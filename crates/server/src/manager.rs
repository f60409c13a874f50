//! One request: who asks, what for, and the answer.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, WWW_AUTHENTICATE};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use serde_json::{Map, Value, json};

use crate::clients::Clients;
use crate::error::RequestError;
use crate::resources::{Links, node, setting, volume, volume_attachment};
use crate::route::{Collection, Route, route};
use crate::{actions, schemas};

/// Where clients look for the schemas.
const SCHEMAS_HEADER: HeaderName = HeaderName::from_static("x-api-schemas");

/// The REST API over the clients of its callers.
#[derive(Clone)]
pub struct Manager<C> {
    clients: C,
}

/// An answer: a body, or nothing to say.
type Answer = Result<Option<Value>, RequestError>;

impl<C: Clients> Manager<C> {
    /// The API over these clients.
    pub fn new(clients: C) -> Self {
        Self { clients }
    }

    /// Answers one request.
    pub async fn handle(&self, request: Request<Bytes>) -> Response<Full<Bytes>> {
        let links = Links::new(base(request.headers()));
        let answer = self.answer(&links, &request).await;
        let (status, body) = match answer {
            Ok(body) => (StatusCode::OK, body),
            Err(error) => {
                let status = error.status();
                if status.is_server_error() {
                    tracing::warn!(method = %request.method(), uri = %request.uri(), %error, "failed");
                }
                (status, Some(error.body()))
            }
        };
        let bytes = body.map(|body| body.to_string()).unwrap_or_default();
        let mut response = Response::new(Full::new(Bytes::from(bytes)));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Ok(schemas) = HeaderValue::try_from(links.schemas()) {
            headers.insert(SCHEMAS_HEADER, schemas);
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer, Basic realm=\"token as password\""));
        }
        response
    }

    async fn answer(&self, links: &Links, request: &Request<Bytes>) -> Answer {
        let uri = request.uri();
        let route = route(request.method(), uri.path(), uri.query().unwrap_or_default())?;
        let token = token(request.headers()).ok_or(RequestError::Anonymous)?;
        let client = self.clients.client(&token).await?;
        let body = || body(request.body());
        let found = match route {
            Route::Versions => links.collection("apiVersion", "apiversions", vec![root(links)]),
            Route::Root => root(links),
            Route::Schemas => links.collection("schema", "schemas", schemas::all(links)),
            Route::Schema(id) => {
                let all = schemas::all(links);
                let found = all.into_iter().find(|schema| schema["id"] == id.as_str());
                found.ok_or(RequestError::Missing { kind: "schema", name: id })?
            }
            Route::List(collection) => {
                let members = match collection {
                    Collection::Volumes => volume::list(&client, links).await?,
                    Collection::Nodes => node::list(&client, links).await?,
                    Collection::Settings => setting::list(&client, links).await?,
                    Collection::VolumeAttachments => volume_attachment::list(&client, links).await?,
                };
                links.collection(collection.kind(), collection.plural(), members)
            }
            Route::Get(Collection::Volumes, name) => volume::get(&client, links, &name).await?,
            Route::Get(Collection::Nodes, name) => node::get(&client, links, &name).await?,
            Route::Get(Collection::Settings, name) => setting::get(&client, links, &name).await?,
            Route::Get(Collection::VolumeAttachments, name) => volume_attachment::get(&client, links, &name).await?,
            Route::CreateVolume => {
                let name = actions::create(&client, &body()?).await?;
                volume::get(&client, links, &name).await?
            }
            Route::VolumeAction(name, action) => {
                // Pages of old versions detach with a body that is none.
                let body = if action == "detach" { body().unwrap_or_default() } else { body()? };
                actions::act(&client, &name, &action, &body).await?;
                volume::get(&client, links, &name).await?
            }
            Route::DeleteVolume(name) => {
                actions::delete(&client, &name).await?;
                return Ok(None);
            }
            Route::UpdateSetting(name) => {
                setting::update(&client, &name, &body()?).await?;
                setting::get(&client, links, &name).await?
            }
            Route::UpdateNode(name) => {
                node::update(&client, &name, &body()?).await?;
                node::get(&client, links, &name).await?
            }
        };
        Ok(Some(found))
    }
}

fn root(links: &Links) -> Value {
    let mut to: Map<String, Value> = Map::new();
    for collection in Collection::ALL {
        to.insert(collection.plural().to_owned(), links.to(collection.plural()).into());
    }
    to.insert("self".to_owned(), links.root().into());
    to.insert("schemas".to_owned(), links.schemas().into());
    json!({"id": "v1", "type": "apiVersion", "links": to, "actions": {}})
}

/// A body with the names of its fields in lower case: Longhorn's server does not tell the cases apart, and its page relies on that.
fn body(bytes: &Bytes) -> Result<Map<String, Value>, RequestError> {
    if bytes.is_empty() {
        return Ok(Map::new());
    }
    let value: Value = serde_json::from_slice(bytes).map_err(|error| RequestError::Body(error.to_string()))?;
    let Value::Object(fields) = value else { return Err(RequestError::Body("it is not an object".to_owned())) };
    Ok(fields.into_iter().map(|(name, value)| (name.to_lowercase(), value)).collect())
}

/// The caller's token.
fn token(headers: &HeaderMap) -> Option<String> {
    let (scheme, rest) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = match scheme.to_ascii_lowercase().as_str() {
        "bearer" => rest.trim().to_owned(),
        "basic" => {
            let decoded = String::from_utf8(BASE64_STANDARD.decode(rest.trim()).ok()?).ok()?;
            decoded.split_once(':')?.1.to_owned()
        }
        _ => return None,
    };
    // What Longhorn's Python client sends when it was given no password.
    (!token.is_empty() && token != "None").then_some(token)
}

/// The address that the caller knows this server by, from what proxies say of it.
fn base(headers: &HeaderMap) -> String {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).filter(|value| !value.is_empty());
    if let Some(url) = text("x-api-request-url")
        && let Some((base, _)) = url.split_once("/v1")
    {
        return base.to_owned();
    }
    let proto = text("x-forwarded-proto").unwrap_or("http");
    let host = text("x-forwarded-host").or_else(|| text(HOST.as_str())).unwrap_or("localhost");
    match text("x-forwarded-port") {
        Some(port) if !["80", "443"].contains(&port) && !host.contains(':') => format!("{proto}://{host}:{port}"),
        _ => format!("{proto}://{host}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&str, &str)| {
            (HeaderName::try_from(*name).expect("a name"), HeaderValue::from_str(value).expect("a value"))
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn a_token_comes_as_bearer_or_as_password() {
        let basic = |text: &str| format!("Basic {}", BASE64_STANDARD.encode(text));
        for (value, found) in [
            ("Bearer abc".to_owned(), Some("abc")),
            ("bearer  abc ".to_owned(), Some("abc")),
            (basic("anybody:a:b"), Some("a:b")),
            (basic("None:None"), None),
            (basic("x:"), None),
            ("Digest abc".to_owned(), None),
            ("Bearer".to_owned(), None),
        ] {
            assert_eq!(token(&headers(&[("authorization", &value)])).as_deref(), found, "{value}");
        }
        assert_eq!(token(&HeaderMap::new()), None);
    }

    #[test]
    fn links_lead_back_the_way_that_the_caller_came() {
        for (given, base_is) in [
            (vec![("host", "localhost:9500")], "http://localhost:9500"),
            (
                vec![("host", "inner"), ("x-forwarded-host", "lh.example"), ("x-forwarded-proto", "https")],
                "https://lh.example",
            ),
            (vec![("x-forwarded-host", "lh.example"), ("x-forwarded-port", "8443")], "http://lh.example:8443"),
            (vec![("x-forwarded-host", "lh.example"), ("x-forwarded-port", "443")], "http://lh.example"),
            (vec![("x-api-request-url", "https://a/b/v1/volumes"), ("host", "inner")], "https://a/b"),
        ] {
            assert_eq!(base(&headers(&given)), base_is);
        }
    }

    #[test]
    fn fields_are_found_whatever_their_case() {
        let body = body(&Bytes::from(r#"{"AttachmentID": "x", "hostId": "n"}"#)).expect("a body");
        assert_eq!((&body["attachmentid"], &body["hostid"]), (&json!("x"), &json!("n")));
    }
}
