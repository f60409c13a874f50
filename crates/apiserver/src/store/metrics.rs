//! What the store counts about itself.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// Counters of one store. Cheap to update; [`Metrics::register`] shows them under `tether_store_…`.
#[derive(Clone)]
pub struct Metrics {
    pub commits: Counter,
    pub commit_failures: Counter,
    pub conflicts: Counter,
    /// Changes in one commit.
    pub batch_size: Histogram,
    /// From the first row of a transaction to the return of fsync.
    pub commit_seconds: Histogram,
    pub watchers: Gauge,
    /// Watches ended because they were read too slowly.
    pub watchers_behind: Counter,
    pub objects: Gauge,
    pub history_events: Gauge,
    pub history_bytes: Gauge,
    pub revision: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            commits: Counter::default(),
            commit_failures: Counter::default(),
            conflicts: Counter::default(),
            // 1 … 512 changes
            batch_size: Histogram::new(exponential_buckets(1.0, 2.0, 10)),
            // 0.1 ms (no real disk) … 1.6 s (a stalled one)
            commit_seconds: Histogram::new(exponential_buckets(0.0001, 2.0, 15)),
            watchers: Gauge::default(),
            watchers_behind: Counter::default(),
            objects: Gauge::default(),
            history_events: Gauge::default(),
            history_bytes: Gauge::default(),
            revision: Gauge::default(),
        }
    }
}

impl Metrics {
    pub fn register(&self, registry: &mut Registry) {
        let r = registry.sub_registry_with_prefix("tether_store");
        r.register("commits", "Durable transactions", self.commits.clone());
        r.register("commit_failures", "Transactions that the disk refused", self.commit_failures.clone());
        r.register("conflicts", "Writes whose expectation did not hold", self.conflicts.clone());
        r.register("batch_size", "Changes in one transaction", self.batch_size.clone());
        r.register("commit_seconds", "Time to make one transaction durable", self.commit_seconds.clone());
        r.register("watchers", "Open watches", self.watchers.clone());
        r.register("watchers_behind", "Watches ended for falling behind", self.watchers_behind.clone());
        r.register("objects", "Objects stored", self.objects.clone());
        r.register("history_events", "Changes kept for watches", self.history_events.clone());
        r.register("history_bytes", "Bytes of superseded values kept", self.history_bytes.clone());
        r.register("revision", "Latest durable revision", self.revision.clone());
    }
}
