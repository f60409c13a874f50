//! How large an ext file system is by its superblock, and how large it would be on its device.

use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Where ext file systems begin to tell of themselves.
const SUPERBLOCK_AT: u64 = 1024;
const MAGIC: u16 = 0xef53;
/// Of the features that may be unknown, for reading only, and not at all.
const SPARSE_SUPER2: u32 = 0x200;
const SPARSE_SUPER: u32 = 0x1;
const WIDE: u32 = 0x80;
/// Each group has two bitmaps beside its table of inodes, and is not made unless it has so many blocks for data.
const BITMAPS: u64 = 2;
const LEAST_DATA_BLOCKS: u64 = 50;
/// Programs do not leave part of a memory page at the end.
const PAGE_BYTES: u64 = 4096;

/// What of a superblock says how its file system grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    block_bytes: u64,
    blocks: u64,
    first_block: u64,
    group_blocks: u64,
    inode_blocks: u64,
    descriptor_bytes: u64,
    /// Blocks that are kept for descriptors of groups to come.
    reserved_blocks: u64,
    /// Copies of the superblock are in few groups only.
    is_sparse: bool,
}

impl Geometry {
    pub(super) fn read(device: &Path) -> std::io::Result<Option<Self>> {
        let mut read = [0; 1024];
        std::fs::File::open(device)?.read_exact_at(&mut read, SUPERBLOCK_AT)?;
        Ok(Self::of(&read))
    }

    /// None if this is no superblock, or no sane one.
    fn of(superblock: &[u8; 1024]) -> Option<Self> {
        let long = |at: usize| superblock.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
        let short = |at: usize| superblock.get(at..at + 2)?.try_into().ok().map(u16::from_le_bytes);
        if short(0x38)? != MAGIC {
            return None;
        }
        let (compatible, incompatible, read_only) = (long(0x5c)?, long(0x60)?, long(0x64)?);
        let is_wide = incompatible & WIDE != 0;
        let block_bytes = 1024_u64.checked_shl(long(0x18)?).filter(|bytes| (1024..=65_536).contains(bytes))?;
        let high = if is_wide { long(0x150)? } else { 0 };
        let inode_bytes = u64::from(long(0x28)?) * u64::from(short(0x58)?);
        let found = Self {
            block_bytes,
            blocks: u64::from(long(0x04)?) | u64::from(high) << 32,
            first_block: u64::from(long(0x14)?),
            group_blocks: u64::from(long(0x20)?),
            inode_blocks: inode_bytes.div_ceil(block_bytes),
            descriptor_bytes: if is_wide { u64::from(short(0xfe)?) } else { 32 },
            reserved_blocks: u64::from(short(0xce)?),
            is_sparse: read_only & SPARSE_SUPER != 0 && compatible & SPARSE_SUPER2 == 0,
        };
        let is_sane = found.group_blocks > 0 && found.descriptor_bytes > 0 && found.blocks > found.first_block;
        (is_sane && found.bytes().is_some()).then_some(found)
    }

    fn bytes(&self) -> Option<u64> {
        self.blocks.checked_mul(self.block_bytes)
    }

    /// Whether the file system would be larger on a device of so many bytes. A last group that is too small for its own tables
    /// is not made, so that a device may be larger than its file system can be.
    pub(super) fn can_grow_to(&self, device_bytes: u64) -> bool {
        self.fitted(device_bytes) > self.blocks
    }

    fn fitted(&self, device_bytes: u64) -> u64 {
        let mut blocks =
            device_bytes / PAGE_BYTES.max(self.block_bytes) * PAGE_BYTES.max(self.block_bytes) / self.block_bytes;
        loop {
            let used = blocks.saturating_sub(self.first_block);
            let (groups, rest) = (used.div_ceil(self.group_blocks), used % self.group_blocks);
            if groups <= 1 || rest == 0 || rest >= self.tables(groups) + LEAST_DATA_BLOCKS {
                return blocks;
            }
            blocks -= rest;
        }
    }

    /// Blocks that the last of so many groups needs for itself.
    fn tables(&self, groups: u64) -> u64 {
        let descriptors = groups.div_ceil((self.block_bytes / self.descriptor_bytes).max(1));
        let copy = 1 + descriptors + self.reserved_blocks;
        let has_copy = !self.is_sparse || holds_copy(groups - 1);
        BITMAPS + self.inode_blocks + if has_copy { copy } else { 0 }
    }
}

/// Copies of the superblock are in the first two groups, and in those whose number is a power of 3, 5 or 7.
fn holds_copy(group: u64) -> bool {
    let is_power = |base: u64| {
        std::iter::successors(Some(base), |n| n.checked_mul(base)).take_while(|n| *n <= group).any(|n| n == group)
    };
    group <= 1 || [3, 5, 7].into_iter().any(is_power)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn tool(program: &str, args: &[&str], file: &Path) -> bool {
        let mut command = Command::new(program);
        command.args(args).arg(file).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| matches!(status.code(), Some(0 | 1)))
    }

    fn made(file: &tempfile::NamedTempFile, bytes: u64, options: &[&str]) -> Option<Geometry> {
        file.as_file().set_len(0).unwrap();
        file.as_file().set_len(bytes).unwrap();
        let args: Vec<&str> = ["-F", "-q"].iter().chain(options).copied().collect();
        tool("mkfs.ext4", &args, file.path()).then(|| Geometry::read(file.path()).unwrap().unwrap())
    }

    #[test]
    fn a_superblock_tells_how_large_its_file_system_is() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (bytes, options) in [(64 * MIB, ["-b4096", "-Oextent"]), (40 * MIB, ["-b1024", "-O^64bit"])] {
            let Some(found) = made(&file, bytes, &options) else {
                return eprintln!("SKIPPED: mkfs.ext4 is needed");
            };
            assert_eq!(found.bytes(), Some(bytes), "{options:?}");
            assert!(!found.can_grow_to(bytes) && found.can_grow_to(bytes + MIB));
        }
        assert_eq!(Geometry::of(&[0; 1024]), None);
        assert_eq!(Geometry::of(&[0xff; 1024]), None, "garbage is no size");
    }

    /// What is expected is what the program that grows file systems does, just before, at and after the end of a group, too.
    #[test]
    fn a_file_system_can_grow_exactly_if_it_does() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let own: &[&str] = &["-b4096", "-m0", "-E", "lazy_itable_init=1,lazy_journal_init=1"];
        let small: &[&str] = &["-b1024", "-O^64bit,^resize_inode"];
        let (mut grew, mut stayed) = (0, 0);
        for (options, from, steps) in [
            (own, 64 * MIB, &[2 * MIB, 4 * MIB, 7 * MIB, 64 * MIB, 65 * MIB, 66 * MIB, 70 * MIB, 80 * MIB][..]),
            (own, 128 * MIB, &[4096, MIB, 2 * MIB, 4 * MIB, 6 * MIB, 10 * MIB, 128 * MIB, 130 * MIB, 260 * MIB]),
            (small, 24 * MIB, &[4096, 65_536, MIB, 8 * MIB, 9 * MIB]),
        ] {
            for more in steps {
                let Some(before) = made(&file, from, options) else {
                    return eprintln!("SKIPPED: mkfs.ext4 is needed");
                };
                file.as_file().set_len(from + more).unwrap();
                assert!(tool("e2fsck", &["-f", "-p"], file.path()) && tool("resize2fs", &[], file.path()));
                let after = Geometry::read(file.path()).unwrap().unwrap();
                let expected = (before.fitted(from + more), before.can_grow_to(from + more));
                assert_eq!(expected, (after.blocks, after.blocks > before.blocks), "{from} + {more}, {before:?}");
                assert!(!after.can_grow_to(from + more), "once it has grown, it rests");
                if after.blocks > before.blocks { grew += 1 } else { stayed += 1 }
            }
        }
        assert!(grew > 10 && stayed > 1, "both were seen: {grew}, {stayed}");
    }
}
