//! Work that is due, in lanes that do not starve each other.
//!
//! A key is in one lane at a time and is worked on by one worker at a time. What is heard of a key while it is worked on
//! makes it due again. A key that failed comes back after a delay that doubles; news of the same kind do not shorten it
//! while the worker that caused them is still there, a change of lane does.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use kube::Resource;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tether_controllers::cache::{Cache, Seen};
use tether_controllers::clock::Clock;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;

/// How long a failed key waits.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    pub first: SignedDuration,
    pub longest: SignedDuration,
}

impl Backoff {
    fn after(self, failures: u32) -> SignedDuration {
        let factor = 1_i32.checked_shl(failures.saturating_sub(1)).filter(|factor| *factor > 0).unwrap_or(i32::MAX);
        self.first.checked_mul(factor).map_or(self.longest, |delay| delay.min(self.longest))
    }
}

/// Lanes are numbered by `L as usize`.
pub(crate) struct Lanes<K> {
    state: Mutex<State<K>>,
    added: Vec<Notify>,
    backoff: Backoff,
    clock: Arc<dyn Clock>,
}

struct State<K> {
    keys: BTreeMap<K, Entry>,
    order: Vec<BTreeSet<(Timestamp, u64, K)>>,
    next: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// Where it waits, until when, and its place among equals.
    waits: Option<(usize, Timestamp, u64)>,
    /// The lane of whoever works on it.
    runs: Option<usize>,
    /// What was heard meanwhile.
    heard: Option<usize>,
    failures: u32,
    /// Since when there is something to be done.
    since: Option<Timestamp>,
}

/// How a lane stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Backlog {
    /// Keys that wait, whether due or not.
    pub waiting: usize,
    /// Since when the oldest of all that wait or run has been there.
    pub oldest: Option<Timestamp>,
}

impl<K: Ord + Clone + Debug> Lanes<K> {
    pub(crate) fn new(lanes: usize, backoff: Backoff, clock: Arc<dyn Clock>) -> Self {
        let state = State { keys: BTreeMap::new(), order: vec![BTreeSet::new(); lanes], next: 0 };
        let added = (0..lanes).map(|_| Notify::new()).collect();
        Self { state: Mutex::new(state), added, backoff, clock }
    }

    /// There is something to be done for a key, now.
    pub(crate) fn add(&self, key: K, lane: usize) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let entry = state.keys.entry(key.clone()).or_default();
        entry.since.get_or_insert(now);
        if entry.runs.is_some() {
            entry.heard = Some(lane);
            return;
        }
        state.put(key, lane, now);
        drop(state);
        self.added[lane].notify_one();
    }

    /// Each object of a cache is a key of a lane for as long as it is there.
    pub(crate) fn follow<O>(
        self: &Arc<Self>,
        cache: &Cache<O>,
        lane: usize,
        key: impl Fn(&O) -> K + Send + Sync + 'static,
    ) where
        O: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
        K: Send + Sync + 'static,
    {
        let lanes = self.clone();
        cache.subscribe(move |seen| match seen {
            Seen::Applied { new, .. } => lanes.add(key(new), lane),
            Seen::Deleted(gone) => lanes.remove(&key(gone)),
        });
    }

    /// There is nothing more to be done for a key; who works on it finishes.
    pub(crate) fn remove(&self, key: &K) {
        let mut state = self.state.lock();
        state.unput(key);
        match state.keys.get_mut(key) {
            Some(entry) if entry.runs.is_some() => entry.heard = None,
            _ => drop(state.keys.remove(key)),
        }
    }

    /// The next key of a lane, when it is due. Each lane has one caller.
    pub(crate) async fn next(&self, lane: usize) -> K {
        loop {
            let added = self.added[lane].notified();
            let first = self.state.lock().order[lane].first().map(|(at, ..)| *at);
            match first {
                Some(at) if at <= self.clock.now() => {
                    if let Some(key) = self.take(lane) {
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

    fn take(&self, lane: usize) -> Option<K> {
        let mut state = self.state.lock();
        let (_, _, key) = state.order[lane].pop_first()?;
        let entry = state.keys.entry(key.clone()).or_default();
        entry.waits = None;
        entry.runs = Some(lane);
        Some(key)
    }

    /// The work on a key ended.
    pub(crate) fn done(&self, key: &K, failed: bool) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let Some(entry) = state.keys.get_mut(key) else { return };
        let ran = entry.runs.take();
        let heard = entry.heard.take();
        let (lane, delay) = match (failed, ran, heard) {
            (true, Some(ran), heard) if heard.is_none_or(|lane| lane == ran) => {
                entry.failures = entry.failures.saturating_add(1);
                (ran, self.backoff.after(entry.failures))
            }
            (_, _, Some(lane)) => {
                entry.failures = 0;
                entry.since = Some(now);
                (lane, SignedDuration::ZERO)
            }
            _ => {
                state.keys.remove(key);
                return;
            }
        };
        state.put(key.clone(), lane, now + delay);
        drop(state);
        self.added[lane].notify_one();
    }

    /// Whether somebody works on the key.
    pub(crate) fn is_running(&self, key: &K) -> bool {
        self.state.lock().keys.get(key).is_some_and(|entry| entry.runs.is_some())
    }

    pub(crate) fn backlog(&self, lane: usize) -> Backlog {
        let state = self.state.lock();
        let here = |entry: &&Entry| entry.runs == Some(lane) || entry.waits.is_some_and(|(held, ..)| held == lane);
        let oldest = state.keys.values().filter(here).filter_map(|entry| entry.since).min();
        Backlog { waiting: state.order[lane].len(), oldest }
    }
}

/// The attempt failed and is to be repeated; what there was to say about it was said.
pub(crate) struct Failed;

/// Who works on the keys of lanes.
pub(crate) trait Worker: Send + Sync + 'static {
    type Key: Ord + Clone + Debug + Send + Sync + 'static;

    fn lanes(&self) -> &Lanes<Self::Key>;

    /// How many keys of one lane are worked on at a time.
    fn at_once(&self) -> usize;

    fn work(&self, key: &Self::Key) -> impl Future<Output = Result<(), Failed>> + Send;
}

/// Works on the keys of one lane until dropped.
pub(crate) async fn serve<W: Worker>(worker: Arc<W>, lane: usize) {
    let permits = Arc::new(Semaphore::new(worker.at_once().max(1)));
    let mut tasks = JoinSet::new();
    loop {
        let permit = permits.clone().acquire_owned().await.expect("the semaphore must stay open");
        let key = worker.lanes().next(lane).await;
        while let Some(ended) = tasks.try_join_next() {
            ended.expect("a worker must not panic");
        }
        let worker = worker.clone();
        tasks.spawn(async move {
            let done = worker.work(&key).await;
            worker.lanes().done(&key, done.is_err());
            drop(permit);
        });
    }
}

impl<K: Ord + Clone> State<K> {
    /// Lets a key wait; an earlier time in the same lane counts.
    fn put(&mut self, key: K, lane: usize, at: Timestamp) {
        if let Some((held, due, _)) = self.keys.get(&key).and_then(|entry| entry.waits)
            && held == lane
            && due <= at
        {
            return;
        }
        self.unput(&key);
        let sequence = self.next;
        self.next += 1;
        self.keys.entry(key.clone()).or_default().waits = Some((lane, at, sequence));
        self.order[lane].insert((at, sequence, key));
    }

    fn unput(&mut self, key: &K) {
        if let Some((lane, at, sequence)) = self.keys.get_mut(key).and_then(|entry| entry.waits.take()) {
            self.order[lane].remove(&(at, sequence, key.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tether_controllers::clock::ManualClock;

    use super::*;

    fn lanes() -> (ManualClock, Lanes<&'static str>) {
        let clock = ManualClock::new(Timestamp::UNIX_EPOCH);
        let backoff = Backoff { first: SignedDuration::from_secs(1), longest: SignedDuration::from_secs(5) };
        (clock.clone(), Lanes::new(2, backoff, Arc::new(clock)))
    }

    #[tokio::test]
    async fn a_burst_in_one_lane_does_not_delay_the_other() {
        let (_, lanes) = lanes();
        for key in ["d1", "d2", "d3"] {
            lanes.add(key, 1);
        }
        lanes.add("a1", 0);
        assert_eq!(lanes.next(0).await, "a1");
        assert_eq!(lanes.next(1).await, "d1");
        assert_eq!(lanes.backlog(1).waiting, 2);
    }

    #[tokio::test]
    async fn a_key_is_worked_on_by_one_at_a_time_and_again_if_something_was_heard() {
        let (_, lanes) = lanes();
        lanes.add("a", 0);
        assert_eq!(lanes.next(0).await, "a");
        lanes.add("a", 0);
        assert!(lanes.next(0).now_or_never().is_none(), "somebody works on it");
        lanes.done(&"a", false);
        assert_eq!(lanes.next(0).await, "a");
        lanes.done(&"a", false);
        assert!(lanes.next(0).now_or_never().is_none());
        assert_eq!(lanes.backlog(0), Backlog::default(), "nothing is remembered of what is done");
    }

    #[tokio::test]
    async fn a_failed_key_waits_longer_and_longer_unless_it_changes_lanes() {
        let (clock, lanes) = lanes();
        lanes.add("a", 0);
        for wait in [1, 2, 4, 5, 5] {
            assert_eq!(lanes.next(0).await, "a");
            lanes.add("a", 0);
            lanes.done(&"a", true);
            assert!(lanes.next(0).now_or_never().is_none());
            clock.advance(SignedDuration::from_secs(wait));
        }
        assert_eq!(lanes.next(0).await, "a");
        lanes.add("a", 1);
        lanes.done(&"a", true);
        assert_eq!(lanes.next(1).await, "a", "it is to be detached now: that is another matter");
        lanes.done(&"a", true);
        lanes.add("a", 1);
        assert_eq!(lanes.next(1).await, "a", "news from outside are looked at at once");
    }
}
