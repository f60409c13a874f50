//! The program inside the virtual machine: writes versions of blocks to its disk, reads them back, and tells how far it is.
//!
//! It is compiled by the test, statically, and is the only program in the machine but for the shell that loads drivers. It
//! knows every version that it wrote: what it reads must be the last one. Each line on its console is a sign of life.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 512;
/// Past the guest's page cache, to the disk.
const O_DIRECT: i32 = 0o40000;
/// Every so many writes the whole disk is read.
const SWEEP: u64 = 4000;

/// Memory that a disk can be read into directly.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
}

impl Aligned {
    fn new() -> Self {
        let bytes = vec![0; 2 * BLOCK];
        let start = bytes.as_ptr().align_offset(BLOCK);
        Self { bytes, start }
    }

    fn block(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + BLOCK]
    }
}

/// Both numbers in every 16 bytes.
fn fill(data: &mut [u8], block: u64, version: u64) {
    for unit in data.chunks_exact_mut(16) {
        unit[..8].copy_from_slice(&version.to_le_bytes());
        unit[8..].copy_from_slice(&block.to_le_bytes());
    }
}

fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}

fn check(disk: &File, buffer: &mut Aligned, block: u64, version: u64) -> bool {
    if let Err(error) = disk.read_exact_at(buffer.block(), block * BLOCK as u64) {
        say(&format!("BAD block {block}: {error}\n"));
        return false;
    }
    let mut wanted = vec![0; BLOCK];
    if version > 0 {
        fill(&mut wanted, block, version);
    }
    if buffer.block() != wanted.as_slice() {
        let found = u64::from_le_bytes(buffer.block()[..8].try_into().expect("eight bytes"));
        say(&format!("BAD block {block}: version {found} instead of {version}\n"));
        return false;
    }
    true
}

fn main() {
    let path = std::env::args().nth(1).expect("a disk must be named");
    let disk = OpenOptions::new().read(true).write(true).custom_flags(O_DIRECT).open(&path);
    let disk = disk.expect("the disk must open");
    let (mut buffer, mut versions) = (Aligned::new(), vec![0_u64; BLOCKS as usize]);
    let mut random = 88_172_645_463_325_252_u64;
    say("BEGIN\n");
    for count in 1_u64.. {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let block = random % BLOCKS;
        if random >> 32 & 7 == 0 && !check(&disk, &mut buffer, block, versions[block as usize]) {
            return;
        }
        let version = versions[block as usize] + 1;
        fill(buffer.block(), block, version);
        if let Err(error) = disk.write_all_at(buffer.block(), block * BLOCK as u64) {
            say(&format!("BAD block {block}: {error}\n"));
            return;
        }
        versions[block as usize] = version;
        if count % SWEEP == 0 {
            for (block, version) in versions.iter().enumerate() {
                if !check(&disk, &mut buffer, block as u64, *version) {
                    return;
                }
            }
            say(&format!("SWEPT {count}\n"));
        }
        say(&format!("{count}\n"));
    }
}
