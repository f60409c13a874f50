//! Reaching a node: its HTTP API, over TLS, with a client certificate of the cluster's own authority.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::RootCertStore;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::pki::{Credentials, PkiError};

/// A node that does not answer is told of as such; kubectl waits no longer than this.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a node cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    #[error("node {0:?} does not say where its API is: it serves no logs and runs no commands")]
    NoEndpoint(String),
    #[error("dial tcp {address}: {source}")]
    Connect { address: SocketAddr, source: std::io::Error },
    #[error("node did not answer: {0}")]
    Http(#[from] hyper::Error),
}

/// The client certificate, and whom it trusts.
#[derive(Clone)]
pub struct KubeletClient {
    tls: TlsConnector,
}

impl KubeletClient {
    /// Shows `credentials`, and trusts nodes whose certificate is the authority's.
    pub fn new(credentials: &Credentials, ca: &CertificateDer<'static>) -> Result<Self, PkiError> {
        let failed = |what: &dyn std::fmt::Display| PkiError::Client(what.to_string());
        let mut roots = RootCertStore::empty();
        roots.add(ca.clone()).map_err(|error| failed(&error))?;
        let chain = CertificateDer::pem_slice_iter(credentials.certificate_pem.as_bytes()).collect::<Result<_, _>>();
        let key = PrivateKeyDer::from_pem_slice(credentials.key_pem.as_bytes()).map_err(|error| failed(&error))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(&error))?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain.map_err(|error| failed(&error))?, key);
        Ok(Self { tls: TlsConnector::from(Arc::new(config.map_err(|error| failed(&error))?)) })
    }

    /// Sends a request to a node. The connection is the request's own, and goes on if it is upgraded.
    pub async fn send(
        &self,
        address: SocketAddr,
        request: Request<Empty<Bytes>>,
    ) -> Result<Response<Incoming>, KubeletError> {
        let failed = |source| KubeletError::Connect { address, source };
        let connecting = async {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            self.tls.connect(ServerName::from(address.ip()), stream).await
        };
        let late = |_| failed(std::io::ErrorKind::TimedOut.into());
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, connecting).await.map_err(late)?.map_err(failed)?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "connection to a node ended");
            }
        });
        Ok(sender.send_request(request).await?)
    }
}

/// Where a node's API is, by its object.
pub fn endpoint(node: &Value) -> Option<SocketAddr> {
    let port = node.pointer("/status/daemonEndpoints/kubeletEndpoint/Port")?.as_u64()?;
    let port = u16::try_from(port).ok().filter(|port| *port > 0)?;
    let addresses = node.pointer("/status/addresses")?.as_array()?;
    let internal = addresses.iter().find(|address| address["type"] == "InternalIP")?;
    Some(SocketAddr::new(internal["address"].as_str()?.parse::<IpAddr>().ok()?, port))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_says_where_it_is() {
        let node = |port: u64| {
            json!({"status": {
                "addresses": [{"type": "Hostname", "address": "n"}, {"type": "InternalIP", "address": "127.1.0.1"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            }})
        };
        assert_eq!(endpoint(&node(10250)), Some("127.1.0.1:10250".parse().unwrap()));
        assert_eq!(endpoint(&node(0)), None);
        assert_eq!(endpoint(&json!({})), None);
    }
}
