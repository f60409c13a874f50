//! Virtual time: what is to happen, in order of time, and of arrival within one moment.

use std::collections::BTreeMap;

/// Things to come. Time is in microseconds and belongs to nobody; clocks of hosts are computed from it.
#[derive(Debug)]
pub struct Queue<T> {
    now: u64,
    next: u64,
    entries: BTreeMap<(u64, u64), T>,
}

impl<T> Queue<T> {
    pub fn new() -> Self {
        Self { now: 0, next: 0, entries: BTreeMap::new() }
    }

    pub fn now(&self) -> u64 {
        self.now
    }

    /// At `time`, or now if that is past.
    pub fn at(&mut self, time: u64, what: T) {
        self.entries.insert((time.max(self.now), self.next), what);
        self.next += 1;
    }

    pub fn after(&mut self, micros: u64, what: T) {
        self.at(self.now + micros, what);
    }

    /// The next thing; time moves on to it.
    pub fn pop(&mut self) -> Option<T> {
        let ((time, _), what) = self.entries.pop_first()?;
        self.now = time;
        Some(what)
    }
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self::new()
    }
}
