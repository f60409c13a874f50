//! How soon the next batch is committed.
//!
//! A commit costs the same processor time whether it holds one write or ten, and that is a multiple of what a write itself
//! costs. A store that few write to at once commits at once: they wait for nothing else. One that many write to gathers for
//! a moment first: its writers wait for a processor more than for the disk, so that they lose little time and win back what
//! commits of one would have taken.

use std::time::{Duration, Instant};

/// How long after a commit the next one begins, where many write.
const GAP: Duration = Duration::from_millis(2);
/// Writes in one batch that are many: so many writers there are at least.
const MANY: usize = 24;
/// How long a batch of many speaks for those after it.
const WINDOW: Duration = Duration::from_millis(50);

/// What is known of the last commits.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// The end of the last commit, and of the last one that had many writes.
    last: Option<Instant>,
    last_of_many: Option<Instant>,
}

impl Pace {
    /// Until when to gather writes for the next batch; `None`: not at all.
    pub(super) fn next(&self) -> Option<Instant> {
        let (last, of_many) = (self.last?, self.last_of_many?);
        (last.duration_since(of_many) < WINDOW).then_some(last + GAP)
    }

    /// A batch of so many writes was committed.
    pub(super) fn committed(&mut self, writes: usize, now: Instant) {
        self.last = Some(now);
        if writes >= MANY {
            self.last_of_many = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Batches of one size at one distance from each other; until when the next one would gather, from then.
    fn after(pace: &mut Pace, now: &mut Instant, writes: usize, distance_us: u64, count: u32) -> Option<Duration> {
        for _ in 0..count {
            *now += Duration::from_micros(distance_us);
            pace.committed(writes, *now);
        }
        pace.next().map(|until| until - *now)
    }

    #[test]
    fn few_writers_never_wait_for_others() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        assert_eq!(pace.next(), None, "a new store");
        assert_eq!(after(&mut pace, &mut now, 1, 500, 1000), None, "one after the other, however fast");
        assert_eq!(after(&mut pace, &mut now, 16, 3000, 1000), None, "sixteen clients, all the time");
    }

    #[test]
    fn many_writers_gather_and_soon_no_longer() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        assert_eq!(after(&mut pace, &mut now, 40, 4000, 1), Some(GAP));
        assert_eq!(after(&mut pace, &mut now, 5, 4000, 10), Some(GAP), "not all batches of many writers are large");
        assert_eq!(after(&mut pace, &mut now, 5, 4000, 10), None, "they have gone");
        assert_eq!(after(&mut pace, &mut now, 40, 4000, 1), Some(GAP), "and are back");
    }
}
