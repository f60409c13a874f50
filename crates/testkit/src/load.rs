//! Verified load: writes that can be recognised, and a ledger of what was acknowledged.
//!
//! Each block of the volume belongs to one worker, which writes versions 1, 2, 3, … of it. A version that was
//! acknowledged must be read afterwards, or a newer one; a version that was only sent may be there or not, but once it
//! was read it stays. A block never holds parts of two versions.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::disk::{Disk, Place};
use crate::nbd::Failure;

/// Bytes of a block.
pub const BLOCK_BYTES: u32 = 4096;

/// What is known of one block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Entry {
    /// The newest version that was acknowledged or read.
    certain: u64,
    /// The newest version that was sent.
    sent: u64,
}

/// What was acknowledged, block by block.
#[derive(Debug)]
pub struct Ledger {
    blocks: Vec<Mutex<Entry>>,
    /// Distance between blocks, so that they lie in different regions.
    stride: u64,
}

/// What became of a load.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub acknowledged: u64,
    /// Requests that the server refused, by error number.
    pub refused: Vec<u32>,
    /// Why workers ended before they were told to.
    pub broken: Vec<String>,
    /// What must not be: contents that contradict the ledger.
    pub violations: Vec<String>,
    /// The longest time between two acknowledgements of one worker.
    pub longest_stall: Duration,
}

impl Ledger {
    /// A ledger of `count` blocks spread over a volume of `size` bytes.
    pub fn new(count: u64, size: u64) -> Arc<Self> {
        let stride = size / count / u64::from(BLOCK_BYTES) * u64::from(BLOCK_BYTES);
        assert!(stride > 0, "the volume must have room for {count} blocks");
        Arc::new(Self { blocks: (0..count).map(|_| Mutex::default()).collect(), stride })
    }

    fn offset(&self, block: usize) -> u64 {
        block as u64 * self.stride
    }

    fn entry(&self, block: usize) -> std::sync::MutexGuard<'_, Entry> {
        self.blocks[block].lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Reads a block and holds it against the ledger.
    fn check(&self, client: &mut Disk, block: usize) -> Result<Result<(), String>, Failure> {
        let data = client.read(self.offset(block), BLOCK_BYTES)?;
        let mut entry = self.entry(block);
        Ok(match version(block, &data) {
            Err(why) => Err(format!("block {block}: {why}")),
            Ok(found) if found < entry.certain || found > entry.sent => Err(format!(
                "block {block}: version {found}, but {} was acknowledged and {} sent",
                entry.certain, entry.sent
            )),
            Ok(found) => {
                // What was sent and is not there must never come any more, whoever reads next.
                *entry = Entry { certain: found, sent: found };
                Ok(())
            }
        })
    }

    /// Reads every block. What contradicts the ledger is returned.
    pub fn verify(&self, place: impl Into<Place>) -> Vec<String> {
        let mut client = match place.into().open() {
            Ok(client) => client,
            Err(error) => return vec![format!("cannot connect: {error}")],
        };
        let mut violations = Vec::new();
        for block in 0..self.blocks.len() {
            match self.check(&mut client, block) {
                Ok(Ok(())) => {}
                Ok(Err(why)) => violations.push(why),
                Err(failure) => {
                    violations.push(format!("block {block}: {failure}"));
                    break;
                }
            }
        }
        violations
    }

    /// Versions acknowledged so far, over all blocks.
    pub fn acknowledged(&self) -> u64 {
        (0..self.blocks.len()).map(|block| self.entry(block).certain).sum()
    }
}

/// The content of a version: its number and block in every 16 bytes.
fn content(block: usize, version: u64) -> Vec<u8> {
    let mut data = Vec::with_capacity(BLOCK_BYTES as usize);
    while data.len() < BLOCK_BYTES as usize {
        data.extend(version.to_le_bytes());
        data.extend((block as u64).to_le_bytes());
    }
    data
}

fn version(block: usize, data: &[u8]) -> Result<u64, String> {
    let first = u64::from_le_bytes(data[..8].try_into().expect("eight bytes"));
    if first == 0 && data.iter().all(|byte| *byte == 0) {
        return Ok(0);
    }
    if data == content(block, first) { Ok(first) } else { Err(format!("torn or foreign content near version {first}")) }
}

/// Workers that write and read until they are told to stop.
#[derive(Debug)]
pub struct Load {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    workers: Vec<JoinHandle<Report>>,
}

impl Load {
    /// Starts `workers` workers on the volume at `place`. A worker ends when its connection breaks.
    pub fn start(ledger: &Arc<Ledger>, place: impl Into<Place>, workers: usize, seed: u64) -> Self {
        let place = place.into();
        let stop = Arc::new(AtomicBool::new(false));
        let acknowledged = Arc::new(AtomicU64::new(0));
        let spawn = |worker: usize| {
            let task = Worker {
                ledger: ledger.clone(),
                place: place.clone(),
                stop: stop.clone(),
                acknowledged: acknowledged.clone(),
                mine: (worker..ledger.blocks.len()).step_by(workers).collect(),
                random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (worker as u64 + 1),
            };
            thread::spawn(move || task.run())
        };
        let workers = (0..workers).map(spawn).collect();
        Self { stop, acknowledged, workers }
    }

    /// Acknowledgements so far.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Whether `more` further acknowledgements come before `limit` is over.
    pub fn goes_on(&self, more: u64, limit: Duration) -> bool {
        self.reaches(self.acknowledged() + more, limit)
    }

    /// Whether there are `total` acknowledgements before `limit` is over.
    pub fn reaches(&self, total: u64, limit: Duration) -> bool {
        let start = Instant::now();
        while self.acknowledged() < total {
            if start.elapsed() > limit {
                return false;
            }
            thread::sleep(Duration::from_millis(5));
        }
        true
    }

    /// Stops the workers and adds up what became of them.
    pub fn finish(self) -> Report {
        self.stop.store(true, Ordering::Relaxed);
        let mut total = Report::default();
        for worker in self.workers {
            let report = worker.join().expect("a worker must not panic");
            total.acknowledged += report.acknowledged;
            total.refused.extend(report.refused);
            total.broken.extend(report.broken);
            total.violations.extend(report.violations);
            total.longest_stall = total.longest_stall.max(report.longest_stall);
        }
        total
    }
}

struct Worker {
    ledger: Arc<Ledger>,
    place: Place,
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    mine: Vec<usize>,
    random: u64,
}

impl Worker {
    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn run(mut self) -> Report {
        let mut report = Report::default();
        let mut client = match self.place.open() {
            Ok(client) => client,
            Err(error) => {
                report.broken.push(format!("cannot connect: {error}"));
                return report;
            }
        };
        let mut last = Instant::now();
        while !self.stop.load(Ordering::Relaxed) {
            let at = self.next() % self.mine.len() as u64;
            let block = self.mine[at as usize];
            let result = match self.next() % 8 {
                0 => self.read(&mut client, block, &mut report),
                1 => client.flush(),
                _ => self.write(&mut client, block),
            };
            // Who writes to a file makes it durable as often as not.
            let sync = matches!(self.place, Place::File(_)) && self.next().is_multiple_of(2);
            let result = if sync { result.and_then(|()| client.flush()) } else { result };
            match result {
                Ok(()) => {
                    report.acknowledged += 1;
                    self.acknowledged.fetch_add(1, Ordering::Relaxed);
                    report.longest_stall = report.longest_stall.max(last.elapsed());
                    last = Instant::now();
                }
                Err(Failure::Refused(number)) => {
                    report.refused.push(number);
                    // A server that refuses everything is not asked without pause.
                    thread::sleep(Duration::from_millis(10));
                }
                Err(failure @ Failure::Broken(_)) => {
                    report.broken.push(failure.to_string());
                    return report;
                }
            }
        }
        report
    }

    fn write(&self, client: &mut Disk, block: usize) -> Result<(), Failure> {
        let version = {
            let mut entry = self.ledger.entry(block);
            entry.sent += 1;
            entry.sent
        };
        client.write(self.ledger.offset(block), &content(block, version))?;
        self.ledger.entry(block).certain = version;
        Ok(())
    }

    fn read(&self, client: &mut Disk, block: usize, report: &mut Report) -> Result<(), Failure> {
        if let Err(why) = self.ledger.check(client, block)? {
            report.violations.push(why);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_tell_versions_apart() {
        assert_eq!(version(3, &content(3, 7)), Ok(7));
        assert_eq!(version(3, &[0; BLOCK_BYTES as usize]), Ok(0));
        let mut torn = content(3, 7);
        torn[2048..].copy_from_slice(&content(3, 8)[2048..]);
        assert!(version(3, &torn).is_err());
        assert!(version(4, &content(3, 7)).is_err());
    }
}
