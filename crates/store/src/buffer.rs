//! Memory that direct I/O accepts: aligned to [`BLOCK`], cut into disjoint parts, turned into [`Bytes`] without a copy.
//!
//! Buffers are recycled per thread (one event loop is one thread): a fresh 128 KiB allocation would cost
//! a system call and 32 page faults each time. Large ones are parts of huge pages ([`slab`]).
#![allow(unsafe_code, reason = "aligned allocation, and disjoint mutable parts of one allocation")]

mod slab;

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::Arc;

use bytes::Bytes;

use slab::{PART_BYTES, Parts, SLAB_BYTES, Slabs};

/// Unit of the index, of direct I/O and of the state file, in bytes. Longhorn's volume sector.
pub const BLOCK: u64 = 4096;

/// Alignment of every buffer's memory.
const ALIGN: usize = BLOCK as usize;
/// Largest allocation that is kept for reuse: the largest request that is common.
const KEPT_BYTES_MAX: usize = 1 << 20;
/// How much a thread keeps: a queue of 32 requests of 128 KiB.
const POOL_BYTES_MAX: usize = 4 << 20;

/// How many huge pages a thread keeps that are not in use: as much as of anything else.
const KEPT_SLABS_MAX: usize = POOL_BYTES_MAX / SLAB_BYTES;

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool { kept: Vec::new(), bytes: 0, slabs: Slabs::new() }) };
}

/// Allocations of this thread that wait for their next use.
struct Pool {
    /// Those of their own, not of a slab.
    kept: Vec<Allocation>,
    bytes: usize,
    slabs: Slabs,
}

/// One aligned allocation; it is initialised from birth and stays so.
struct Allocation {
    at: NonNull<u8>,
    capacity: usize,
    /// The memory is a part of a slab.
    parts: Option<Parts>,
}

// SAFETY: an allocation is plain memory without ties to a thread; exclusive use is the business of `AlignedBuf`.
unsafe impl Send for Allocation {}
// SAFETY: as above; shared references give no access to the memory.
unsafe impl Sync for Allocation {}

impl Allocation {
    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, ALIGN).expect("a buffer's size must fit the address space")
    }

    fn fresh(capacity: usize) -> Self {
        let layout = Self::layout(capacity);
        // SAFETY: the layout's size is not zero: capacities are at least one block.
        let at = unsafe { alloc_zeroed(layout) };
        let Some(at) = NonNull::new(at) else { handle_alloc_error(layout) };
        Self { at, capacity, parts: None }
    }

    fn take(capacity: usize) -> Self {
        let kept = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            if (PART_BYTES..=KEPT_BYTES_MAX).contains(&capacity) {
                let parts = pool.slabs.take(capacity)?;
                return Some(Self { at: parts.at(), capacity, parts: Some(parts) });
            }
            let found = pool.kept.iter().rposition(|kept| kept.capacity == capacity)?;
            pool.bytes -= capacity;
            Some(pool.kept.remove(found))
        });
        kept.ok().flatten().unwrap_or_else(|| Self::fresh(capacity))
    }

    fn release(&mut self) {
        if self.parts.take().is_none() {
            // SAFETY: `at` came from `alloc_zeroed` with this layout, and this is the only place that frees it.
            unsafe { dealloc(self.at.as_ptr(), Self::layout(self.capacity)) }
        }
    }
}

/// Returns its allocation to the thread's pool, or frees it.
struct Owner(Option<Allocation>);

impl Drop for Owner {
    fn drop(&mut self) {
        let Some(mut allocation) = self.0.take() else { return };
        if allocation.parts.is_some() {
            allocation.release();
            let _ = POOL.try_with(|pool| pool.borrow_mut().slabs.keep(KEPT_SLABS_MAX));
            return;
        }
        let mut left = Some(allocation);
        let _ = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            if left.as_ref().is_some_and(|allocation| allocation.capacity <= KEPT_BYTES_MAX) {
                pool.keep(left.take());
            }
        });
        if let Some(mut allocation) = left {
            allocation.release();
        }
    }
}

impl Pool {
    /// Keeps an allocation. What was not used for longest makes room: buffers of the sizes that were in use some time ago
    /// must not keep those of the present ones out.
    fn keep(&mut self, allocation: Option<Allocation>) {
        self.bytes += allocation.iter().map(|allocation| allocation.capacity).sum::<usize>();
        self.kept.extend(allocation);
        let mut surplus = 0;
        for kept in &mut self.kept {
            if self.bytes <= POOL_BYTES_MAX {
                break;
            }
            self.bytes -= kept.capacity;
            kept.release();
            surplus += 1;
        }
        self.kept.drain(..surplus);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for allocation in &mut self.kept {
            allocation.release();
        }
    }
}

/// A mutable buffer whose start is aligned to [`BLOCK`] (parts that were split off start where they were cut).
pub struct AlignedBuf {
    owner: Arc<Owner>,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a buffer is the only one with access to its part of the allocation, so it moves freely.
unsafe impl Send for AlignedBuf {}
// SAFETY: `&AlignedBuf` gives `&[u8]` only.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// A buffer of `len` bytes with unspecified (old, but initialised) contents.
    pub fn new(len: usize) -> Self {
        let capacity = len.next_multiple_of(ALIGN).max(ALIGN).next_power_of_two();
        let allocation = Allocation::take(capacity);
        let start = allocation.at;
        Self { owner: Arc::new(Owner(Some(allocation))), start, len }
    }

    /// A buffer of zeroes.
    pub fn zeroed(len: usize) -> Self {
        let mut buffer = Self::new(len);
        buffer.as_mut_slice().fill(0);
        buffer
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address a kernel reads from or writes to; valid as long as the buffer is.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `start..start + len` lies in the allocation that `owner` keeps alive, is initialised, and
        // nobody else has a buffer over it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Cuts the buffer in two; `self` keeps the first `at` bytes.
    pub fn split_off(&mut self, at: usize) -> Self {
        assert!(at <= self.len, "a buffer of {} bytes cannot be cut at {at}", self.len);
        // SAFETY: `at` lies within the allocation (or one past its used part).
        let start = unsafe { self.start.add(at) };
        let rest = Self { owner: Arc::clone(&self.owner), start, len: self.len - at };
        self.len = at;
        rest
    }

    /// Undoes [`split_off`](Self::split_off). Panics if `next` is not the part that follows.
    pub fn join(&mut self, next: Self) {
        let follows = self.start.as_ptr() as usize + self.len == next.start.as_ptr() as usize;
        assert!(follows && Arc::ptr_eq(&self.owner, &next.owner), "only neighbours of one buffer can be joined");
        self.len += next.len;
    }

    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// The contents as shared, immutable bytes; nothing is copied.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl std::ops::Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl std::ops::DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }
}

impl std::fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len)
    }
}

/// How much of zeroes is kept ready to be shared.
const ZEROES_BYTES: usize = 256 << 10;

#[repr(align(4096))]
struct Zeroes([u8; ZEROES_BYTES]);
static ZEROES: Zeroes = Zeroes([0; ZEROES_BYTES]);

/// `len` zero bytes, aligned; shared if they are few.
pub fn zeroes(len: usize) -> Bytes {
    if len <= ZEROES_BYTES { Bytes::from_static(&ZEROES.0[..len]) } else { AlignedBuf::zeroed(len).freeze() }
}

/// Longest piece that [`zeroes`] gives without allocating.
pub const SHARED_ZEROES_MAX: usize = ZEROES_BYTES;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_and_freezes_without_a_copy() {
        let mut buffer = AlignedBuf::new(10_000);
        let at = buffer.as_mut_ptr() as usize;
        assert_eq!(at % ALIGN, 0);
        buffer.fill(7);
        let bytes = buffer.freeze();
        assert_eq!((bytes.as_ptr() as usize, bytes.len()), (at, 10_000));
    }

    #[test]
    fn parts_are_disjoint_and_join_again() {
        let mut first = AlignedBuf::zeroed(3 * ALIGN);
        let mut second = first.split_off(ALIGN);
        let third = second.split_off(ALIGN);
        second.fill(2);
        first.fill(1);
        second.join(third);
        first.join(second);
        assert_eq!((first[0], first[ALIGN], first[2 * ALIGN], first.len()), (1, 2, 0, 3 * ALIGN));
    }

    #[test]
    #[should_panic(expected = "neighbours")]
    fn strangers_do_not_join() {
        AlignedBuf::new(ALIGN).join(AlignedBuf::new(ALIGN));
    }

    #[test]
    fn memory_comes_back_to_the_pool_when_the_last_part_goes() {
        let mut buffer = AlignedBuf::new(64 << 10);
        let at = buffer.as_mut_ptr() as usize;
        let rest = buffer.split_off(ALIGN).freeze();
        drop(buffer);
        let mut other = AlignedBuf::new(64 << 10);
        assert_ne!(other.as_mut_ptr() as usize, at, "still in use by the rest");
        drop(rest);
        let mut again = AlignedBuf::new(64 << 10);
        assert_eq!(again.as_mut_ptr() as usize, at);
    }

    #[test]
    fn sizes_of_the_past_do_not_keep_those_of_the_present_out_of_the_pool() {
        drop((0..2 * POOL_BYTES_MAX / PART_BYTES).map(|_| AlignedBuf::new(PART_BYTES / 2)).collect::<Vec<_>>());
        drop((0..8).map(|_| AlignedBuf::new(KEPT_BYTES_MAX)).collect::<Vec<_>>());
        let small: Vec<_> = (0..8).map(|_| AlignedBuf::new(ALIGN)).collect();
        drop(small);
        let (kept, bytes) = POOL.with_borrow(|pool| {
            assert_eq!(pool.bytes, pool.kept.iter().map(|kept| kept.capacity).sum::<usize>());
            (pool.kept.iter().filter(|kept| kept.capacity == ALIGN).count(), pool.bytes)
        });
        assert_eq!(kept, 8);
        assert!(bytes <= POOL_BYTES_MAX, "{bytes}");
        assert_eq!(POOL.with_borrow(|pool| pool.slabs.len()), KEPT_SLABS_MAX);
    }

    #[test]
    fn zeroes_are_aligned() {
        for len in [0, 1, ZEROES_BYTES, ZEROES_BYTES + 1] {
            let bytes = zeroes(len);
            assert!(bytes.len() == len && bytes.iter().all(|byte| *byte == 0));
            assert!(len == 0 || (bytes.as_ptr() as usize).is_multiple_of(ALIGN));
        }
    }
}
