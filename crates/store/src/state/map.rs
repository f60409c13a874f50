//! A set of regions, and its sectors on disk.

use std::ops::Range;

use crate::AlignedBuf;
use crate::buffer::BLOCK;

/// Bytes that reach the disk together or not at all.
const SECTOR: usize = 512;
const MAGIC: [u8; 4] = *b"TMAP";
/// Magic, number of the map, index of the sector, checksum.
const PREFIX_BYTES: usize = 16;
const REGIONS_PER_SECTOR: u64 = (SECTOR - PREFIX_BYTES) as u64 * 8;
const SECTORS_PER_BLOCK: usize = BLOCK as usize / SECTOR;
const REGIONS_PER_BLOCK: u64 = REGIONS_PER_SECTOR * SECTORS_PER_BLOCK as u64;

/// Blocks that a map of `regions` regions takes.
pub fn blocks(regions: u64) -> usize {
    regions.div_ceil(REGIONS_PER_BLOCK) as usize
}

/// The block of a map that holds `region`.
pub fn block_of(region: u64) -> usize {
    (region / REGIONS_PER_BLOCK) as usize
}

/// A set of regions of the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionMap {
    words: Vec<u64>,
    regions: u64,
    count: u64,
}

impl RegionMap {
    pub fn new(regions: u64) -> Self {
        Self { words: vec![0; regions.div_ceil(64) as usize], regions, count: 0 }
    }

    pub fn regions(&self) -> u64 {
        self.regions
    }

    /// How many regions are in the set.
    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn contains(&self, region: u64) -> bool {
        region < self.regions && self.words[(region / 64) as usize] >> (region % 64) & 1 == 1
    }

    /// Whether it was not in the set before.
    pub fn insert(&mut self, region: u64) -> bool {
        let new = region < self.regions && !self.contains(region);
        if new {
            self.words[(region / 64) as usize] |= 1 << (region % 64);
            self.count += 1;
        }
        new
    }

    /// Whether it was in the set before.
    pub fn remove(&mut self, region: u64) -> bool {
        let old = self.contains(region);
        if old {
            self.words[(region / 64) as usize] &= !(1 << (region % 64));
            self.count -= 1;
        }
        old
    }

    /// In order.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        self.words.iter().enumerate().flat_map(|(index, word)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                (left != 0).then(|| {
                    let bit = left.trailing_zeros();
                    left &= left - 1;
                    index as u64 * 64 + u64::from(bit)
                })
            })
        })
    }

    pub fn grow(&mut self, regions: u64) {
        self.words.resize(regions.div_ceil(64) as usize, 0);
        self.regions = self.regions.max(regions);
    }

    fn sector_regions(&self, sector: u64) -> Range<u64> {
        let start = (sector * REGIONS_PER_SECTOR).min(self.regions);
        start..(start + REGIONS_PER_SECTOR).min(self.regions)
    }

    /// The `index`th block of this map, which is number `number` of its file.
    pub fn render(&self, number: usize, index: usize) -> AlignedBuf {
        let mut block = AlignedBuf::zeroed(BLOCK as usize);
        for (at, sector) in block.chunks_exact_mut(SECTOR).enumerate() {
            let place = (index * SECTORS_PER_BLOCK + at) as u64;
            for region in self.sector_regions(place) {
                if self.contains(region) {
                    let bit = region % REGIONS_PER_SECTOR;
                    sector[PREFIX_BYTES + (bit / 8) as usize] |= 1 << (bit % 8);
                }
            }
            seal(sector, number, place);
        }
        block
    }

    /// Adds what the `index`th block says; a sector that does not add up adds all its regions.
    pub fn load(&mut self, number: usize, index: usize, block: &[u8]) {
        for at in 0..SECTORS_PER_BLOCK {
            let place = (index * SECTORS_PER_BLOCK + at) as u64;
            let sector = block.get(at * SECTOR..(at + 1) * SECTOR).unwrap_or_default();
            let sound = is_sound(sector, number, place);
            for region in self.sector_regions(place) {
                let bit = region % REGIONS_PER_SECTOR;
                if !sound || sector[PREFIX_BYTES + (bit / 8) as usize] >> (bit % 8) & 1 == 1 {
                    self.insert(region);
                }
            }
        }
    }
}

fn seal(sector: &mut [u8], number: usize, place: u64) {
    sector[..4].copy_from_slice(&MAGIC);
    sector[4..8].copy_from_slice(&(number as u32).to_le_bytes());
    sector[8..12].copy_from_slice(&(place as u32).to_le_bytes());
    let crc = checksum(sector);
    sector[12..16].copy_from_slice(&crc.to_le_bytes());
}

fn checksum(sector: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&sector[..12]);
    crc.update(&sector[PREFIX_BYTES..]);
    crc.finalize()
}

/// Whether a sector is what was written to this place.
fn is_sound(sector: &[u8], number: usize, place: u64) -> bool {
    sector.len() == SECTOR
        && sector[..4] == MAGIC
        && sector[4..8] == (number as u32).to_le_bytes()
        && sector[8..12] == (place as u32).to_le_bytes()
        && sector[12..16] == checksum(sector).to_le_bytes()
}
