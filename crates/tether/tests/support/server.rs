//! Where a case finds its API server: one that already runs, or one started for it.

use std::path::{Path, PathBuf};

/// Whether a server can be started for a case, without `TETHER_E2E_KUBECONFIG`.
pub(crate) const CAN_START: bool = false;

pub(crate) struct Server {
    kubeconfig: PathBuf,
}

impl Server {
    pub(crate) fn existing(kubeconfig: &Path) -> Self {
        Self { kubeconfig: kubeconfig.to_owned() }
    }

    pub(crate) fn start() -> Result<Self, String> {
        Err("no server yet: set TETHER_E2E_KUBECONFIG".to_owned())
    }

    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }
}
