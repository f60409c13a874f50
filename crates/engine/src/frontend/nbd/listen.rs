//! Where NBD may be served, and how: in clear where the bytes do not leave the machine, with TLS and client
//! certificates everywhere else.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use rustls::ServerConfig;
use tether_nbd::handshake::Tls;

use super::tls::{Layer, LayerError};

/// Longest read or write of one command. It is what the protocol lets clients assume that do not ask.
pub const MAX_REQUEST_BYTES: u32 = 32 << 20;
/// Connections to one volume at a time; `nbdcopy` opens four, the kernel client as many as there are cores.
pub const MAX_CONNECTIONS: usize = 16;
/// A unix socket's path ends with a zero byte within 108.
const MAX_SOCKET_PATH_BYTES: usize = 107;

/// An address to listen on: `unix:/path/v1.sock` or `tcp:127.0.0.1:10809`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

/// An address that cannot be listened on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error("{0:?} is no NBD address: say unix:/path/to/socket or tcp:IP:PORT")]
    Scheme(String),
    #[error("{0:?} is no IP address with a port: say tcp:127.0.0.1:10809 or tcp:[::1]:10809")]
    Tcp(String),
    #[error("{0:?}: the path of a unix socket is absolute and has at most {MAX_SOCKET_PATH_BYTES} bytes")]
    Path(String),
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(path) = text.strip_prefix("unix:") {
            let fits = path.starts_with('/') && path.len() <= MAX_SOCKET_PATH_BYTES && !path.contains('\0');
            return if fits { Ok(Self::Unix(path.into())) } else { Err(AddressError::Path(path.to_owned())) };
        }
        match text.strip_prefix("tcp:") {
            Some(address) => address.parse().map(Self::Tcp).map_err(|_| AddressError::Tcp(address.to_owned())),
            None => Err(AddressError::Scheme(text.to_owned())),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

impl Address {
    /// Whether what is sent here stays on this machine.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Tcp(address) => match address.ip() {
                IpAddr::V4(ip) => ip.is_loopback(),
                // `::ffff:127.0.0.1` is loopback as well.
                IpAddr::V6(ip) => ip.is_loopback() || ip.to_ipv4_mapped().is_some_and(|ip| ip.is_loopback()),
            },
        }
    }

    /// The address as NBD clients write it (`nbdinfo URI`, `qemu-img info URI`).
    pub fn uri(&self, export: &str, tls: bool) -> String {
        let scheme = if tls { "nbds" } else { "nbd" };
        match self {
            Self::Unix(path) => format!("{scheme}+unix:///{export}?socket={}", path.display()),
            Self::Tcp(address) => format!("{scheme}://{address}/{export}"),
        }
    }
}

/// Clear NBD was asked for on an address that leaves the machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0} can be reached from other machines, and NBD in clear would give the volume to all of them: configure a \
     certificate, its key and the authority that signs clients' certificates, or listen on 127.0.0.1 or a unix socket"
)]
pub struct ClearRefused(pub Address);

/// How the connections of one address are protected.
#[derive(Clone)]
pub enum Security {
    /// The bytes stay on this machine.
    Clear,
    /// STARTTLS comes first, and the client shows a certificate that the configured authority signed.
    Tls(Arc<ServerConfig>),
}

impl fmt::Debug for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Clear => "Clear",
            Self::Tls(_) => "Tls",
        })
    }
}

impl Security {
    /// What protects connections to `address`. A TLS configuration counts on local addresses too: who configures one
    /// wants it used.
    pub fn of(address: &Address, tls: Option<Arc<ServerConfig>>) -> Result<Self, ClearRefused> {
        match tls {
            Some(config) => Ok(Self::Tls(config)),
            None if address.is_local() => Ok(Self::Clear),
            None => Err(ClearRefused(address.clone())),
        }
    }

    pub(super) fn tls(&self) -> Tls {
        match self {
            Self::Clear => Tls::None,
            Self::Tls(_) => Tls::Required,
        }
    }

    pub(super) fn layer(&self) -> Result<Layer, LayerError> {
        match self {
            Self::Clear => Err(LayerError::NotConfigured),
            Self::Tls(config) => Layer::new(Arc::clone(config)),
        }
    }
}
