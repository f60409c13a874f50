//! Where NBD may be served, and how: in clear where the bytes do not leave the machine, with TLS and client
//! certificates everywhere else.

use std::fmt;
use std::sync::Arc;

use rustls::ServerConfig;
use tether_nbd::handshake::Tls;

use super::tls::{Layer, LayerError};
use crate::host::Address;

/// Longest read or write of one command. It is what the protocol lets clients assume that do not ask.
pub const MAX_REQUEST_BYTES: u32 = 32 << 20;
/// Connections to one volume at a time; `nbdcopy` opens four, the kernel client as many as there are cores.
pub const MAX_CONNECTIONS: usize = 16;

/// An address as NBD clients write it (`nbdinfo URI`, `qemu-img info URI`).
pub fn uri(address: &Address, export: &str, security: &Security) -> String {
    let scheme = match security {
        Security::Clear => "nbd",
        Security::Tls(_) => "nbds",
    };
    match address {
        Address::Unix(path) => format!("{scheme}+unix:///{export}?socket={}", path.display()),
        Address::Tcp(address) => format!("{scheme}://{address}/{export}"),
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
