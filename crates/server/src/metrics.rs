//! `/metrics` behind TLS, for those whom the Kubernetes API lets read it.
//!
//! As Kubernetes' own components do it: the caller's token is shown to the API server (TokenReview), which also says
//! whether that user may `get` the path `/metrics` (SubjectAccessReview). Nothing is answered to anybody else.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::Client;
use kube::api::{Api, PostParams};
use parking_lot::Mutex;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest as _, Sha256};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// Where metrics are.
const PATH: &str = "/metrics";
/// What Prometheus reads.
const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// A few scrapers, each with a connection or two.
const MAX_CONNECTIONS: usize = 64;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Between two requests and for the headers of one; scrapes are a minute apart.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// For how long an answer of the API server about a token counts, as in Kubernetes' components.
const REMEMBER: Duration = Duration::from_secs(10);
/// How many answers are remembered; a flood of made-up tokens forgets them.
const REMEMBERED: usize = 256;

/// Why metrics cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// The port is taken, or the address is not ours.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// Certificate or key cannot be read.
    #[error("certificate or key of the metrics: {0}")]
    Pem(#[from] rustls_pki_types::pem::Error),
    /// Certificate and key cannot be used.
    #[error("certificate or key of the metrics: {0}")]
    Tls(#[from] rustls::Error),
}

/// Who may read, as the API server says.
struct Guard {
    client: Client,
    known: Mutex<HashMap<[u8; 32], (Instant, StatusCode)>>,
}

/// Serves what `render` returns until `shutdown`.
pub async fn serve_metrics(
    address: SocketAddr,
    (certificate, key): (&[u8], &[u8]),
    client: Client,
    render: impl Fn() -> String + Send + Sync + 'static,
    shutdown: CancellationToken,
) -> Result<(), MetricsError> {
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(certificate).collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(key)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    let failed = |source| MetricsError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let (guard, render) = (Arc::new(Guard { client, known: Mutex::default() }), Arc::new(render));
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    while let Some(slot) = shutdown.run_until_cancelled(slots.clone().acquire_owned()).await {
        let Some(accepted) = shutdown.run_until_cancelled(listener.accept()).await else { break };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let (acceptor, guard, render, shutdown) = (acceptor.clone(), guard.clone(), render.clone(), shutdown.clone());
        tokio::spawn(async move {
            shutdown.run_until_cancelled(connection(stream, acceptor, guard, render)).await;
            drop(slot);
        });
    }
    Ok(())
}

async fn connection<F>(stream: TcpStream, acceptor: TlsAcceptor, guard: Arc<Guard>, render: Arc<F>)
where
    F: Fn() -> String + Send + Sync + 'static,
{
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await else { return };
    let service = service_fn(move |request| {
        let (guard, render) = (guard.clone(), render.clone());
        async move { Ok::<_, Infallible>(answer(&guard, &*render, &request).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        tracing::debug!(%error, "a connection broke");
    }
}

async fn answer(guard: &Guard, render: &impl Fn() -> String, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let status = if request.uri().path() != PATH {
        StatusCode::NOT_FOUND
    } else if ![Method::GET, Method::HEAD].contains(request.method()) {
        StatusCode::METHOD_NOT_ALLOWED
    } else {
        guard.check(request.headers()).await
    };
    let body = if status == StatusCode::OK { render() } else { format!("{status}\n") };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let kind = if status == StatusCode::OK { TEXT } else { "text/plain; charset=utf-8" };
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

impl Guard {
    async fn check(&self, headers: &HeaderMap) -> StatusCode {
        let given = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token =
            given.and_then(|text| text.split_once(' ')).filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let Some((_, token)) = token else { return StatusCode::UNAUTHORIZED };
        let token = token.trim();
        // Tokens are not kept; their hashes are enough to know them again.
        let hash: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some((_, status)) = self.known.lock().get(&hash).filter(|(at, _)| at.elapsed() < REMEMBER) {
            return *status;
        }
        let status = match self.ask(token).await {
            Ok(status) => status,
            Err(error) => {
                tracing::warn!(%error, "cannot ask who may read metrics");
                return StatusCode::SERVICE_UNAVAILABLE;
            }
        };
        let mut known = self.known.lock();
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(hash, (Instant::now(), status));
        status
    }

    async fn ask(&self, token: &str) -> Result<StatusCode, kube::Error> {
        let spec = TokenReviewSpec { token: Some(token.to_owned()), ..TokenReviewSpec::default() };
        let review = TokenReview { spec, ..TokenReview::default() };
        let review = Api::all(self.client.clone()).create(&PostParams::default(), &review).await?;
        let Some(user) = review.status.filter(|status| status.authenticated == Some(true)).and_then(|s| s.user) else {
            return Ok(StatusCode::UNAUTHORIZED);
        };
        let path = NonResourceAttributes { path: Some(PATH.to_owned()), verb: Some("get".to_owned()) };
        let spec = SubjectAccessReviewSpec {
            user: user.username,
            uid: user.uid,
            groups: user.groups,
            extra: user.extra,
            non_resource_attributes: Some(path),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let review = Api::all(self.client.clone()).create(&PostParams::default(), &review).await?;
        let allowed = review.status.is_some_and(|status| status.allowed);
        Ok(if allowed { StatusCode::OK } else { StatusCode::FORBIDDEN })
    }
}
