//! Leaf certificates: issued when missing, when about to expire, when they should say something else.

use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};
use rustls::DigitallySignedStruct;
use rustls::DistinguishedName as RootHint;
use rustls::SignatureScheme;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{Credentials, DAY_S, Pki, PkiError, files, set_validity};

/// As kubeadm's: a year.
const LIFETIME_S: i64 = 365 * DAY_S;
/// Renewal happens at start; a server that runs for half a year without one still holds valid certificates.
const RENEW_BEFORE_S: i64 = LIFETIME_S / 2;

/// What a certificate should say.
pub(super) struct Request<'a> {
    pub(super) file: &'a str,
    pub(super) user: &'a str,
    pub(super) groups: &'a [&'a str],
    /// Names and addresses of a server; empty for a client.
    pub(super) hosts: Vec<String>,
}

impl Request<'_> {
    /// The certificate on disk if it still says this, otherwise a new one.
    pub(super) fn obtain(&self, pki: &Pki, now: Timestamp) -> Result<Credentials, PkiError> {
        if self.file.is_empty() || self.file.starts_with('.') || self.file.contains(['/', '\0']) {
            return Err(PkiError::Name(self.file.to_owned()));
        }
        let path = pki.dir.join(format!("{}.pem", self.file));
        let kept = match files::read(&path) {
            Err(PkiError::Missing(_)) => None,
            other => Some(other?),
        };
        if let Some(text) = kept {
            let damaged = |what: &str| {
                let what = format!("{what}; remove the file to have it issued again");
                PkiError::Damaged { path: path.clone(), what }
            };
            let kept = split(&text).ok_or_else(|| damaged("it does not hold a certificate and its key"))?;
            if self.is_current(&kept, pki, now).map_err(damaged)? {
                return Ok(kept);
            }
        }
        let issued = self.issue(pki, now)?;
        files::write(&path, &format!("{}{}", issued.certificate_pem, issued.key_pem), files::PRIVATE)?;
        Ok(issued)
    }

    fn is_current(&self, kept: &Credentials, pki: &Pki, now: Timestamp) -> Result<bool, &'static str> {
        let der = CertificateDer::from_pem_slice(kept.certificate_pem.as_bytes())
            .map_err(|_| "the certificate cannot be read")?;
        let (_, certificate) = X509Certificate::from_der(&der).map_err(|_| "the certificate cannot be read")?;
        let (_, authority) = X509Certificate::from_der(pki.ca_der()).map_err(|_| "the authority cannot be read")?;
        let key = KeyPair::from_pem(&kept.key_pem).map_err(|_| "the key cannot be read")?;
        if certificate.public_key().subject_public_key.data.as_ref() != key.public_key_raw() {
            return Err("key and certificate do not belong together");
        }
        if certificate.verify_signature(Some(authority.public_key())).is_err() {
            return Err("the certificate was issued by another authority");
        }
        let validity = certificate.validity();
        let fresh = validity.not_before.timestamp() <= now.as_second()
            && validity.not_after.timestamp() - now.as_second() > RENEW_BEFORE_S;
        let subject = certificate.subject();
        let names: Vec<&str> = subject.iter_common_name().filter_map(|name| name.as_str().ok()).collect();
        let groups: Vec<&str> = subject.iter_organization().filter_map(|name| name.as_str().ok()).collect();
        Ok(fresh && names == [self.user] && groups == self.groups && self.same_hosts(&certificate))
    }

    fn same_hosts(&self, certificate: &X509Certificate<'_>) -> bool {
        let alternatives = certificate.subject_alternative_name().ok().flatten();
        let names = alternatives.map(|extension| extension.value.general_names.as_slice()).unwrap_or_default();
        let mut held: Vec<String> = names.iter().filter_map(host_of).collect();
        let mut wanted: Vec<String> = self.hosts.clone();
        held.sort();
        wanted.sort();
        wanted.dedup();
        held == wanted
    }

    fn issue(&self, pki: &Pki, now: Timestamp) -> Result<Credentials, PkiError> {
        let mut hosts = self.hosts.clone();
        hosts.sort();
        hosts.dedup();
        let mut params = CertificateParams::new(hosts)?;
        set_validity(&mut params, now, LIFETIME_S);
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, self.user);
        for group in self.groups {
            params.distinguished_name.push(DnType::OrganizationName, *group);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![match self.hosts.is_empty() {
            true => ExtendedKeyUsagePurpose::ClientAuth,
            false => ExtendedKeyUsagePurpose::ServerAuth,
        }];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &pki.issuer)?;
        Ok(Credentials { certificate_pem: certificate.pem(), key_pem: key.serialize_pem() })
    }
}

fn host_of(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => <[u8; 4]>::try_from(*bytes).ok().map(|b| IpAddr::from(b).to_string()),
            16 => <[u8; 16]>::try_from(*bytes).ok().map(|b| IpAddr::from(b).to_string()),
            _ => None,
        },
        _ => None,
    }
}

/// One file holds the certificate and, after it, the key: they cannot get separated by a crash.
fn split(text: &str) -> Option<Credentials> {
    let at = text.find("-----BEGIN PRIVATE KEY-----")?;
    let (certificate, key) = text.split_at(at);
    certificate
        .contains("-----BEGIN CERTIFICATE-----")
        .then(|| Credentials { certificate_pem: certificate.to_owned(), key_pem: key.to_owned() })
}

pub(super) fn server_config(pki: &Pki, server: &Credentials) -> Result<rustls::ServerConfig, PkiError> {
    let unusable = |_| PkiError::Tls(rustls::Error::General("the server's credentials cannot be read".into()));
    let certificate = CertificateDer::from_pem_slice(server.certificate_pem.as_bytes()).map_err(unusable)?;
    let key = PrivateKeyDer::from_pem_slice(server.key_pem.as_bytes()).map_err(unusable)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let (_, authority) = X509Certificate::from_der(pki.ca_der())
        .map_err(|_| PkiError::Tls(rustls::Error::General("the authority cannot be read".into())))?;
    let verifier = AskForCertificate {
        hints: vec![RootHint::from(authority.subject().as_raw().to_vec())],
        algorithms: provider.signature_verification_algorithms,
    };
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_single_cert(vec![certificate.into_owned()], key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// Asks for a certificate, takes any whose key the client proves to hold. Trust is decided per request by
/// [`crate::auth::x509::CertificateAuthenticator`], where a bad certificate is a 401 instead of a broken handshake.
#[derive(Debug)]
struct AskForCertificate {
    hints: Vec<RootHint>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for AskForCertificate {
    fn root_hint_subjects(&self) -> &[RootHint] {
        &self.hints
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
