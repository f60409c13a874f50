//! Deadlines in order.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use crate::host::{ConnId, DeviceId, Time, TimerId};

/// Whose deadline it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Deadline {
    Machine(TimerId),
    /// A dial that is not answered by then has failed.
    Dial(ConnId),
    /// A connection that is closing is cut off then.
    Linger(ConnId),
    /// A device that was not there yet is looked at again.
    Device(DeviceId),
}

#[derive(Debug, Default)]
pub(super) struct Timers {
    order: BTreeSet<(Time, Deadline)>,
    at: HashMap<Deadline, Time>,
}

impl Timers {
    pub fn set(&mut self, deadline: Deadline, at: Time) {
        if let Some(before) = self.at.insert(deadline, at) {
            self.order.remove(&(before, deadline));
        }
        self.order.insert((at, deadline));
    }

    pub fn cancel(&mut self, deadline: Deadline) {
        if let Some(at) = self.at.remove(&deadline) {
            self.order.remove(&(at, deadline));
        }
    }

    /// Takes one that is due.
    pub fn due(&mut self, now: Time) -> Option<Deadline> {
        let (at, deadline) = *self.order.first()?;
        if at > now {
            return None;
        }
        self.cancel(deadline);
        Some(deadline)
    }

    /// How long until the next; None if there is none.
    pub fn wait(&self, now: Time) -> Option<Duration> {
        self.order.first().map(|(at, _)| Duration::from_micros(at.0.saturating_sub(now.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_come_in_order_and_a_moved_one_comes_once() {
        let timer = |id| Deadline::Machine(TimerId(id));
        let mut timers = Timers::default();
        for (id, at) in [(1, 30), (2, 10), (3, 20), (1, 5)] {
            timers.set(timer(id), Time(at));
        }
        timers.cancel(timer(3));
        assert_eq!(timers.wait(Time(1)), Some(Duration::from_micros(4)));
        assert_eq!(timers.due(Time(4)), None);
        let due: Vec<_> = std::iter::from_fn(|| timers.due(Time(100))).collect();
        assert_eq!((due, timers.wait(Time(0))), (vec![timer(1), timer(2)], None));
    }
}
