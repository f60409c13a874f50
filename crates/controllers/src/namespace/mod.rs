//! Namespace deletion.

mod apply;
mod observe;

use std::sync::Arc;

use jiff::Timestamp;
use tether_plan::namespace::{Change, Content, decide};
use tether_plan::object::is_deleting;

use crate::context::Context;
use crate::kinds::Sighting;
use crate::queue::Queue;
use crate::worker::{Reconcile, log};
use crate::write::WriteError;

/// One namespace at a time, by its name.
pub(crate) struct Namespaces {
    context: Arc<Context>,
}

impl Namespaces {
    pub(crate) fn new(context: &Arc<Context>) -> (Arc<Self>, Arc<Queue<String>>) {
        let queue = Queue::new(context.clock.clone());
        context.namespaces.subscribe({
            let queue = queue.clone();
            move |seen| {
                if is_deleting(seen.object()) {
                    queue.add(seen.object().metadata.name.clone().unwrap_or_default());
                }
            }
        });
        let namespaces = Arc::downgrade(&context.namespaces);
        context.kinds.subscribe({
            let queue = queue.clone();
            move |sighting| {
                let Some(namespaces) = namespaces.upgrade() else {
                    return;
                };
                // Something that a namespace may wait for is gone, or may have gone unseen.
                let concerned = match sighting {
                    Sighting::Applied { .. } => Vec::new(),
                    Sighting::Deleted { meta, .. } => {
                        namespaces.get("", meta.namespace.as_deref().unwrap_or_default()).into_iter().collect()
                    }
                    Sighting::Relisted { .. } => namespaces.list(),
                };
                for namespace in concerned.iter().filter(|namespace| is_deleting(&***namespace)) {
                    queue.add(namespace.metadata.name.clone().unwrap_or_default());
                }
            }
        });
        (Arc::new(Self { context: context.clone() }), queue)
    }
}

impl Reconcile for Namespaces {
    type Key = String;
    const NAME: &'static str = "namespace-controller";

    async fn reconcile(&self, name: &String) -> Result<Option<Timestamp>, WriteError> {
        let Some(namespace) = observe::namespace(&self.context, name).await? else {
            return Ok(None);
        };
        let mut plan = decide(&namespace, &Content::Unknown, self.context.clock.now());
        if plan.changes.iter().any(|change| matches!(change, Change::DeleteContent { .. })) {
            let marked = apply::apply(&self.context, &namespace, plan.changes).await?;
            let outcome = apply::delete_content(&self.context, name).await;
            let failed = !outcome.failures.is_empty() || outcome.discovery_failure.is_some();
            plan = decide(&marked, &Content::Deleted(outcome), self.context.clock.now());
            log(Self::NAME, &plan);
            apply::apply(&self.context, &marked, plan.changes).await?;
            if failed {
                let operation = format!("delete the content of namespace {name}");
                return Err(WriteError::Unfinished { operation });
            }
        }
        Ok(None)
    }
}
