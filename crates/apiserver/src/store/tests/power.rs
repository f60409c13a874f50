//! A disk in memory that can lose power, and fail, as real ones do.
//!
//! Reads see everything that was written. A sync makes it last. When power is lost, each sector that was written since
//! the last sync ends up, independently of the others, with any one of the contents it had since then; so writes are
//! lost, reordered and torn. The length is treated alike. A sync that *fails* is worse: what was written is still
//! read back, but is no longer waiting to be written, until somebody drops the page cache.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use redb::StorageBackend;

use super::super::Medium;

pub(super) const SECTOR: usize = 512;

/// `SplitMix64`: small, seeded, the same everywhere.
#[derive(Clone)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub(super) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(super) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// What goes wrong, and when. Counts are in operations of that kind from now on; 1 is the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Power is lost as this sync is asked for; if `late`, after it was done but before it said so.
    PowerAtSync { nth: usize, late: bool },
    /// This write and all later ones fail, until the fault is cleared.
    Write { nth: usize, kind: io::ErrorKind },
    /// This sync fails, once, after it wrote some of what it should.
    Sync { nth: usize, seed: u64 },
}

#[derive(Default)]
struct Platter {
    durable: Vec<u8>,
    /// What reads see.
    cached: Vec<u8>,
    /// Contents that each sector had since the last sync, in order.
    unsynced: BTreeMap<usize, Vec<[u8; SECTOR]>>,
    /// Lengths since the last sync, in order.
    lengths: Vec<usize>,
    fault: Option<Fault>,
    /// Nothing works until the power is back, or the killed process was started again.
    dead: bool,
    published: bool,
}

fn sector_of(image: &[u8], sector: usize) -> [u8; SECTOR] {
    let mut content = [0; SECTOR];
    let start = (sector * SECTOR).min(image.len());
    let end = (start + SECTOR).min(image.len());
    content[..end - start].copy_from_slice(&image[start..end]);
    content
}

fn set_sector(image: &mut [u8], sector: usize, content: &[u8; SECTOR]) {
    let start = (sector * SECTOR).min(image.len());
    let end = (start + SECTOR).min(image.len());
    image[start..end].copy_from_slice(&content[..end - start]);
}

impl Platter {
    fn alive(&self) -> io::Result<()> {
        if self.dead { Err(io::Error::other("no power")) } else { Ok(()) }
    }

    /// Everything unsynced reaches the disk; what a failed sync left behind as clean does not.
    fn settle(&mut self) {
        if let Some(length) = self.lengths.last() {
            self.durable.resize(*length, 0);
        }
        for (sector, contents) in std::mem::take(&mut self.unsynced) {
            set_sector(&mut self.durable, sector, contents.last().unwrap());
        }
        self.lengths.clear();
    }

    /// Some of what was not synced reaches the disk, as `rng` decides.
    fn scatter(&mut self, rng: &mut Rng) {
        // Some losses take nearly everything, some nearly nothing, most something in between.
        let percent_kept = *rng.pick(&[0, 10, 50, 50, 90, 100]);
        if let Some(length) = self.lengths.last().copied()
            && rng.chance(percent_kept)
        {
            let length = if rng.chance(50) { length } else { *rng.pick(&self.lengths) };
            self.durable.resize(length, 0);
        }
        for (sector, contents) in std::mem::take(&mut self.unsynced) {
            if rng.chance(percent_kept) {
                let content = if rng.chance(50) { contents.last().unwrap() } else { rng.pick(&contents) };
                set_sector(&mut self.durable, sector, content);
            }
        }
        self.lengths.clear();
    }
}

/// Handle to one disk, which outlives the stores opened on it.
#[derive(Clone, Default)]
pub(super) struct PowerDisk(Arc<Mutex<Platter>>);

impl PowerDisk {
    pub(super) fn arm(&self, fault: Option<Fault>) {
        self.0.lock().fault = fault;
    }

    /// The process is gone, the machine is not: everything written will be there, nothing more is written.
    pub(super) fn kill_process(&self) {
        self.0.lock().dead = true;
    }

    pub(super) fn restart_process(&self) {
        self.0.lock().dead = false;
    }

    /// Power is lost, if it was not yet, and comes back.
    pub(super) fn power_cycle(&self, rng: &mut Rng) {
        let mut platter = self.0.lock();
        platter.scatter(rng);
        platter.cached = platter.durable.clone();
        platter.dead = false;
        platter.fault = None;
    }

    pub(super) fn image(&self) -> Vec<u8> {
        self.0.lock().cached.clone()
    }

    /// A disk with this content, and nothing unsynced.
    pub(super) fn with_image(image: Vec<u8>) -> Self {
        let platter = Platter { durable: image.clone(), cached: image, published: true, ..Platter::default() };
        Self(Arc::new(Mutex::new(platter)))
    }
}

impl std::fmt::Debug for PowerDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PowerDisk")
    }
}

impl StorageBackend for PowerDisk {
    fn len(&self) -> io::Result<u64> {
        let platter = self.0.lock();
        platter.alive()?;
        Ok(platter.cached.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let platter = self.0.lock();
        platter.alive()?;
        let start = offset as usize;
        let from = platter.cached.get(start..start + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(from);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut platter = self.0.lock();
        platter.alive()?;
        platter.cached.resize(len as usize, 0);
        platter.lengths.push(len as usize);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut platter = self.0.lock();
        platter.alive()?;
        match platter.fault {
            Some(Fault::PowerAtSync { nth: 1, late }) => {
                if late {
                    platter.settle();
                }
                platter.dead = true;
                return Err(io::Error::other("power lost"));
            }
            Some(Fault::Sync { nth: 1, seed }) => {
                platter.fault = None;
                // As far as the kernel is concerned all pages are clean now.
                platter.scatter(&mut Rng::new(seed));
                return Err(io::Error::other("fsync failed"));
            }
            Some(Fault::PowerAtSync { ref mut nth, .. } | Fault::Sync { ref mut nth, .. }) => *nth -= 1,
            _ => {}
        }
        platter.settle();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut platter = self.0.lock();
        platter.alive()?;
        match &mut platter.fault {
            Some(Fault::Write { nth: 1, kind }) => return Err((*kind).into()),
            Some(Fault::Write { nth, .. }) => *nth -= 1,
            _ => {}
        }
        let start = offset as usize;
        if platter.cached.len() < start + data.len() {
            platter.cached.resize(start + data.len(), 0);
            let length = platter.cached.len();
            platter.lengths.push(length);
        }
        platter.cached[start..start + data.len()].copy_from_slice(data);
        for sector in start / SECTOR..(start + data.len()).div_ceil(SECTOR) {
            let content = sector_of(&platter.cached, sector);
            platter.unsynced.entry(sector).or_default().push(content);
        }
        Ok(())
    }
}

impl Medium for PowerDisk {
    fn name(&self) -> String {
        "power-loss disk".to_owned()
    }

    fn open(&self) -> io::Result<Option<Box<dyn StorageBackend>>> {
        let platter = self.0.lock();
        platter.alive()?;
        Ok(platter.published.then(|| Box::new(self.clone()) as Box<dyn StorageBackend>))
    }

    fn create(&self) -> io::Result<Box<dyn StorageBackend>> {
        Ok(Box::new(self.clone()))
    }

    fn publish(&self) -> io::Result<bool> {
        self.0.lock().published = true;
        Ok(true)
    }

    fn forget_cached(&self) {
        let mut platter = self.0.lock();
        let mut on_disk = platter.durable.clone();
        // Dirty pages stay; clean ones are read again.
        if let Some(length) = platter.lengths.last() {
            on_disk.resize(*length, 0);
        }
        for (sector, contents) in &platter.unsynced {
            set_sector(&mut on_disk, *sector, contents.last().unwrap());
        }
        platter.cached = on_disk;
    }
}
