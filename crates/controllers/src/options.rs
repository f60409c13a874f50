//! What may be set.

use std::sync::Arc;

use tether_plan::{attach_detach, node, pod_gc};

use crate::clock::{Clock, SystemClock};
use crate::leader;
use crate::metrics::Metrics;

/// The settings of all controllers.
#[derive(Clone)]
pub struct Options {
    /// Who this process is, in events and in the election.
    pub identity: String,
    /// Run only while being the leader; `None` if nobody else runs.
    pub leader_election: Option<leader::Settings>,
    /// When nodes count as silent, and how fast they are evicted.
    pub node: node::lifecycle::Settings,
    /// Which pods are garbage.
    pub pod_gc: pod_gc::Settings,
    /// Do what Kubernetes' own controllers do; not on a cluster that has them.
    pub cluster: bool,
    /// Attach volumes to nodes; `None` where Kubernetes' own controller does it.
    pub attach_detach: Option<attach_detach::Settings>,
    /// Look after volumes; not on a cluster that has no definitions of them.
    pub volumes: bool,
    /// Look after Longhorn Nodes and their instance managers; not where their states are played.
    pub storage_nodes: bool,
    /// The API server's certificate authority in PEM, which every namespace gets a copy of.
    pub root_ca: Option<String>,
    pub clock: Arc<dyn Clock>,
    /// What is counted; whoever serves it keeps the other end.
    pub metrics: Arc<Metrics>,
    /// Called whenever this process has begun to lead: every kind was listed and every controller runs.
    pub on_leading: Arc<dyn Fn() + Send + Sync>,
}

impl Default for Options {
    /// Kubernetes' defaults, alone and on the machine's clock.
    fn default() -> Self {
        Self {
            identity: "tether-controllers".into(),
            leader_election: None,
            node: node::lifecycle::Settings::default(),
            pod_gc: pod_gc::Settings::default(),
            cluster: true,
            attach_detach: None,
            volumes: true,
            storage_nodes: false,
            root_ca: None,
            clock: Arc::new(SystemClock::default()),
            metrics: Arc::default(),
            on_leading: Arc::new(|| ()),
        }
    }
}
