//! Garbage collection by owner references, over every kind that is served.

mod apply;
mod observe;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use tether_plan::garbage::{Change, Owner, Uid, decide};

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
    pub(crate) fn new(context: &Arc<Context>) -> (Arc<Self>, Arc<Queue<Uid>>) {
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
    type Key = Uid;
    const NAME: &'static str = "garbage-collector";

    async fn reconcile(&self, uid: &Uid) -> Result<Option<Timestamp>, WriteError> {
        let mut answers: Vec<(String, Owner)> = Vec::new();
        loop {
            let look = self.owners.look(uid, &answers, |observed| (decide(observed), observed.object.clone()));
            let Some((plan, object)) = look else {
                return Ok(None);
            };
            let questions: Vec<OwnerReference> = plan.changes.iter().filter_map(question).collect();
            if questions.is_empty() {
                log(Self::NAME, &plan);
                apply::apply(&self.context, &object, plan.changes).await?;
                self.events.publish(plan.events).await;
                return Ok(None);
            }
            // The owner may be of a kind that is not watched yet, and then nobody will tell when it goes: once the kind
            // is listed, the object is looked at again. This is noted before the question, so that no listing falls
            // between the answer and the note.
            self.owners.look_again_when_listed(uid);
            for owner in questions {
                let answer = apply::ask(&self.context, &self.owners, &object, &owner).await?;
                answers.push((owner.uid, answer));
            }
        }
    }
}

fn question(change: &Change) -> Option<OwnerReference> {
    match change {
        Change::CheckOwner { owner } => Some(owner.clone()),
        _ => None,
    }
}
