//! Serving the control API: on unix sockets that only their owner may open, over TCP with client certificates.

use std::future::Future;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use futures::Stream;
use tokio::net::{TcpListener, UnixListener};
use tonic::transport::server::Router;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};

use super::client::{Protection, TlsFiles};
use super::proto::engine_server::EngineServer;
use super::proto::instances_server::InstancesServer;
use super::proto::replica_server::ReplicaServer;
use super::service::Service;
use crate::host::Address;

/// Why the control API is not served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot listen on {address}: {source}")]
    Listen { address: Address, source: io::Error },
    #[error(
        "{0} can be reached by others: give a certificate, its key and the authority of clients (--tls-cert, --tls-key, \
         --tls-ca), or listen on a unix socket; --insecure-loopback serves loopback addresses in clear"
    )]
    ClearRefused(Address),
    #[error("cannot read {path}: {source}")]
    Tls { path: String, source: io::Error },
    #[error("{0}")]
    Transport(#[from] tonic::transport::Error),
}

fn router(service: &Service, tls: Option<ServerTlsConfig>) -> Result<Router, tonic::transport::Error> {
    let mut server = Server::builder();
    if let Some(tls) = tls {
        server = server.tls_config(tls)?;
    }
    Ok(server
        .add_service(InstancesServer::new(service.clone()))
        .add_service(EngineServer::new(service.clone()))
        .add_service(ReplicaServer::new(service.clone())))
}

/// A socket that clients can connect to already.
pub struct Bound {
    socket: Socket,
    tls: Option<ServerTlsConfig>,
    local: Address,
}

enum Socket {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Bound {
    /// Where it really listens: a port 0 was replaced.
    pub fn local(&self) -> &Address {
        &self.local
    }
}

/// Listens. To be called inside a runtime.
pub fn bind(address: &Address, protection: &Protection) -> Result<Bound, ServeError> {
    let failed = |source| ServeError::Listen { address: address.clone(), source };
    let files = protection.of(address, ServeError::ClearRefused)?;
    let tls = files.map(server_tls).transpose()?;
    match address {
        Address::Unix(path) => {
            let socket = Socket::Unix(listen_unix(path).map_err(failed)?);
            Ok(Bound { socket, tls, local: address.clone() })
        }
        Address::Tcp(tcp) => {
            let listen = || {
                let listener = std::net::TcpListener::bind(tcp)?;
                listener.set_nonblocking(true)?;
                let local = listener.local_addr()?;
                Ok((TcpListener::from_std(listener)?, local))
            };
            let (listener, local) = listen().map_err(failed)?;
            Ok(Bound { socket: Socket::Tcp(listener), tls, local: Address::Tcp(local) })
        }
    }
}

/// What calls in hand get when the server ends.
const FAREWELL: std::time::Duration = std::time::Duration::from_millis(200);

/// Serves until `end`. Calls in hand get a moment to be answered; a watch would never end by itself.
pub async fn serve(bound: Bound, service: Service, end: impl Future<Output = ()> + Send) -> Result<(), ServeError> {
    let router = router(&service, bound.tls)?;
    let (ended, ending) = tokio::sync::oneshot::channel();
    let end = async {
        end.await;
        let _ = ended.send(());
    };
    let farewell = async {
        let _ = ending.await;
        tokio::time::sleep(FAREWELL).await;
    };
    let served = async {
        match bound.socket {
            Socket::Unix(listener) => router.serve_with_incoming_shutdown(unix_incoming(listener), end).await,
            Socket::Tcp(listener) => router.serve_with_incoming_shutdown(tcp_incoming(listener), end).await,
        }
    };
    tokio::select! {
        served = served => served?,
        () = farewell => {}
    }
    if let Address::Unix(path) = bound.local {
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

fn unix_incoming(listener: UnixListener) -> impl Stream<Item = io::Result<tokio::net::UnixStream>> {
    futures::stream::unfold(listener, |listener| async {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, listener))
    })
}

fn tcp_incoming(listener: TcpListener) -> impl Stream<Item = io::Result<tokio::net::TcpStream>> {
    futures::stream::unfold(listener, |listener| async {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, listener))
    })
}

/// Only this user may connect.
fn listen_unix(path: &Path) -> io::Result<UnixListener> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let listener = crate::unix::listen(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

fn server_tls(files: &TlsFiles) -> Result<ServerTlsConfig, ServeError> {
    let read = |path: &Path| {
        std::fs::read(path).map_err(|source| ServeError::Tls { path: path.display().to_string(), source })
    };
    let identity = Identity::from_pem(read(&files.certificate)?, read(&files.key)?);
    let authority = Certificate::from_pem(read(&files.authority)?);
    Ok(ServerTlsConfig::new().identity(identity).client_ca_root(authority))
}
