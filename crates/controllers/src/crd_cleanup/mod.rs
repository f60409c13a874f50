//! Deletion of CustomResourceDefinitions: their instances go first.

mod apply;
mod observe;

use std::sync::Arc;

use jiff::Timestamp;
use tether_plan::crd_cleanup::{Change, Instances, decide};

use crate::context::Context;
use crate::queue::Queue;
use crate::worker::{Reconcile, log};
use crate::write::WriteError;

/// One definition at a time, by its name.
pub(crate) struct CrdCleanup {
    context: Arc<Context>,
}

impl CrdCleanup {
    pub(crate) fn new(context: &Arc<Context>) -> (Arc<Self>, Arc<Queue<String>>) {
        let queue = Queue::new(context.clock.clone());
        let ending = observe::Ending::default();
        context.kinds.subscribe({
            let queue = queue.clone();
            move |sighting| {
                if let Some(definition) = ending.saw(sighting) {
                    queue.add(definition);
                }
            }
        });
        (Arc::new(Self { context: context.clone() }), queue)
    }
}

impl Reconcile for CrdCleanup {
    type Key = String;
    const NAME: &'static str = "crd-cleanup";

    async fn reconcile(&self, name: &String) -> Result<Option<Timestamp>, WriteError> {
        let Some(definition) = observe::definition(&self.context, name).await? else {
            return Ok(None);
        };
        let plan = decide(&definition, &Instances::Unknown, self.context.clock.now());
        if !plan.changes.iter().any(|change| matches!(change, Change::DeleteInstances { .. })) {
            return Ok(None);
        }
        let marked = apply::apply(&self.context, &definition, plan.changes).await?;
        let instances = apply::delete_instances(&self.context, &definition).await;
        let failed = matches!(instances, Instances::Failed { .. });
        let plan = decide(&marked, &instances, self.context.clock.now());
        log(Self::NAME, &plan);
        apply::apply(&self.context, &marked, plan.changes).await?;
        if failed {
            return Err(WriteError::Unfinished { operation: format!("delete the instances of {name}") });
        }
        Ok(None)
    }
}
