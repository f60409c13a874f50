//! Reaching the control API.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::host::Address;

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How the control API is protected where it is reached over TCP. A unix socket's permissions protect it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Protection {
    /// Not at all: TCP is refused.
    #[default]
    None,
    /// Both sides show certificates.
    Tls(TlsFiles),
    /// Clear, on loopback addresses only: every user of this machine can start, stop and read everything.
    InsecureLoopback,
}

impl Protection {
    /// The certificates for `address`, if it needs any; an error if it may not be used.
    pub(super) fn of<E>(&self, address: &Address, refused: impl FnOnce(Address) -> E) -> Result<Option<&TlsFiles>, E> {
        match (address, self) {
            (Address::Unix(_), _) => Ok(None),
            (Address::Tcp(_), Self::Tls(files)) => Ok(Some(files)),
            (Address::Tcp(_), Self::InsecureLoopback) if address.is_local() => Ok(None),
            (Address::Tcp(_), _) => Err(refused(address.clone())),
        }
    }
}

/// Files of a certificate, its key, and the authority that signs the other side's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub authority: PathBuf,
}

/// Why nobody was reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("nobody answers at {address}: {why}; does the engine, replica or instance manager run?")]
    Connect { address: Address, why: String },
    #[error(
        "{0} is reached over TCP: give a certificate, its key and the authority (--tls-cert, --tls-key, --tls-ca), or \
         use a unix socket"
    )]
    ClearRefused(Address),
    #[error("cannot read {path}: {source}")]
    Tls { path: String, source: std::io::Error },
}

/// Connects; requests on the channel go to the one process that listens there.
pub async fn connect(address: &Address, protection: &Protection) -> Result<Channel, ConnectError> {
    // The whole chain: the last link says that there is no such file, or that nobody listens.
    let failed = |error: &dyn std::error::Error| {
        let mut why = error.to_string();
        let mut cause = error.source();
        while let Some(inner) = cause {
            why = inner.to_string();
            cause = inner.source();
        }
        ConnectError::Connect { address: address.clone(), why }
    };
    let tls = protection.of(address, ConnectError::ClearRefused)?;
    let uri = match (address, tls) {
        (Address::Unix(path), _) => {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            format!("unix://{}", path.display())
        }
        (Address::Tcp(tcp), None) => format!("http://{tcp}"),
        (Address::Tcp(tcp), Some(_)) => format!("https://{tcp}"),
    };
    let mut endpoint = Endpoint::from_shared(uri).map_err(|error| failed(&error))?.connect_timeout(CONNECT_TIMEOUT);
    if let Some(files) = tls {
        endpoint = endpoint.tls_config(client_tls(files)?).map_err(|error| failed(&error))?;
    }
    endpoint.connect().await.map_err(|error| failed(&error))
}

fn client_tls(files: &TlsFiles) -> Result<ClientTlsConfig, ConnectError> {
    let read = |path: &Path| {
        std::fs::read(path).map_err(|source| ConnectError::Tls { path: path.display().to_string(), source })
    };
    let identity = Identity::from_pem(read(&files.certificate)?, read(&files.key)?);
    Ok(ClientTlsConfig::new().identity(identity).ca_certificate(Certificate::from_pem(read(&files.authority)?)))
}
