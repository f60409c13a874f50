//! The loop that every controller is: take a key, look, decide, apply, and know when to look again.

use std::fmt::{Debug, Display};
use std::future::Future;
use std::sync::Arc;

use jiff::Timestamp;
use tether_plan::Plan;

use crate::queue::Queue;
use crate::write::WriteError;

/// A controller: works on one key, and says when it wants to look again if nothing happens until then.
pub(crate) trait Reconcile: Send + Sync + 'static {
    type Key: Ord + Clone + Debug + Send + Sync + 'static;

    /// As logs name it.
    const NAME: &'static str;

    fn reconcile(&self, key: &Self::Key) -> impl Future<Output = Result<Option<Timestamp>, WriteError>> + Send;
}

/// Works on keys until dropped. A write that came too late or was refused is tried again with a new decision.
pub(crate) async fn work<R: Reconcile>(controller: Arc<R>, queue: Arc<Queue<R::Key>>) {
    loop {
        let key = queue.next().await;
        match controller.reconcile(&key).await {
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
}

/// Logs what a plan looked at: what it does for everybody, the rest for those who ask.
pub(crate) fn log<C>(controller: &'static str, plan: &Plan<C>) {
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
