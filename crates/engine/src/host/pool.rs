//! Buffers aligned for direct I/O, used again instead of allocated again.
//!
//! `unsafe` because the allocator is asked for alignment by hand; nothing else in here is.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

/// Alignment of every buffer: the largest logical block size of disks in use, and a page.
pub const BLOCK_ALIGNMENT_BYTES: usize = 4096;
/// Sizes kept for use again: 4 KiB, 8 KiB, … 1 MiB. Larger ones are rare and go back to the allocator.
const CLASSES: usize = 9;
/// What is kept of each size; 9 × 1 MiB at most, well below the memory an instance may use.
const KEPT_BYTES_PER_CLASS: usize = 1 << 20;

/// Where buffers come from and return to. Clones share.
#[derive(Clone, Default)]
pub struct Pool {
    free: Arc<[Mutex<Vec<Block>>; CLASSES]>,
}

/// One allocation of the size of its class, or of any size above all classes.
struct Block {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a block owns its memory; nothing else points to it.
unsafe impl Send for Block {}
// SAFETY: through a shared reference it can only be read.
unsafe impl Sync for Block {}

impl Block {
    fn new(size: usize) -> Self {
        let layout = Layout::from_size_align(size.max(1), BLOCK_ALIGNMENT_BYTES).expect("a payload must fit in memory");
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Self { start, layout }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `new`, freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

fn class_of(len: usize) -> Option<usize> {
    let pages = len.div_ceil(BLOCK_ALIGNMENT_BYTES).max(1).next_power_of_two();
    let class = pages.trailing_zeros() as usize;
    (class < CLASSES).then_some(class)
}

impl Pool {
    /// A buffer of `len` bytes. Its contents are whatever an earlier user left: write before reading.
    pub fn take(&self, len: usize) -> Buffer {
        let block = match class_of(len) {
            Some(class) => {
                let kept = self.free[class].lock().pop();
                kept.unwrap_or_else(|| Block::new(BLOCK_ALIGNMENT_BYTES << class))
            }
            None => Block::new(len.next_multiple_of(BLOCK_ALIGNMENT_BYTES)),
        };
        Buffer { block: Some(block), len, pool: self.clone() }
    }

    fn put_back(&self, block: Block) {
        let Some(class) = class_of(block.layout.size()) else { return };
        let mut free = self.free[class].lock();
        if (free.len() + 1) * block.layout.size() <= KEPT_BYTES_PER_CLASS {
            free.push(block);
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept: Vec<_> = self.free.iter().map(|class| class.lock().len()).collect();
        f.debug_struct("Pool").field("kept", &kept).finish()
    }
}

/// An aligned buffer of which one owner writes; frozen, many may read. Returns to its pool when dropped.
pub struct Buffer {
    block: Option<Block>,
    len: usize,
    pool: Pool,
}

impl Buffer {
    /// Becomes immutable and shared, without a copy.
    pub fn freeze(self) -> Bytes {
        if self.len == 0 { Bytes::new() } else { Bytes::from_owner(self) }
    }

    /// Keeps the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// The bytes from `start` on, for a kernel to fill.
    pub(super) fn uninit_from(&mut self, start: usize) -> &mut [MaybeUninit<u8>] {
        let bytes = &mut self[start..];
        // SAFETY: initialized bytes may be seen as bytes that need not be; who writes through this writes bytes.
        unsafe { slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len()) }
    }

    fn block(&self) -> &Block {
        self.block.as_ref().expect("a buffer must have its block until it is dropped")
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the block is at least `len` bytes, initialized when allocated.
        unsafe { slice::from_raw_parts(self.block().start.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the exclusive reference makes this the only access.
        unsafe { slice::from_raw_parts_mut(self.block().start.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.pool.put_back(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_used_again() {
        let pool = Pool::default();
        for len in [0, 1, 512, 4096, 4097, 131_072, 1 << 20, (1 << 20) + 1, 5 << 20] {
            let buffer = pool.take(len);
            assert_eq!((buffer.len(), buffer.as_ptr() as usize % BLOCK_ALIGNMENT_BYTES), (len, 0));
        }
        let first = pool.take(4096);
        let address = first.as_ptr();
        drop(first.freeze());
        assert_eq!(pool.take(100).as_ptr(), address, "the block that was freed last comes first");
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let pool = Pool::default();
        let many: Vec<_> = (0..1000).map(|_| pool.take(4096)).collect();
        drop(many);
        assert_eq!(pool.free[0].lock().len(), KEPT_BYTES_PER_CLASS / 4096);
    }
}
