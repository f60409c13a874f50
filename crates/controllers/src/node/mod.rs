//! The life of nodes: from heartbeats to conditions and taints, and from taints to evicted pods.

mod apply;
mod observe;

use std::sync::Arc;

use jiff::Timestamp;
use tether_plan::node::{eviction, lifecycle};
use tether_plan::pod::node_name;

use self::observe::{Heartbeats, Noticed};
use crate::cache::Seen;
use crate::context::{Context, pods_of_node};
use crate::publish::Publisher;
use crate::queue::Queue;
use crate::worker::{Reconcile, log};
use crate::write::WriteError;

/// Conditions and taints of all nodes, decided together because zones are judged as a whole.
pub(crate) struct Lifecycle {
    context: Arc<Context>,
    settings: lifecycle::Settings,
    heartbeats: Arc<Heartbeats>,
    events: Publisher,
}

impl Lifecycle {
    pub(crate) fn new(context: &Arc<Context>, settings: lifecycle::Settings) -> (Arc<Self>, Arc<Queue<()>>) {
        let queue = Queue::new(context.clock.clone());
        let heartbeats = Heartbeats::new(context.clock.clone());
        // A heartbeat alone changes nothing: whoever is due looks at it then.
        context.node_leases.subscribe({
            let heartbeats = heartbeats.clone();
            move |seen| heartbeats.saw_lease(seen.object())
        });
        context.nodes.subscribe({
            let (heartbeats, queue) = (heartbeats.clone(), queue.clone());
            move |seen| {
                match seen {
                    Seen::Applied { new, .. } => heartbeats.saw_node(new),
                    Seen::Deleted(node) => heartbeats.forget(node),
                }
                queue.add(());
            }
        });
        let events = context.publisher("node-controller");
        (Arc::new(Self { context: context.clone(), settings, heartbeats, events }), queue)
    }
}

impl Reconcile for Lifecycle {
    type Key = ();
    const NAME: &'static str = "node-lifecycle";

    async fn reconcile(&self, (): &()) -> Result<Option<Timestamp>, WriteError> {
        let nodes = self.context.nodes.list();
        let plan = lifecycle::decide(&self.heartbeats.observe(&nodes), &self.settings, self.context.clock.now());
        log(Self::NAME, &plan);
        let wake_at = plan.wake_at();
        let asked = apply::nodes(&self.context, &self.heartbeats, plan.changes).await?;
        self.events.publish(plan.events).await;
        Ok(if asked { Some(self.context.clock.now()) } else { wake_at })
    }
}

/// The pods of one node.
pub(crate) struct Eviction {
    context: Arc<Context>,
    noticed: Noticed,
    events: Publisher,
}

impl Eviction {
    pub(crate) fn new(context: &Arc<Context>) -> (Arc<Self>, Arc<Queue<String>>) {
        let queue = Queue::new(context.clock.clone());
        context.nodes.subscribe({
            let queue = queue.clone();
            move |seen| queue.add(seen.object().metadata.name.clone().unwrap_or_default())
        });
        context.pods.subscribe({
            let queue = queue.clone();
            move |seen| match seen {
                Seen::Applied { new, .. } if !node_name(new).is_empty() => queue.add(node_name(new).to_owned()),
                _ => {}
            }
        });
        let events = context.publisher("taint-eviction-controller");
        (Arc::new(Self { context: context.clone(), noticed: Noticed::default(), events }), queue)
    }
}

impl Reconcile for Eviction {
    type Key = String;
    const NAME: &'static str = "taint-eviction";

    async fn reconcile(&self, node: &String) -> Result<Option<Timestamp>, WriteError> {
        let now = self.context.clock.now();
        let Some(found) = self.context.nodes.get("", node) else {
            self.noticed.forget(node);
            return Ok(None);
        };
        let pods = self.context.pods.find(&pods_of_node(node));
        let pods = pods.iter().map(AsRef::as_ref).collect();
        let plan =
            eviction::decide(&eviction::Observed { node: &found, pods, noticed: self.noticed.of(&found, now) }, now);
        log(Self::NAME, &plan);
        let wake_at = plan.wake_at();
        apply::pods(&self.context, plan.changes).await?;
        self.events.publish(plan.events).await;
        Ok(wake_at)
    }
}
