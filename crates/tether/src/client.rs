//! Kubernetes clients from kubeconfig files.

use std::path::Path;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

pub(crate) async fn from_file(path: &Path) -> Result<Client> {
    let failed = || format!("--kubeconfig {}", path.display());
    let file = Kubeconfig::read_from(path).with_context(failed)?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.with_context(failed)?;
    Client::try_from(config).with_context(failed)
}

/// The certificate authority, in PEM, that the first cluster of a kubeconfig carries in itself.
pub(crate) fn root_ca(path: &Path) -> Result<Option<String>> {
    let failed = || format!("--kubeconfig {}", path.display());
    let file = Kubeconfig::read_from(path).with_context(failed)?;
    let cluster = file.clusters.into_iter().next().and_then(|named| named.cluster);
    let Some(encoded) = cluster.and_then(|cluster| cluster.certificate_authority_data) else { return Ok(None) };
    let decoded = BASE64_STANDARD.decode(encoded).with_context(failed)?;
    String::from_utf8(decoded).map(Some).with_context(failed)
}
