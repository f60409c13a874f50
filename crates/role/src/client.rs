//! Kubernetes clients from kubeconfig files.

use std::path::Path;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::HeaderValue;
use http::header::USER_AGENT;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// A client for one of our roles. The role is the first word of its User-Agent, which is what audit logs and
/// `metadata.managedFields` call whoever wrote something.
pub async fn from_file(path: &Path, role: &'static str) -> Result<Client> {
    named(config(path).await?, role).with_context(|| format!("--kubeconfig {}", path.display()))
}

/// Where the API server of a kubeconfig is, and whom it has to be.
pub async fn config(path: &Path) -> Result<Config> {
    let failed = || format!("--kubeconfig {}", path.display());
    let file = Kubeconfig::read_from(path).with_context(failed)?;
    Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.with_context(failed)
}

/// The same from the file that was given, or else with what a pod is given.
pub async fn from_flag(path: Option<&Path>, role: &'static str) -> Result<Client> {
    Ok(Client::try_from(flagged(path, role).await?)?)
}

/// How that API server is reached, for a role that makes a client of its own.
pub async fn flagged(path: Option<&Path>, role: &'static str) -> Result<Config> {
    let config = match path {
        Some(path) => config(path).await?,
        None => Config::incluster().context("--kubeconfig is not given, and this is not a pod")?,
    };
    Ok(with_name(config, role))
}

fn named(config: Config, role: &'static str) -> Result<Client, kube::Error> {
    Client::try_from(with_name(config, role))
}

fn with_name(mut config: Config, role: &'static str) -> Config {
    let agent = format!("{role}/{} ({}/{})", env!("CARGO_PKG_VERSION"), std::env::consts::OS, std::env::consts::ARCH);
    config.headers.push((USER_AGENT, HeaderValue::try_from(agent).expect("a User-Agent must be plain text")));
    config
}

/// The certificate authority, in PEM, that the first cluster of a kubeconfig carries in itself.
pub fn root_ca(path: &Path) -> Result<Option<String>> {
    let failed = || format!("--kubeconfig {}", path.display());
    let file = Kubeconfig::read_from(path).with_context(failed)?;
    let cluster = file.clusters.into_iter().next().and_then(|named| named.cluster);
    let Some(encoded) = cluster.and_then(|cluster| cluster.certificate_authority_data) else { return Ok(None) };
    let decoded = BASE64_STANDARD.decode(encoded).with_context(failed)?;
    String::from_utf8(decoded).map(Some).with_context(failed)
}
