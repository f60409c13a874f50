//! Watches: cursors into the shared history, woken by what concerns them.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::Notify;

use super::history::{Topic, Trimmed};
use super::{Event, Shared, WatchEnd, WatchError, WatchQuery};

/// Events taken from history at a time: few enough to hold the lock shortly, enough to catch up quickly.
const BATCH: usize = 64;

/// A running watch. It owns no queue: what it has not read yet stays in the store's history, once for all watches.
pub struct Watch {
    shared: Arc<Shared>,
    topic: Topic,
    wake: Arc<Notify>,
    /// Everything of the topic up to here was taken from history.
    cursor: u64,
    /// Taken, not yet delivered.
    taken: VecDeque<Arc<Event>>,
}

impl Watch {
    pub(super) fn start(shared: Arc<Shared>, query: WatchQuery) -> Result<Self, WatchError> {
        let topic = Topic { resource: query.resource, namespace: query.namespace };
        let wake = {
            let mut state = shared.state.write();
            if state.is_closed() {
                return Err(WatchError::Closed);
            }
            if query.from > state.revision() {
                return Err(WatchError::Future { latest: state.revision() });
            }
            if query.from < state.oldest() {
                return Err(WatchError::Compacted { oldest: state.oldest() });
            }
            state.history_mut().subscribe(&topic)
        };
        shared.metrics.watchers.inc();
        Ok(Self { shared, topic, wake, cursor: query.from, taken: VecDeque::new() })
    }

    /// The next change, waiting for one. After an error the watch is over. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Arc<Event>, WatchEnd> {
        loop {
            // Created before looking, so that what is published in between wakes it.
            let wake = self.wake.clone();
            let woken = wake.notified();
            if let Some(event) = self.try_next()? {
                return Ok(event);
            }
            woken.await;
        }
    }

    /// The next change if there is one already.
    pub fn try_next(&mut self) -> Result<Option<Arc<Event>>, WatchEnd> {
        if self.taken.is_empty() {
            self.refill()?;
        }
        Ok(self.taken.pop_front())
    }

    fn refill(&mut self) -> Result<(), WatchEnd> {
        let state = self.shared.state.read();
        let Ok(events) = state.history().after(&self.topic, self.cursor, BATCH) else {
            self.shared.metrics.watchers_behind.inc();
            return Err(WatchEnd::Compacted { oldest: state.oldest() });
        };
        self.taken = events.into();
        match self.taken.back() {
            Some(last) => self.cursor = last.revision(),
            None if state.is_closed() => return Err(WatchEnd::Closed),
            None => self.cursor = state.revision(),
        }
        Ok(())
    }

    /// The revision up to which everything that concerns this watch was delivered: what a bookmark may say.
    pub fn progress(&self) -> u64 {
        if let Some(next) = self.taken.front() {
            return next.revision() - 1;
        }
        let state = self.shared.state.read();
        match state.history().next_after(&self.topic, self.cursor) {
            Ok(Some(next)) => next - 1,
            Ok(None) => state.revision(),
            Err(Trimmed) => self.cursor,
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.state.write().history_mut().unsubscribe(&self.topic);
        self.shared.metrics.watchers.dec();
    }
}
