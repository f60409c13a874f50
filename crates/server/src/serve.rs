//! The listener: connections in, requests to the manager, bounded in every direction.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clients::Clients;
use crate::manager::Manager;

/// A page and a few scripts; each keeps a connection or two.
const MAX_CONNECTIONS: usize = 512;
/// Between two requests and for the headers of one.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
/// No request of this API is larger.
const MAX_BODY_BYTES: usize = 1 << 20;
/// After `accept` failed, usually for want of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// On shutdown, for requests that are being answered.
const DRAIN: Duration = Duration::from_secs(5);

/// Why the server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Tokens would be readable on the network.
    #[error(
        "{0} can be reached from other machines, and this listener does not encrypt: listen on a loopback address, and let a proxy with a certificate do the rest"
    )]
    NotLoopback(SocketAddr),
    /// The port is taken, or the address is not ours.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
}

/// Serves until `shutdown`. `ready` is called once, with the address, when requests are answered.
pub async fn serve<C: Clients>(
    address: SocketAddr,
    manager: Manager<C>,
    shutdown: CancellationToken,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), ServeError> {
    if !address.ip().is_loopback() {
        return Err(ServeError::NotLoopback(address));
    }
    let failed = |source| ServeError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    ready(listener.local_addr().map_err(failed)?);
    let (manager, slots, tasks) = (Arc::new(manager), Arc::new(Semaphore::new(MAX_CONNECTIONS)), TaskTracker::new());
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
        let (manager, shutdown) = (manager.clone(), shutdown.clone());
        tasks.spawn(async move {
            let service = service_fn(move |request| answer(manager.clone(), request));
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(IDLE_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service);
            let mut connection = std::pin::pin!(connection);
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                () = shutdown.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection broke");
            }
            drop(slot);
        });
    }
    tasks.close();
    let _ = tokio::time::timeout(DRAIN, tasks.wait()).await;
    Ok(())
}

async fn answer<C: Clients>(
    manager: Arc<Manager<C>>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    let Ok(body) = Limited::new(body, MAX_BODY_BYTES).collect().await else {
        let mut response = Response::new(Full::new(Bytes::new()));
        *response.status_mut() = StatusCode::PAYLOAD_TOO_LARGE;
        return Ok(response);
    };
    Ok(manager.handle(Request::from_parts(parts, body.to_bytes())).await)
}
