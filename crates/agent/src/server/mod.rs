//! The node's HTTP API, as kubelets have it: what containers wrote, and commands in them.
//!
//! ```text
//!   kubectl logs, exec ──► API server ──TLS, its client certificate──► GET /containerLogs/NAMESPACE/POD/CONTAINER
//!                                                                      GET /exec/NAMESPACE/POD/CONTAINER (WebSocket)
//!                                                                      GET /attach/NAMESPACE/POD/CONTAINER (WebSocket)
//! ```
//!
//! Whoever calls shows a certificate of the cluster's authority; the API server is then asked whether he may use this node
//! (`nodes/proxy`), which nodes and pods may not.

mod exec;
mod logs;
mod session;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, PostParams};
use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tether_controllers::cache::Cache;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// One caller, the API server, with a connection for each log that is followed.
const MAX_CONNECTIONS: usize = 256;
/// Commands in containers at the same time; their connections do not count above.
pub(crate) const MAX_COMMANDS: usize = 256;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Who this server is, and whom it trusts.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Certificate chain and key, PEM.
    pub certificate_pem: String,
    /// The authority of clients, PEM.
    pub client_ca_pem: String,
}

/// Why the node's API cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot listen on {address}: {source}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("the serving certificate cannot be used: {0}")]
    Certificate(String),
}

/// A listener of the node's API that does not answer yet.
pub(crate) struct Listener {
    tcp: TcpListener,
    tls: TlsAcceptor,
    pub port: u16,
}

/// Listens, so that the node can say where.
pub(crate) async fn listen(address: SocketAddr, identity: &Identity) -> Result<Listener, ServeError> {
    let tls = TlsAcceptor::from(Arc::new(tls(identity)?));
    let failed = |source| ServeError::Listen { address, source };
    let tcp = TcpListener::bind(address).await.map_err(failed)?;
    let port = tcp.local_addr().map_err(failed)?.port();
    Ok(Listener { tcp, tls, port })
}

fn tls(identity: &Identity) -> Result<rustls::ServerConfig, ServeError> {
    let failed = |error: &dyn std::fmt::Display| ServeError::Certificate(error.to_string());
    let pem = identity.certificate_pem.as_bytes();
    let chain: Vec<_> =
        CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|error| failed(&error))?;
    let key = PrivateKeyDer::from_pem_slice(pem).map_err(|error| failed(&error))?;
    let mut roots = RootCertStore::empty();
    for ca in CertificateDer::pem_slice_iter(identity.client_ca_pem.as_bytes()) {
        roots.add(ca.map_err(|error| failed(&error))?).map_err(|error| failed(&error))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .map_err(|error| failed(&error))?;
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(&error))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key);
    config.map_err(|error| failed(&error))
}

/// What answers need.
pub(crate) struct Node {
    pub client: Client,
    pub name: String,
    pub pods: Arc<Cache<Pod>>,
    /// The node's directory.
    pub root: PathBuf,
    /// Places for commands in containers.
    pub commands: Arc<Semaphore>,
}

/// Serves until `cancel`.
pub(crate) async fn serve(listener: Listener, node: Arc<Node>, cancel: &CancellationToken) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let accepting = async {
        loop {
            let Ok(slot) = slots.clone().acquire_owned().await else { return };
            match listener.tcp.accept().await {
                Ok((stream, peer)) => {
                    let (tls, node) = (listener.tls.clone(), node.clone());
                    tokio::spawn(async move {
                        if let Err(error) = connection(stream, tls, node).await {
                            tracing::debug!(%peer, %error, "connection ended");
                        }
                        drop(slot);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    };
    cancel.run_until_cancelled(accepting).await;
}

async fn connection(
    stream: TcpStream,
    tls: TlsAcceptor,
    node: Arc<Node>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let stream = tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await??;
    let caller = stream.get_ref().1.peer_certificates().and_then(|chain| caller(chain.first()?));
    let caller = Arc::new(caller.ok_or("the client's certificate names nobody")?);
    let service = service_fn(move |request| {
        let (node, caller) = (node.clone(), caller.clone());
        async move { Ok::<_, Infallible>(answer(&node, &caller, request).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder.serve_connection(TokioIo::new(stream), service).with_upgrades().await?;
    Ok(())
}

/// Who calls.
struct Caller {
    user: String,
    groups: Vec<String>,
}

fn caller(certificate: &CertificateDer<'_>) -> Option<Caller> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let subject = certificate.subject();
    let user = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let groups = subject.iter_organization().filter_map(|name| name.as_str().ok()).map(str::to_owned);
    Some(Caller { user, groups: groups.collect() })
}

async fn answer(node: &Node, caller: &Caller, request: Request<Incoming>) -> Response<Body> {
    let verb = if request.method() == Method::GET { "get" } else { "create" };
    match may(node, caller, verb).await {
        Ok(true) => {}
        Ok(false) => {
            let words =
                format!("Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[proxy])", caller.user);
            return text(StatusCode::FORBIDDEN, words);
        }
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, format!("Authorization error: {error}")),
    }
    let path = request.uri().path().to_owned();
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    match parts.as_slice() {
        ["containerLogs", namespace, pod, container] if request.method() == Method::GET => {
            let query = request.uri().query().unwrap_or_default();
            logs::answer(node, namespace, pod, container, query)
        }
        [what @ ("exec" | "attach"), namespace, pod, container] => {
            let what = if *what == "exec" { exec::What::Exec } else { exec::What::Attach };
            exec::answer(node, what, [namespace, pod, container], request)
        }
        ["healthz"] => text(StatusCode::OK, "ok"),
        _ => text(StatusCode::NOT_FOUND, "404 page not found"),
    }
}

/// Asks the API server, as a kubelet does.
async fn may(node: &Node, caller: &Caller, verb: &str) -> kube::Result<bool> {
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(caller.user.clone()),
            groups: Some(caller.groups.clone()),
            resource_attributes: Some(ResourceAttributes {
                verb: Some(verb.to_owned()),
                version: Some("v1".to_owned()),
                resource: Some("nodes".to_owned()),
                subresource: Some("proxy".to_owned()),
                name: Some(node.name.clone()),
                ..Default::default()
            }),
            ..Default::default()
        },
        ..Default::default()
    };
    let reviews: Api<SubjectAccessReview> = Api::all(node.client.clone());
    let answer = reviews.create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

fn text(status: StatusCode, words: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Full::new(words.into()).boxed_unsync());
    *response.status_mut() = status;
    let plain = http::HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(http::header::CONTENT_TYPE, plain);
    response
}
