//! Signs of life, and when they were heard.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use parking_lot::Mutex;
use tether_plan::node::lifecycle::Observed;
use tether_plan::node::{NO_EXECUTE, condition, taints};
use tether_plan::object::name;

use crate::clock::Clock;

/// When each node was last heard of, by this process's own clock.
pub(super) struct Heartbeats {
    clock: Arc<dyn Clock>,
    beats: Mutex<HashMap<String, Beat>>,
}

#[derive(Clone, Copy, Default)]
struct Beat {
    /// On the clock that does not jump.
    heard: SignedDuration,
    /// What the node said last: only something newer is a sign of life.
    renewed: Option<Timestamp>,
    posted: Option<Timestamp>,
    /// The API server was asked, and has nothing newer.
    is_certain: bool,
}

impl Heartbeats {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { clock, beats: Mutex::default() })
    }

    pub(super) fn saw_lease(&self, lease: &Lease) {
        let renewed = lease.spec.as_ref().and_then(|s| s.renew_time.as_ref()).map(|t| t.0);
        let heard = self.clock.elapsed();
        let mut beats = self.beats.lock();
        let beat = beats.entry(name(lease).to_owned()).or_insert(Beat { heard, ..Beat::default() });
        if renewed > beat.renewed {
            *beat = Beat { heard, renewed, is_certain: false, ..*beat };
        }
    }

    pub(super) fn saw_node(&self, node: &Node) {
        let posted = condition(node, "Ready").and_then(|c| c.last_heartbeat_time.as_ref()).map(|t| t.0);
        let heard = self.clock.elapsed();
        let mut beats = self.beats.lock();
        let beat = beats.entry(name(node).to_owned()).or_insert(Beat { heard, posted, ..Beat::default() });
        if posted > beat.posted {
            *beat = Beat { heard, posted, is_certain: false, ..*beat };
        }
    }

    pub(super) fn forget(&self, node: &Node) {
        self.beats.lock().remove(name(node));
    }

    /// The API server's word on a node's Lease: either it is newer than what was heard, or the silence is certain.
    pub(super) fn checked(&self, node: &str, lease: Option<&Lease>) {
        if let Some(lease) = lease {
            self.saw_lease(lease);
        }
        let renewed = lease.and_then(|l| l.spec.as_ref()).and_then(|s| s.renew_time.as_ref()).map(|t| t.0);
        if let Some(beat) = self.beats.lock().get_mut(node) {
            let silent = self.clock.elapsed() - beat.heard;
            beat.is_certain = renewed <= beat.renewed && silent > SignedDuration::ZERO;
        }
    }

    pub(super) fn observe<'a>(&self, nodes: &'a [Arc<Node>]) -> Vec<Observed<'a>> {
        let (beats, now) = (self.beats.lock(), self.clock.elapsed());
        let observe = |node: &'a Arc<Node>| {
            let beat = beats.get(name(&**node)).copied().unwrap_or(Beat { heard: now, ..Beat::default() });
            Observed { node, silent_for: now - beat.heard, is_certain: beat.is_certain }
        };
        nodes.iter().map(observe).collect()
    }
}

/// When the taints of a node were first noticed, by key and value.
type FirstNoticed = BTreeMap<(String, String), Timestamp>;

/// When taints that do not say when they were added were first noticed.
#[derive(Default)]
pub(super) struct Noticed {
    nodes: Mutex<HashMap<String, FirstNoticed>>,
}

impl Noticed {
    /// Those of a node, with the ones that are new.
    pub(super) fn of(&self, node: &Node, now: Timestamp) -> FirstNoticed {
        let mut nodes = self.nodes.lock();
        let old = nodes.remove(name(node)).unwrap_or_default();
        let timeless = taints(node).iter().filter(|t| t.effect == NO_EXECUTE && t.time_added.is_none());
        let noticed: FirstNoticed = timeless
            .map(|t| (t.key.clone(), t.value.clone().unwrap_or_default()))
            .map(|taint| {
                let at = old.get(&taint).copied().unwrap_or(now);
                (taint, at)
            })
            .collect();
        if !noticed.is_empty() {
            nodes.insert(name(node).to_owned(), noticed.clone());
        }
        noticed
    }

    pub(super) fn forget(&self, node: &str) {
        self.nodes.lock().remove(node);
    }
}
