//! The TLS listener: connections in, requests to the service, bounded in every direction.
//!
//! Every request carries [`PeerCertificates`] and [`PeerAddress`] and never a [`User`]: an identity that is taken at its
//! word exists in process only. Watches are what connections are mostly for, so nothing here limits how long a request
//! may take; everything that comes before a request is limited.

use std::error::Error as StdError;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::{Service, ServiceExt as _};

use crate::auth::{PeerCertificates, User};

/// Clients such as kube-rs open a connection for each watch.
const MAX_CONNECTIONS: usize = 8192;
/// As Go's TLS server: a peer that has not finished by then never will.
const HANDSHAKE_TIMEOUT_S: u64 = 10;
/// From the end of the handshake to the first request.
const FIRST_REQUEST_TIMEOUT_S: u64 = 30;
/// HTTP/1.1: between two requests and for the headers of one. Client pools let go of idle connections after 90 s; the
/// server waits a little longer, so that it does not close one that is just being taken up again.
const IDLE_TIMEOUT_S: u64 = 120;
/// HTTP/2: a peer that went away without a word is noticed within a minute.
const PING_INTERVAL_S: u64 = 30;
const PING_TIMEOUT_S: u64 = 20;
/// HTTP/2: clients send all their watches through one connection. Kubernetes allows 250 here.
const MAX_STREAMS: u32 = 2000;
/// HTTP/2: most objects fit into one frame and one window, as in Kubernetes.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// HTTP/2: uploads in flight on one connection.
const CONNECTION_WINDOW_BYTES: u32 = 8 * 1024 * 1024;
/// HTTP/2: what is held for one watcher that reads slowly; times [`MAX_STREAMS`] this must be bearable.
const SEND_BUFFER_BYTES: usize = 64 * 1024;
/// As Go's server: larger headers are refused.
const MAX_HEADER_BYTES: u32 = 1024 * 1024;
/// On shutdown, for requests that are being answered.
const DRAIN_TIMEOUT_S: u64 = 5;
/// After `accept` failed, usually for want of file descriptors.
const ACCEPT_RETRY_MS: u64 = 100;

/// Where a request came from: an `http` request extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddress(pub SocketAddr);

/// How much a listener takes on. The default is right for a server on its own machine.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub max_connections: usize,
    pub handshake_timeout: Duration,
    pub first_request_timeout: Duration,
    pub drain_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: MAX_CONNECTIONS,
            handshake_timeout: Duration::from_secs(HANDSHAKE_TIMEOUT_S),
            first_request_timeout: Duration::from_secs(FIRST_REQUEST_TIMEOUT_S),
            drain_timeout: Duration::from_secs(DRAIN_TIMEOUT_S),
        }
    }
}

/// Serves until `shutdown`, then lets requests that are under way finish for a while.
pub async fn serve<S, B>(
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
    service: S,
    limits: Limits,
    shutdown: CancellationToken,
) where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<Box<dyn StdError + Send + Sync>>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    let slots = Arc::new(Semaphore::new(limits.max_connections));
    let server = Arc::new(Server { acceptor: TlsAcceptor::from(tls), protocols: Protocols::new(), limits });
    let connections = TaskTracker::new();
    // Ends connections that are still there when the time for finishing is over.
    let abort = CancellationToken::new();
    while let Some((stream, peer, slot)) = next(&listener, &slots, &shutdown).await {
        let (server, service) = (server.clone(), service.clone());
        let (shutdown, abort) = (shutdown.clone(), abort.clone());
        connections.spawn(async move {
            abort.run_until_cancelled_owned(server.connection(stream, peer, service, shutdown)).await;
            drop(slot);
        });
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(limits.drain_timeout, connections.wait()).await.is_err() {
        tracing::debug!(connections = connections.len(), "closing connections that are still in use");
        abort.cancel();
        connections.wait().await;
    }
}

/// The next connection, once there is room for it; `None` on shutdown.
async fn next(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
    shutdown: &CancellationToken,
) -> Option<(TcpStream, SocketAddr, tokio::sync::OwnedSemaphorePermit)> {
    let slot = shutdown.run_until_cancelled(slots.clone().acquire_owned()).await?;
    let slot = slot.expect("the semaphore must stay open");
    loop {
        match shutdown.run_until_cancelled(listener.accept()).await? {
            Ok((stream, peer)) => return Some((stream, peer, slot)),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                let pause = tokio::time::sleep(Duration::from_millis(ACCEPT_RETRY_MS));
                shutdown.run_until_cancelled(pause).await?;
            }
        }
    }
}

/// One configuration for each protocol; which it is, the handshake has settled.
struct Protocols {
    http1: auto::Builder<TokioExecutor>,
    http2: auto::Builder<TokioExecutor>,
}

impl Protocols {
    fn new() -> Self {
        let mut http1 = auto::Builder::new(TokioExecutor::new()).http1_only();
        http1.http1().timer(TokioTimer::new()).header_read_timeout(Duration::from_secs(IDLE_TIMEOUT_S));
        let mut http2 = auto::Builder::new(TokioExecutor::new()).http2_only();
        http2
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_frame_size(STREAM_WINDOW_BYTES)
            .max_send_buf_size(SEND_BUFFER_BYTES)
            .max_header_list_size(MAX_HEADER_BYTES)
            .keep_alive_interval(Duration::from_secs(PING_INTERVAL_S))
            .keep_alive_timeout(Duration::from_secs(PING_TIMEOUT_S));
        Self { http1, http2 }
    }
}

struct Server {
    acceptor: TlsAcceptor,
    protocols: Protocols,
    limits: Limits,
}

impl Server {
    async fn connection<S, B>(&self, stream: TcpStream, peer: SocketAddr, service: S, shutdown: CancellationToken)
    where
        S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Into<Box<dyn StdError + Send + Sync>>,
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        let Some(stream) = self.handshake(stream, peer).await else { return };
        let (_, tls) = stream.get_ref();
        let is_http2 = tls.alpn_protocol() == Some(b"h2");
        let builder = if is_http2 { &self.protocols.http2 } else { &self.protocols.http1 };
        let chain = tls.peer_certificates().unwrap_or_default();
        let certificates = PeerCertificates::new(chain.iter().map(|c| c.clone().into_owned()).collect());
        let seen = Arc::new(AtomicBool::new(false));
        let service = Tagged { service, certificates, address: PeerAddress(peer), seen: seen.clone() };
        let mut connection = pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), service));
        let mut first_request = pin!(tokio::time::sleep(self.limits.first_request_timeout));
        let (mut waiting, mut draining) = (true, false);
        loop {
            tokio::select! {
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!(%peer, %error, "connection ended");
                    }
                    return;
                }
                () = shutdown.cancelled(), if !draining => {
                    draining = true;
                    connection.as_mut().graceful_shutdown();
                }
                () = first_request.as_mut(), if waiting => {
                    waiting = false;
                    if !seen.load(Ordering::Relaxed) {
                        tracing::debug!(%peer, "connection without a request closed");
                        return;
                    }
                }
            }
        }
    }

    async fn handshake(&self, stream: TcpStream, peer: SocketAddr) -> Option<TlsStream<TcpStream>> {
        // Events are small and must go out at once.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%peer, %error, "cannot set TCP_NODELAY");
        }
        match tokio::time::timeout(self.limits.handshake_timeout, self.acceptor.accept(stream)).await {
            Ok(Ok(stream)) => Some(stream),
            Ok(Err(error)) => {
                tracing::debug!(%peer, %error, "TLS handshake failed");
                None
            }
            Err(_) => {
                tracing::debug!(%peer, "TLS handshake timed out");
                None
            }
        }
    }
}

/// Puts what is known about the connection onto each of its requests.
#[derive(Clone)]
struct Tagged<S> {
    service: S,
    certificates: PeerCertificates,
    address: PeerAddress,
    seen: Arc<AtomicBool>,
}

impl<S, B> hyper::service::Service<Request<Incoming>> for Tagged<S>
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        self.seen.store(true, Ordering::Relaxed);
        let extensions = request.extensions_mut();
        extensions.remove::<User>();
        extensions.insert(self.certificates.clone());
        extensions.insert(self.address);
        Box::pin(self.service.clone().oneshot(request))
    }
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
