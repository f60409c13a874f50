//! A server that lives in memory, for tests and simulation: the same code, nothing on disk, no sockets.

use std::io;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use redb::StorageBackend;
use redb::backends::InMemoryBackend;

use crate::admission::Admission;
use crate::auth::token::TokenAuthority;
use crate::auth::x509::CertificateAuthenticator;
use crate::auth::{Authenticator, Authorizer, Objects};
use crate::bootstrap::bootstrap;
use crate::security::Security;
use crate::server::{Clock, Server, StoreObjects};
use crate::store::{self, Medium, Store};

/// What a server without a public address calls itself in tokens.
pub(crate) const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// One store in memory, forgotten with the process.
#[derive(Default)]
struct Memory {
    made: Mutex<bool>,
}

impl Medium for Memory {
    fn name(&self) -> String {
        "memory".to_owned()
    }

    fn open(&self) -> io::Result<Option<Box<dyn StorageBackend>>> {
        if *self.made.lock() {
            return Err(io::Error::other("a store in memory cannot be opened again"));
        }
        Ok(None)
    }

    fn create(&self) -> io::Result<Box<dyn StorageBackend>> {
        *self.made.lock() = true;
        Ok(Box::new(InMemoryBackend::new()))
    }

    fn publish(&self) -> io::Result<bool> {
        Ok(true)
    }

    fn forget_cached(&self) {}
}

impl Server {
    /// A new cluster in memory, with the time of the machine.
    pub async fn ephemeral() -> Self {
        Self::ephemeral_at(Arc::new(Timestamp::now), Vec::new()).await
    }

    /// A new cluster in memory, with the caller's clock and admission rules.
    pub async fn ephemeral_at(clock: Clock, plugins: Vec<Arc<dyn crate::admission::Plugin>>) -> Self {
        let store = Store::open_with(Memory::default(), store::Options::default()).expect("memory must be there");
        let objects: Arc<dyn Objects> = Arc::new(StoreObjects::new(store.clone()));
        let key = rcgen::KeyPair::generate().expect("a key must be possible to make");
        let ca = rcgen::CertificateParams::new(Vec::<String>::new())
            .and_then(|params| params.self_signed(&key))
            .expect("a certificate must be possible to make");
        let certificates = CertificateAuthenticator::new(ca.der().clone()).expect("the certificate was just made");
        let tokens = TokenAuthority::new(&key.serialize_der(), ISSUER, objects.clone());
        let tokens = Arc::new(tokens.expect("the key was just made"));
        let authorizer = Arc::new(Authorizer::new(objects.clone()));
        let authenticator = Authenticator::new(certificates, tokens.clone());
        let security = Security::new(authenticator, authorizer.clone(), tokens, objects.clone());
        let server = Self::new(store, security, Admission::new(&objects, &authorizer, plugins), clock);
        bootstrap(&server).await.expect("a new cluster must be possible to make");
        server
    }
}
