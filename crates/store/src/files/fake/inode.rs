//! A file of the fake disk: what is seen, what is durable, and what a power loss makes of the difference.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::random::Random;
use crate::buffer::BLOCK;
use crate::files::{EachExtent, Stat};

/// Bytes that reach the medium together.
const SECTOR: usize = 512;

/// A block, if it is allocated.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Block {
    bytes: Arc<[u8]>,
    /// Written, not merely allocated.
    written: bool,
}

#[derive(Debug, Clone, Default)]
struct Contents {
    size: u64,
    blocks: BTreeMap<u64, Block>,
    modified_ns: i64,
}

#[derive(Debug)]
pub(super) struct Inode {
    seen: Contents,
    durable: Contents,
    /// Sectors of each block that differ from what is durable.
    dirty: BTreeMap<u64, u8>,
}

impl Inode {
    pub(super) fn new(now: i64) -> Self {
        let seen = Contents { modified_ns: now, ..Contents::default() };
        Self { durable: seen.clone(), seen, dirty: BTreeMap::new() }
    }

    pub(super) fn size(&self) -> u64 {
        self.seen.size
    }

    pub(super) fn blocks(&self) -> u64 {
        self.seen.blocks.len() as u64
    }

    pub(super) fn touch(&mut self, now: i64) {
        self.seen.modified_ns = now;
    }

    pub(super) fn stat(&self, inode: u64, links: u64) -> Stat {
        Stat {
            inode,
            links,
            size: self.seen.size,
            allocated: self.blocks() * BLOCK,
            modified_ns: self.seen.modified_ns,
            changed_ns: self.seen.modified_ns,
        }
    }

    /// Blocks of the range that are not allocated yet.
    pub(super) fn missing(&self, offset: u64, len: u64) -> u64 {
        let (first, end) = (offset / BLOCK, (offset + len).div_ceil(BLOCK));
        (end - first) - self.seen.blocks.range(first..end).count() as u64
    }

    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) {
        for (index, piece) in buffer.chunks_mut(BLOCK as usize).enumerate() {
            let at = offset + index as u64 * BLOCK;
            assert!(at.is_multiple_of(BLOCK), "direct reads must be aligned, not at {at}");
            match self.seen.blocks.get(&(at / BLOCK)) {
                Some(block) if at < self.seen.size => piece.copy_from_slice(&block.bytes[..piece.len()]),
                _ => piece.fill(0),
            }
        }
    }

    pub(super) fn contents(&self) -> Vec<u8> {
        let mut contents = vec![0; self.seen.size.next_multiple_of(BLOCK) as usize];
        self.read(0, &mut contents);
        contents.truncate(self.seen.size as usize);
        contents
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8], now: i64) {
        assert!(offset.is_multiple_of(BLOCK) && (data.len() as u64).is_multiple_of(BLOCK), "direct writes are blocks");
        for (index, piece) in data.chunks(BLOCK as usize).enumerate() {
            let number = offset / BLOCK + index as u64;
            self.seen.blocks.insert(number, Block { bytes: piece.into(), written: true });
            self.dirty.insert(number, !0);
        }
        self.seen.size = self.seen.size.max(offset + data.len() as u64);
        self.touch(now);
    }

    /// The whole file, of any length.
    pub(super) fn replace(&mut self, contents: &[u8]) {
        let old: Vec<u64> = self.seen.blocks.keys().copied().collect();
        self.dirty.extend(old.into_iter().map(|number| (number, !0)));
        self.seen.blocks.clear();
        for (number, piece) in contents.chunks(BLOCK as usize).enumerate() {
            let mut bytes = piece.to_vec();
            bytes.resize(BLOCK as usize, 0);
            self.seen.blocks.insert(number as u64, Block { bytes: bytes.into(), written: true });
            self.dirty.insert(number as u64, !0);
        }
        self.seen.size = contents.len() as u64;
    }

    pub(super) fn resize(&mut self, size: u64) {
        let gone = self.seen.blocks.split_off(&size.div_ceil(BLOCK));
        self.dirty.extend(gone.into_keys().map(|number| (number, !0)));
        self.seen.size = size;
    }

    pub(super) fn punch(&mut self, offset: u64, len: u64, now: i64) {
        for number in offset / BLOCK..(offset + len) / BLOCK {
            if self.seen.blocks.remove(&number).is_some() {
                self.dirty.insert(number, !0);
            }
        }
        self.touch(now);
    }

    pub(super) fn zero(&mut self, offset: u64, len: u64, now: i64) {
        let zeroes: Arc<[u8]> = vec![0; BLOCK as usize].into();
        for number in offset / BLOCK..(offset + len) / BLOCK {
            self.seen.blocks.insert(number, Block { bytes: Arc::clone(&zeroes), written: false });
            self.dirty.insert(number, !0);
        }
        self.touch(now);
    }

    /// All of it, with the time of change.
    pub(super) fn sync(&mut self) {
        self.sync_data();
        self.durable.modified_ns = self.seen.modified_ns;
    }

    /// Data and length, but not the time of change.
    pub(super) fn sync_data(&mut self) {
        self.durable = Contents { modified_ns: self.durable.modified_ns, ..self.seen.clone() };
        self.dirty.clear();
    }

    pub(super) fn sync_range(&mut self, offset: u64, len: u64) {
        for number in offset / BLOCK..(offset + len).div_ceil(BLOCK) {
            match self.seen.blocks.get(&number) {
                Some(block) => drop(self.durable.blocks.insert(number, block.clone())),
                None => drop(self.durable.blocks.remove(&number)),
            }
            self.dirty.remove(&number);
        }
        self.durable.size = self.durable.size.max((offset + len).min(self.seen.size));
    }

    pub(super) fn extents(&self, start: u64, end: u64, each: EachExtent<'_>) {
        let mut run: Option<(u64, u64, bool)> = None;
        let blocks = self.seen.blocks.range(start / BLOCK..end.div_ceil(BLOCK));
        for (number, written) in blocks.map(|(number, block)| (*number, block.written)) {
            match &mut run {
                Some((_, to, same)) if *to == number && *same == written => *to += 1,
                _ => {
                    if let Some((from, to, written)) = run.replace((number, number + 1, written)) {
                        each((from * BLOCK).max(start), (to * BLOCK).min(end), written);
                    }
                }
            }
        }
        if let Some((from, to, written)) = run {
            each((from * BLOCK).max(start), (to * BLOCK).min(end), written);
        }
    }

    pub(super) fn flip_bit(&mut self, byte: u64, bit: u8) -> bool {
        let mut hit = false;
        for contents in [&mut self.seen, &mut self.durable] {
            if let Some(block) = contents.blocks.get_mut(&(byte / BLOCK)) {
                let mut bytes = block.bytes.to_vec();
                bytes[(byte % BLOCK) as usize] ^= 1 << bit;
                block.bytes = bytes.into();
                hit = true;
            }
        }
        hit
    }

    /// What is left after the power failed. `mood`: 0 keeps everything, 1 nothing that was not durable, others
    /// throw dice for each sector.
    pub(super) fn lose_power(&mut self, random: &mut Random, mood: u64) {
        let keep = |random: &mut Random| match mood {
            0 => true,
            1 => false,
            _ => random.coin(),
        };
        for (number, sectors) in std::mem::take(&mut self.dirty) {
            let (new, old) = (self.seen.blocks.get(&number), self.durable.blocks.get(&number));
            let left = match (new, old) {
                (None, None) => None,
                // Which blocks there are is metadata: a hole is made or it is not.
                (None, Some(old)) => (!keep(random)).then(|| old.clone()),
                (Some(new), Some(old)) if new.written && old.written => Some(mixed(new, old, sectors, random, keep)),
                // A new block counts as written only when all its data is there; until then it may be allocated.
                (Some(new), old) => match (keep(random), keep(random)) {
                    (true, true) => Some(new.clone()),
                    (true, false) => Some(Block { bytes: vec![0; BLOCK as usize].into(), written: false }),
                    (false, _) => old.cloned(),
                },
            };
            match left {
                Some(block) => drop(self.durable.blocks.insert(number, block)),
                None => drop(self.durable.blocks.remove(&number)),
            }
        }
        if keep(random) {
            self.durable.size = self.seen.size;
        }
        let size = self.durable.size;
        self.durable.blocks.split_off(&size.div_ceil(BLOCK));
        if keep(random) {
            self.durable.modified_ns = self.seen.modified_ns;
        }
        self.seen = self.durable.clone();
    }
}

/// Each dirty sector old or new.
fn mixed(new: &Block, old: &Block, sectors: u8, random: &mut Random, keep: impl Fn(&mut Random) -> bool) -> Block {
    let mut bytes = old.bytes.to_vec();
    for (index, sector) in bytes.chunks_exact_mut(SECTOR).enumerate() {
        if sectors >> index & 1 == 1 && keep(random) {
            sector.copy_from_slice(&new.bytes[index * SECTOR..(index + 1) * SECTOR]);
        }
    }
    Block { bytes: bytes.into(), written: true }
}
