//! Reaching the control API.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::host::Address;

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

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
    #[error("{0} is on another machine: give a certificate, its key and the authority")]
    ClearRefused(Address),
    #[error("cannot read {path}: {source}")]
    Tls { path: String, source: std::io::Error },
}

/// Connects; requests on the channel go to the one process that listens there.
pub async fn connect(address: &Address, tls: Option<&TlsFiles>) -> Result<Channel, ConnectError> {
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
    let uri = match (address, tls) {
        (Address::Unix(path), _) => {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            format!("unix://{}", path.display())
        }
        (Address::Tcp(tcp), None) if address.is_local() => format!("http://{tcp}"),
        (Address::Tcp(tcp), Some(_)) => format!("https://{tcp}"),
        (Address::Tcp(_), None) => return Err(ConnectError::ClearRefused(address.clone())),
    };
    let mut endpoint = Endpoint::from_shared(uri).map_err(|error| failed(&error))?.connect_timeout(CONNECT_TIMEOUT);
    if let (Some(files), Address::Tcp(_)) = (tls, address) {
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
