//! The HTTPS side of a call: one pool of connections for each authority that webhooks trust.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use parking_lot::Mutex;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

use super::config::ClientConfig;

/// An answer repeats the patch of an object at most; objects are smaller than this.
const MAX_REPLY_BYTES: usize = 8 * 1024 * 1024;
/// Webhooks are asked often or not at all.
const IDLE_CONNECTION_S: u64 = 60;
const IDLE_CONNECTIONS_PER_HOST: usize = 16;
/// Pools that are kept; configurations hardly ever use more authorities than a few.
const MAX_CLIENTS: usize = 64;

type HttpsClient = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// Why a webhook could not be asked, in the words that Kubernetes' users search for.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error("{0}")]
    Config(String),
    #[error("unable to load root certificates: {0}")]
    CaBundle(String),
    #[error("Post {url:?}: {reason}")]
    Transport { url: String, reason: String },
    #[error("{0}")]
    Status(String),
}

/// Clients by the authority that they trust.
#[derive(Default)]
pub(super) struct Clients {
    by_ca: Mutex<HashMap<Vec<u8>, HttpsClient>>,
}

impl Clients {
    /// Posts JSON and returns the body of a successful answer.
    pub(super) async fn post(&self, config: &ClientConfig, body: Bytes, timeout: Duration) -> Result<Bytes, CallError> {
        let url = config.url.as_ref().map_err(|error| CallError::Config(error.clone()))?;
        // The webhook is told how long it has.
        let url = format!("{url}?timeout={}s", timeout.as_secs());
        let uri: Uri = url.parse().map_err(|error| CallError::Config(format!("Unparsable URL: {error}")))?;
        let failed = |reason: String| CallError::Transport { url: url.clone(), reason };
        let client = self.client(&config.ca_bundle)?;
        let request = Request::post(uri.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json, */*")
            .header(USER_AGENT, "kube-apiserver-admission")
            .body(Full::new(body))
            .map_err(|error| failed(error.to_string()))?;
        let exchange = async {
            let response = client.request(request).await.map_err(|error| failed(explain(&error, &uri)))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), MAX_REPLY_BYTES).collect().await;
            let body = body.map_err(|error| failed(error.to_string()))?.to_bytes();
            if status.is_success() { Ok(body) } else { Err(CallError::Status(explain_status(status, &body))) }
        };
        match tokio::time::timeout(timeout, exchange).await {
            Ok(result) => result,
            Err(_) => Err(failed("context deadline exceeded".to_owned())),
        }
    }

    fn client(&self, ca_bundle: &[u8]) -> Result<HttpsClient, CallError> {
        if let Some(client) = self.by_ca.lock().get(ca_bundle) {
            return Ok(client.clone());
        }
        let client = connect_with(tls_config(ca_bundle)?);
        let mut clients = self.by_ca.lock();
        if clients.len() >= MAX_CLIENTS {
            // Authorities come and go with their configurations; a pool is cheap to build again.
            clients.clear();
        }
        clients.insert(ca_bundle.to_vec(), client.clone());
        Ok(client)
    }
}

fn tls_config(ca_bundle: &[u8]) -> Result<rustls::ClientConfig, CallError> {
    let unusable = |error: &dyn std::fmt::Display| CallError::CaBundle(error.to_string());
    let builder = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(&error))?;
    if ca_bundle.is_empty() {
        let builder = builder.with_native_roots().map_err(|error| unusable(&error))?;
        return Ok(builder.with_no_client_auth());
    }
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca_bundle) {
        let certificate = certificate.map_err(|error| unusable(&error))?;
        roots.add(certificate).map_err(|error| unusable(&error))?;
    }
    if roots.is_empty() {
        return Err(unusable(&"unable to parse bytes as PEM block"));
    }
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

fn connect_with(tls: rustls::ClientConfig) -> HttpsClient {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_only().enable_http1().wrap_connector(http);
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(Duration::from_secs(IDLE_CONNECTION_S))
        .pool_max_idle_per_host(IDLE_CONNECTIONS_PER_HOST)
        .build(connector)
}

/// What went wrong underneath, since the outermost error only says that something did.
fn explain(error: &(dyn StdError + 'static), uri: &Uri) -> String {
    let mut cause = error;
    loop {
        if let Some(io) = cause.downcast_ref::<std::io::Error>() {
            if io.kind() == std::io::ErrorKind::ConnectionRefused {
                let host = uri.host().unwrap_or_default();
                let port = uri.port_u16().unwrap_or(443);
                return format!("dial tcp {host}:{port}: connect: connection refused");
            }
            if let Some(inner) = io.get_ref() {
                cause = inner;
                continue;
            }
        }
        if let Some(rustls::Error::InvalidCertificate(certificate)) = cause.downcast_ref::<rustls::Error>() {
            let why = match certificate {
                // Authorities of the same name are told apart by their signatures only.
                rustls::CertificateError::UnknownIssuer | rustls::CertificateError::BadSignature => {
                    "x509: certificate signed by unknown authority".to_owned()
                }
                other => format!("x509: {other}"),
            };
            return format!("tls: failed to verify certificate: {why}");
        }
        match cause.source() {
            Some(source) => cause = source,
            None => return cause.to_string(),
        }
    }
}

/// An answer that is not 2xx, as client libraries put it.
fn explain_status(status: StatusCode, body: &[u8]) -> String {
    const SHOWN_BYTES: usize = 2048;
    let shown = String::from_utf8_lossy(&body[..body.len().min(SHOWN_BYTES)]).trim().to_owned();
    match status.as_u16() {
        404 => "the server could not find the requested resource".to_owned(),
        405 => "the server does not allow this method on the requested resource".to_owned(),
        500.. => format!("an error on the server ({shown:?}) has prevented the request from succeeding"),
        _ if shown.is_empty() => "the server rejected our request for an unknown reason".to_owned(),
        _ => shown,
    }
}
