//! What every namespace is born with.

mod apply;
mod observe;

use std::sync::Arc;

use jiff::Timestamp;
use tether_plan::service_account::decide;

use crate::context::Context;
use crate::queue::Queue;
use crate::worker::{Reconcile, log};
use crate::write::WriteError;

/// One namespace at a time, by its name.
pub(crate) struct ServiceAccounts {
    context: Arc<Context>,
    ca_pem: Option<String>,
}

impl ServiceAccounts {
    pub(crate) fn new(context: &Arc<Context>, ca_pem: Option<String>) -> (Arc<Self>, Arc<Queue<String>>) {
        let queue = Queue::new(context.clock.clone());
        context.namespaces.subscribe({
            let queue = queue.clone();
            move |seen| queue.add(seen.object().metadata.name.clone().unwrap_or_default())
        });
        context.default_accounts.subscribe({
            let queue = queue.clone();
            move |seen| queue.add(seen.object().metadata.namespace.clone().unwrap_or_default())
        });
        context.root_cas.subscribe({
            let queue = queue.clone();
            move |seen| queue.add(seen.object().metadata.namespace.clone().unwrap_or_default())
        });
        (Arc::new(Self { context: context.clone(), ca_pem }), queue)
    }
}

impl Reconcile for ServiceAccounts {
    type Key = String;
    const NAME: &'static str = "service-accounts";

    async fn reconcile(&self, namespace: &String) -> Result<Option<Timestamp>, WriteError> {
        let Some(seen) = observe::Seen::of(&self.context, namespace) else {
            return Ok(None);
        };
        let plan = decide(&seen.observed(self.ca_pem.as_deref()));
        log(Self::NAME, &plan);
        apply::apply(&self.context, self.ca_pem.as_deref().unwrap_or_default(), plan.changes).await?;
        Ok(None)
    }
}
