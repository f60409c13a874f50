//! Volumes: engines and replicas follow the wish of each volume, and its status follows them.

mod apply;
mod cluster;
mod observe;

use std::sync::Arc;

use jiff::Timestamp;
use tether_plan::volume::decide;

use self::cluster::Cluster;
use self::observe::View;
use crate::context::Context;
use crate::publish::Publisher;
use crate::queue::Queue;
use crate::worker::{Reconcile, log};
use crate::write::WriteError;

/// How many volumes are worked on at once: most of that time is spent waiting for the API server, which stores what comes
/// together in one go.
pub(crate) const AT_ONCE: usize = 32;

/// One volume at a time, many volumes side by side.
pub(crate) struct Volumes {
    context: Arc<Context>,
    cluster: Arc<Cluster>,
    events: Publisher,
}

impl Volumes {
    pub(crate) fn new(context: &Arc<Context>) -> (Arc<Self>, Arc<Queue<String>>) {
        let queue = Queue::new(context.clock.clone());
        let cluster = Arc::new(Cluster::default());
        observe::subscribe(context, &queue, &cluster);
        let events = context.publisher("longhorn-volume-controller");
        (Arc::new(Self { context: context.clone(), cluster, events }), queue)
    }
}

impl Reconcile for Volumes {
    type Key = String;
    const NAME: &'static str = "volume";

    async fn reconcile(&self, volume: &String) -> Result<Option<Timestamp>, WriteError> {
        let Some(view) = View::of(&self.context, volume) else {
            return Ok(None);
        };
        let plan = self.cluster.decide(|hosts, promised, settings, seed| {
            decide(&view.observed(hosts, promised, settings, seed), self.context.clock.now())
        });
        log(Self::NAME, &plan);
        let wake_at = plan.wake_at();
        let applied = apply::apply(&self.context, &view, plan.changes).await;
        if applied.is_err() {
            self.cluster.correct(&self.context.longhorn.replicas.find(volume), volume);
        }
        applied?;
        self.events.publish(plan.events).await;
        Ok(wake_at)
    }
}
