//! Binding of claims to volumes, and their protection while in use.

mod apply;
mod observe;

use std::sync::Arc;

use jiff::Timestamp;
use tether_plan::binding::protection::{self, ClaimChange, Users};
use tether_plan::binding::{Change, claim, volume};

use self::observe::ClaimView;
use crate::context::{Context, pods_of_claim};
use crate::publish::Publisher;
use crate::queue::Queue;
use crate::worker::{Reconcile, log};
use crate::write::WriteError;

/// What is looked at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Volume(String),
    Claim(String, String),
}

/// One claim or volume at a time.
pub(crate) struct Binding {
    context: Arc<Context>,
    events: Publisher,
}

impl Binding {
    pub(crate) fn new(context: &Arc<Context>) -> (Arc<Self>, Arc<Queue<Key>>) {
        let queue = Queue::new(context.clock.clone());
        observe::subscribe(context, &queue);
        let events = context.publisher("persistentvolume-controller");
        (Arc::new(Self { context: context.clone(), events }), queue)
    }

    async fn claim(&self, namespace: &str, name: &str) -> Result<(), WriteError> {
        let Some(view) = ClaimView::of(&self.context, namespace, name) else {
            return Ok(());
        };
        let plan = claim::decide(&view.observed());
        log(Self::NAME, &plan);
        apply::apply(&self.context, plan.changes).await?;
        self.events.publish(plan.events).await;

        let seen = self.context.pods.find(&pods_of_claim(namespace, name));
        let users = Users::Seen(seen.iter().map(AsRef::as_ref).collect());
        let mut plan = protection::decide_claim(&view.claim, &users);
        if plan.changes.iter().any(|change| matches!(change, ClaimChange::ListPods { .. })) {
            let listed = observe::users(&self.context, namespace, name).await?;
            plan = protection::decide_claim(&view.claim, &Users::Listed(listed.iter().collect()));
        }
        log(Self::NAME, &plan);
        let made = plan.changes.into_iter().filter_map(|change| match change {
            ClaimChange::Make(change) => Some(*change),
            ClaimChange::ListPods { .. } => None,
        });
        apply::claim_finalizers(&self.context, &view.claim, made.collect()).await
    }

    async fn volume(&self, name: &str) -> Result<(), WriteError> {
        let Some(found) = self.context.volumes.get("", name) else {
            return Ok(());
        };
        let known = observe::claim_of(&self.context, &found);
        let seen = known.as_deref().map_or(volume::Claim::Unknown, volume::Claim::Found);
        let mut plan = volume::decide(&found, seen);
        if let Some(Change::CheckClaim { namespace, name }) = plan.changes.first() {
            let live = observe::live_claim(&self.context, namespace, name, &found).await?;
            plan = volume::decide(&found, live.as_ref().map_or(volume::Claim::Gone, volume::Claim::Found));
        }
        log(Self::NAME, &plan);
        apply::apply(&self.context, plan.changes).await?;
        self.events.publish(plan.events).await;

        let plan = protection::decide_volume(&found);
        log(Self::NAME, &plan);
        apply::volume_finalizers(&self.context, &found, plan.changes).await
    }
}

impl Reconcile for Binding {
    type Key = Key;
    const NAME: &'static str = "persistentvolume-binder";

    async fn reconcile(&self, key: &Key) -> Result<Option<Timestamp>, WriteError> {
        match key {
            Key::Claim(namespace, name) => self.claim(namespace, name).await?,
            Key::Volume(name) => self.volume(name).await?,
        }
        Ok(None)
    }
}
