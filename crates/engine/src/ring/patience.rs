//! How long a loop looks for completions before it sleeps.
//!
//! To sleep and be woken costs more than most of what happens between two completions of a volume that is used one
//! request at a time; on a virtual machine, where waking a processor is an exit to the hypervisor, it is most of a write's
//! latency. So a loop whose last waits were short looks again for a while, yielding the processor to whoever wants it. How
//! long is learned as hypervisors learn how long to poll before they halt: it grows while waits end soon after it, and is
//! given up after one that was long. An idle volume uses no processor time.
//!
//! Where processors are busy, looking is the wrong thing: whoever yields goes behind everybody else that computes, while
//! whoever sleeps is woken at once. A yield that took long says so; then the loop rests from looking, the longer the
//! more often that happens.

use std::time::Duration;

use crate::host::Time;

/// The first look, and the longest: what a write waits for its disk, several times over. A wait that is longer than the
/// longest look ends looking.
const FIRST_LOOK_US: u64 = 25;
const LONGEST_LOOK_US: u64 = 200;

/// A yield that took longer was to somebody who computes, and not to another loop that looks or serves a request.
pub(super) const CROWDED: Duration = Duration::from_micros(300);
/// How many waits a loop rests from looking, the first time and at most: some milliseconds, some seconds of a volume in use.
const SHORTEST_REST: u32 = 1 << 10;
const LONGEST_REST: u32 = 1 << 18;

/// What is known of the last waits.
#[derive(Debug, Default)]
pub(super) struct Patience {
    look_us: u64,
    /// Waits that are left of a rest.
    rest: u32,
    /// How long the last rest was, less what was looked since without being in anybody's way.
    crowding: u32,
}

impl Patience {
    /// How long to look before sleeping; zero: not at all.
    pub fn look(&self) -> Duration {
        Duration::from_micros(self.look_us)
    }

    /// Somebody else computed for long while the loop looked.
    pub fn crowded(&mut self) {
        self.look_us = 0;
        self.crowding = (self.crowding * 2).clamp(SHORTEST_REST, LONGEST_REST);
        self.rest = self.crowding;
    }

    /// The loop looked and slept from one moment to the other.
    pub fn waited(&mut self, from: Time, until: Time) {
        if self.rest > 0 {
            self.rest -= 1;
            return;
        }
        self.crowding = self.crowding.saturating_sub(1);
        let spent = until.0.saturating_sub(from.0);
        if spent > LONGEST_LOOK_US {
            self.look_us = 0;
        } else if spent > self.look_us {
            self.look_us = (self.look_us * 2).clamp(FIRST_LOOK_US, LONGEST_LOOK_US);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some waits of one length; how long the loop would look in the end.
    fn after(patience: &mut Patience, wait_us: u64, count: u32) -> u64 {
        for _ in 0..count {
            patience.waited(Time(1000), Time(1000 + wait_us));
        }
        patience.look().as_micros() as u64
    }

    #[test]
    fn a_loop_looks_while_completions_come_quickly() {
        let mut patience = Patience::default();
        assert_eq!(patience.look(), Duration::ZERO, "a new loop is idle");
        assert_eq!(after(&mut patience, 2000, 10), 0, "an idle volume");
        assert!(after(&mut patience, 100, 10) >= 100, "one request at a time: no sleep in between");
        assert!(after(&mut patience, 5, 10) >= 100, "many at a time");
        assert_eq!(after(&mut patience, 5000, 1), 0, "one long sleep ends it");
        assert_eq!(after(&mut patience, 20, 1), FIRST_LOOK_US, "and it is learned anew");
    }

    #[test]
    fn a_loop_rests_from_looking_where_others_compute() {
        let mut patience = Patience::default();
        assert!(after(&mut patience, 20, 10) > 0);
        let rest = |patience: &mut Patience| {
            patience.crowded();
            (0..=LONGEST_REST).find(|_| after(patience, 20, 1) > 0).expect("it looks again in the end")
        };
        let first = rest(&mut patience);
        assert_eq!(first, SHORTEST_REST);
        assert!(rest(&mut patience) > first, "longer, since it did not help");
        let longest = (0..10).map(|_| rest(&mut patience)).max();
        assert_eq!(longest, Some(LONGEST_REST));
        after(&mut patience, 20, LONGEST_REST);
        assert_eq!(rest(&mut patience), first, "forgotten after a quiet time");
    }
}
