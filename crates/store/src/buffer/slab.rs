//! Large buffers are parts of huge pages.
//!
//! A disk gets a large buffer as a list of pieces that lie together in memory. Ordinary pages hardly ever do, so 128 KiB are
//! 32 pieces, each of which costs the kernel, the disk and, in a virtual machine, the hypervisor something: reads of that
//! size are twice as fast if they are one piece. A huge page is one piece, and needs one entry of the processor's page tables'
//! cache where copies would need 32. Where there are no huge pages to be had, slabs consist of ordinary ones.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A huge page on every machine that this runs on.
pub(super) const SLAB_BYTES: usize = 2 << 20;
/// The smallest part of a slab; the slab's parts are the bits of one word.
pub(super) const PART_BYTES: usize = SLAB_BYTES / 64;

/// Memory of [`SLAB_BYTES`], given out in parts.
struct Slab {
    at: NonNull<u8>,
    /// A bit for each part that is free.
    free: AtomicU64,
}

// SAFETY: a slab is plain memory that belongs to no thread; whoever took parts has them alone.
unsafe impl Send for Slab {}
// SAFETY: as above; parts are taken and given back atomically.
unsafe impl Sync for Slab {}

/// Some parts of a slab next to each other.
pub(super) struct Parts {
    slab: Arc<Slab>,
    mask: u64,
}

/// The slabs that one thread takes parts of.
pub(super) struct Slabs {
    slabs: Vec<Arc<Slab>>,
}

impl Slab {
    fn new() -> Option<Self> {
        let at = map()?;
        Some(Self { at, free: AtomicU64::new(u64::MAX) })
    }

    /// Takes `count` parts, a power of two, at a multiple of their length.
    fn take(&self, count: u32) -> Option<u64> {
        let wanted = if count == u64::BITS { u64::MAX } else { (1 << count) - 1 };
        let mut free = self.free.load(Ordering::Acquire);
        loop {
            let mut places = (0..u64::BITS).step_by(count as usize).map(|place| wanted << place);
            let mask = places.find(|mask| free & mask == *mask)?;
            match self.free.compare_exchange_weak(free, free & !mask, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(mask),
                Err(now) => free = now,
            }
        }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: the mapping is this slab's alone, and nobody has parts of it: they keep the slab alive.
        unsafe { libc::munmap(self.at.as_ptr().cast(), SLAB_BYTES) };
    }
}

impl Parts {
    pub fn at(&self) -> NonNull<u8> {
        // SAFETY: the first bit of the mask is one of 64, so this lies within the slab.
        unsafe { self.slab.at.add(self.mask.trailing_zeros() as usize * PART_BYTES) }
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        self.slab.free.fetch_or(self.mask, Ordering::Release);
    }
}

impl Slabs {
    pub const fn new() -> Self {
        Self { slabs: Vec::new() }
    }

    /// Memory of `bytes`: a power of two, from [`PART_BYTES`] to [`SLAB_BYTES`]. None if the system has no more.
    pub fn take(&mut self, bytes: usize) -> Option<Parts> {
        let count = (bytes / PART_BYTES) as u32;
        let found = self.slabs.iter().find_map(|slab| Some(Parts { mask: slab.take(count)?, slab: Arc::clone(slab) }));
        found.or_else(|| {
            let slab = Arc::new(Slab::new()?);
            self.slabs.push(Arc::clone(&slab));
            Some(Parts { mask: slab.take(count)?, slab })
        })
    }

    /// Gives up slabs that nobody has parts of, but for so many. The first ones are taken of first, so they are kept.
    pub fn keep(&mut self, most: usize) {
        let mut unused = 0;
        self.slabs.retain(|slab| {
            unused += usize::from(Arc::strong_count(slab) == 1);
            Arc::strong_count(slab) > 1 || unused <= most
        });
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.slabs.len()
    }
}

/// Zeroed memory of [`SLAB_BYTES`], aligned to as much, in a huge page if the system gives one.
fn map() -> Option<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // Twice as much, of which the aligned half stays.
    // SAFETY: a new mapping at a place that the kernel chooses touches nothing that exists.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), 2 * SLAB_BYTES, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return None;
    }
    let start = start.cast::<u8>();
    let before = start.align_offset(SLAB_BYTES);
    // SAFETY: the three pieces make up the mapping that was just made, and nobody else knows of it.
    unsafe {
        let at = start.add(before);
        if before > 0 {
            libc::munmap(start.cast(), before);
        }
        libc::munmap(at.add(SLAB_BYTES).cast(), SLAB_BYTES - before);
        // A wish. Without it the memory is as good, only slower.
        libc::madvise(at.cast(), SLAB_BYTES, libc::MADV_HUGEPAGE);
        NonNull::new(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_disjoint_aligned_and_given_back() {
        let mut slabs = Slabs::new();
        let sizes = [1, 4, 2, 32, 1, 16, 64, 8];
        let parts: Vec<_> = sizes.iter().map(|count| slabs.take(count * PART_BYTES).unwrap()).collect();
        assert_eq!(slabs.len(), 2, "the one of 64 has a slab of its own");
        let mut taken: Vec<_> =
            parts.iter().zip(sizes).map(|(part, count)| (part.at().as_ptr() as usize, count * PART_BYTES)).collect();
        taken.sort_unstable();
        assert!(taken.iter().all(|(at, len)| at.is_multiple_of(*len)));
        assert!(taken.is_sorted_by(|(a, len), (b, _)| a + len <= *b), "{taken:?}");
        let first = parts[0].at();
        drop(parts);
        assert_eq!(slabs.take(SLAB_BYTES).unwrap().at(), first, "all of the first slab is free again");
        slabs.keep(1);
        assert_eq!(slabs.len(), 1);
    }

    #[test]
    fn a_slab_lives_as_long_as_its_parts_and_they_may_go_anywhere() {
        let mut slabs = Slabs::new();
        let parts: Vec<_> = (0..64).map(|_| slabs.take(PART_BYTES).unwrap()).collect();
        slabs.keep(0);
        assert_eq!(slabs.len(), 1, "in use");
        drop(slabs);
        let fill = |parts: Vec<Parts>| {
            for part in parts {
                // SAFETY: nobody else has this part.
                unsafe { part.at().as_ptr().write_bytes(1, PART_BYTES) };
            }
        };
        std::thread::spawn(move || fill(parts)).join().unwrap();
    }

    #[test]
    fn threads_share_a_slab_without_getting_the_same_part() {
        let slab = Slab::new().unwrap();
        let taken = std::thread::scope(|scope| {
            let take = || (0..16).filter_map(|_| slab.take(1)).sum::<u64>();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).fold(0u64, |all, some| all ^ some)
        });
        assert_eq!((taken, slab.take(1)), (u64::MAX, None));
    }
}
