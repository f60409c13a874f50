//! What reads may return: one history of every sector, judged from outside.
//!
//! Every sector written carries a value that occurs once. For each value two moments are known:
//!
//! - `bound`: if the write ever took effect, it did so by then. An acknowledgement says so, and so does a successor
//!   that serves: what an older engine had in its hands is in or out by then (spec, I1).
//! - `gone`: from then on another value is known to have taken its place. A read that begins later must not return
//!   it (I2, I3).
//!
//! A read that returns `x`, and the acknowledgement of a write of `x`, tell that every value whose bound lies before
//! the beginning of that request came before `x`: it is gone when the request ends. Both statements hold for any
//! linearizable register, so a violation is never a matter of taste.
//!
//! If all in-sync hosts lose power, unflushed values may come back; `buried` says which are out for good, because a
//! flush that began when they were gone was acknowledged.

use std::collections::BTreeMap;
use std::fmt;

/// Bytes of a sector: the smallest thing written, and the unit of the history.
pub const SECTOR: usize = 512;
const NEVER: u64 = u64::MAX;

/// What a sector holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Value {
    Zero,
    /// The sequence number of a write.
    Data(u64),
    /// Neither: bytes of two writes, or of another sector.
    Torn,
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero => f.write_str("zero"),
            Self::Data(write) => write!(f, "w{write}"),
            Self::Torn => f.write_str("garbage"),
        }
    }
}

impl Value {
    /// The bytes of a sector that holds it: number of the write, number of the sector, repeated.
    pub fn fill(self, sector: u64, bytes: &mut [u8]) {
        for (index, piece) in bytes.chunks_exact_mut(8).enumerate() {
            let word = match self {
                Self::Data(write) if index % 2 == 0 => write ^ 0xa5a5_0000_0000_0000,
                Self::Data(_) => sector,
                _ => 0,
            };
            piece.copy_from_slice(&word.to_le_bytes());
        }
    }

    /// What the bytes of a sector say.
    pub fn parse(sector: u64, bytes: &[u8]) -> Self {
        if bytes.iter().all(|byte| *byte == 0) {
            return Self::Zero;
        }
        let word = u64::from_le_bytes(*bytes.first_chunk().expect("a sector has more than eight bytes"));
        let value = Self::Data(word ^ 0xa5a5_0000_0000_0000);
        let mut expected = [0; SECTOR];
        value.fill(sector, &mut expected);
        if expected == bytes { value } else { Self::Torn }
    }
}

/// One write of one sector.
#[derive(Clone, Debug)]
struct Entry {
    value: Value,
    /// Number of the request, to be found again.
    write: u64,
    begun: u64,
    bound: u64,
    gone: u64,
    buried: u64,
}

/// The history of all sectors.
#[derive(Debug, Default)]
pub struct Oracle {
    sectors: BTreeMap<u64, Vec<Entry>>,
    /// When all in-sync hosts last lost power.
    lost: u64,
}

/// A read that no history explains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Oracle {
    fn sector(&mut self, sector: u64) -> &mut Vec<Entry> {
        self.sectors.entry(sector).or_insert_with(|| {
            vec![Entry { value: Value::Zero, write: 0, begun: 0, bound: 0, gone: NEVER, buried: NEVER }]
        })
    }

    /// A write begins.
    pub fn begin(&mut self, sector: u64, write: u64, value: Value, now: u64) {
        let entry = Entry { value, write, begun: now, bound: NEVER, gone: NEVER, buried: NEVER };
        self.sector(sector).push(entry);
    }

    /// It was acknowledged; with `durable` it survives any power loss. One that promises no effect (a trim) only
    /// cannot take effect any more.
    pub fn acknowledged(&mut self, sector: u64, write: u64, now: u64, promises: bool, durable: bool) {
        let lost = self.lost;
        let entries = self.sector(sector);
        let Some(entry) = entries.iter().find(|entry| entry.write == write) else { return };
        // One that was under way when all was lost: its acknowledgement may be older than the loss.
        let (begun, promises) = (entry.begun, promises && entry.begun > lost);
        for entry in entries.iter_mut() {
            if entry.write == write {
                entry.bound = entry.bound.min(now);
            } else if promises && entry.bound <= begun {
                entry.gone = entry.gone.min(now);
                if durable {
                    entry.buried = entry.buried.min(now);
                }
            }
        }
        Self::tidy(entries, now);
    }

    /// A flush that began at `begun` was acknowledged.
    pub fn flushed(&mut self, begun: u64, now: u64) {
        for entries in self.sectors.values_mut() {
            for entry in entries.iter_mut().filter(|entry| entry.gone <= begun) {
                entry.buried = entry.buried.min(now);
            }
        }
    }

    /// A read that began at `begun` returned `value`.
    pub fn read(&mut self, sector: u64, value: Value, begun: u64, now: u64) -> Result<(), Violation> {
        let entries = self.sector(sector);
        let plausible = entries.iter().any(|entry| entry.value == value && entry.gone > begun);
        if !plausible {
            let seen: Vec<_> = entries.iter().map(Entry::to_string).collect();
            let known =
                if entries.iter().any(|entry| entry.value == value) { "went back in time" } else { "made it up" };
            return Err(Violation(format!(
                "a read of sector {sector} from {begun} to {now} returned {value:?}: it {known}; writes: {}",
                seen.join(", ")
            )));
        }
        if begun <= self.lost {
            // The answer may be older than the loss, and says nothing about what is left.
            return Ok(());
        }
        let entries = self.sector(sector);
        let one = entries.iter().filter(|entry| entry.value == value && entry.gone > begun).count() == 1;
        for entry in entries.iter_mut() {
            if entry.value != value && entry.bound <= begun {
                entry.gone = entry.gone.min(now);
            } else if entry.value == value && one && entry.gone > begun {
                entry.bound = entry.bound.min(now);
            }
        }
        Self::tidy(entries, now);
        Ok(())
    }

    /// From now on an engine serves that all engines of `writes` came before: what they had in hand is in or out.
    pub fn fenced(&mut self, now: u64, is_older: impl Fn(u64) -> bool) {
        for entry in self.sectors.values_mut().flatten().filter(|entry| is_older(entry.write)) {
            entry.bound = entry.bound.min(now);
        }
    }

    /// Every host of the in-sync set lost power: what was not flushed may be old or new, sector by sector.
    pub fn power_lost(&mut self, now: u64) {
        self.lost = now;
        for entry in self.sectors.values_mut().flatten().filter(|entry| entry.buried > now) {
            entry.gone = NEVER;
        }
    }

    /// Sectors that were ever touched.
    pub fn touched(&self) -> impl Iterator<Item = u64> + '_ {
        self.sectors.keys().copied()
    }

    /// Forgets what is out for good and cannot be asked about by a read that is still under way.
    fn tidy(entries: &mut Vec<Entry>, now: u64) {
        /// Longer than any request takes, in microseconds.
        const MEMORY: u64 = 300_000_000;
        if entries.len() > 64 {
            entries.retain(|entry| entry.gone == NEVER || entry.buried == NEVER || entry.gone + MEMORY > now);
        }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let moment = |time: u64| if time == NEVER { "never".to_owned() } else { time.to_string() };
        write!(f, "{:?} (begun {}, in by {}, gone {})", self.value, self.begun, moment(self.bound), moment(self.gone))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(writes: &[(u64, u64, u64)]) -> Oracle {
        let mut oracle = Oracle::default();
        for (write, begun, end) in writes {
            oracle.begin(0, *write, Value::Data(*write), *begun);
            if *end != NEVER {
                oracle.acknowledged(0, *write, *end, true, false);
            }
        }
        oracle
    }

    #[test]
    fn an_acknowledged_write_is_seen_by_later_reads() {
        let mut oracle = history(&[(1, 10, 20), (2, 30, 40)]);
        assert!(oracle.read(0, Value::Data(1), 50, 60).is_err());
        assert!(oracle.read(0, Value::Zero, 50, 60).is_err());
        assert!(oracle.read(0, Value::Data(2), 50, 60).is_ok());
        assert!(oracle.read(0, Value::Data(3), 50, 60).is_err());
    }

    #[test]
    fn reads_do_not_go_back_even_over_writes_that_failed() {
        let mut oracle = history(&[(1, 10, 20), (2, 30, NEVER)]);
        assert!(oracle.read(0, Value::Data(1), 40, 50).is_ok());
        assert!(oracle.read(0, Value::Data(2), 60, 70).is_ok());
        assert!(oracle.read(0, Value::Data(1), 80, 90).is_err());
    }

    #[test]
    fn what_a_fenced_engine_had_in_hand_does_not_come_later() {
        let mut oracle = history(&[(1, 10, NEVER)]);
        oracle.fenced(100, |write| write == 1);
        oracle.begin(0, 2, Value::Data(2), 110);
        oracle.acknowledged(0, 2, 120, true, false);
        assert!(oracle.read(0, Value::Data(1), 130, 140).is_err());
    }

    #[test]
    fn only_what_was_flushed_survives_the_loss_of_all() {
        let mut oracle = history(&[(1, 10, 20), (2, 30, 40), (3, 60, 70)]);
        oracle.flushed(50, 55);
        oracle.power_lost(100);
        assert!(oracle.read(0, Value::Data(1), 130, 140).is_err());
        assert!(oracle.read(0, Value::Data(2), 130, 140).is_ok());
        assert!(oracle.read(0, Value::Data(3), 150, 160).is_err(), "it is decided once");
    }

    #[test]
    fn a_read_that_was_under_way_when_all_was_lost_decides_nothing() {
        let mut oracle = history(&[(1, 10, 20), (2, 30, 40)]);
        oracle.power_lost(100);
        assert!(oracle.read(0, Value::Data(2), 90, 110).is_ok());
        assert!(oracle.read(0, Value::Data(1), 130, 140).is_ok(), "the second one was not flushed");
        assert!(oracle.read(0, Value::Data(2), 150, 160).is_err());
    }

    #[test]
    fn a_write_that_was_under_way_when_all_was_lost_promises_nothing_also_if_it_had_been_seen() {
        let mut oracle = history(&[(1, 10, 20), (2, 30, NEVER)]);
        assert!(oracle.read(0, Value::Data(2), 50, 60).is_ok());
        oracle.power_lost(100);
        oracle.acknowledged(0, 2, 110, true, false);
        assert!(
            oracle.read(0, Value::Data(1), 130, 140).is_ok(),
            "it was acknowledged before the loss, and not flushed"
        );
    }

    #[test]
    fn sectors_tell_torn_and_misplaced_bytes() {
        let mut bytes = [0; SECTOR];
        assert_eq!(Value::Zero, Value::parse(3, &bytes));
        Value::Data(7).fill(3, &mut bytes);
        assert_eq!(Value::Data(7), Value::parse(3, &bytes));
        assert_eq!(Value::Torn, Value::parse(4, &bytes));
        bytes[500] ^= 1;
        assert_eq!(Value::Torn, Value::parse(3, &bytes));
    }
}
