//! Work that is due: each key at most once, at the earliest time that anybody asked for.
//!
//! One worker takes keys from a queue. A key that is added while it is being worked on is worked on again; a key that
//! failed comes back after a delay that doubles, up to a bound. The queue holds no more than one entry for each key, and
//! keys are names of objects that exist, so that it is bounded by the size of the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::clock::Clock;

/// The first delay after a failure. Most failures are writes that came too late, whose cause is already on its way.
const FIRST_RETRY_MS: i64 = 5;
/// The longest delay after failures: a fault that lasts is looked at twice a minute.
const LONGEST_RETRY_MS: i64 = 30_000;

/// A queue of keys.
pub struct Queue<K> {
    state: Mutex<State<K>>,
    added: Notify,
    clock: Arc<dyn Clock>,
}

struct State<K> {
    due: BTreeMap<K, (Timestamp, u64)>,
    order: BTreeSet<(Timestamp, u64, K)>,
    /// Keys that are due at the same time keep the order in which they came.
    next: u64,
    failures: BTreeMap<K, u32>,
    added: u64,
    retried: u64,
}

/// How much is to be done, for those who watch.
pub trait Load: Send + Sync + 'static {
    /// Keys that are due.
    fn depth(&self) -> usize;
    /// Keys that were added so far.
    fn added(&self) -> u64;
    /// Keys that came back so far because the work on them failed.
    fn retried(&self) -> u64;
}

impl<K: Ord + Clone + Debug + Send + Sync + 'static> Load for Queue<K> {
    fn depth(&self) -> usize {
        let now = self.clock.now();
        self.state.lock().order.iter().take_while(|(at, ..)| *at <= now).count()
    }

    fn added(&self) -> u64 {
        self.state.lock().added
    }

    fn retried(&self) -> u64 {
        self.state.lock().retried
    }
}

impl<K: Ord + Clone + Debug> Queue<K> {
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        let state = State {
            due: BTreeMap::new(),
            order: BTreeSet::new(),
            next: 0,
            failures: BTreeMap::new(),
            added: 0,
            retried: 0,
        };
        Arc::new(Self { state: Mutex::new(state), added: Notify::new(), clock })
    }

    /// Adds a key that is due now.
    pub fn add(&self, key: K) {
        self.add_at(key, self.clock.now());
    }

    /// Adds a key that is due at a time; if it is in the queue, the earlier time counts.
    pub fn add_at(&self, key: K, at: Timestamp) {
        let mut state = self.state.lock();
        if let Some((held, sequence)) = state.due.get(&key).copied() {
            if held <= at {
                return;
            }
            state.order.remove(&(held, sequence, key.clone()));
        }
        let sequence = state.next;
        state.next += 1;
        state.added += 1;
        state.due.insert(key.clone(), (at, sequence));
        state.order.insert((at, sequence, key));
        drop(state);
        self.added.notify_one();
    }

    /// The next key, when it is due.
    pub async fn next(&self) -> K {
        loop {
            let added = self.added.notified();
            let first = self.state.lock().order.first().map(|(at, ..)| *at);
            match first {
                Some(at) if at <= self.clock.now() => {
                    if let Some(key) = self.pop() {
                        return key;
                    }
                }
                Some(at) => {
                    tokio::select! {
                        () = added => {}
                        () = self.clock.sleep_until(at) => {}
                    }
                }
                None => added.await,
            }
        }
    }

    fn pop(&self) -> Option<K> {
        let mut state = self.state.lock();
        let (_, _, key) = state.order.pop_first()?;
        state.due.remove(&key);
        Some(key)
    }

    /// The work on a key succeeded.
    pub fn succeeded(&self, key: &K) {
        self.state.lock().failures.remove(key);
    }

    /// The work on a key failed: it comes back later.
    pub fn failed(&self, key: K) {
        let delay = {
            let mut state = self.state.lock();
            state.retried += 1;
            let failures = state.failures.entry(key.clone()).or_default();
            *failures = failures.saturating_add(1);
            retry_delay(*failures)
        };
        self.add_at(key, self.clock.now() + delay);
    }
}

fn retry_delay(failures: u32) -> SignedDuration {
    let doubled = FIRST_RETRY_MS.saturating_mul(1_i64.checked_shl(failures.saturating_sub(1)).unwrap_or(i64::MAX));
    SignedDuration::from_millis(if doubled <= 0 { LONGEST_RETRY_MS } else { doubled.min(LONGEST_RETRY_MS) })
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::clock::ManualClock;

    fn queue() -> (ManualClock, Arc<Queue<&'static str>>) {
        let clock = ManualClock::new(Timestamp::UNIX_EPOCH);
        (clock.clone(), Queue::new(Arc::new(clock)))
    }

    #[tokio::test]
    async fn a_key_is_there_once_at_the_earliest_time() {
        let (clock, queue) = queue();
        queue.add_at("a", clock.now() + SignedDuration::from_secs(9));
        queue.add_at("a", clock.now() + SignedDuration::from_secs(3));
        queue.add("b");
        assert_eq!(queue.next().await, "b");
        assert!(queue.next().now_or_never().is_none(), "a is not due");
        clock.advance(SignedDuration::from_secs(3));
        assert_eq!(queue.next().await, "a");
        clock.advance(SignedDuration::from_secs(60));
        assert!(queue.next().now_or_never().is_none(), "it was there once");
    }

    #[tokio::test]
    async fn keys_keep_their_order_and_waiters_hear_of_new_ones() {
        let (_, queue) = queue();
        for key in ["c", "a", "b"] {
            queue.add(key);
        }
        assert_eq!([queue.next().await, queue.next().await, queue.next().await], ["c", "a", "b"]);
        let waiting = tokio::spawn({
            let queue = queue.clone();
            async move { queue.next().await }
        });
        tokio::task::yield_now().await;
        queue.add("late");
        assert_eq!(waiting.await.unwrap(), "late");
    }

    #[tokio::test]
    async fn failures_wait_longer_and_longer_but_not_for_ever() {
        let (clock, queue) = queue();
        queue.failed("a");
        assert!(queue.next().now_or_never().is_none());
        clock.advance(SignedDuration::from_millis(FIRST_RETRY_MS));
        assert_eq!(queue.next().await, "a");
        assert_eq!(retry_delay(3), SignedDuration::from_millis(FIRST_RETRY_MS * 4));
        for failures in [14, 64, 65, u32::MAX] {
            assert_eq!(retry_delay(failures), SignedDuration::from_millis(LONGEST_RETRY_MS));
        }
    }
}
