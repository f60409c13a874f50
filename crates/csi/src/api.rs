//! A client whose requests share one connection.
//!
//! kube's own has a connection for each request under way. For a loop with a hundred workers that is a hundred times the
//! buffers of TLS and HTTP, and at the API server a hundred handshakes. A server without HTTP/2 gets HTTP/1.1 from this one, too.

use std::error::Error;
use std::future::{Ready, ready};
use std::time::Duration;

use http::{Method, Request};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt as _, retry::RetryPolicy};
use kube::{Client, Config};
use tower::retry::{Policy, RetryLayer};
use tower::{BoxError, ServiceBuilder};

/// A connection on which nothing was heard for so long is asked whether it lives…
const ASK_AFTER: Duration = Duration::from_secs(30);
/// …and given up when it does not answer in time. Both as Kubernetes' own clients do it.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// What the server may send ahead on one stream, and on all: answers are small, and lists come in pages.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 1 << 20;
/// How often a request is made again that no server took: one that says goodbye as often is not there to serve.
const UNTAKEN_ATTEMPTS: usize = 4;

/// A client for the server of `config`. What only kube's own client can do (proxies, other names for the server) is left to it.
pub fn client(config: Config) -> Result<Client, kube::Error> {
    let is_tls = config.cluster_url.scheme_str() == Some("https");
    if !is_tls || config.proxy_url.is_some() || config.tls_server_name.is_some() {
        return Client::try_from(config);
    }
    let mut tls = config.rustls_client_config()?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(config.connect_timeout);
    let requests = legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_keep_alive_interval(ASK_AFTER)
        .http2_keep_alive_timeout(ANSWER_WITHIN)
        .http2_initial_stream_window_size(STREAM_WINDOW_BYTES)
        .http2_initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .build::<_, Body>(HttpsConnector::from((tcp, tls)));
    let stack = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.default_retry.then(|| RetryLayer::new(RetryPolicy::server_retry())))
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .layer(RetryLayer::new(Untaken { left: UNTAKEN_ATTEMPTS }))
        .service(requests);
    Ok(Client::new(stack, config.default_namespace))
}

/// Makes requests again that the server refused to take because it was ending the connection: a server that stops, or
/// spreads its load, says goodbye (GOAWAY) to whatever it has not begun. Kubernetes' own clients do the same. What became of
/// other requests of a connection that ended is not known: reads are made again, writes are for the caller to judge.
#[derive(Clone, Debug)]
struct Untaken {
    left: usize,
}

impl<A> Policy<Request<Body>, A, legacy::Error> for Untaken {
    type Future = Ready<()>;

    fn retry(&mut self, request: &mut Request<Body>, result: &mut Result<A, legacy::Error>) -> Option<Ready<()>> {
        let error = result.as_ref().err()?;
        let is_harmless = request.method() == Method::GET && !error.is_connect();
        self.left = self.left.checked_sub(1)?;
        (is_harmless || is_untaken(error)).then(|| ready(()))
    }

    fn clone_request(&mut self, request: &Request<Body>) -> Option<Request<Body>> {
        let mut copy = Request::new(request.body().try_clone()?);
        request.method().clone_into(copy.method_mut());
        request.uri().clone_into(copy.uri_mut());
        request.headers().clone_into(copy.headers_mut());
        request.extensions().clone_into(copy.extensions_mut());
        *copy.version_mut() = request.version();
        Some(copy)
    }
}

/// Whether the server said that it did nothing about the request. What it has begun it ends before it goes.
fn is_untaken(error: &(dyn Error + 'static)) -> bool {
    let causes = std::iter::successors(Some(error), |cause| (*cause).source());
    let mut known = causes.filter_map(|cause| cause.downcast_ref::<h2::Error>());
    known.any(|cause| match cause.reason() {
        Some(h2::Reason::NO_ERROR) => cause.is_go_away() && cause.is_remote(),
        Some(h2::Reason::REFUSED_STREAM) => cause.is_remote(),
        _ => false,
    })
}
