//! A cluster's directory: what lies where, what it is, who runs it.

mod credentials;
mod faults;
mod leftovers;
mod lock;
mod marker;
mod ports;
mod processes;
mod status;

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use uuid::Uuid;

pub(crate) use credentials::write_credentials;
pub(crate) use faults::{NODE_ENV, heal, node_down, node_up, partition};
pub(crate) use leftovers::{Cleaned, clean};
pub(crate) use lock::{Held, Lock};
pub(crate) use marker::{FORMAT, Marker};
pub(crate) use ports::{check_port, free_port};
pub(crate) use processes::{Process, end_all, end_containers, marked};
pub(crate) use status::{Component, ComponentState, Phase, Status};

/// Every process of a cluster carries this in its environment; its value names the cluster and the directory.
pub(crate) const CLUSTER_ENV: &str = "TETHER_CLUSTER";

/// Paths below the data directory. [docs/operating.md] explains them to users.
///
/// [docs/operating.md]: https://github.com/tether-storage/tether/blob/main/docs/operating.md
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Absolute, without links.
    pub(crate) dir: PathBuf,
}

impl Layout {
    pub(crate) fn marker(&self) -> PathBuf {
        self.dir.join("tether.json")
    }

    pub(crate) fn lock(&self) -> PathBuf {
        self.dir.join("lock")
    }

    /// The administrator's.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    pub(crate) fn pki(&self) -> PathBuf {
        self.apiserver().join("pki")
    }

    pub(crate) fn apiserver(&self) -> PathBuf {
        self.dir.join("apiserver")
    }

    pub(crate) fn controller_kubeconfig(&self) -> PathBuf {
        self.dir.join("controller/kubeconfig")
    }

    /// Certificate and key of the controllers' metrics.
    pub(crate) fn metrics_certificate(&self) -> PathBuf {
        self.dir.join("controller/metrics.pem")
    }

    pub(crate) fn node(&self, name: &str) -> PathBuf {
        self.dir.join("nodes").join(name)
    }

    pub(crate) fn node_kubeconfig(&self, name: &str) -> PathBuf {
        self.node(name).join("kubeconfig")
    }

    /// With which a node serves.
    pub(crate) fn node_certificate(&self, name: &str) -> PathBuf {
        self.node(name).join("serving.pem")
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.dir.join("logs")
    }

    pub(crate) fn log(&self, component: &str) -> PathBuf {
        self.logs().join(format!("{component}.log"))
    }

    /// What concerns the processes that run now; emptied at every start.
    pub(crate) fn run(&self) -> PathBuf {
        self.dir.join("run")
    }

    pub(crate) fn status(&self) -> PathBuf {
        self.run().join("status.json")
    }

    /// Holds the mount namespace of a node.
    pub(crate) fn namespace(&self, node: &str) -> PathBuf {
        self.run().join(node).join("mnt")
    }

    /// Of the processes that keep a node's kernel devices.
    pub(crate) fn devices(&self, node: &str) -> PathBuf {
        self.run().join(node).join("devices")
    }

    /// While this file is there, the node is switched off.
    pub(crate) fn switched_off(&self, node: &str) -> PathBuf {
        self.run().join(node).join("off")
    }

    /// The value of [`CLUSTER_ENV`]: a copied directory is another cluster.
    pub(crate) fn process_mark(&self, marker: &Marker) -> String {
        format!("{}@{}", marker.id, self.dir.display())
    }
}

/// Where data is kept if nobody says where: `$XDG_DATA_HOME/tether`, else `~/.local/share/tether`.
pub(crate) fn default_dir() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| Path::new(value).is_absolute()).map(PathBuf::from);
    let base = set("XDG_DATA_HOME").or_else(|| set("HOME").map(|home| home.join(".local/share")));
    base.map(|base| base.join("tether"))
}

/// The name of the node with this number, from 1.
pub(crate) fn node_name(number: u16) -> String {
    format!("node-{number}")
}

/// Every node has a loopback address of its own (Linux answers on all of 127.0.0.0/8), so that services of
/// different nodes can use the same port; the cluster's id spreads clusters of one host over that range.
pub(crate) fn node_address(marker: &Marker, number: u16) -> IpAddr {
    let [first, second, ..] = Uuid::try_parse(&marker.id).unwrap_or_default().into_bytes();
    // 127.0.x.x is left to the host: 127.0.0.1, and 127.0.1.1 which Debian gives to the host's name.
    Ipv4Addr::new(127, first.max(1), second, number as u8).into()
}

/// Where the controllers' metrics are: beside the addresses of nodes, of which there are fewer.
pub(crate) fn metrics_address(marker: &Marker) -> IpAddr {
    node_address(marker, 254)
}

/// Nodes are spread over three zones, so that topology has something to say.
pub(crate) fn node_zone(number: u16) -> &'static str {
    ["zone-a", "zone-b", "zone-c"][usize::from(number.saturating_sub(1)) % 3]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_addresses_of_their_own() {
        let mut marker = Marker::new(3, 6443);
        marker.id = Uuid::from_u128(0).to_string();
        assert_eq!(node_address(&marker, 1).to_string(), "127.1.0.1");
        marker.id = Uuid::from_u128(u128::MAX).to_string();
        assert_eq!(node_address(&marker, 64).to_string(), "127.255.255.64");
        assert!(node_address(&marker, 64).is_loopback());
    }

    #[test]
    fn zones_go_round() {
        assert_eq!([1, 2, 3, 4].map(node_zone), ["zone-a", "zone-b", "zone-c", "zone-a"]);
    }
}
