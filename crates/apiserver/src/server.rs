//! The server: one value that answers requests, whoever carries them.
//!
//! ```text
//!  TLS listener ─┐                 ┌─ discovery, OpenAPI, health, metrics
//!                ├─► authenticate ─► authorize ─► dispatch ─► store
//!  kube::Client ─┘   (in process: the identity is a request extension)
//! ```

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context as TaskContext, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use jiff::Timestamp;
use parking_lot::RwLock;
use serde_json::Value;
use tether_machinery::status::ApiError;
use tether_machinery::{crd, kinds};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::admission::Admission;
use crate::auth::{Objects, User};
use crate::handlers::{self, Context};
use crate::kubelet::KubeletClient;
use crate::metrics::Metrics;
use crate::openapi::OpenApi;
use crate::registry::{Definition, Registry};
use crate::request::{Query, RequestInfo};
use crate::resource::Resource;
use crate::response::{self, Accepted, Body, BodyError, Warnings};
use crate::security::Security;
use crate::store::{Key, ListQuery, Store};
use crate::{body, definitions, discovery};

/// No request but a watch may take longer; Kubernetes' limit.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Commands in containers that run at the same time; each has a task and two buffers here.
const MAX_STREAMS: usize = 1024;

/// Where the server's time comes from; tests bring their own.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The API server. Cheap to clone; all clones are one server.
#[derive(Clone)]
pub struct Server(Arc<Inner>);

struct Inner {
    store: Arc<Store>,
    registry: RwLock<Arc<Registry>>,
    security: Security,
    admission: Admission,
    metrics: Metrics,
    openapi: OpenApi,
    clock: Clock,
    shutdown: CancellationToken,
    /// Where the server listens, once it does.
    address: OnceLock<String>,
    /// How nodes are reached; a server in memory reaches none.
    kubelets: OnceLock<KubeletClient>,
    /// Places for connections that are handed on to nodes.
    streams: Arc<Semaphore>,
}

/// Reads stored objects for those parts that decide by them.
pub struct StoreObjects(Arc<Store>);

impl StoreObjects {
    pub fn new(store: Arc<Store>) -> Self {
        Self(store)
    }
}

impl Objects for StoreObjects {
    fn list(&self, resource: &str) -> Vec<Arc<Value>> {
        let query = ListQuery { resource, ..ListQuery::default() };
        let listing = self.0.list(query).expect("the latest state must always be listable");
        listing.entries.iter().filter_map(|e| serde_json::from_slice(&e.value).ok()).map(Arc::new).collect()
    }

    fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let entry = self.0.get(&Key::new(resource, namespace, name))?;
        serde_json::from_slice(&entry.value).ok().map(Arc::new)
    }

    fn named(&self, resource: &str, namespace: &str, prefix: &str) -> Vec<Arc<Value>> {
        let entries = self.0.named(resource, namespace, prefix);
        entries.iter().filter_map(|entry| serde_json::from_slice(&entry.value).ok()).map(Arc::new).collect()
    }

    fn changes(&self, resource: &str) -> u64 {
        self.0.resource_changes(resource)
    }
}

impl Server {
    /// A server over `store`.
    pub fn new(store: Arc<Store>, security: Security, admission: Admission, clock: Clock) -> Self {
        let registry = Arc::new(load_registry(&store));
        let metrics = Metrics::new(store.metrics());
        Self(Arc::new(Inner {
            store,
            registry: RwLock::new(registry),
            security,
            admission,
            metrics,
            openapi: OpenApi::default(),
            clock,
            shutdown: CancellationToken::new(),
            address: OnceLock::new(),
            kubelets: OnceLock::new(),
            streams: Arc::new(Semaphore::new(MAX_STREAMS)),
        }))
    }

    /// A client that calls this server in process as `user`. RBAC applies to it as to anybody else.
    pub fn client(&self, user: User) -> kube::Client {
        kube::Client::new(InProcess { server: self.clone(), user }, "default")
    }

    /// Says how nodes are reached.
    pub(crate) fn reaches_nodes_by(&self, client: KubeletClient) {
        let _ = self.0.kubelets.set(client);
    }

    pub(crate) fn kubelets(&self) -> Option<&KubeletClient> {
        self.0.kubelets.get()
    }

    /// A place for a connection that is handed on to a node; `None` if all are taken.
    pub(crate) fn stream(&self) -> Option<OwnedSemaphorePermit> {
        self.0.streams.clone().try_acquire_owned().ok()
    }

    /// Says where the server can be reached; discovery repeats it.
    pub(crate) fn listens_on(&self, address: std::net::SocketAddr) {
        // A server listens once; a second address would not be more true than the first.
        let _ = self.0.address.set(address.to_string());
    }

    fn address(&self) -> &str {
        self.0.address.get().map_or("", String::as_str)
    }

    /// Ends every watch and refuses to start new ones; the listener calls it before it goes.
    pub fn shut_down(&self) {
        self.0.shutdown.cancel();
    }

    pub fn store(&self) -> &Store {
        &self.0.store
    }

    pub(crate) fn shared_store(&self) -> Arc<Store> {
        self.0.store.clone()
    }

    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    pub(crate) fn security(&self) -> &Security {
        &self.0.security
    }

    pub(crate) fn admission(&self) -> &Admission {
        &self.0.admission
    }

    pub(crate) fn registry(&self) -> Arc<Registry> {
        self.0.registry.read().clone()
    }

    pub(crate) fn shutdown_token(&self) -> CancellationToken {
        self.0.shutdown.clone()
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.0.clock)()
    }

    /// Called after each write: what is served may have changed.
    pub(crate) fn written(&self, resource: &Resource) {
        if resource.storage == definitions::STORAGE {
            // Loaded under the lock, so that two writes cannot leave the older picture behind.
            let mut registry = self.0.registry.write();
            *registry = Arc::new(load_registry(&self.0.store));
            self.0.openapi.forget();
        }
    }

    /// Answers one request.
    pub async fn handle<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<BodyError>,
    {
        let started = Instant::now();
        let (parts, body) = request.into_parts();
        let query = match Query::parse(parts.uri.query()) {
            Ok(query) => query,
            Err(error) => return response::error(&error),
        };
        let info = RequestInfo::parse(&parts.method, parts.uri.path(), &query);
        let resource =
            info.is_resource.then(|| self.registry().get(&info.group, &info.version, &info.resource).cloned());
        let resource = resource.flatten();
        let known = resource.is_some();
        let answer = self.answer(&parts, body, info.clone(), &query, resource).await;
        let response = answer.unwrap_or_else(|error| response::error(&error));
        self.0.metrics.request(&info, known, response.status().as_u16(), started.elapsed().as_secs_f64());
        response
    }

    async fn answer<B>(
        &self,
        parts: &Parts,
        body: B,
        info: RequestInfo,
        query: &Query,
        resource: Option<Arc<Resource>>,
    ) -> Result<Response<Body>, ApiError>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<BodyError>,
    {
        let user = self.0.security.authenticate(parts, self.now())?;
        let user = self.0.security.authorize(&parts.headers, info.attributes(user, query))?;
        if !info.is_resource {
            return self.non_resource(parts, &info);
        }
        let resource = resource.ok_or_else(|| match kinds::serves(&info.group, &info.version) {
            true => ApiError::no_such_path(),
            false => ApiError::no_such_page(),
        })?;
        let accepted = Accepted::negotiate(&parts.headers)?;
        let work = async {
            let body = body::collect(body).await?;
            let (headers, warnings) = (&parts.headers, Warnings::default());
            warnings.add(resource.deprecation());
            let cx = Context {
                server: self,
                resource,
                info,
                query,
                headers,
                body,
                upgrade: parts.extensions.get().cloned(),
                user,
                accepted,
                warnings: warnings.clone(),
            };
            let mut response = handlers::dispatch(&cx).await.unwrap_or_else(|error| response::error(&error));
            response::warn(&mut response, &warnings.take());
            Ok(response)
        };
        let late =
            |_| ApiError::timeout("the server did not answer within 60 seconds; the request may have taken effect");
        tokio::time::timeout(REQUEST_TIMEOUT, work).await.map_err(late)?
    }

    fn non_resource(&self, parts: &Parts, info: &RequestInfo) -> Result<Response<Body>, ApiError> {
        let path = info.path.trim_end_matches('/');
        let health = matches!(path, "/livez" | "/livez/ping" | "/healthz" | "/readyz");
        if !health && !matches!(info.verb, "get" | "head") {
            return Err(ApiError::method_not_allowed(
                "the server does not allow this method on the requested resource",
            ));
        }
        let registry = self.registry();
        match path {
            "/livez" | "/livez/ping" => Ok(response::text(StatusCode::OK, "ok")),
            "/healthz" | "/readyz" => Ok(self.ready()),
            "/version" => Ok(response::json(StatusCode::OK, &discovery::version())),
            "/metrics" => Ok(response::document("text/plain; version=0.0.4", self.0.metrics.render())),
            "/.well-known/openid-configuration" => {
                let keys = "/openid/v1/jwks";
                Ok(response::json(StatusCode::OK, &self.0.security.tokens().openid_configuration(keys)))
            }
            "/openid/v1/jwks" => Ok(response::json(StatusCode::OK, &self.0.security.tokens().jwks())),
            "" => Ok(response::json(StatusCode::OK, &serde_json::json!({"paths": paths(&registry)}))),
            _ => discovery::answer(&registry, self.address(), path, &parts.headers)
                .or_else(|| self.0.openapi.answer(&registry, path, parts))
                .ok_or_else(ApiError::no_such_page),
        }
    }

    /// Ready means that writes are possible.
    fn ready(&self) -> Response<Body> {
        let read_only = self.0.store.read_only().borrow().clone();
        match read_only {
            None => response::text(StatusCode::OK, "ok"),
            Some(why) => {
                let text = format!("[-]store failed: read-only: {why}\nreadyz check failed\n");
                response::text(StatusCode::INTERNAL_SERVER_ERROR, text)
            }
        }
    }
}

fn paths(registry: &Registry) -> Vec<String> {
    let mut paths = vec!["/api".to_owned(), "/api/v1".to_owned(), "/apis".to_owned()];
    for (group, versions) in registry.groups().into_iter().filter(|(g, _)| !g.is_empty()) {
        paths.push(format!("/apis/{group}"));
        paths.extend(versions.into_iter().map(|v| format!("/apis/{group}/{v}")));
    }
    paths.extend(["/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/readyz", "/version"].map(str::to_owned));
    paths
}

/// What the stored definitions make of the registry. One that cannot be read is not served, and said so.
fn load_registry(store: &Store) -> Registry {
    let query = ListQuery { resource: definitions::STORAGE, ..ListQuery::default() };
    let listing = store.list(query).expect("the latest state must always be listable");
    let mut found = Vec::new();
    for entry in listing.entries {
        let Ok(object) = serde_json::from_slice::<Value>(&entry.value) else { continue };
        if !definitions::is_established(&object) {
            continue;
        }
        match crd::parse(&object) {
            Ok(info) => found.push(Definition {
                info,
                changed_at: entry.revision,
                terminating: definitions::is_terminating(&object),
            }),
            Err(errors) => {
                let why: Vec<String> = errors.iter().map(ToString::to_string).collect();
                tracing::error!(definition = entry.key.name, errors = why.join("; "), "a definition cannot be served");
            }
        }
    }
    Registry::new(&found)
}

impl<B> tower::Service<Request<B>> for Server
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BodyError>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let server = self.clone();
        Box::pin(async move { Ok(server.handle(request).await) })
    }
}

/// The server as a service for `kube::Client`: no sockets, a fixed identity.
#[derive(Clone)]
struct InProcess {
    server: Server,
    user: User,
}

impl<B> tower::Service<Request<B>> for InProcess
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BodyError>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        request.extensions_mut().insert(self.user.clone());
        self.server.call(request)
    }
}
