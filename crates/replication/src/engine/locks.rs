//! Who may touch which bytes: overlapping reads, writes and copies go one after the other, in order of arrival.
//!
//! The volume is cut into buckets; a claim is entered into each bucket that it touches, and counts how many
//! earlier claims it conflicts with. Claims that are given up count down those behind them. A pair that shares
//! several buckets is counted in the first one only. The cost is the number of claims near by, not of all.

use std::collections::BTreeMap;

use crate::rules::Rules;

/// Size of a bucket as a power of two: 1 MiB holds the few requests that are near each other.
const BUCKET_SHIFT: u32 = 20;

/// What a claim is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Use {
    /// Frontend reads: from one member.
    Read,
    /// Frontend writes: to all members.
    Write,
    /// A copy from a member to a replica that nobody reads yet.
    Copy,
}

/// Who claims: the number of a request, or of a piece of a copy.
pub(super) type Owner = u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Entry {
    owner: Owner,
    start: u64,
    end: u64,
    wants: Use,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Claim {
    start: u64,
    end: u64,
    blockers: u32,
}

/// All claims.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Locks {
    rules: Rules,
    buckets: BTreeMap<u64, Vec<Entry>>,
    claims: BTreeMap<Owner, Claim>,
}

impl Locks {
    pub(super) fn new(rules: Rules) -> Self {
        Self { rules, buckets: BTreeMap::new(), claims: BTreeMap::new() }
    }

    fn conflict(rules: Rules, earlier: &Entry, later: &Entry) -> bool {
        earlier.start < later.end
            && later.start < earlier.end
            && match (earlier.wants, later.wants) {
                (Use::Read, Use::Read | Use::Copy) | (Use::Copy, Use::Read) => false,
                (Use::Write, Use::Read) => rules.read_waits(),
                (Use::Read, Use::Write) => rules.write_waits_for_reads(),
                (Use::Write, Use::Write) => rules.write_waits_for_writes(),
                (Use::Copy, _) | (_, Use::Copy) => rules.copy_excludes_writes(),
            }
    }

    /// Claims `start .. end`; whether it is granted at once. If not, [`Locks::release`] of another one grants it.
    pub(super) fn claim(&mut self, owner: Owner, start: u64, end: u64, wants: Use) -> bool {
        let entry = Entry { owner, start, end, wants };
        let mut blockers = 0;
        for bucket in start >> BUCKET_SHIFT..=(end.max(1) - 1) >> BUCKET_SHIFT {
            let entries = self.buckets.entry(bucket).or_default();
            let counted_here = |other: &&Entry| other.start.max(start) >> BUCKET_SHIFT == bucket;
            blockers +=
                entries.iter().filter(counted_here).filter(|other| Self::conflict(self.rules, other, &entry)).count();
            entries.push(entry);
        }
        self.claims.insert(owner, Claim { start, end, blockers: blockers as u32 });
        blockers == 0
    }

    /// Gives a claim up; appends those that are granted by it, in order of their arrival.
    pub(super) fn release(&mut self, owner: Owner, granted: &mut Vec<Owner>) {
        let Some(claim) = self.claims.remove(&owner) else { return };
        for bucket in claim.start >> BUCKET_SHIFT..=(claim.end.max(1) - 1) >> BUCKET_SHIFT {
            let Some(entries) = self.buckets.get_mut(&bucket) else { continue };
            let Some(at) = entries.iter().position(|entry| entry.owner == owner) else { continue };
            let gone = entries.remove(at);
            for later in &entries[at..] {
                let counted_here = gone.start.max(later.start) >> BUCKET_SHIFT == bucket;
                if !counted_here || !Self::conflict(self.rules, &gone, later) {
                    continue;
                }
                let waiting = self.claims.get_mut(&later.owner).expect("an entry must belong to a claim");
                waiting.blockers -= 1;
                if waiting.blockers == 0 {
                    granted.push(later.owner);
                }
            }
            if entries.is_empty() {
                self.buckets.remove(&bucket);
            }
        }
    }

    /// Whether a write is under way or waits.
    #[cfg(test)]
    pub(super) fn writes(&self) -> bool {
        self.buckets.values().flatten().any(|entry| entry.wants == Use::Write)
    }

    /// Whether a claim is granted.
    #[cfg(test)]
    pub(super) fn granted(&self, owner: Owner) -> bool {
        self.claims.get(&owner).is_some_and(|claim| claim.blockers == 0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against an oracle that compares every pair.
        #[test]
        fn a_claim_waits_for_exactly_the_earlier_ones_that_it_overlaps(
            steps in proptest::collection::vec((0u32..8, 0u64..40, 1u64..20, 0u8..3), 1..60),
        ) {
            let mut locks = Locks::new(Rules::default());
            let mut oracle: Vec<Entry> = Vec::new();
            let scale = 1 << (BUCKET_SHIFT - 3);
            for (owner, start, len, wants) in steps {
                if let Some(at) = oracle.iter().position(|entry| entry.owner == owner) {
                    oracle.remove(at);
                    locks.release(owner, &mut Vec::new());
                } else {
                    let wants = [Use::Read, Use::Write, Use::Copy][wants as usize];
                    let entry = Entry { owner, start: start * scale, end: (start + len) * scale, wants };
                    locks.claim(owner, entry.start, entry.end, wants);
                    oracle.push(entry);
                }
                for (at, entry) in oracle.iter().enumerate() {
                    let free = !oracle[..at].iter().any(|other| Locks::conflict(Rules::default(), other, entry));
                    prop_assert_eq!(free, locks.granted(entry.owner));
                }
            }
            for entry in oracle {
                locks.release(entry.owner, &mut Vec::new());
            }
            prop_assert_eq!(Locks::new(Rules::default()), locks);
        }
    }
}
