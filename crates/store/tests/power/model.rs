//! What a replica must hold, kept in plain vectors.

use std::collections::BTreeMap;

use tether_store::files::fake::FakeFiles;
use tether_store::host::read;
use tether_store::{BLOCK, View, Volume};

/// Bytes that survive together.
const SECTOR: usize = 512;

#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    pub(crate) contents: Vec<u8>,
    pub(crate) parent: String,
    pub(crate) removed: bool,
}

/// The expected contents. `versions` are the contents after each change since the last flush, the flushed ones
/// first: after a power loss each sector is from one of them.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    pub(crate) versions: Vec<Vec<u8>>,
    pub(crate) snapshots: BTreeMap<String, Snapshot>,
    /// Snapshot below the head.
    pub(crate) head: String,
}

impl Model {
    pub(crate) fn new(size: u64) -> Self {
        Self { versions: vec![vec![0; size as usize]], snapshots: BTreeMap::new(), head: String::new() }
    }

    pub(crate) fn live(&self) -> &[u8] {
        self.versions.last().unwrap()
    }

    pub(crate) fn size(&self) -> u64 {
        self.live().len() as u64
    }

    pub(crate) fn change(&mut self, change: impl FnOnce(&mut [u8])) {
        let mut next = self.live().to_vec();
        change(&mut next);
        self.versions.push(next);
    }

    pub(crate) fn flushed(&mut self) {
        self.versions.drain(..self.versions.len() - 1);
    }

    fn children(&self, name: &str) -> usize {
        self.snapshots.values().filter(|snapshot| snapshot.parent == name).count() + usize::from(self.head == name)
    }

    pub(crate) fn discard(&mut self, offset: u64, len: u64) {
        let (from, to) = (offset.next_multiple_of(BLOCK), (offset + len) / BLOCK * BLOCK);
        if from >= to {
            return;
        }
        let mut below = self.head.clone();
        loop {
            let snapshot = self.snapshots.get(&below).cloned();
            let mut base = snapshot.as_ref().map_or_else(Vec::new, |snapshot| snapshot.contents.clone());
            base.resize(self.size() as usize, 0);
            // What a removed snapshot held may come up if the power fails in between.
            self.change(|bytes| bytes[from as usize..to as usize].copy_from_slice(&base[from as usize..to as usize]));
            match snapshot {
                Some(snapshot) if snapshot.removed && self.children(&below) == 1 => below = snapshot.parent,
                _ => break,
            }
        }
    }

    pub(crate) fn snapshot(&mut self, name: &str) {
        self.flushed();
        let snapshot = Snapshot { contents: self.live().to_vec(), parent: self.head.clone(), removed: false };
        self.snapshots.insert(name.to_owned(), snapshot);
        name.clone_into(&mut self.head);
    }

    pub(crate) fn revert(&mut self, name: &str) {
        let mut contents = self.snapshots[name].contents.clone();
        contents.resize(self.size() as usize, 0);
        self.versions = vec![contents];
        name.clone_into(&mut self.head);
    }

    pub(crate) fn expand(&mut self, size: u64) {
        self.versions.iter_mut().for_each(|version| version.resize(size as usize, 0));
    }

    /// Checks kept snapshots and forgets removed ones that are gone.
    pub(crate) fn check_snapshots(&mut self, volume: &mut Volume<FakeFiles>) {
        let found: BTreeMap<_, _> =
            volume.snapshots().unwrap().into_iter().map(|info| (info.name.clone(), info)).collect();
        let gone: Vec<String> = self.snapshots.keys().filter(|name| !found.contains_key(*name)).cloned().collect();
        for name in gone {
            let snapshot = self.snapshots.remove(&name).unwrap();
            assert!(snapshot.removed, "snapshot {name} is gone");
            for other in self.snapshots.values_mut() {
                if other.parent == name {
                    other.parent.clone_from(&snapshot.parent);
                }
            }
            assert_ne!(self.head, name, "the head stands on nothing");
        }
        for (name, snapshot) in &self.snapshots {
            assert_eq!((found[name].removed, &found[name].parent), (snapshot.removed, &snapshot.parent), "{name}");
            if !snapshot.removed {
                let size = volume.size();
                let mut contents = read(volume, View::Snapshot(name.clone()), 0, size).unwrap().to_vec();
                contents.truncate(snapshot.contents.len());
                assert!(contents == snapshot.contents, "snapshot {name} changed");
            }
        }
        assert_eq!(found.len(), self.snapshots.len() + 1, "{:?}", found.keys());
        assert_eq!(found["volume-head"].parent, self.head);
    }

    /// Checks the live contents of a volume that was not interrupted.
    pub(crate) fn check(&mut self, volume: &mut Volume<FakeFiles>) {
        self.check_snapshots(volume);
        let size = volume.size();
        assert_eq!(size, self.size());
        let live = read(volume, View::Live, 0, size).unwrap();
        if let Some(at) = (0..live.len()).find(|at| live[*at] != self.live()[*at]) {
            panic!("byte {at} is {} and should be {}", live[at], self.live()[at]);
        }
    }

    /// Whether the live contents are possible after a power loss.
    pub(crate) fn allows(&self, live: &[u8]) -> Result<(), String> {
        if live.len() as u64 != self.size() {
            return Err(format!("{} bytes, not {}", live.len(), self.size()));
        }
        for (index, sector) in live.chunks(SECTOR).enumerate() {
            let range = index * SECTOR..(index + 1) * SECTOR;
            if !self.versions.iter().any(|version| version[range.clone()] == *sector) {
                let seen: Vec<u8> = self.versions.iter().map(|version| version[range.start]).collect();
                return Err(format!("sector {index} begins with {}, versions with {seen:?}", sector[0]));
            }
        }
        Ok(())
    }

    /// The first of the possible models that the volume fits after a power loss, with the contents it has.
    pub(crate) fn settle(candidates: Vec<Self>, volume: &mut Volume<FakeFiles>) -> Self {
        let size = volume.size();
        let live = read(volume, View::Live, 0, size).unwrap().to_vec();
        let infos = volume.snapshots().unwrap();
        let mut reasons = Vec::new();
        for mut candidate in candidates {
            let matches = infos.iter().filter(|info| info.name != "volume-head").all(|info| {
                candidate.snapshots.get(&info.name).is_some_and(|snapshot| snapshot.removed == info.removed)
            });
            let kept = candidate.snapshots.iter().filter(|(_, snapshot)| !snapshot.removed);
            let all_there = kept.clone().all(|(name, _)| infos.iter().any(|info| info.name == *name));
            let head = infos.iter().find(|info| info.name == "volume-head").unwrap();
            if !matches || !all_there || head.parent != candidate.head {
                reasons.push("other snapshots".to_owned());
                continue;
            }
            if let Err(reason) = candidate.allows(&live) {
                reasons.push(reason);
                continue;
            }
            candidate.check_snapshots(volume);
            candidate.versions = vec![live];
            return candidate;
        }
        panic!("none of the possible states is there: {reasons:?}; found {infos:?}");
    }
}
