//! Disruption budgets: their status says how many pods may be evicted.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::Api;
use serde_json::{Value, json};
use tether_plan::disruption::{Change, decide};
use tether_plan::selector::matches_labels;

use crate::cache::{Key, key};
use crate::context::Context;
use crate::queue::Queue;
use crate::worker::{Reconcile, log};
use crate::write::{Part, WriteError, Writes};

/// One budget at a time.
pub(crate) struct Budgets {
    context: Arc<Context>,
}

impl Budgets {
    pub(crate) fn new(context: &Arc<Context>) -> (Arc<Self>, Arc<Queue<Key>>) {
        let queue = Queue::new(context.clock.clone());
        let out = queue.clone();
        context.budgets.subscribe(move |seen| out.add(key(seen.object())));
        let (out, budgets) = (queue.clone(), Arc::downgrade(&context.budgets));
        context.pods.subscribe(move |seen| {
            let (pod, Some(budgets)) = (seen.object(), budgets.upgrade()) else { return };
            for budget in budgets.list().iter().filter(|budget| is_under(pod, budget)) {
                out.add(key(&**budget));
            }
        });
        (Arc::new(Self { context: context.clone() }), queue)
    }
}

fn is_under(pod: &Pod, budget: &PodDisruptionBudget) -> bool {
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    pod.metadata.namespace == budget.metadata.namespace
        && selector.is_some_and(|selector| matches_labels(selector, pod.metadata.labels.as_ref()))
}

impl Reconcile for Budgets {
    type Key = Key;
    const NAME: &'static str = "disruption";

    async fn reconcile(&self, (namespace, name): &Key) -> Result<Option<Timestamp>, WriteError> {
        let Some(budget) = self.context.budgets.get(namespace, name) else { return Ok(None) };
        let pods = self.context.pods.list();
        let meant: Vec<&Pod> = pods.iter().map(AsRef::as_ref).filter(|pod| is_under(pod, &budget)).collect();
        let plan = decide(&budget, &meant, self.context.clock.now());
        log(Self::NAME, &plan);
        let wake_at = plan.wake_at();
        let api: Api<PodDisruptionBudget> = Api::namespaced(self.context.client.clone(), namespace);
        let mut writes = Writes::default();
        for Change::SetStatus { budget, status } in plan.changes {
            let mut body = json!({"status": *status});
            if status.disrupted_pods.is_none() {
                body["status"]["disruptedPods"] = Value::Null;
            }
            self.context.budgets.wrote(writes.patch(&api, &budget, Part::Status, body).await?);
        }
        Ok(wake_at)
    }
}
