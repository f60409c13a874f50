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
    /// Blocks of maps.
    blocks: BTreeSet<(usize, usize)>,
}

impl Dirty {
    fn is_empty(&self) -> bool {
        !self.header && self.blocks.is_empty()
    }
}

#[derive(Debug)]
struct Running {
    out: u32,
    fault: Option<Fault>,
    waiting: Vec<RequestId>,
    /// The header goes to the second slot when the first is durable.
    second: Option<bytes::Bytes>,
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
        let mut after = self.state.clone_header();
        let regions = after.header.regions;
        for change in changes {
            match change {
                Change::MapAdd { owner, .. } | Change::MapClear { owner, .. } if after.map_of(owner).is_none() => {
                    return Err(RequestError::NoMap(owner.clone()));
                }
                Change::MapBegin { owner, .. }
                    if after.map_of(owner).is_none() && free_map(&after.header).is_none() =>
                {
                    return Err(RequestError::NoFreeMap);
                }
                _ => {}
            }
            if let Change::LogAdd(list)
            | Change::LogClear(list)
            | Change::MapAdd { regions: list, .. }
            | Change::MapClear { regions: list, .. } = change
            {
                if let Some(region) = list.iter().find(|region| **region >= regions) {
                    let region_bytes = after.header.region_bytes;
                    let offset = region.saturating_mul(region_bytes);
                    return Err(RequestError::OutOfRange { offset, len: region_bytes, size: self.size() });
                }
            } else {
                change_header(&mut after.header, change);
            }
        }
        after.render_header()?;
        Ok(())
    }

    fn change_state(&mut self, change: Change) {
        let dirty = &mut self.commit.dirty;
        match change {
            Change::LogAdd(regions) => change_map(&mut self.state.maps, dirty, ACTIVITY, &regions, RegionMap::insert),
            Change::LogClear(regions) => change_map(&mut self.state.maps, dirty, ACTIVITY, &regions, RegionMap::remove),
            Change::MapAdd { owner, regions } => {
                let slot = self.state.map_of(&owner).expect("the map must have been checked");
                change_map(&mut self.state.maps, dirty, slot, &regions, RegionMap::insert);
            }
            Change::MapClear { owner, regions } => {
                let slot = self.state.map_of(&owner).expect("the map must have been checked");
                change_map(&mut self.state.maps, dirty, slot, &regions, RegionMap::remove);
            }
            change => {
                if let Change::MapEnd { owner } = &change
                    && let Some(slot) = self.state.map_of(owner)
                {
                    self.state.maps[slot] = None;
                }
                dirty.header |= change_header(&mut self.state.header, &change);
                if let Change::MapBegin { owner, .. } = &change {
                    let slot = self.state.map_of(owner).expect("the map must have been begun");
                    if self.state.maps[slot].is_none() {
                        // What an earlier map left on disk would only add regions, but it costs copies.
                        let regions = self.state.header.regions;
                        self.state.maps[slot] = Some(RegionMap::new(regions));
                        dirty.blocks.extend((0..map::blocks(regions)).map(|index| (slot, index)));
                    }
                }
            }
        }
    }

    fn start_commit(&mut self, out: &mut Output) {
        if self.commit.running.is_some() || self.commit.dirty.is_empty() {
            return;
        }
        let dirty = std::mem::take(&mut self.commit.dirty);
        let waiting = std::mem::take(&mut self.commit.waiting);
        let mut running = Running { out: dirty.blocks.len() as u32, fault: None, waiting, second: None };
        for (number, index) in dirty.blocks {
            let data = self.state.render_block(number, index).freeze();
            let kind = OpKind::Write { data, dsync: true };
            self.flight.send(Owner::Commit, self.state_file, map_offset(number, index), kind, out);
        }
        if dirty.header {
            self.state.sequence += 1;
            let data = self.state.render_header().expect("the header must have been checked").freeze();
            running.second = Some(data.clone());
            running.out += 1;
            self.flight.send(Owner::Commit, self.state_file, 0, OpKind::Write { data, dsync: true }, out);
        }
        self.commit.running = Some(running);
    }

    pub(super) fn commit_completed(&mut self, result: OpResult, out: &mut Output) {
        let running = self.commit.running.as_mut().expect("a commit must be under way");
        running.out -= 1;
        if let OpResult::Failed(fault) = result {
            running.fault.get_or_insert(fault);
        }
        if running.out > 0 {
            return;
        }
        if let (None, Some(data)) = (running.fault, running.second.take()) {
            running.out = 1;
            return self.flight.send(Owner::Commit, self.state_file, BLOCK, OpKind::Write { data, dsync: true }, out);
        }
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

fn change_map(
    maps: &mut [Option<RegionMap>; MAPS],
    dirty: &mut Dirty,
    slot: usize,
    regions: &[u64],
    change: fn(&mut RegionMap, u64) -> bool,
) {
    let map = maps[slot].as_mut().expect("a map that is changed must be loaded");
    for region in regions {
        if change(map, *region) {
            dirty.blocks.insert((slot, map::block_of(*region)));
        }
    }
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
        Change::MapBegin { owner, generation } => {
            if header.maps.iter().any(|entry| entry.owner == *owner) {
                return false;
            }
            let free = free_map(header);
            header.maps.extend(free.map(|slot| MapOwner { slot, owner: owner.clone(), generation: *generation }));
            true
        }
        Change::MapEnd { owner } => {
            let before = header.maps.len();
            header.maps.retain(|entry| entry.owner != *owner);
            header.maps.len() != before
        }
        Change::LogAdd(_) | Change::LogClear(_) | Change::MapAdd { .. } | Change::MapClear { .. } => false,
    }
}
