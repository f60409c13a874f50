//! TLS between the socket and the NBD machine: records in, plain bytes out, and back, without a socket.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
pub use rustls::ServerConfig;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConnection};

/// The files that TLS needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The server's certificate, followed by its chain.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Who signs the certificates of clients that may connect.
    pub client_authority: PathBuf,
}

/// TLS could not be configured.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: pem::Error },
    #[error("{0} holds no certificate")]
    Empty(PathBuf),
    #[error("{path} cannot be the authority of clients: {source}")]
    Authority { path: PathBuf, source: rustls::Error },
    #[error("clients cannot be verified: {0}")]
    Verifier(#[from] VerifierBuilderError),
    #[error("certificate and key do not serve: {0}")]
    Certificate(#[from] rustls::Error),
}

/// Reads the files and makes a configuration that admits only clients with a certificate.
pub fn configure(files: &Files) -> Result<Arc<ServerConfig>, ConfigError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&files.client_authority)? {
        let path = &files.client_authority;
        roots.add(certificate).map_err(|source| ConfigError::Authority { path: path.clone(), source })?;
    }
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|source| ConfigError::Read { path: files.key.clone(), source })?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build()?;
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificates(&files.certificate)?, key)?;
    Ok(Arc::new(config))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let read = |source| ConfigError::Read { path: path.to_owned(), source };
    let all: Vec<_> = CertificateDer::pem_file_iter(path).map_err(read)?.collect::<Result<_, _>>().map_err(read)?;
    if all.is_empty() {
        return Err(ConfigError::Empty(path.to_owned()));
    }
    Ok(all)
}

/// The layer cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    #[error("TLS is not configured")]
    NotConfigured,
    #[error("TLS: {0}")]
    Protocol(#[from] rustls::Error),
    #[error("TLS: {0}")]
    Buffer(#[from] std::io::Error),
}

/// One connection's TLS session.
#[derive(Debug)]
pub struct Layer {
    session: ServerConnection,
    /// Goes out before the first record: the reply that allows TLS is itself in clear.
    clear: Vec<Bytes>,
}

impl Layer {
    pub fn new(config: Arc<ServerConfig>) -> Result<Self, LayerError> {
        let mut session = ServerConnection::new(config)?;
        // What is written is taken out at once; the limit on replies is the connection's own.
        session.set_buffer_limit(None);
        Ok(Self { session, clear: Vec::new() })
    }

    pub fn clear_first(&mut self, segments: Vec<Bytes>) {
        self.clear = segments;
    }

    /// Takes all of `received` and appends what it says to `plain`. False: the client closed the session.
    pub fn decrypt(&mut self, received: &mut BytesMut, plain: &mut BytesMut) -> Result<bool, LayerError> {
        let mut open = true;
        while open && !received.is_empty() {
            let mut input: &[u8] = received;
            let taken = self.session.read_tls(&mut input)?;
            received.advance(taken);
            let state = self.session.process_new_packets()?;
            open = !state.peer_has_closed();
            let ready = state.plaintext_bytes_to_read();
            let start = plain.len();
            plain.resize(start + ready, 0);
            self.session.reader().read_exact(&mut plain[start..])?;
        }
        Ok(open)
    }

    /// Records for `segments`, and whatever TLS itself has to say.
    pub fn encrypt(&mut self, segments: &[Bytes]) -> Result<Vec<Bytes>, LayerError> {
        for segment in segments {
            self.session.writer().write_all(segment)?;
        }
        let mut records = Vec::new();
        while self.session.wants_write() {
            self.session.write_tls(&mut records)?;
        }
        let mut all = std::mem::take(&mut self.clear);
        if !records.is_empty() {
            all.push(Bytes::from(records));
        }
        Ok(all)
    }
}
