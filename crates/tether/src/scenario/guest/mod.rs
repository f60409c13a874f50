//! A guest that uses the volume all the time and checks every byte of it: it writes where the volume is, and follows it.
//!
//! Each block belongs to one of two workers, which writes versions 1, 2, 3, … of it. A version that was acknowledged must be
//! read afterwards, or a newer one; one that was only sent may be there or not, but what was read once stays.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::nbd::{self, Client, Failure};

const BLOCK_BYTES: usize = 4096;
/// Blocks are spread over the volume, so that they lie in different regions of the activity log.
const BLOCKS: u64 = 64;
const WORKERS: u64 = 2;
/// Between two looks for where the volume is.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Until the last check of all blocks must be done.
const LAST_CHECK: Duration = Duration::from_secs(30);

/// What is known of one block.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    /// The newest version that was acknowledged or read.
    certain: u64,
    /// The newest version that was sent and may be there.
    sent: u64,
    /// The last version that was made; none is made twice, so that one that comes late is recognised.
    made: u64,
}

/// Where a guest finds its volume.
pub(crate) trait Whereabouts: Send + Sync + 'static {
    /// Where it is served now; none: nowhere.
    fn endpoint(&self) -> Option<String>;
    /// For how long it was attached between two moments.
    fn attached_between(&self, from: Instant, to: Instant) -> Duration;
}

struct Shared {
    volume: Box<dyn Whereabouts>,
    stop: AtomicBool,
    acknowledged: AtomicU64,
    blocks: Vec<Mutex<Block>>,
    told: Mutex<Told>,
}

/// What a guest has to say in the end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    pub(crate) acknowledged: u64,
    /// The longest time without an answer while the volume was attached.
    pub(crate) longest_stall: Duration,
    /// What must not be.
    pub(crate) violations: Vec<String>,
    /// How often it had to look for the volume anew.
    pub(crate) moves: u64,
}

/// A guest that is at work until it is told to stop.
pub(crate) struct Guest {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Guest {
    /// Starts to use a volume.
    pub(crate) fn start(volume: impl Whereabouts) -> Self {
        let shared = Arc::new(Shared {
            volume: Box::new(volume),
            stop: AtomicBool::new(false),
            acknowledged: AtomicU64::new(0),
            blocks: (0..BLOCKS).map(|_| Mutex::default()).collect(),
            told: Mutex::default(),
        });
        let spawn = |worker: u64| {
            let shared = shared.clone();
            thread::spawn(move || Worker { shared, number: worker, random: worker + 1, last: Instant::now() }.run())
        };
        Self { workers: (0..WORKERS).map(spawn).collect(), shared }
    }

    pub(crate) fn acknowledged(&self) -> u64 {
        self.shared.acknowledged.load(Ordering::Relaxed)
    }

    /// What has gone wrong so far.
    #[cfg(test)]
    fn violations(&self) -> Vec<String> {
        self.shared.told.lock().violations.clone()
    }

    /// Lets the workers finish, reads everything once more, and tells. With `plant`, one byte is made wrong before that.
    pub(crate) fn finish(self, plant: bool) -> Told {
        self.shared.stop.store(true, Ordering::Relaxed);
        for worker in self.workers {
            if worker.join().is_err() {
                self.shared.told.lock().violations.push("a worker of the guest panicked".to_owned());
            }
        }
        let planted = if plant { self.shared.plant() } else { Ok(()) };
        if let Err(why) = planted.and_then(|()| self.shared.verify()) {
            self.shared.told.lock().violations.push(why);
        }
        let mut told = self.shared.told.lock().clone();
        told.acknowledged = self.shared.acknowledged.load(Ordering::Relaxed);
        told
    }
}

impl Shared {
    fn offset(size: u64, block: u64) -> u64 {
        let stride = size / BLOCKS / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        block * stride
    }

    /// Holds what was read against what is known.
    fn judge(&self, block: u64, data: &[u8]) {
        let mut known = self.blocks[block as usize].lock();
        let why = match version(block, data) {
            None => "torn or foreign content".to_owned(),
            Some(found) if found < known.certain || found > known.sent => {
                format!("version {found}, but {} was acknowledged and {} sent", known.certain, known.sent)
            }
            Some(found) => {
                // What was sent and is not there must never come any more.
                (known.certain, known.sent) = (found, found);
                return;
            }
        };
        self.told.lock().violations.push(format!("block {block}: {why}"));
    }

    /// Connects to where the volume is now.
    fn connect(&self) -> Result<Client, String> {
        let endpoint =
            self.volume.endpoint().ok_or("the volume is served nowhere, so that nothing could be checked")?;
        let (address, name) = nbd::parse(&endpoint).ok_or_else(|| format!("{endpoint}: not an NBD endpoint"))?;
        Client::connect(address, &name).map_err(|error| format!("{endpoint} cannot be reached: {error}"))
    }

    /// Reads every block where the volume is now.
    fn verify(&self) -> Result<(), String> {
        let mut client = self.connect()?;
        let deadline = Instant::now() + LAST_CHECK;
        for block in 0..BLOCKS {
            let offset = Self::offset(client.size, block);
            let read = client.read(offset, BLOCK_BYTES, &|| Instant::now() > deadline);
            self.judge(block, &read.map_err(|error| format!("block {block} could not be read in the end: {error}"))?);
        }
        Ok(())
    }

    /// Makes one byte of a block wrong, behind the workers' back.
    fn plant(&self) -> Result<(), String> {
        let mut client = self.connect()?;
        let deadline = Instant::now() + LAST_CHECK;
        let over = || Instant::now() > deadline;
        let mut change = || {
            let mut data = client.read(0, BLOCK_BYTES, &over)?;
            data[BLOCK_BYTES / 2] ^= 1;
            client.write(0, &data, &over)
        };
        change().map_err(|error: Failure| format!("the wrong byte could not be planted: {error}"))
    }
}

struct Worker {
    shared: Arc<Shared>,
    number: u64,
    random: u64,
    /// When something was answered last.
    last: Instant,
}

impl Worker {
    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn is_over(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }

    fn run(mut self) {
        while !self.is_over() {
            let endpoint = self.shared.volume.endpoint();
            let client = endpoint.as_ref().and_then(|endpoint| {
                let (address, name) = nbd::parse(endpoint)?;
                Client::connect(address, &name).ok()
            });
            if let (Some(endpoint), Some(client)) = (endpoint, client) {
                self.use_up(&endpoint, client);
                self.shared.told.lock().moves += 1;
            }
            thread::sleep(LOOK_AGAIN);
        }
    }

    /// Works on one connection until it is of no use.
    fn use_up(&mut self, endpoint: &str, mut client: Client) {
        let shared = self.shared.clone();
        // A request is waited for as long as the volume may still answer it there.
        let abandon =
            || shared.stop.load(Ordering::Relaxed) || shared.volume.endpoint().is_some_and(|now| now != endpoint);
        while !self.is_over() {
            let block = self.next() % (BLOCKS / WORKERS) * WORKERS + self.number;
            let offset = Shared::offset(client.size, block);
            let result = match self.next() % 8 {
                0 => client.read(offset, BLOCK_BYTES, &abandon).map(|data| shared.judge(block, &data)),
                1 => client.flush(&abandon),
                _ => write(&shared, &mut client, block, offset, &abandon),
            };
            match result {
                Ok(()) => self.answered(),
                Err(Failure::Refused(_) | Failure::Broken(_) | Failure::Abandoned) => return,
            }
        }
    }

    fn answered(&mut self) {
        let now = Instant::now();
        let stall = self.shared.volume.attached_between(self.last, now);
        self.last = now;
        self.shared.acknowledged.fetch_add(1, Ordering::Relaxed);
        let mut told = self.shared.told.lock();
        told.longest_stall = told.longest_stall.max(stall);
    }
}

fn write(
    shared: &Shared,
    client: &mut Client,
    block: u64,
    offset: u64,
    abandon: &dyn Fn() -> bool,
) -> Result<(), Failure> {
    let version = {
        let mut known = shared.blocks[block as usize].lock();
        known.made += 1;
        known.sent = known.made;
        known.sent
    };
    client.write(offset, &content(block, version), abandon)?;
    shared.blocks[block as usize].lock().certain = version;
    Ok(())
}

/// A version of a block: both numbers in every 16 bytes, so that parts of two versions can be told apart.
fn content(block: u64, version: u64) -> Vec<u8> {
    let mut unit = version.to_le_bytes().to_vec();
    unit.extend(block.to_le_bytes());
    unit.repeat(BLOCK_BYTES / unit.len())
}

/// Which version this is; 0: it was never written; none: it is no version of this block.
fn version(block: u64, data: &[u8]) -> Option<u64> {
    if data.iter().all(|byte| *byte == 0) {
        return Some(0);
    }
    let first = u64::from_le_bytes(data.get(..8)?.try_into().ok()?);
    (data == content(block, first)).then_some(first)
}

#[cfg(test)]
mod tests;
