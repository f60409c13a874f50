//! Legal histories of one block: every read and acknowledgement must fit one order of the writes.
//!
//! The monitor keeps every state that the block can be in: which value it holds, and which writes have taken effect.
//! Writes that were submitted and not acknowledged may take effect at any time. A read narrows the states down to
//! those with the value that was read, an acknowledgement to those in which the write took effect. When none is
//! left, no order explains what was seen.

use std::collections::BTreeSet;

/// The value of a write is its number, from 1; the block begins with 0.
pub(super) type Value = u8;

/// A set of values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Values(u8);

impl Values {
    pub(super) fn insert(&mut self, value: Value) {
        self.0 |= 1 << value;
    }

    pub(super) fn has(self, value: Value) -> bool {
        self.0 >> value & 1 == 1
    }

    fn iter(self) -> impl Iterator<Item = Value> {
        (0..8).filter(move |value| self.has(*value))
    }
}

/// One state that the block may be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Possible {
    value: Value,
    /// Writes that took effect, as bits.
    effective: u8,
}

/// What was seen so far.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Monitor {
    possible: BTreeSet<Possible>,
    submitted: Values,
    acknowledged: Values,
    /// What may be left if every in-sync host loses power: flushed, or written since.
    durable: Values,
}

impl Monitor {
    pub(super) fn new() -> Self {
        let mut durable = Values::default();
        durable.insert(0);
        let possible = BTreeSet::from([Possible { value: 0, effective: 0 }]);
        Self { possible, submitted: Values::default(), acknowledged: Values::default(), durable }
    }

    pub(super) fn submit(&mut self, value: Value) {
        self.submitted.insert(value);
        self.durable.insert(value);
    }

    /// Everything that the block may be in by now.
    fn reachable(&self) -> BTreeSet<Possible> {
        let mut all = self.possible.clone();
        let mut fresh: Vec<Possible> = all.iter().copied().collect();
        while let Some(state) = fresh.pop() {
            for value in self.submitted.iter().filter(|value| state.effective >> value & 1 == 0) {
                let next = Possible { value, effective: state.effective | 1 << value };
                if all.insert(next) {
                    fresh.push(next);
                }
            }
        }
        all
    }

    /// A write is acknowledged; whether some history explains it.
    pub(super) fn acknowledge(&mut self, value: Value) -> bool {
        self.acknowledged.insert(value);
        self.possible = self.reachable().into_iter().filter(|state| state.effective >> value & 1 == 1).collect();
        !self.possible.is_empty()
    }

    /// A value is read; whether some history explains it.
    pub(super) fn read(&mut self, value: Value) -> bool {
        self.possible = self.reachable().into_iter().filter(|state| state.value == value).collect();
        !self.possible.is_empty()
    }

    /// Values that a read may return now.
    pub(super) fn readable(&self) -> Values {
        let mut values = Values::default();
        self.reachable().iter().for_each(|state| values.insert(state.value));
        values
    }

    /// What a flush that is sent now makes durable, at least: some value that is legal now, or still to come.
    pub(super) fn flush_sent(&self) -> Values {
        let mut values = self.readable();
        self.submitted.iter().filter(|value| !self.acknowledged.has(*value)).for_each(|value| values.insert(value));
        values
    }

    /// A flush is acknowledged; `kept` is what [`Monitor::flush_sent`] said, with everything submitted since.
    pub(super) fn flush_acknowledged(&mut self, kept: Values) {
        self.durable = kept;
    }

    /// Power was lost, and with it the last copies of the values in `lost`: what is left is what was durable.
    pub(super) fn power_lost(&mut self, lost: impl Fn(Value) -> bool) {
        let states = self.reachable();
        let mut after = states.clone();
        for state in states.into_iter().filter(|state| lost(state.value)) {
            let undecided = state.effective & !self.acknowledged.0;
            for value in self.durable.iter() {
                let mut part = undecided;
                loop {
                    after.insert(Possible { value, effective: state.effective & !part });
                    if part == 0 {
                        break;
                    }
                    part = (part - 1) & undecided;
                }
            }
        }
        self.possible = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_do_not_go_back() {
        let mut monitor = Monitor::new();
        monitor.submit(1);
        assert!(monitor.read(0), "a write that is under way may be seen or not");
        assert!(monitor.read(1));
        assert!(!monitor.read(0), "but once it was seen it stays");
    }

    #[test]
    fn what_was_acknowledged_is_read() {
        let mut monitor = Monitor::new();
        monitor.submit(1);
        assert!(monitor.acknowledge(1));
        assert!(!monitor.clone().read(0));
        monitor.submit(2);
        assert!(monitor.acknowledge(2));
        assert!(!monitor.clone().read(1), "it was overwritten");
        assert!(monitor.read(2));
    }

    #[test]
    fn power_loss_takes_what_was_not_flushed() {
        let mut monitor = Monitor::new();
        monitor.submit(1);
        assert!(monitor.acknowledge(1));
        let kept = monitor.flush_sent();
        monitor.flush_acknowledged(kept);
        monitor.submit(2);
        assert!(monitor.acknowledge(2));
        monitor.power_lost(|value| value == 2);
        assert!(monitor.clone().read(1) && monitor.clone().read(2));
        assert!(!monitor.read(0), "1 was flushed");
    }
}
