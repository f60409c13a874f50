//! Regions: the grain in which replicas remember what was written lately and what somebody missed.

use std::collections::BTreeMap;
use std::ops::Range;

/// Size of a region of the activity log, as a power of two: 4 MiB. Smaller regions mean more log updates on the
/// hot path, larger ones more to copy after a crash.
pub const REGION_SHIFT: u32 = 22;

/// Number of a region.
pub type Region = u32;

/// How offsets map to regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    /// Size of the volume in bytes.
    pub size: u64,
    /// Size of a region as a power of two.
    pub shift: u32,
}

impl Geometry {
    /// A volume of `size` bytes with regions of the usual size.
    pub const fn new(size: u64) -> Self {
        Self { size, shift: REGION_SHIFT }
    }

    /// The regions that `offset .. offset + len` touches.
    pub fn touched(self, offset: u64, len: u64) -> Range<Region> {
        let first = (offset >> self.shift) as Region;
        if len == 0 {
            return first..first;
        }
        first..((offset + len - 1) >> self.shift) as Region + 1
    }

    /// All regions.
    pub fn all(self) -> Range<Region> {
        self.touched(0, self.size)
    }

    /// The bytes of a region, the last one cut at the end of the volume.
    pub fn bytes(self, region: Region) -> Range<u64> {
        let start = u64::from(region) << self.shift;
        start.min(self.size)..(start + (1 << self.shift)).min(self.size)
    }

    /// Whether `offset .. offset + len` lies inside the volume.
    pub fn holds(self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.size)
    }
}

/// A set of regions; small when few are in it, at most one bit per region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RegionSet {
    words: BTreeMap<u32, u64>,
    len: usize,
}

impl RegionSet {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a region; whether it is new.
    pub fn insert(&mut self, region: Region) -> bool {
        let word = self.words.entry(region >> 6).or_default();
        let fresh = *word >> (region & 63) & 1 == 0;
        *word |= 1 << (region & 63);
        self.len += usize::from(fresh);
        fresh
    }

    /// Takes a region out; whether it was in.
    pub fn remove(&mut self, region: Region) -> bool {
        let Some(word) = self.words.get_mut(&(region >> 6)) else { return false };
        let present = *word >> (region & 63) & 1 == 1;
        *word &= !(1 << (region & 63));
        if *word == 0 {
            self.words.remove(&(region >> 6));
        }
        self.len -= usize::from(present);
        present
    }

    /// Whether a region is in.
    pub fn contains(&self, region: Region) -> bool {
        self.words.get(&(region >> 6)).is_some_and(|word| word >> (region & 63) & 1 == 1)
    }

    /// How many regions.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// In ascending order.
    pub fn iter(&self) -> impl Iterator<Item = Region> + '_ {
        self.words
            .iter()
            .flat_map(|(high, word)| (0..64).filter(move |low| word >> low & 1 == 1).map(move |low| high << 6 | low))
    }

    /// The set as words of 64 regions: number of the word, bits.
    pub fn words(&self) -> impl ExactSizeIterator<Item = (u32, u64)> + '_ {
        self.words.iter().map(|(high, bits)| (*high, *bits))
    }

    /// Appends a word; nothing if it is empty, or not above all that are there.
    pub fn push_word(&mut self, high: u32, bits: u64) -> Option<()> {
        let above = self.words.last_key_value().is_none_or(|(last, _)| *last < high);
        if bits == 0 || !above || high > Region::MAX >> 6 {
            return None;
        }
        self.words.insert(high, bits);
        self.len += bits.count_ones() as usize;
        Some(())
    }

    /// The smallest region that is not below `from`.
    pub fn next_from(&self, from: Region) -> Option<Region> {
        self.words.range(from >> 6..).find_map(|(high, word)| {
            let word = if *high == from >> 6 { word & (!0 << (from & 63)) } else { *word };
            (word != 0).then(|| high << 6 | word.trailing_zeros())
        })
    }
}

impl Extend<Region> for RegionSet {
    fn extend<I: IntoIterator<Item = Region>>(&mut self, regions: I) {
        regions.into_iter().for_each(|region| {
            self.insert(region);
        });
    }
}

impl FromIterator<Region> for RegionSet {
    fn from_iter<I: IntoIterator<Item = Region>>(regions: I) -> Self {
        let mut set = Self::new();
        set.extend(regions);
        set
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn offsets_map_to_regions() {
        let geometry = Geometry { size: 100, shift: 4 };
        assert_eq!(0..1, geometry.touched(0, 16));
        assert_eq!(0..2, geometry.touched(15, 2));
        assert_eq!(3..3, geometry.touched(48, 0));
        assert_eq!(0..7, geometry.all());
        assert_eq!(96..100, geometry.bytes(6));
        assert!(geometry.holds(96, 4) && !geometry.holds(96, 5) && !geometry.holds(u64::MAX, 1));
    }

    proptest! {
        #[test]
        fn a_region_set_is_a_set(steps in proptest::collection::vec((any::<bool>(), 0u32..300), 0..200), from in 0u32..300) {
            let (mut set, mut oracle) = (RegionSet::new(), BTreeSet::new());
            for (add, region) in steps {
                if add {
                    prop_assert_eq!(oracle.insert(region), set.insert(region));
                } else {
                    prop_assert_eq!(oracle.remove(&region), set.remove(region));
                }
            }
            prop_assert_eq!(oracle.len(), set.len());
            prop_assert_eq!(oracle.range(from..).next().copied(), set.next_from(from));
            prop_assert_eq!(oracle.into_iter().collect::<Vec<_>>(), set.iter().collect::<Vec<_>>());
        }
    }
}
