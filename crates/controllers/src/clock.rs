//! The one place where time is read. Everything else is told.

use std::sync::Arc;
use std::time::Instant;

use futures::future::BoxFuture;
use futures::{FutureExt, TryFutureExt};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;

/// Where controllers get the time from, and by which they wait.
pub trait Clock: Send + Sync + 'static {
    /// The time of day.
    fn now(&self) -> Timestamp;

    /// Time since some moment in the past, on a clock that neither jumps nor counts a suspended machine: a laptop that
    /// was closed for an hour must not find all its nodes dead.
    fn elapsed(&self) -> SignedDuration;

    /// Returns once `now` is not before `at`.
    fn sleep_until(&self, at: Timestamp) -> BoxFuture<'static, ()>;
}

/// The machine's clock.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { start: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn elapsed(&self) -> SignedDuration {
        SignedDuration::try_from(self.start.elapsed()).unwrap_or(SignedDuration::MAX)
    }

    fn sleep_until(&self, at: Timestamp) -> BoxFuture<'static, ()> {
        let wait = Timestamp::now().duration_until(at).max(SignedDuration::ZERO);
        tokio::time::sleep(wait.unsigned_abs()).boxed()
    }
}

/// A clock that stands still until it is moved: for tests and simulation.
#[derive(Clone, Debug)]
pub struct ManualClock {
    start: Timestamp,
    now: Arc<watch::Sender<Timestamp>>,
}

impl ManualClock {
    pub fn new(start: Timestamp) -> Self {
        Self { start, now: Arc::new(watch::Sender::new(start)) }
    }

    /// Moves the clock; whoever waited for a time that is now past wakes up.
    pub fn advance(&self, by: SignedDuration) {
        self.now.send_modify(|now| *now += by);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        *self.now.borrow()
    }

    fn elapsed(&self) -> SignedDuration {
        self.start.duration_until(self.now())
    }

    fn sleep_until(&self, at: Timestamp) -> BoxFuture<'static, ()> {
        let mut now = self.now.subscribe();
        // The sender may be dropped only with the clock, and then nobody waits for it.
        async move { now.wait_for(|now| *now >= at).map_ok(drop).unwrap_or_else(drop).await }.boxed()
    }
}
