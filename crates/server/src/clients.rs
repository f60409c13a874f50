//! A client of the Kubernetes API for each caller: it asks with the caller's token.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;

use kube::config::AuthInfo;
use kube::{Client, Config};
use parking_lot::Mutex;

/// How many callers' clients are kept. Connections are what they cost; beyond this they are made anew.
const KEPT: usize = 64;

/// Where a caller's client comes from.
pub trait Clients: Send + Sync + 'static {
    /// A client that asks with `token`.
    fn client(&self, token: &str) -> impl Future<Output = Result<Client, kube::Error>> + Send;
}

/// Clients of one API server.
#[derive(Clone)]
pub struct TokenClients {
    config: Config,
    made: Arc<Mutex<HashMap<String, Client>>>,
}

impl TokenClients {
    /// Clients of the API server that `config` leads to; its own credentials are not used.
    pub fn new(mut config: Config) -> Self {
        config.auth_info = AuthInfo::default();
        Self { config, made: Arc::default() }
    }
}

impl Clients for TokenClients {
    async fn client(&self, token: &str) -> Result<Client, kube::Error> {
        if let Some(client) = self.made.lock().get(token) {
            return Ok(client.clone());
        }
        let mut config = self.config.clone();
        config.auth_info.token = Some(token.to_owned().into());
        let client = Client::try_from(config)?;
        let mut made = self.made.lock();
        if made.len() >= KEPT {
            made.clear();
        }
        made.insert(token.to_owned(), client.clone());
        Ok(client)
    }
}
