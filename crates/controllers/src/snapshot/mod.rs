//! Snapshot objects: made and removed at the engines of their volumes, and shown for what engines have.

mod apply;
mod observe;

use std::sync::Arc;

use jiff::Timestamp;
use tether_plan::snapshot::decide;

use self::observe::View;
use crate::context::Context;
use crate::publish::Publisher;
use crate::queue::Queue;
use crate::worker::{Reconcile, log};
use crate::write::WriteError;

/// How many volumes are worked on at once.
pub(crate) const AT_ONCE: usize = 16;

/// All snapshots of one volume at a time, by the volume's name.
pub(crate) struct Snapshots {
    context: Arc<Context>,
    events: Publisher,
}

impl Snapshots {
    pub(crate) fn new(context: &Arc<Context>) -> (Arc<Self>, Arc<Queue<String>>) {
        let queue = Queue::new(context.clock.clone());
        observe::subscribe(context, &queue);
        let events = context.publisher("longhorn-snapshot-controller");
        (Arc::new(Self { context: context.clone(), events }), queue)
    }
}

impl Reconcile for Snapshots {
    type Key = String;
    const NAME: &'static str = "snapshot";

    async fn reconcile(&self, volume: &String) -> Result<Option<Timestamp>, WriteError> {
        let view = View::of(&self.context, volume);
        let plan = decide(&view.observed(), self.context.clock.now());
        log(Self::NAME, &plan);
        let wake_at = plan.wake_at();
        apply::apply(&self.context, &view, plan.changes).await?;
        self.events.publish(plan.events).await;
        Ok(wake_at)
    }
}
