//! The scheduler.

mod apply;
mod observe;

use std::sync::Arc;

use jiff::Timestamp;
use tether_model::report::Verdict;
use tether_plan::Plan;
use tether_plan::schedule::{Change, decide};

use self::observe::{Assumed, Snapshot, Waiting};
use crate::cache::Key;
use crate::context::Context;
use crate::publish::Publisher;
use crate::queue::Queue;
use crate::worker::{Reconcile, log};
use crate::write::WriteError;

/// One pod at a time.
pub(crate) struct Scheduler {
    context: Arc<Context>,
    assumed: Arc<Assumed>,
    waiting: Arc<Waiting>,
    events: Publisher,
}

impl Scheduler {
    pub(crate) fn new(context: &Arc<Context>) -> (Arc<Self>, Arc<Queue<Key>>) {
        let queue = Queue::new(context.clock.clone());
        let (assumed, waiting) = (Arc::new(Assumed::default()), Arc::new(Waiting::default()));
        observe::subscribe(context, &queue, &assumed, &waiting);
        let events = context.publisher("default-scheduler");
        (Arc::new(Self { context: context.clone(), assumed, waiting, events }), queue)
    }
}

impl Reconcile for Scheduler {
    type Key = Key;
    const NAME: &'static str = "scheduler";

    async fn reconcile(&self, key: &Key) -> Result<Option<Timestamp>, WriteError> {
        let Some(pod) = self.context.pods.get(&key.0, &key.1).filter(|pod| !self.assumed.has(pod)) else {
            return Ok(None);
        };
        // Waiting begins before the look: what changes from here on is not missed.
        self.waiting.insert(key);
        let snapshot = Snapshot::of(&self.context, &self.assumed);
        let plan = decide(&pod, &snapshot.observed(), self.context.clock.now());
        log(Self::NAME, &plan);
        if has_its_place(&plan) {
            self.waiting.remove(key);
        }
        apply::apply(&self.context, &self.assumed, plan.changes).await?;
        self.events.publish(plan.events).await;
        Ok(None)
    }
}

/// Whether nothing that happens elsewhere can change what becomes of the pod: it gets its node, or is not ours.
fn has_its_place(plan: &Plan<Change>) -> bool {
    let binds = plan.changes.iter().any(|change| matches!(change, Change::Bind { .. }));
    binds || plan.report.findings.last().is_some_and(|finding| finding.verdict == Verdict::Rests)
}
