//! Commits of the state file: what changed while one is under way goes into the next.

use std::collections::BTreeSet;

use super::Volume;
use super::flight::Owner;
use crate::buffer::BLOCK;
use crate::files::Files;
use crate::op::{Fault, OpKind, OpResult};
use crate::request::{Change, Output, Reply, RequestError, RequestId};
use crate::state::{ACTIVITY, Header, MAPS, MapOwner, RegionMap, map, map_offset};

/// Changes that wait to be written, and the commit under way.
#[derive(Debug, Default)]
pub(super) struct Commit {
    dirty: Dirty,
    waiting: Vec<RequestId>,
    running: Option<Running>,
}

/// What differs from the file.
#[derive(Debug, Default)]
struct Dirty {
    header: bool,
    /// Blocks of maps with regions that are in memory but not in the file.
    added: BTreeSet<(usize, usize)>,
    /// Regions that go, map by map. They stay in memory until everything else is durable.
    removed: BTreeSet<(usize, u64)>,
}

impl Dirty {
    fn is_empty(&self) -> bool {
        !self.header && self.added.is_empty() && self.removed.is_empty()
    }

    fn insert(&mut self, maps: &mut [Option<RegionMap>; MAPS], slot: usize, regions: &[u64]) {
        let Some(map) = &mut maps[slot] else { return };
        for region in regions {
            self.removed.remove(&(slot, *region));
            if map.insert(*region) {
                self.added.insert((slot, map::block_of(*region)));
            }
        }
    }

    fn remove(&mut self, maps: &[Option<RegionMap>; MAPS], slot: usize, regions: &[u64]) {
        let Some(map) = &maps[slot] else { return };
        self.removed.extend(regions.iter().filter(|region| map.contains(**region)).map(|region| (slot, *region)));
    }
}

/// A commit under way, in two steps. A crash between them leaves regions in maps that could have gone, which
/// costs copies; it never loses one. That is how a region moves from the log to the missed maps.
#[derive(Debug)]
struct Running {
    out: u32,
    fault: Option<Fault>,
    waiting: Vec<RequestId>,
    /// The second step, if it is still to come.
    then: Option<Then>,
}

#[derive(Debug)]
struct Then {
    /// The header for the second slot.
    header: Option<bytes::Bytes>,
    removed: BTreeSet<(usize, u64)>,
}

impl Commit {
    pub(super) fn is_idle(&self) -> bool {
        self.running.is_none() && self.dirty.is_empty()
    }
}

impl<F: Files> Volume<F> {
    pub(super) fn begin_save(
        &mut self,
        id: RequestId,
        changes: Vec<Change>,
        out: &mut Output,
    ) -> Result<(), RequestError> {
        self.check_changes(&changes)?;
        for change in changes {
            self.change_state(change);
        }
        if !self.commit.dirty.is_empty() {
            self.commit.waiting.push(id);
        } else if let Some(running) = &mut self.commit.running {
            // Nothing new, but what it repeats may be on its way only.
            running.waiting.push(id);
        } else {
            out.done.push((id, Ok(Reply::Done)));
        }
        self.start_commit(out);
        Ok(())
    }

    /// Refuses changes that do not fit, before any is made.
    fn check_changes(&self, changes: &[Change]) -> Result<(), RequestError> {
        let Header { regions, region_bytes, .. } = self.state.header;
        let mut after = None;
        for change in changes {
            match change {
                Change::LogAdd(list)
                | Change::LogClear(list)
                | Change::MapAdd { regions: list, .. }
                | Change::MapClear { regions: list, .. } => {
                    if let Some(region) = list.iter().find(|region| **region >= regions) {
                        let offset = region.saturating_mul(region_bytes);
                        return Err(RequestError::OutOfRange { offset, len: region_bytes, size: self.size() });
                    }
                }
                change => {
                    change_header(&mut after.get_or_insert_with(|| self.state.clone_header()).header, change);
                }
            }
        }
        after.map_or(Ok(()), |after| after.render_header().map(drop).map_err(RequestError::from))
    }

    fn change_state(&mut self, change: Change) {
        let dirty = &mut self.commit.dirty;
        let state = &mut self.state;
        match change {
            Change::LogAdd(regions) => self.add_regions(ACTIVITY, &regions),
            Change::LogClear(regions) => {
                for slot in (0..MAPS).filter(|slot| *slot != ACTIVITY) {
                    dirty.insert(&mut state.maps, slot, &regions);
                }
                dirty.remove(&state.maps, ACTIVITY, &regions);
            }
            Change::MapAdd { owner, regions } => {
                if let Some(slot) = state.map_of(&owner) {
                    self.add_regions(slot, &regions);
                }
            }
            Change::MapClear { owner, regions } => {
                if let Some(slot) = state.map_of(&owner) {
                    dirty.remove(&state.maps, slot, &regions);
                }
            }
            change => {
                dirty.header |= change_header(&mut state.header, &change);
                for slot in (0..MAPS).filter(|slot| *slot != ACTIVITY) {
                    let kept = state.header.maps.iter().any(|owner| owner.slot == slot);
                    if kept && state.maps[slot].is_none() {
                        // What an earlier map left on disk would only add regions, but that costs copies.
                        state.maps[slot] = Some(RegionMap::new(state.header.regions));
                        dirty.added.extend((0..map::blocks(state.header.regions)).map(|index| (slot, index)));
                    } else if !kept && state.maps[slot].take().is_some() {
                        dirty.added.retain(|(owner, _)| *owner != slot);
                        dirty.removed.retain(|(owner, _)| *owner != slot);
                    }
                }
            }
        }
    }

    /// Adds regions; one that is about to go stays.
    fn add_regions(&mut self, slot: usize, regions: &[u64]) {
        if let Some(then) = self.commit.running.as_mut().and_then(|running| running.then.as_mut()) {
            for region in regions {
                then.removed.remove(&(slot, *region));
            }
        }
        self.commit.dirty.insert(&mut self.state.maps, slot, regions);
    }

    fn start_commit(&mut self, out: &mut Output) {
        if self.commit.running.is_some() || self.commit.dirty.is_empty() {
            return;
        }
        let dirty = std::mem::take(&mut self.commit.dirty);
        let waiting = std::mem::take(&mut self.commit.waiting);
        let mut running = Running { out: 0, fault: None, waiting, then: None };
        for (number, index) in dirty.added {
            running.out += self.send_block(number, index, out);
        }
        let mut header = None;
        if dirty.header {
            self.state.sequence += 1;
            let data = self.state.render_header().expect("the header must have been checked").freeze();
            header = Some(data.clone());
            running.out += 1;
            self.flight.send(Owner::Commit, self.state_file, 0, OpKind::Write { data, dsync: true }, out);
        }
        running.then = Some(Then { header, removed: dirty.removed });
        let nothing_first = running.out == 0;
        self.commit.running = Some(running);
        if nothing_first {
            self.second_step(out);
        }
    }

    /// Writes a block of a map as it is in memory.
    fn send_block(&mut self, number: usize, index: usize, out: &mut Output) -> u32 {
        let data = self.state.render_block(number, index).freeze();
        let kind = OpKind::Write { data, dsync: true };
        self.flight.send(Owner::Commit, self.state_file, map_offset(number, index), kind, out);
        1
    }

    /// Everything that was added is durable: the second copy of the header, and what goes. True if something
    /// is under way.
    fn second_step(&mut self, out: &mut Output) -> bool {
        let then = self.commit.running.as_mut().and_then(|running| running.then.take());
        let Some(Then { header, removed }) = then else { return false };
        let mut blocks = BTreeSet::new();
        for (slot, region) in removed {
            if self.state.maps[slot].as_mut().is_some_and(|map| map.remove(region)) {
                blocks.insert((slot, map::block_of(region)));
            }
        }
        let mut sent = 0;
        for (number, index) in blocks {
            sent += self.send_block(number, index, out);
        }
        if let Some(data) = header {
            sent += 1;
            self.flight.send(Owner::Commit, self.state_file, BLOCK, OpKind::Write { data, dsync: true }, out);
        }
        if sent == 0 {
            self.finish_commit(out);
            return true;
        }
        self.commit.running.as_mut().expect("a commit must be under way").out = sent;
        true
    }

    pub(super) fn commit_completed(&mut self, result: OpResult, out: &mut Output) {
        let running = self.commit.running.as_mut().expect("a commit must be under way");
        running.out -= 1;
        if let OpResult::Failed(fault) = result {
            running.fault.get_or_insert(fault);
        }
        if running.out > 0 || (running.fault.is_none() && self.second_step(out)) {
            return;
        }
        self.finish_commit(out);
    }

    fn finish_commit(&mut self, out: &mut Output) {
        let running = self.commit.running.take().expect("a commit must be under way");
        let answer = self.synced(running.fault).map(|()| Reply::Done);
        out.done.extend(running.waiting.into_iter().map(|id| (id, answer.clone())));
        if running.fault.is_some() {
            let stranded = std::mem::take(&mut self.commit.waiting);
            out.done.extend(stranded.into_iter().map(|id| (id, answer.clone())));
            self.commit.dirty = Dirty::default();
        }
        self.start_commit(out);
    }
}

/// A slot that no missed map uses.
fn free_map(header: &Header) -> Option<usize> {
    (ACTIVITY + 1..MAPS).find(|slot| header.maps.iter().all(|owner| owner.slot != *slot))
}

/// Whether anything changed.
fn change_header(header: &mut Header, change: &Change) -> bool {
    fn set<T: PartialEq + Clone>(place: &mut T, value: &T) -> bool {
        let changed = place != value;
        place.clone_from(value);
        changed
    }
    match change {
        Change::Promise(promise) => set(&mut header.promise, promise),
        Change::Generation(generation) => set(&mut header.generation, generation),
        Change::Doubt(doubt) => set(&mut header.doubt, doubt),
        Change::OutOfSync(reason) => set(&mut header.out_of_sync, reason),
        Change::Volume(uid) => set(&mut header.volume, uid),
        Change::LogGeneration(generation) => set(&mut header.log_generation, generation),
        Change::Note { name, value: Some(value) } => {
            header.notes.insert(name.clone(), value.clone()).as_ref() != Some(value)
        }
        Change::Note { name, value: None } => header.notes.remove(name).is_some(),
        Change::MapBegin { owner } => {
            if header.maps.iter().any(|entry| entry.owner == *owner) {
                return false;
            }
            let free = free_map(header);
            header.maps.extend(free.map(|slot| MapOwner { slot, owner: owner.clone() }));
            free.is_some()
        }
        Change::MapsEnd => !std::mem::take(&mut header.maps).is_empty(),
        Change::Rebuilding(rebuilding) => set(&mut header.rebuilding, rebuilding),
        Change::MapEnd { owner } => {
            let before = header.maps.len();
            header.maps.retain(|entry| entry.owner != *owner);
            header.maps.len() != before
        }
        Change::LogAdd(_) | Change::LogClear(_) | Change::MapAdd { .. } | Change::MapClear { .. } => false,
    }
}
