//! Client certificates: the common name is the user, the organizations are the groups.
//!
//! The TLS listener asks for a certificate and takes any whose key the client holds; whether this cluster's CA stands
//! behind it is decided here, per request. So a foreign or expired certificate is answered with 401, as Kubernetes
//! does, and one that expires on an open connection stops working there as well.

use std::fmt::{self, Write as _};
use std::sync::{Arc, OnceLock};

use jiff::Timestamp;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::{CertificateDer, UnixTime};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{EXTRA_CREDENTIAL_ID, User};

/// What the peer of a TLS connection showed: an `http` request extension that only the TLS listener sets. Empty if the
/// client has no certificate.
#[derive(Clone, Default)]
pub struct PeerCertificates(Arc<Peer>);

#[derive(Default)]
struct Peer {
    /// The client's certificate first, then intermediates.
    chain: Vec<CertificateDer<'static>>,
    /// Found out by the first request of the connection.
    identity: OnceLock<Result<Identity, CertificateError>>,
}

#[derive(Clone)]
struct Identity {
    user: Option<User>,
    /// The moment the first certificate of the chain runs out, in seconds since 1970.
    expires_s: i64,
}

/// Why a certificate is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    #[error("the certificate is not trusted: {0}")]
    Untrusted(String),
    #[error("the certificate cannot be read")]
    Malformed,
    #[error("the certificate has expired")]
    Expired,
}

impl PeerCertificates {
    pub fn new(chain: Vec<CertificateDer<'static>>) -> Self {
        Self(Arc::new(Peer { chain, identity: OnceLock::new() }))
    }

    pub fn is_empty(&self) -> bool {
        self.0.chain.is_empty()
    }
}

impl fmt::Debug for PeerCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PeerCertificates({})", self.0.chain.len())
    }
}

/// Tells users by the certificates that this cluster's CA signed.
pub struct CertificateAuthenticator {
    verifier: Arc<dyn ClientCertVerifier>,
}

impl CertificateAuthenticator {
    /// `ca` in DER form.
    pub fn new(ca: CertificateDer<'static>) -> Result<Self, CertificateError> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(ca).map_err(|error| CertificateError::Untrusted(error.to_string()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider)
            .build()
            .map_err(|error| CertificateError::Untrusted(error.to_string()))?;
        Ok(Self { verifier })
    }

    /// The user that a connection's certificate names. `None`: there is no certificate, or it names nobody.
    pub fn authenticate(&self, peer: &PeerCertificates, now: Timestamp) -> Result<Option<User>, CertificateError> {
        if peer.is_empty() {
            return Ok(None);
        }
        let identity = peer.0.identity.get_or_init(|| self.identify(&peer.0.chain, now));
        let identity = identity.as_ref().map_err(Clone::clone)?;
        if now.as_second() > identity.expires_s {
            return Err(CertificateError::Expired);
        }
        Ok(identity.user.clone())
    }

    fn identify(&self, chain: &[CertificateDer<'static>], now: Timestamp) -> Result<Identity, CertificateError> {
        let (leaf, intermediates) = chain.split_first().ok_or(CertificateError::Malformed)?;
        let seconds = std::time::Duration::from_secs(now.as_second().max(0) as u64);
        self.verifier
            .verify_client_cert(leaf, intermediates, UnixTime::since_unix_epoch(seconds))
            .map_err(|error| CertificateError::Untrusted(error.to_string()))?;
        let mut expires_s = i64::MAX;
        for certificate in chain {
            let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| CertificateError::Malformed)?;
            expires_s = expires_s.min(parsed.validity().not_after.timestamp());
        }
        Ok(Identity { user: user_of(leaf)?, expires_s })
    }
}

/// Whom a certificate speaks of, trusted or not.
fn user_of(certificate: &CertificateDer<'_>) -> Result<Option<User>, CertificateError> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| CertificateError::Malformed)?;
    let text = |attribute: &x509_parser::prelude::AttributeTypeAndValue<'_>| attribute.as_str().ok().map(str::to_owned);
    let Some(name) = parsed.subject().iter_common_name().last().and_then(text).filter(|name| !name.is_empty()) else {
        return Ok(None);
    };
    let groups: Vec<String> = parsed.subject().iter_organization().filter_map(text).collect();
    let mut user = User::new(name, groups);
    let mut id = String::from("X509SHA256=");
    for byte in Sha256::digest(certificate) {
        write!(id, "{byte:02x}").expect("writing to a String must succeed");
    }
    user.extra.insert(EXTRA_CREDENTIAL_ID.to_owned(), vec![id]);
    Ok(Some(user))
}
