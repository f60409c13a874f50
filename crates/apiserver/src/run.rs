//! A server on a data directory: what `tether apiserver` runs.
//!
//! ```text
//!   DIR/objects.redb   every object
//!   DIR/pki/           the cluster's certificate authority
//! ```

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::admission::{Admission, Plugin};
use crate::auth::token::{KeyError, TokenAuthority};
use crate::auth::x509::{CertificateAuthenticator, CertificateError};
use crate::auth::{Authenticator, Authorizer, Objects};
use crate::bootstrap::{BootstrapError, bootstrap, install};
use crate::ephemeral::ISSUER;
use crate::kubelet::KubeletClient;
use crate::pki::{Pki, PkiError};
use crate::security::Security;
use crate::serve::{Limits, serve};
use crate::server::{Server, StoreObjects};
use crate::store::{self, OpenError, Store};
use crate::{aggregation, expiry};

/// Where a server keeps its things and where it listens.
#[derive(Clone)]
pub struct Options {
    pub data_dir: PathBuf,
    pub listen: SocketAddr,
    /// Names and addresses, besides those of this machine's loopback, under which clients know the server.
    pub hosts: Vec<String>,
    /// Admission rules that run in this process.
    pub plugins: Vec<Arc<dyn Plugin>>,
    /// What the cluster has beside the objects of Kubernetes; made before the first request is answered.
    pub objects: Vec<Value>,
}

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("cannot use {path}: {source}", path = path.display())]
    DataDir { path: PathBuf, source: io::Error },
    #[error("cannot listen on {address}: {source}; choose another port, or stop what uses it")]
    Listen { address: SocketAddr, source: io::Error },
    #[error(transparent)]
    Store(#[from] OpenError),
    #[error(transparent)]
    Pki(#[from] PkiError),
    #[error("the certificate authority cannot be used: {0}")]
    Certificate(#[from] CertificateError),
    #[error("the key for service account tokens cannot be used: {0}")]
    TokenKey(#[from] KeyError),
    #[error("the cluster could not be set up: {0}")]
    Bootstrap(#[from] BootstrapError),
}

/// Runs a server until `shutdown`. `ready` is called once, when requests are answered.
pub async fn run(
    options: Options,
    shutdown: CancellationToken,
    ready: impl FnOnce(SocketAddr, &Server),
) -> Result<(), RunError> {
    let now = Timestamp::now();
    std::fs::create_dir_all(&options.data_dir)
        .map_err(|source| RunError::DataDir { path: options.data_dir.clone(), source })?;
    // The port first: of two servers on one directory, the message about the port is the one that helps.
    let listener = TcpListener::bind(options.listen)
        .await
        .map_err(|source| RunError::Listen { address: options.listen, source })?;
    let address = listener.local_addr().map_err(|source| RunError::Listen { address: options.listen, source })?;
    let pki = Pki::open_or_create(&options.data_dir.join("pki"), now)?;
    let tls = Arc::new(pki.server_config(&pki.server(&options.hosts, now)?)?);
    let server = open(&options, &pki)?;
    bootstrap(&server).await?;
    install(&server, &options.objects).await?;
    tokio::spawn(expiry::run(server.clone(), shutdown.clone()));
    tokio::spawn(aggregation::run(server.clone(), shutdown.clone()));
    server.listens_on(address);
    server.reaches_nodes_by(KubeletClient::new(&pki.kubelet_client(now)?, pki.ca_der())?);
    ready(address, &server);
    let ending = server.clone();
    let watches = shutdown.clone();
    tokio::spawn(async move {
        watches.cancelled().await;
        ending.shut_down();
    });
    serve(listener, tls, server, Limits::default(), shutdown).await;
    Ok(())
}

/// The server of a data directory, not listening yet.
fn open(options: &Options, pki: &Pki) -> Result<Server, RunError> {
    let store = Store::open(options.data_dir.join("objects.redb"), store::Options::default())?;
    let objects: Arc<dyn Objects> = Arc::new(StoreObjects::new(store.clone()));
    let tokens = Arc::new(TokenAuthority::new(pki.token_key(), ISSUER, objects.clone())?);
    let certificates = CertificateAuthenticator::new(pki.ca_der().clone())?;
    let authorizer = Arc::new(Authorizer::new(objects.clone()));
    let authenticator = Authenticator::new(certificates, tokens.clone());
    let security = Security::new(authenticator, authorizer.clone(), tokens, objects.clone());
    let admission = Admission::new(&objects, &authorizer, options.plugins.clone());
    Ok(Server::new(store, security, admission, Arc::new(Timestamp::now)))
}
