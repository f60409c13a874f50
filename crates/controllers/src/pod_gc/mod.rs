//! Pod garbage collection.

mod apply;
mod observe;

use std::sync::Arc;

use jiff::Timestamp;
use tether_plan::object::is_deleting;
use tether_plan::pod::{is_finished, node_name};
use tether_plan::pod_gc::{Settings, decide};

use self::observe::MissingNodes;
use crate::cache::Seen;
use crate::context::Context;
use crate::queue::Queue;
use crate::worker::{Reconcile, log};
use crate::write::WriteError;

/// All pods, looked at together.
pub(crate) struct PodGc {
    context: Arc<Context>,
    settings: Settings,
    missing: MissingNodes,
}

impl PodGc {
    pub(crate) fn new(context: &Arc<Context>, settings: Settings) -> (Arc<Self>, Arc<Queue<()>>) {
        let queue = Queue::new(context.clock.clone());
        context.nodes.subscribe({
            let queue = queue.clone();
            move |_| queue.add(())
        });
        let nodes = Arc::downgrade(&context.nodes);
        context.pods.subscribe({
            let queue = queue.clone();
            move |seen| {
                // A pod that lives on a node that is known is of no interest.
                let Seen::Applied { new: pod, .. } = seen else {
                    return;
                };
                let known = nodes.upgrade().is_some_and(|nodes| nodes.get("", node_name(pod)).is_some());
                if is_deleting(*pod) || is_finished(pod) || (!node_name(pod).is_empty() && !known) {
                    queue.add(());
                }
            }
        });
        (Arc::new(Self { context: context.clone(), settings, missing: MissingNodes::default() }), queue)
    }
}

impl Reconcile for PodGc {
    type Key = ();
    const NAME: &'static str = "pod-gc";

    async fn reconcile(&self, (): &()) -> Result<Option<Timestamp>, WriteError> {
        let (pods, nodes) = (self.context.pods.list(), self.context.nodes.list());
        let now = self.context.clock.now();
        let plan = decide(&self.missing.observe(&pods, &nodes, now), &self.settings, now);
        log(Self::NAME, &plan);
        let wake_at = plan.wake_at();
        let asked = apply::apply(&self.context, &self.missing, plan.changes).await?;
        Ok(if asked { Some(now) } else { wake_at })
    }
}
