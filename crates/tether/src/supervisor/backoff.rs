//! How long to wait before a process that ended is started again.

use std::time::Duration;

/// Short, because most crashes are single ones and a node that is away is noticed.
const FIRST: Duration = Duration::from_millis(250);
/// Long enough that a process that cannot run costs nothing, short enough that a repaired one is back soon.
const LAST: Duration = Duration::from_secs(30);
/// A process that ran this long was healthy; its next crash is a first one.
const HEALTHY: Duration = Duration::from_secs(60);

/// Doubles with every crash that follows too soon on the one before.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    next: Option<Duration>,
}

impl Backoff {
    /// The pause after a process that `ran_for` so long has ended.
    pub(super) fn pause(&mut self, ran_for: Duration) -> Duration {
        let pause = self.next.filter(|_| ran_for < HEALTHY).unwrap_or(FIRST);
        self.next = Some((pause * 2).min(LAST));
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit_and_start_over_after_a_healthy_run() {
        let mut backoff = Backoff::default();
        let pauses: Vec<_> = (0..9).map(|_| backoff.pause(Duration::from_secs(1)).as_millis()).collect();
        assert_eq!(pauses, [250, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
        assert_eq!(backoff.pause(HEALTHY), FIRST);
    }
}
