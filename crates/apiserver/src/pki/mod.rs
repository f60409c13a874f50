//! The cluster's own certificate authority, in a directory: who the server is, who its clients are.
//!
//! ```text
//!   DIR/format            "tether-pki 1"
//!   DIR/ca.crt ca.key     the authority, made once
//!   DIR/sa.key            signs service account tokens, made once
//!   DIR/apiserver.pem     server certificate and key
//!   DIR/NAME.pem          client certificate and key: admin, node-…, controllers
//! ```
//!
//! The directory appears complete or not at all (it is filled under another name and renamed), so a file that is
//! missing later was lost and nothing is made up in its place: a new authority would lock out every client. Leaf
//! certificates are cheap and are issued again when they are about to expire or should say something else.

mod files;
mod kubeconfig;
mod leaf;

use std::fmt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use x509_parser::prelude::{FromDer, X509Certificate};

pub use kubeconfig::Kubeconfig;

use crate::auth::GROUP_MASTERS;

/// Version of the directory's layout. A newer one is refused.
const FORMAT: u32 = 1;
const FORMAT_FILE: &str = "format";
const CA_CERTIFICATE: &str = "ca.crt";
const CA_KEY: &str = "ca.key";
const TOKEN_KEY: &str = "sa.key";

const DAY_S: i64 = 24 * 60 * 60;
/// As long as kubeadm's: the authority outlives any cluster on a laptop.
const CA_LIFETIME_S: i64 = 3650 * DAY_S;
/// Certificates are valid a little into the past, for clients whose clock is behind.
const BACKDATE_S: i64 = 60 * 60;

/// Names under which clients inside and outside of a cluster reach the API server.
const SERVER_NAMES: [&str; 8] = [
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster",
    "kubernetes.default.svc.cluster.local",
    "127.0.0.1",
    "::1",
];

/// Why the authority cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    #[error("cannot {action} {path}: {source}", path = path.display())]
    Io { action: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{path} is not a certificate directory of Tether: it has files but no `format`", path = .0.display())]
    Foreign(PathBuf),
    #[error("{path} was written by a newer Tether (format {found}, this one knows {FORMAT})", path = path.display())]
    Newer { path: PathBuf, found: u32 },
    #[error("{path} is damaged: {what}", path = path.display())]
    Damaged { path: PathBuf, what: String },
    #[error("{path} is missing; restore it from a backup, or start with a new directory", path = .0.display())]
    Missing(PathBuf),
    #[error("the certificate authority in {path} expired", path = .0.display())]
    AuthorityExpired(PathBuf),
    #[error("{0:?} cannot be the name of a certificate")]
    Name(String),
    #[error("cannot make a certificate: {0}")]
    Generate(#[from] rcgen::Error),
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] rustls::Error),
    #[error("cannot set up TLS towards nodes: {0}")]
    Client(String),
}

/// A certificate with its key, both as PEM. Printing it shows no key.
#[derive(Clone)]
pub struct Credentials {
    pub certificate_pem: String,
    pub key_pem: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(..)")
    }
}

/// The certificate authority of one cluster.
pub struct Pki {
    dir: PathBuf,
    ca_pem: String,
    ca_der: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
    token_key: Vec<u8>,
}

impl fmt::Debug for Pki {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pki").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl Pki {
    /// Opens the authority in `dir`, which is created with a new one if it does not exist or is empty.
    pub fn open_or_create(dir: &Path, now: Timestamp) -> Result<Self, PkiError> {
        if files::is_absent_or_empty(dir)? {
            create(dir, now)?;
        }
        Self::open(dir, now)
    }

    /// Opens the authority in `dir`.
    pub fn open(dir: &Path, now: Timestamp) -> Result<Self, PkiError> {
        check_format(dir)?;
        let ca_path = dir.join(CA_CERTIFICATE);
        let damaged = |path: &Path, what: &str| PkiError::Damaged { path: path.to_owned(), what: what.to_owned() };
        let ca_pem = files::read(&ca_path)?;
        let ca_der = CertificateDer::from_pem_slice(ca_pem.as_bytes())
            .map_err(|_| damaged(&ca_path, "there is no PEM certificate in it"))?;
        let (_, parsed) =
            X509Certificate::from_der(&ca_der).map_err(|_| damaged(&ca_path, "the certificate cannot be read"))?;
        if !parsed.is_ca() {
            return Err(damaged(&ca_path, "the certificate is not one of an authority"));
        }
        let key_path = dir.join(CA_KEY);
        let key = KeyPair::from_pem(&files::read(&key_path)?)
            .map_err(|_| damaged(&key_path, "there is no private key in it"))?;
        if parsed.public_key().subject_public_key.data.as_ref() != key.public_key_raw() {
            return Err(damaged(&key_path, "the key does not belong to the certificate in ca.crt"));
        }
        if parsed.validity().not_after.timestamp() < now.as_second() {
            return Err(PkiError::AuthorityExpired(dir.to_owned()));
        }
        let token_path = dir.join(TOKEN_KEY);
        let token_key = KeyPair::from_pem(&files::read(&token_path)?)
            .map_err(|_| damaged(&token_path, "there is no private key in it"))?;
        if token_key.algorithm() != &rcgen::PKCS_ECDSA_P256_SHA256 {
            return Err(damaged(&token_path, "the key is not an ECDSA P-256 key"));
        }
        let issuer = Issuer::from_ca_cert_der(&ca_der, key)?;
        Ok(Self {
            dir: dir.to_owned(),
            ca_pem,
            issuer,
            token_key: token_key.serialize_der(),
            ca_der: ca_der.into_owned(),
        })
    }

    /// The authority's certificate, for those who want to trust this cluster.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    pub fn ca_der(&self) -> &CertificateDer<'static> {
        &self.ca_der
    }

    /// The key that signs service account tokens, PKCS#8 in DER form.
    pub fn token_key(&self) -> &[u8] {
        &self.token_key
    }

    /// The certificate of the API server, valid for the usual names and `hosts` (names or addresses).
    pub fn server(&self, hosts: &[String], now: Timestamp) -> Result<Credentials, PkiError> {
        let mut names: Vec<String> = SERVER_NAMES.iter().map(ToString::to_string).collect();
        names.extend(hosts.iter().filter(|host| !SERVER_NAMES.contains(&host.as_str())).cloned());
        leaf::Request { file: "apiserver", user: "kube-apiserver", groups: &[], hosts: names }.obtain(self, now)
    }

    /// A server certificate for another process of the cluster, kept under its name.
    pub fn component(&self, name: &str, hosts: &[String], now: Timestamp) -> Result<Credentials, PkiError> {
        leaf::Request { file: name, user: name, groups: &[], hosts: hosts.to_vec() }.obtain(self, now)
    }

    /// A client certificate that says `user` and `groups`, kept under `file`.
    pub fn client(&self, file: &str, user: &str, groups: &[&str], now: Timestamp) -> Result<Credentials, PkiError> {
        leaf::Request { file, user, groups, hosts: Vec::new() }.obtain(self, now)
    }

    /// The administrator: a member of `system:masters`.
    pub fn admin(&self, now: Timestamp) -> Result<Credentials, PkiError> {
        self.client("admin", "kubernetes-admin", &[GROUP_MASTERS], now)
    }

    /// The identity of a node.
    pub fn node(&self, name: &str, now: Timestamp) -> Result<Credentials, PkiError> {
        let user = crate::auth::User::node(name);
        self.client(&format!("node-{name}"), &user.name, &[crate::auth::GROUP_NODES], now)
    }

    /// The certificate with which a node serves at its address.
    pub fn node_server(&self, name: &str, address: std::net::IpAddr, now: Timestamp) -> Result<Credentials, PkiError> {
        let user = crate::auth::User::node(name);
        let hosts = vec![name.to_owned(), address.to_string()];
        let file = format!("kubelet-{name}");
        leaf::Request { file: &file, user: &user.name, groups: &[crate::auth::GROUP_NODES], hosts }.obtain(self, now)
    }

    /// The API server's identity towards nodes, which may do with them what it likes.
    pub fn kubelet_client(&self, now: Timestamp) -> Result<Credentials, PkiError> {
        self.client("apiserver-kubelet-client", "kube-apiserver-kubelet-client", &[GROUP_MASTERS], now)
    }

    /// The identity of a controller: `system:NAME`, to which the bootstrap policy binds its role.
    pub fn controller(&self, name: &str, now: Timestamp) -> Result<Credentials, PkiError> {
        self.client(name, &format!("system:{name}"), &[], now)
    }

    /// TLS for the listener: this server's certificate; client certificates are asked for and judged per request.
    pub fn server_config(&self, server: &Credentials) -> Result<rustls::ServerConfig, PkiError> {
        leaf::server_config(self, server)
    }
}

fn check_format(dir: &Path) -> Result<(), PkiError> {
    let path = dir.join(FORMAT_FILE);
    let text = match files::read(&path) {
        Err(PkiError::Missing(_)) if !files::is_absent_or_empty(dir)? => return Err(PkiError::Foreign(dir.to_owned())),
        other => other?,
    };
    let found = text.trim().strip_prefix("tether-pki ").and_then(|version| version.parse::<u32>().ok());
    match found {
        Some(FORMAT) => Ok(()),
        Some(found) if found > FORMAT => Err(PkiError::Newer { path: dir.to_owned(), found }),
        _ => Err(PkiError::Damaged { path, what: format!("expected `tether-pki {FORMAT}`") }),
    }
}

/// Fills a directory beside `dir` and renames it: whoever finds `dir` finds all of it.
fn create(dir: &Path, now: Timestamp) -> Result<(), PkiError> {
    let staging = files::Staging::beside(dir)?;
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    set_validity(&mut params, now, CA_LIFETIME_S);
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "tether-ca");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    let certificate = params.self_signed(&key)?;
    files::write(&staging.path().join(CA_KEY), &key.serialize_pem(), files::PRIVATE)?;
    files::write(&staging.path().join(CA_CERTIFICATE), &certificate.pem(), files::PUBLIC)?;
    files::write(&staging.path().join(TOKEN_KEY), &KeyPair::generate()?.serialize_pem(), files::PRIVATE)?;
    files::write(&staging.path().join(FORMAT_FILE), &format!("tether-pki {FORMAT}\n"), files::PUBLIC)?;
    staging.publish(dir)
}

/// Valid from a little before `now` and for `lifetime_s` after it.
fn set_validity(params: &mut CertificateParams, now: Timestamp, lifetime_s: i64) {
    let since_1970 = |seconds: i64| std::time::Duration::from_secs(seconds.max(0) as u64);
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + since_1970(now.as_second() - BACKDATE_S);
    params.not_after = epoch + since_1970(now.as_second() + lifetime_s);
}

#[cfg(test)]
mod tests;
