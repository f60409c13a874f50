//! How long a loop looks for completions before it sleeps.
//!
//! To sleep and be woken costs more than most of what happens between two completions of a volume that is used one
//! request at a time; on a virtual machine, where waking a processor is an exit to the hypervisor, it is most of a write's
//! latency. So a loop whose last waits were short looks again for a while, yielding the processor to whoever wants it. How
//! long is learned as hypervisors learn how long to poll before they halt: it grows while waits end soon after it, and is
//! given up after one that was long. An idle volume uses no processor time. Nor is there anything to be looked for where
//! many requests are under way: something comes all the time, and the more comes at once the less each of them costs.
//!
//! Where processors are busy, looking is the wrong thing: whoever yields goes behind everybody else that computes, while
//! whoever sleeps is woken at once. A yield that took long says so; then the loop rests from looking for a time that is
//! long beside what the yield cost, and longer each time that this happens again.

use std::time::Duration;

use crate::host::Time;

/// The first look, and the longest. A wait that is longer than the longest look ends looking, so it must be longer than a
/// write takes when nobody looks: otherwise loops that have once stopped looking never begin again.
const FIRST_LOOK_US: u64 = 25;
const LONGEST_LOOK_US: u64 = 500;

/// A yield that took longer was to somebody who computes (until its slice ends, some milliseconds), and not to another
/// loop that looks or serves requests, however large they are.
const CROWDED_US: u64 = 1000;
/// How long a loop rests from looking, the first time and at most. To look once where others compute costs a request some
/// ten milliseconds: of the longest rest that is a thousandth.
const SHORTEST_REST_US: u64 = 100_000;
const LONGEST_REST_US: u64 = 10_000_000;

/// A loop that works on more requests than this does not look.
const FEW_REQUESTS: usize = 4;
/// How much of the most requests that it worked on lately a loop forgets with each wait, as a fraction.
const FORGOTTEN: usize = 16;

/// What is known of the last waits.
#[derive(Debug, Default)]
pub(super) struct Patience {
    /// The most requests that the loop worked on lately, times [`FORGOTTEN`].
    depth: usize,
    look_us: u64,
    /// How long the last rest was, and until when; zero once as much time has passed without being in anybody's way.
    rest_us: u64,
    rests_until: Time,
}

impl Patience {
    /// The loop works on so many requests while it waits.
    pub fn works_on(&mut self, requests: usize) {
        self.depth = (self.depth - self.depth / FORGOTTEN).max(requests * FORGOTTEN);
    }

    /// How long to look before sleeping; zero: not at all.
    pub fn look(&self, now: Time) -> Duration {
        let rests = now < self.rests_until || self.depth > FEW_REQUESTS * FORGOTTEN;
        if rests { Duration::ZERO } else { Duration::from_micros(self.look_us) }
    }

    /// The loop yielded from one moment to the other. True if that was too long to go on looking.
    pub fn yielded(&mut self, from: Time, until: Time) -> bool {
        if until.0.saturating_sub(from.0) <= CROWDED_US {
            return false;
        }
        self.rest_us = (self.rest_us * 2).clamp(SHORTEST_REST_US, LONGEST_REST_US);
        self.rests_until = Time(until.0 + self.rest_us);
        true
    }

    /// The loop looked and slept from one moment to the other.
    pub fn waited(&mut self, from: Time, until: Time) {
        if self.rest_us > 0 && until.0 > self.rests_until.0 + self.rest_us {
            self.rest_us = 0;
        }
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

    const START: Time = Time(1_000_000);

    /// Some waits of one length, one after the other; how long the loop would look in the end.
    fn after(patience: &mut Patience, wait_us: u64, count: u32) -> u64 {
        let mut now = START;
        for _ in 0..count {
            let until = Time(now.0 + wait_us);
            patience.waited(now, until);
            now = until;
        }
        patience.look(now).as_micros() as u64
    }

    #[test]
    fn a_loop_looks_while_completions_come_quickly() {
        let mut patience = Patience::default();
        assert_eq!(patience.look(START), Duration::ZERO, "a new loop is idle");
        assert_eq!(after(&mut patience, 2000, 10), 0, "an idle volume");
        assert!(after(&mut patience, 100, 10) >= 100, "one request at a time: no sleep in between");
        assert!(after(&mut patience, 5, 10) >= 100, "many at a time");
        assert_eq!(after(&mut patience, 5000, 1), 0, "one long sleep ends it");
        assert_eq!(after(&mut patience, 20, 1), FIRST_LOOK_US, "and it is learned anew");
    }

    #[test]
    fn a_loop_that_slept_between_requests_finds_back_to_looking() {
        // What a write takes on a slow machine where nobody looks.
        let mut patience = Patience::default();
        assert!(after(&mut patience, 300, 10) >= 300);
    }

    /// Yields to somebody who computes, as often as the loop looks; for how long it does not look each time.
    fn rests(patience: &mut Patience, now: &mut Time, count: usize) -> Vec<u64> {
        let rest = |_| {
            let from = *now;
            now.0 += 8000;
            assert!(patience.yielded(from, *now), "eight milliseconds are long");
            let since = *now;
            while patience.look(*now).is_zero() {
                now.0 += 1000;
                patience.waited(Time(now.0 - 100), *now);
            }
            now.0 - since.0
        };
        (0..count).map(rest).collect()
    }

    #[test]
    fn a_loop_rests_from_looking_where_others_compute() {
        let (mut patience, mut now) = (Patience::default(), START);
        assert!(after(&mut patience, 20, 10) > 0);
        let rested = rests(&mut patience, &mut now, 12);
        assert_eq!(rested[0], SHORTEST_REST_US);
        assert!(rested.is_sorted(), "longer, since it did not help: {rested:?}");
        assert_eq!(rested.last(), Some(&LONGEST_REST_US));
        now.0 += LONGEST_REST_US + 1;
        patience.waited(Time(now.0 - 100), now);
        assert_eq!(rests(&mut patience, &mut now, 1), [SHORTEST_REST_US], "forgotten after a quiet time");
    }

    #[test]
    fn a_loop_with_many_requests_in_hand_does_not_look() {
        let mut patience = Patience::default();
        assert!(after(&mut patience, 20, 10) > 0);
        patience.works_on(32);
        assert_eq!(patience.look(START), Duration::ZERO);
        let turns = (0..1000).take_while(|_| {
            patience.works_on(1);
            patience.look(START).is_zero()
        });
        assert!((10..100).contains(&turns.count()), "and looks again soon after they were done");
        // Batches: none in hand for a moment is not few.
        for in_hand in [8, 0].into_iter().cycle().take(100) {
            patience.works_on(in_hand);
            assert_eq!(patience.look(START), Duration::ZERO);
        }
    }

    #[test]
    fn other_loops_that_serve_large_requests_are_no_crowd() {
        let (mut patience, mut now) = (Patience::default(), START);
        after(&mut patience, 20, 10);
        for _ in 0..1000 {
            let from = now;
            now.0 += 600;
            assert!(!patience.yielded(from, now));
        }
        assert!(!patience.look(now).is_zero());
    }
}
