//! What would be lost with a node, and when that may have changed.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::RwLock;
use tether_crd::instance_manager::InstanceManagerState;
use tether_crd::settings::{NODE_DRAIN_POLICY, Settings};
use tether_crd::{Engine, NAMESPACE, Replica, Volume};
use tether_plan::drain::{self, Held, Policy};
use tether_plan::node::is_unschedulable;
use tether_plan::object::name;

use crate::cache::Seen;
use crate::context::Context;
use crate::longhorn::on_node;
use crate::queue::Queue;

/// Nodes that are cordoned: only for them what happens to volumes matters here.
#[derive(Default)]
struct Cordoned(RwLock<BTreeSet<String>>);

/// Listens for what may let a cordoned node go.
pub(super) fn subscribe(context: &Arc<Context>, queue: &Arc<Queue<String>>) {
    let cordoned = Arc::<Cordoned>::default();
    let held = cordoned.clone();
    context.nodes.subscribe(move |seen| {
        let node = name(seen.object()).to_owned();
        match seen {
            Seen::Applied { new, .. } if is_unschedulable(new) => held.0.write().insert(node),
            _ => held.0.write().remove(&node),
        };
    });
    let tell = {
        let (cordoned, queue) = (cordoned.clone(), queue.clone());
        move |node: &str| {
            if cordoned.0.read().contains(node) {
                queue.add(node.to_owned());
            }
        }
    };
    let longhorn = &context.longhorn;
    let told = tell.clone();
    longhorn.engines.subscribe(move |seen| {
        if let Seen::Applied { old: Some(old), .. } = seen {
            told(&old.spec.node_id);
        }
        told(&seen.object().spec.node_id);
    });
    let (told, replicas, held) = (tell.clone(), Arc::downgrade(&longhorn.replicas), cordoned);
    let of_volume = move |volume: &str| {
        let Some(replicas) = replicas.upgrade().filter(|_| !held.0.read().is_empty()) else { return };
        replicas.find(volume).iter().for_each(|replica| told(&replica.spec.node_id));
    };
    let told = of_volume.clone();
    longhorn.replicas.subscribe(move |seen| {
        tell(&seen.object().spec.node_id);
        told(&seen.object().spec.volume_name);
    });
    longhorn.volumes.subscribe(move |seen| {
        let members = |volume: &Volume| volume.status.record.as_ref().map(|record| record.in_sync.clone());
        match seen {
            Seen::Applied { old: Some(old), new } if members(old) == members(new) => {}
            _ => of_volume(name(seen.object())),
        }
    });
    let (out, nodes) = (queue.clone(), Arc::downgrade(&longhorn.nodes));
    longhorn.settings.subscribe(move |seen| {
        let Some(nodes) = nodes.upgrade().filter(|_| seen.object().metadata.name.as_deref() == Some(NODE_DRAIN_POLICY))
        else {
            return;
        };
        nodes.list().iter().for_each(|node| out.add(name(&**node).to_owned()));
    });
}

/// The engines and replicas of one node, with what belongs to them.
pub(super) struct There {
    pub(super) engines: Vec<Arc<Engine>>,
    pub(super) replicas: Vec<Arc<Replica>>,
}

impl There {
    pub(super) fn of(context: &Context, node: &str) -> Self {
        let word = on_node(node);
        Self { engines: context.longhorn.engines.find(&word), replicas: context.longhorn.replicas.find(&word) }
    }

    /// Why the node cannot be drained; none: it can.
    pub(super) fn kept_for(&self, context: &Context, settings: &Settings) -> Option<String> {
        let longhorn = &context.longhorn;
        let beside = |replica: &Arc<Replica>| {
            let volume = &replica.spec.volume_name;
            let mut others = longhorn.replicas.find(volume);
            others.retain(|other| name(&**other) != name(&**replica));
            (longhorn.volumes.get(NAMESPACE, volume), others)
        };
        let all: Vec<_> = self.replicas.iter().map(beside).collect();
        let nodes: BTreeSet<&str> =
            all.iter().flat_map(|(_, others)| others).map(|replica| replica.spec.node_id.as_str()).collect();
        let held = self.replicas.iter().zip(&all).map(|(replica, (volume, others))| Held {
            replica,
            volume: volume.as_deref(),
            others: others.iter().map(AsRef::as_ref).collect(),
        });
        let observed = drain::Observed {
            engines: self.engines.iter().map(AsRef::as_ref).collect(),
            replicas: held.collect(),
            kept_nodes: nodes.into_iter().filter(|node| is_kept(context, node)).collect(),
        };
        drain::blocked_by(&observed, Policy::parse(&settings.text(NODE_DRAIN_POLICY)))
    }
}

/// Whether what runs on the node stays: its instance manager runs, and cannot be evicted.
fn is_kept(context: &Context, node: &str) -> bool {
    let longhorn = &context.longhorn;
    let is_down = longhorn.nodes.get(NAMESPACE, node).is_none_or(|node| node.is_down());
    !is_down
        && longhorn.instance_managers.find(&on_node(node)).iter().any(|manager| {
            manager.status.current_state == InstanceManagerState::Running
                && context.budgets.get(NAMESPACE, name(&**manager)).is_some()
        })
}
