//! Who may talk to the API server: a kubeconfig for the administrator, for the controllers and for each node.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use tether_apiserver::pki::{Credentials, Kubeconfig, Pki};

use super::marker::write_atomically;
use super::{Layout, Marker, metrics_address, node_address, node_name};

/// Opens the cluster's certificate authority, made on the first start, and writes every kubeconfig anew: the port
/// may have changed, and certificates are renewed before they expire.
pub(crate) fn write_credentials(layout: &Layout, marker: &Marker) -> Result<()> {
    let now = Timestamp::now();
    let pki = Pki::open_or_create(&layout.pki(), now)?;
    let write = |path: &Path, user: &str, credentials: &Credentials| -> Result<()> {
        let server = format!("https://127.0.0.1:{}", marker.api_port);
        let text = Kubeconfig { cluster: "tether", server: &server, ca_pem: pki.ca_pem(), user, credentials }.render();
        let folder = path.parent().expect("a kubeconfig must lie in a folder");
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        write_atomically(path, text.as_bytes(), 0o600).with_context(|| format!("cannot write {}", path.display()))
    };
    write(&layout.kubeconfig(), "kubernetes-admin", &pki.admin(now)?)?;
    write(
        &layout.controller_kubeconfig(),
        "kube-controller-manager",
        &pki.controller("kube-controller-manager", now)?,
    )?;
    let metrics = pki.component("metrics", &[metrics_address(marker).to_string()], now)?;
    let text = format!("{}{}", metrics.certificate_pem, metrics.key_pem);
    let path = layout.metrics_certificate();
    write_atomically(&path, text.as_bytes(), 0o600).with_context(|| format!("cannot write {}", path.display()))?;
    for number in 1..=marker.nodes {
        let name = node_name(number);
        write(&layout.node_kubeconfig(&name), &name, &pki.node(&name, now)?)?;
        let serving = pki.node_server(&name, node_address(marker, number), now)?;
        let (path, text) = (layout.node_certificate(&name), format!("{}{}", serving.certificate_pem, serving.key_pem));
        write_atomically(&path, text.as_bytes(), 0o600).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
