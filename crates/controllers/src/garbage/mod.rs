//! Garbage collection by owner references, over every kind that is served.

mod apply;
mod observe;

use std::sync::Arc;

use jiff::Timestamp;
use tether_model::reason::Reason;
use tether_plan::garbage::{Change, Owner, decide};

use self::observe::Owners;
use crate::context::Context;
use crate::publish::Publisher;
use crate::queue::Queue;
use crate::worker::{Reconcile, log};
use crate::write::WriteError;

/// One object at a time, by its uid.
pub(crate) struct Garbage {
    context: Arc<Context>,
    owners: Arc<Owners>,
    events: Publisher,
}

impl Garbage {
    pub(crate) fn new(context: &Arc<Context>) -> (Arc<Self>, Arc<Queue<Box<str>>>) {
        let queue = Queue::new(context.clock.clone());
        let owners = Arc::new(Owners::default());
        context.kinds.subscribe({
            let (owners, queue) = (owners.clone(), queue.clone());
            move |sighting| owners.saw(sighting).into_iter().for_each(|uid| queue.add(uid))
        });
        let events = context.publisher("garbage-collector-controller");
        (Arc::new(Self { context: context.clone(), owners, events }), queue)
    }
}

impl Reconcile for Garbage {
    type Key = Box<str>;
    const NAME: &'static str = "garbage-collector";

    async fn reconcile(&self, uid: &Box<str>) -> Result<Option<Timestamp>, WriteError> {
        let mut answers: Vec<(String, Owner)> = Vec::new();
        loop {
            let Some((plan, object)) =
                self.owners.look(uid, &answers, |observed| (decide(observed), observed.object.clone()))
            else {
                return Ok(None);
            };
            let questions = plan.changes.iter().filter_map(|change| match change {
                Change::CheckOwner { owner } => Some(owner.clone()),
                _ => None,
            });
            let questions: Vec<_> = questions.collect();
            if questions.is_empty() {
                log(Self::NAME, &plan);
                if plan.report.findings.iter().any(|f| f.reason == Reason::OwnerKindUnknown) {
                    self.owners.wait_for_kinds(uid);
                }
                apply::apply(&self.context, &object, plan.changes).await?;
                self.events.publish(plan.events).await;
                return Ok(None);
            }
            for owner in questions {
                let answer = apply::ask(&self.context, &self.owners, &object, &owner).await?;
                answers.push((owner.uid, answer));
            }
        }
    }
}
