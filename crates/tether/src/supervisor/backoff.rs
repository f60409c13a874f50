//! How long to wait before a process that ended is started again.
//!
//! Back-off is for a process that cannot run: one that never gets ready is tried less and less often. One that was ready can
//! run, and what ended it (a signal, a defect that is met now and then) does not come back by itself: it is needed soon, and
//! the pause only keeps it from eating the machine.

use std::time::Duration;

/// Short, because most crashes are single ones and a node that is away is noticed.
const FIRST: Duration = Duration::from_millis(250);
/// Long enough that a process that cannot run costs nothing, short enough that a repaired one is back soon.
const LAST: Duration = Duration::from_secs(30);
/// The longest pause after a run that was ready.
const LAST_AFTER_READY: Duration = Duration::from_secs(2);
/// A process that was ready and ran this long was healthy; its next crash is a first one.
const HEALTHY: Duration = Duration::from_secs(10);

/// How a process lived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    pub(super) lasted: Duration,
    pub(super) was_ready: bool,
}

/// Doubles with every crash that follows too soon on the one before.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    next: Option<Duration>,
}

impl Backoff {
    /// The pause after a process that lived like this.
    pub(super) fn pause(&mut self, life: Life) -> Duration {
        let was_healthy = life.was_ready && life.lasted >= HEALTHY;
        let longest = if life.was_ready { LAST_AFTER_READY } else { LAST };
        let pause = self.next.filter(|_| !was_healthy).unwrap_or(FIRST).min(longest);
        self.next = Some((pause * 2).min(LAST));
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pauses(backoff: &mut Backoff, count: usize, seconds: u64, was_ready: bool) -> Vec<u128> {
        let life = Life { lasted: Duration::from_secs(seconds), was_ready };
        (0..count).map(|_| backoff.pause(life).as_millis()).collect()
    }

    #[test]
    fn what_never_gets_ready_is_tried_less_and_less_often_however_long_it_tries() {
        let mut backoff = Backoff::default();
        let expected = [250, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000];
        assert_eq!(pauses(&mut backoff, 9, 1, false), expected);
        assert_eq!(pauses(&mut backoff, 1, 600, false), [30_000]);
    }

    #[test]
    fn what_was_ready_is_back_soon() {
        let mut backoff = Backoff::default();
        assert_eq!(pauses(&mut backoff, 6, 1, true), [250, 500, 1000, 2000, 2000, 2000]);
        assert_eq!(pauses(&mut backoff, 2, 10, true), [250, 250], "a healthy run starts over");
        pauses(&mut backoff, 8, 1, false);
        assert_eq!(pauses(&mut backoff, 1, 1, true), [2000], "it could not run for long, and now it can");
    }
}
