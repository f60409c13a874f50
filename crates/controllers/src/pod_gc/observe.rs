//! Nodes that pods name and nobody has seen.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use parking_lot::Mutex;
use tether_plan::object::name;
use tether_plan::pod::node_name;
use tether_plan::pod_gc::{Missing, Observed};

/// Since when nodes are missing, and which of them are known to be gone.
#[derive(Default)]
pub(super) struct MissingNodes {
    nodes: Mutex<BTreeMap<String, Missing>>,
}

impl MissingNodes {
    pub(super) fn observe<'a>(&self, pods: &'a [Arc<Pod>], nodes: &'a [Arc<Node>], now: Timestamp) -> Observed<'a> {
        let nodes: BTreeMap<&str, &Node> = nodes.iter().map(|node| (name(&**node), &**node)).collect();
        let named: BTreeSet<&str> = pods.iter().map(|pod| node_name(pod)).filter(|name| !name.is_empty()).collect();
        let mut missing = self.nodes.lock();
        missing.retain(|node, _| named.contains(node.as_str()) && !nodes.contains_key(node.as_str()));
        for node in named.into_iter().filter(|node| !nodes.contains_key(node)) {
            missing.entry(node.to_owned()).or_insert(Missing::Since(now));
        }
        Observed { pods: pods.iter().map(AsRef::as_ref).collect(), nodes, missing: missing.clone() }
    }

    /// The API server has no such node.
    pub(super) fn gone(&self, node: &str) {
        self.nodes.lock().insert(node.to_owned(), Missing::Gone);
    }

    /// The API server has the node, and the cache will have it soon.
    pub(super) fn exists(&self, node: &str) {
        self.nodes.lock().remove(node);
    }
}
