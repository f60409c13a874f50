//! A server in memory and a client that speaks plain HTTP to it, for tests that read like a conversation.

#![allow(dead_code)]

use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tether_apiserver::auth::User;
use tether_apiserver::{Body, Server};

/// A conversation with a fresh server, as one user.
pub struct Api {
    pub server: Server,
    pub user: User,
}

/// One answer.
#[derive(Debug)]
pub struct Answer {
    pub code: u16,
    pub headers: HeaderMap,
    pub body: Value,
}

impl Answer {
    /// The body of a success.
    #[track_caller]
    pub fn ok(self) -> Value {
        assert!(self.code < 300, "{} {}", self.code, self.body);
        self.body
    }

    /// The message of a failure with this code.
    #[track_caller]
    pub fn fails(self, code: u16) -> String {
        assert_eq!(self.code, code, "{}", self.body);
        assert_eq!(self.body["kind"], "Status", "{}", self.body);
        self.body["message"].as_str().unwrap_or_default().to_owned()
    }

    /// The path leads nowhere, which no Status says: clients make one of their own.
    #[track_caller]
    pub fn leads_nowhere(self) {
        assert_eq!((self.code, self.body), (404, "404 page not found\n".into()));
    }

    pub fn warnings(&self) -> Vec<String> {
        self.headers.get_all("warning").iter().filter_map(|v| v.to_str().ok()).map(str::to_owned).collect()
    }
}

impl Api {
    pub async fn start() -> Self {
        let server = Server::ephemeral().await;
        let api = Self { server, user: User::new("admin", ["system:masters"]) };
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
        api.post("/api/v1/namespaces/default/serviceaccounts", account).await.ok();
        api
    }

    pub fn as_user(&self, user: User) -> Self {
        Self { server: self.server.clone(), user }
    }

    pub async fn raw(&self, method: Method, path: &str, headers: &[(&str, &str)], body: Bytes) -> http::Response<Body> {
        let mut request = Request::builder().method(method).uri(path).header("user-agent", "test/1");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut request = request.body(Full::new(body)).expect("request");
        request.extensions_mut().insert(self.user.clone());
        self.server.handle(request).await
    }

    pub async fn send(&self, method: Method, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Answer {
        let response = self.raw(method, path, headers, body.into()).await;
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.expect("body").to_bytes();
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
        Answer { code: parts.status.as_u16(), headers: parts.headers, body }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, &[], Bytes::new()).await
    }

    pub async fn get_as(&self, path: &str, accept: &str) -> Answer {
        self.send(Method::GET, path, &[("accept", accept)], Bytes::new()).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(Method::POST, path, &[("content-type", "application/json")], body.to_string()).await
    }

    pub async fn put(&self, path: &str, body: Value) -> Answer {
        self.send(Method::PUT, path, &[("content-type", "application/json")], body.to_string()).await
    }

    pub async fn patch(&self, path: &str, kind: &str, body: Value) -> Answer {
        let content_type = match kind {
            "apply" => "application/apply-patch+yaml".to_owned(),
            kind => format!("application/{kind}-patch+json")
                .replace("application/strategic-patch", "application/strategic-merge-patch"),
        };
        self.send(Method::PATCH, path, &[("content-type", &content_type)], body.to_string()).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send(Method::DELETE, path, &[], Bytes::new()).await
    }

    pub async fn delete_with(&self, path: &str, options: Value) -> Answer {
        self.send(Method::DELETE, path, &[("content-type", "application/json")], options.to_string()).await
    }

    /// Opens a watch.
    pub async fn watch(&self, path: &str) -> Events {
        let response = self.raw(Method::GET, path, &[], Bytes::new()).await;
        assert_eq!(response.status(), 200, "{path}");
        Events { body: response.into_body(), pending: Vec::new() }
    }
}

/// The events of a watch.
pub struct Events {
    body: Body,
    pending: Vec<u8>,
}

impl Events {
    /// The next event, or None at the end of the watch.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.pending.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).expect("event"));
            }
            let frame = self.body.frame().await?.expect("frame");
            if let Ok(data) = frame.into_data() {
                self.pending.extend_from_slice(&data);
            }
        }
    }

    /// Type and name of the next event.
    pub async fn word(&mut self) -> (String, String) {
        let event = self.next().await.expect("an event must come");
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        (text(&event["type"]), text(&event["object"]["metadata"]["name"]))
    }
}

pub fn configmap(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}})
}

pub fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "img"}]},
    })
}

pub const CONFIGMAPS: &str = "/api/v1/namespaces/default/configmaps";
pub const PODS: &str = "/api/v1/namespaces/default/pods";
