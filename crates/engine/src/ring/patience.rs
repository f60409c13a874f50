//! How long a loop looks for completions before it sleeps.
//!
//! To sleep and be woken costs more than most of what happens between two completions of a volume that is used one
//! request at a time; on a virtual machine, where waking a processor is an exit to the hypervisor, it is most of a write's
//! latency. So a loop whose last sleeps were short looks again for a moment, yielding the processor to whoever wants it.
//!
//! It does not where that gains nothing: after a long sleep (an idle volume uses no processor time), and under so much load
//! that there is always something to do and a short sleep makes for larger batches.

use std::time::Duration;

use crate::host::Time;

/// How long a loop looks before it sleeps: about what waking it up would take.
const LOOK: Duration = Duration::from_micros(60);
/// A sleep shorter than this says that the next completion will not be long.
const SHORT_SLEEP_US: u64 = 400;
/// Load is measured over so long.
const WINDOW_US: u64 = 5000;
/// With more completions than this in a window there is always something to do.
const MANY: u32 = 250;

/// What is known of the last moments.
#[derive(Debug)]
pub(super) struct Patience {
    /// The last sleep was short.
    lively: bool,
    window: Time,
    completions: u32,
    /// The last full window had many completions.
    loaded: bool,
}

impl Patience {
    pub fn new(now: Time) -> Self {
        Self { lively: false, window: now, completions: 0, loaded: false }
    }

    /// How long to look before sleeping; zero: not at all.
    pub fn look(&self) -> Duration {
        if self.lively && !self.loaded { LOOK } else { Duration::ZERO }
    }

    /// The loop slept, or looked, from one moment to the other and got so many completions.
    pub fn turned(&mut self, from: Time, until: Time, completions: usize) {
        let spent = until.0.saturating_sub(from.0);
        self.lively = spent < SHORT_SLEEP_US;
        let elapsed = until.0.saturating_sub(self.window.0);
        if elapsed >= WINDOW_US {
            self.loaded = u64::from(self.completions) * WINDOW_US > u64::from(MANY) * elapsed;
            self.window = until;
            self.completions = 0;
        }
        self.completions = self.completions.saturating_add(completions as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns with a completion every `gap_us`, for `total_us`; whether the loop would look in the end.
    fn after(patience: &mut Patience, now: &mut u64, gap_us: u64, total_us: u64) -> bool {
        for _ in 0..total_us / gap_us {
            let from = Time(*now);
            *now += gap_us;
            patience.turned(from, Time(*now), 1);
        }
        patience.look() > Duration::ZERO
    }

    #[test]
    fn a_loop_looks_while_completions_come_quickly_but_not_too_quickly() {
        let (mut patience, mut now) = (Patience::new(Time(0)), 0);
        assert_eq!(patience.look(), Duration::ZERO, "a new loop is idle");
        assert!(!after(&mut patience, &mut now, 2000, 20_000), "an idle volume");
        assert!(after(&mut patience, &mut now, 100, 20_000), "one request at a time");
        assert!(!after(&mut patience, &mut now, 5, 20_000), "many at a time");
        assert!(after(&mut patience, &mut now, 100, 20_000), "one at a time again");
        assert!(!after(&mut patience, &mut now, 5000, 5000), "one long sleep ends it");
    }
}
