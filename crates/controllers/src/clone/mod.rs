//! Clones: volumes that are filled from a snapshot of another volume before anybody may use them.

mod apply;
mod observe;

use std::sync::Arc;

use jiff::Timestamp;
use tether_plan::clone::decide;

use self::observe::{Unfinished, View};
use crate::context::Context;
use crate::publish::Publisher;
use crate::queue::Queue;
use crate::worker::{Reconcile, log};
use crate::write::WriteError;

/// How many clones are worked on at once.
pub(crate) const AT_ONCE: usize = 8;

/// One clone at a time, by its name.
pub(crate) struct Clones {
    context: Arc<Context>,
    events: Publisher,
}

impl Clones {
    pub(crate) fn new(context: &Arc<Context>) -> (Arc<Self>, Arc<Queue<String>>) {
        let queue = Queue::new(context.clock.clone());
        observe::subscribe(context, &queue, &Arc::new(Unfinished::default()));
        let events = context.publisher("longhorn-volume-clone-controller");
        (Arc::new(Self { context: context.clone(), events }), queue)
    }
}

impl Reconcile for Clones {
    type Key = String;
    const NAME: &'static str = "clone";

    async fn reconcile(&self, volume: &String) -> Result<Option<Timestamp>, WriteError> {
        let Some(view) = View::of(&self.context, volume) else { return Ok(None) };
        let plan = decide(&view.observed(), self.context.clock.now());
        log(Self::NAME, &plan);
        let wake_at = plan.wake_at();
        apply::apply(&self.context, plan.changes).await?;
        self.events.publish(plan.events).await;
        Ok(wake_at)
    }
}
