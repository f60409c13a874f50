//! Storage nodes: the conditions of each Longhorn Node, its instance manager and that one's pod.

mod apply;
mod observe;

use std::sync::Arc;

use jiff::Timestamp;
use tether_crd::settings::GUARANTEED_INSTANCE_MANAGER_CPU;
use tether_crd::{NAMESPACE, labels};
use tether_plan::object::name;
use tether_plan::{instance_manager, storage_node};

use self::observe::There;
use crate::context::{Context, pods_of_node};
use crate::longhorn::on_node;
use crate::publish::Publisher;
use crate::queue::Queue;
use crate::worker::{Reconcile, log};
use crate::write::WriteError;

/// One node at a time, by its name.
pub(crate) struct StorageNodes {
    context: Arc<Context>,
    events: Publisher,
}

impl StorageNodes {
    pub(crate) fn new(context: &Arc<Context>) -> (Arc<Self>, Arc<Queue<String>>) {
        let queue = Queue::new(context.clock.clone());
        let add = |queue: &Arc<Queue<String>>| {
            let queue = queue.clone();
            move |node: &str| queue.add(node.to_owned())
        };
        let longhorn = &context.longhorn;
        let hear = add(&queue);
        longhorn.nodes.subscribe(move |seen| hear(name(seen.object())));
        let hear = add(&queue);
        context.nodes.subscribe(move |seen| hear(name(seen.object())));
        let hear = add(&queue);
        longhorn.instance_managers.subscribe(move |seen| hear(&seen.object().spec.node_id));
        let hear = add(&queue);
        context.pods.subscribe(move |seen| {
            let pod = seen.object();
            if pod.metadata.labels.as_ref().is_some_and(|all| all.contains_key(labels::INSTANCE_MANAGER)) {
                hear(tether_plan::pod::node_name(pod));
            }
        });
        let hear = add(&queue);
        context.budgets.subscribe(move |seen| {
            let node = seen.object().metadata.labels.as_ref().and_then(|all| all.get(labels::COMPONENT_NODE));
            if let Some(node) = node {
                hear(node);
            }
        });
        observe::subscribe(context, &queue);
        (Arc::new(Self { context: context.clone(), events: context.publisher("longhorn-node-controller") }), queue)
    }
}

impl Reconcile for StorageNodes {
    type Key = String;
    const NAME: &'static str = "storage-node";

    async fn reconcile(&self, key: &String) -> Result<Option<Timestamp>, WriteError> {
        let longhorn = &self.context.longhorn;
        let Some(node) = longhorn.nodes.get(NAMESPACE, key) else { return Ok(None) };
        let kube = self.context.nodes.get("", key);
        let now = self.context.clock.now();
        let there = There::of(&self.context, key);
        let settings = longhorn.settings();
        let instances = there.engines.len() + there.replicas.len();
        let observed = storage_node::Observed { node: &node, kube: kube.as_deref(), settings: &settings, instances };
        let plan = storage_node::decide(&observed, now);
        log(Self::NAME, &plan);
        let first = plan.wake_at();
        apply::node(&self.context, &node, plan.changes).await?;
        self.events.publish(plan.events).await;

        let managers = longhorn.instance_managers.find(&on_node(key));
        let manager = managers.first();
        let pods = self.context.pods.find(&pods_of_node(key));
        let pod = manager.and_then(|manager| {
            pods.iter()
                .find(|pod| pod.metadata.namespace.as_deref() == Some(NAMESPACE) && name(&***pod) == name(&**manager))
        });
        let budget = manager.and_then(|manager| self.context.budgets.get(NAMESPACE, name(&**manager)));
        let cordoned = kube.as_deref().is_some_and(tether_plan::node::is_unschedulable);
        let observed = instance_manager::Observed {
            node: &node,
            kube: kube.as_deref(),
            manager: manager.map(AsRef::as_ref),
            pod: pod.map(AsRef::as_ref),
            budget: budget.as_deref(),
            kept_for: cordoned.then(|| there.kept_for(&self.context, &settings)).flatten(),
            guaranteed_cpu: settings.number(GUARANTEED_INSTANCE_MANAGER_CPU),
        };
        let plan = instance_manager::decide(&observed, now);
        log(Self::NAME, &plan);
        let second = plan.wake_at();
        apply::manager(&self.context, plan.changes).await?;
        self.events.publish(plan.events).await;
        Ok(first.into_iter().chain(second).min())
    }
}
