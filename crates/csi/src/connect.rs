//! Reaching a CSI driver on its socket, and learning at once when it is gone.

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

/// How long a driver may take to come up before its absence is an error: it starts beside us.
const CONNECT_FOR: Duration = Duration::from_secs(30);
const CONNECT_EVERY: Duration = Duration::from_millis(200);

/// Where a driver listens: `unix:///path`, or a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address(pub PathBuf);

impl FromStr for Address {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        let path = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")).unwrap_or(text);
        Ok(Self(path.into()))
    }
}

/// A driver cannot be reached.
#[derive(Debug, thiserror::Error)]
#[error("no CSI driver answers at {}: {source}", .address.0.display())]
pub struct ConnectError {
    address: Address,
    source: io::Error,
}

/// One connection to a driver.
#[derive(Clone, Debug)]
pub struct Connection {
    pub channel: Channel,
    /// Cancelled when the driver closed the connection: it was restarted, and may be another one.
    pub lost: CancellationToken,
}

/// Connects once somebody listens, which is waited for. The connection is not made again when it is lost: what was learnt
/// about the driver may not be true any more.
pub async fn connect(address: &Address) -> Result<Connection, ConnectError> {
    let started = tokio::time::Instant::now();
    loop {
        match UnixStream::connect(&address.0).await {
            Ok(stream) => return Ok(over(stream)),
            Err(source) if started.elapsed() > CONNECT_FOR => {
                return Err(ConnectError { address: address.clone(), source });
            }
            Err(error) => {
                tracing::debug!(address = %address.0.display(), %error, "the driver does not listen yet");
                tokio::time::sleep(CONNECT_EVERY).await;
            }
        }
    }
}

fn over(stream: UnixStream) -> Connection {
    let lost = CancellationToken::new();
    let watched = Watched { stream, _guard: Arc::new(lost.clone().drop_guard()) };
    let mut once = Some(watched);
    let connector = service_fn(move |_: Uri| {
        let taken = once.take().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected));
        async move { taken.map(TokioIo::new) }
    });
    // The name is never looked up: there is one stream, and it is there already.
    let channel = Endpoint::from_static("http://csi").connect_with_connector_lazy(connector);
    Connection { channel, lost }
}

/// A stream that tells when it was let go of, which is when the other side ended it.
struct Watched {
    stream: UnixStream,
    _guard: Arc<DropGuard>,
}

impl AsyncRead for Watched {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, data)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
