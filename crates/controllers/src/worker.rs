//! The loop that every controller is: take a key, look, decide, apply, and know when to look again.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::{Debug, Display};
use std::future::Future;
use std::sync::Arc;

use jiff::Timestamp;
use tether_plan::Plan;
use tokio::task::JoinSet;

use crate::queue::Queue;
use crate::write::WriteError;

/// A controller: works on one key, and says when it wants to look again if nothing happens until then.
pub trait Reconcile: Send + Sync + 'static {
    type Key: Ord + Clone + Debug + Send + Sync + 'static;

    /// As logs name it.
    const NAME: &'static str;

    fn reconcile(&self, key: &Self::Key) -> impl Future<Output = Result<Option<Timestamp>, WriteError>> + Send;
}

/// Works on keys until dropped, one at a time. A write that came too late or was refused is tried again with a new
/// decision.
pub async fn work<R: Reconcile>(controller: Arc<R>, queue: Arc<Queue<R::Key>>) {
    loop {
        let key = queue.next().await;
        let done = controller.reconcile(&key).await;
        settle::<R>(&queue, key, done);
    }
}

/// Works on up to `limit` keys at a time until dropped, never twice on one key at once.
pub async fn work_many<R: Reconcile>(controller: Arc<R>, queue: Arc<Queue<R::Key>>, limit: usize) {
    let mut tasks = JoinSet::new();
    let mut busy: BTreeMap<R::Key, Again> = BTreeMap::new();
    loop {
        tokio::select! {
            key = queue.next(), if tasks.len() < limit => match busy.entry(key) {
                // It changed while it was worked on: what that work saw may be old.
                Entry::Occupied(mut entry) => *entry.get_mut() = Again::Yes,
                Entry::Vacant(entry) => {
                    let key = entry.key().clone();
                    entry.insert(Again::No);
                    let controller = controller.clone();
                    tasks.spawn(async move {
                        let done = controller.reconcile(&key).await;
                        (key, done)
                    });
                }
            },
            Some(ended) = tasks.join_next() => {
                let (key, done) = ended.expect("a controller must not panic");
                if busy.remove(&key) == Some(Again::Yes) {
                    queue.add(key.clone());
                }
                settle::<R>(&queue, key, done);
            }
        }
    }
}

/// Whether a key came again while it was worked on.
#[derive(PartialEq, Eq)]
enum Again {
    Yes,
    No,
}

/// Sees to it that a key comes back when it has to.
fn settle<R: Reconcile>(queue: &Queue<R::Key>, key: R::Key, done: Result<Option<Timestamp>, WriteError>) {
    match done {
        Ok(wake_at) => {
            queue.succeeded(&key);
            if let Some(at) = wake_at {
                queue.add_at(key, at);
            }
        }
        Err(error @ (WriteError::Stale { .. } | WriteError::Unfinished { .. })) => {
            tracing::debug!(controller = R::NAME, ?key, %error, "deciding again");
            queue.failed(key);
        }
        Err(error) => {
            tracing::warn!(controller = R::NAME, ?key, %error, "failed, trying again");
            queue.failed(key);
        }
    }
}

/// Logs what a plan looked at: what it does for everybody, the rest for those who ask.
pub fn log<C>(controller: &'static str, plan: &Plan<C>) {
    for finding in &plan.report.findings {
        log_finding(controller, finding, finding.verdict.word() == "acts");
    }
}

fn log_finding(controller: &'static str, finding: &impl Display, acts: bool) {
    if acts {
        tracing::info!(controller, "{finding}");
    } else {
        tracing::debug!(controller, "{finding}");
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use tokio::sync::Semaphore;

    use super::*;
    use crate::clock::SystemClock;

    /// Notes what begins and ends, and ends only when it is let.
    struct Slow {
        log: Mutex<Vec<String>>,
        may_end: Semaphore,
    }

    impl Reconcile for Slow {
        type Key = &'static str;
        const NAME: &'static str = "slow";

        async fn reconcile(&self, key: &&'static str) -> Result<Option<Timestamp>, WriteError> {
            self.log.lock().push(format!("+{key}"));
            self.may_end.acquire().await.expect("open").forget();
            self.log.lock().push(format!("-{key}"));
            Ok(None)
        }
    }

    #[tokio::test]
    async fn keys_are_worked_on_side_by_side_but_one_key_in_turn() {
        let slow = Arc::new(Slow { log: Mutex::default(), may_end: Semaphore::new(0) });
        let queue = Queue::new(Arc::new(SystemClock::default()));
        let worker = tokio::spawn(work_many(slow.clone(), queue.clone(), 2));
        let reached = async |count: usize| {
            while slow.log.lock().len() < count {
                tokio::task::yield_now().await;
            }
        };
        queue.add("a");
        queue.add("b");
        reached(2).await;
        queue.add("a");
        slow.may_end.add_permits(2);
        reached(5).await;
        slow.may_end.add_permits(1);
        reached(6).await;
        worker.abort();
        let log = slow.log.lock().clone();
        assert_eq!(log[..2], ["+a", "+b"]);
        assert_eq!(log[4..], ["+a", "-a"]);
    }
}
