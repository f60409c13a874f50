//! Which regions the members' activity logs name, and which of them a flush makes safe to forget.
//!
//! A region may be cleared when every recorded member completed a flush, and no write to the region was under way
//! between the sending of that flush and now: then all members hold the same bytes, durably.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::region::{Region, RegionSet};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Active {
    /// Writes under way.
    writes: u32,
    /// When one was last sent or answered.
    touched: u64,
}

/// The engine's view of the activity logs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Activity {
    regions: BTreeMap<Region, Active>,
    clock: u64,
}

impl Activity {
    /// Members' logs name these from before.
    pub(super) fn inherit(&mut self, regions: &RegionSet) {
        for region in regions.iter() {
            self.regions.entry(region).or_insert(Active { writes: 0, touched: self.clock });
        }
    }

    /// A write is sent.
    pub(super) fn begin(&mut self, regions: Range<Region>) {
        self.clock += 1;
        for region in regions {
            let active = self.regions.entry(region).or_default();
            active.writes += 1;
            active.touched = self.clock;
        }
    }

    /// It is done, or given up.
    pub(super) fn end(&mut self, regions: Range<Region>) {
        self.clock += 1;
        for region in regions {
            if let Some(active) = self.regions.get_mut(&region) {
                active.writes = active.writes.saturating_sub(1);
                active.touched = self.clock;
            }
        }
    }

    /// The moment at which a flush is sent.
    pub(super) fn mark(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// [`Activity::mark`] for a flush; nothing for a write.
    pub(super) fn mark_if(&mut self, flush: bool) -> u64 {
        if flush { self.mark() } else { 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Regions to forget after a flush that was sent at `mark` is complete: the least recently used ones, if there
    /// are more than `limit`, down to three quarters of it, so that this is not done again at once.
    pub(super) fn clear(&mut self, mark: u64, limit: usize, only_quiet: bool) -> RegionSet {
        if self.regions.len() <= limit {
            return RegionSet::new();
        }
        let surplus = self.regions.len() - limit * 3 / 4;
        let mut quiet: Vec<(u64, Region)> = self
            .regions
            .iter()
            .filter(|(_, active)| !only_quiet || (active.writes == 0 && active.touched < mark))
            .map(|(region, active)| (active.touched, *region))
            .collect();
        quiet.sort_unstable();
        quiet.truncate(surplus);
        let cleared: RegionSet = quiet.into_iter().map(|(_, region)| region).collect();
        for region in cleared.iter() {
            self.regions.remove(&region);
        }
        if self.regions.is_empty() {
            self.clock = 0;
        }
        cleared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(regions: &[Region]) -> RegionSet {
        regions.iter().copied().collect()
    }

    #[test]
    fn a_flush_clears_only_what_was_quiet_since_it_was_sent() {
        let mut activity = Activity::default();
        activity.begin(1..3);
        activity.end(1..3);
        activity.begin(3..4);
        let mark = activity.mark();
        activity.end(3..4);
        activity.begin(2..3);
        assert_eq!(set(&[1]), activity.clear(mark, 0, true));
        activity.end(2..3);
        assert_eq!(set(&[]), activity.clear(mark, 0, true));
        let later = activity.mark();
        assert_eq!(set(&[2, 3]), activity.clear(later, 0, true));
        assert!(activity.is_empty());
    }

    #[test]
    fn the_least_recently_used_are_cleared_when_there_are_many() {
        let mut activity = Activity::default();
        for region in [7, 5, 9, 1, 3] {
            activity.begin(region..region + 1);
            activity.end(region..region + 1);
        }
        let mark = activity.mark();
        assert_eq!(set(&[]), activity.clear(mark, 5, true));
        assert_eq!(set(&[7, 5]), activity.clear(mark, 4, true));
    }
}
