//! How long a loop looks for completions before it sleeps.
//!
//! To sleep and be woken costs more than most of what happens between two completions of a volume that is used one
//! request at a time; on a virtual machine, where waking a processor is an exit to the hypervisor, it is most of a write's
//! latency. So a loop whose last waits were short looks again for a while, yielding the processor to whoever wants it. How
//! long is learned as hypervisors learn how long to poll before they halt: it grows while waits end soon after it, and is
//! given up after one that was long. An idle volume uses no processor time.

use std::time::Duration;

use crate::host::Time;

/// The first look, and the longest: what a write waits for its disk, several times over. A wait that is longer than the
/// longest look ends looking.
const FIRST_LOOK_US: u64 = 25;
const LONGEST_LOOK_US: u64 = 200;

/// What is known of the last waits.
#[derive(Debug, Default)]
pub(super) struct Patience {
    look_us: u64,
}

impl Patience {
    /// How long to look before sleeping; zero: not at all.
    pub fn look(&self) -> Duration {
        Duration::from_micros(self.look_us)
    }

    /// The loop looked and slept from one moment to the other.
    pub fn waited(&mut self, from: Time, until: Time) {
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
}
