//! Serving a CSI driver on a unix socket.

use std::future::Future;
use std::io;
use std::os::unix::net::UnixListener as StdListener;

use futures::Stream;
use tokio::net::{UnixListener, UnixStream};
use tonic::transport::server::Router;

/// Why a driver is not served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot listen: {0}")]
    Listen(#[from] io::Error),
    #[error("{0}")]
    Transport(#[from] tonic::transport::Error),
}

/// Serves until `end`; calls that are under way are finished.
pub async fn serve(
    router: Router,
    listener: StdListener,
    end: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    listener.set_nonblocking(true)?;
    let incoming = connections(UnixListener::from_std(listener)?);
    Ok(router.serve_with_incoming_shutdown(incoming, end).await?)
}

fn connections(listener: UnixListener) -> impl Stream<Item = io::Result<UnixStream>> {
    futures::stream::unfold(listener, |listener| async {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, listener))
    })
}
