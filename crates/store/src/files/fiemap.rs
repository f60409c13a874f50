//! The FIEMAP ioctl: which ranges of a file are allocated, written or not.
//!
//! A few calls for thousands of extents, where `SEEK_DATA` and `SEEK_HOLE` need two for each; and it tells ranges
//! that are allocated but were never written, which a power loss leaves where a write was under way.
#![allow(unsafe_code, reason = "an ioctl that no crate of the workspace wraps")]

use std::ffi::c_void;
use std::os::fd::AsFd;

use rustix::io::Result;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};

/// Extents fetched per call: 14 KiB of memory, and few calls for a million extents.
const BATCH: usize = 256;
/// "This is the last extent of the file."
const EXTENT_LAST: u32 = 1;
/// "Allocated, never written: reads as zeroes."
const EXTENT_UNWRITTEN: u32 = 0x800;
/// "Write dirty pages first": needed where writes go through the page cache.
const FLAG_SYNC: u32 = 1;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Header {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

#[repr(C)]
struct Map {
    header: Header,
    extents: [RawExtent; BATCH],
}

struct Fiemap<'a>(&'a mut Map);

// SAFETY: the opcode is FS_IOC_FIEMAP, whose argument is a header that says how many extents follow it; `Map`
// is exactly that, mutable, and the kernel writes nothing beyond `count` extents.
unsafe impl Ioctl for Fiemap<'_> {
    type Output = ();
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::read_write::<Header>(b'f', 11)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self.0).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> Result<()> {
        Ok(())
    }
}

/// Calls `each` with start and end of every allocated range that touches `start..end`, clipped to it, and whether
/// it was written.
pub(super) fn extents(
    file: impl AsFd,
    mut start: u64,
    end: u64,
    sync: bool,
    each: &mut dyn FnMut(u64, u64, bool),
) -> Result<()> {
    let mut map = Box::new(Map { header: Header::default(), extents: [RawExtent::default(); BATCH] });
    while start < end {
        let flags = if sync { FLAG_SYNC } else { 0 };
        map.header = Header { start, length: end - start, flags, mapped: 0, count: BATCH as u32, reserved: 0 };
        // SAFETY: see the implementation of `Ioctl`; the file stays open during the call.
        unsafe { ioctl(file.as_fd(), Fiemap(&mut map)) }?;
        let mapped = (map.header.mapped as usize).min(BATCH);
        for extent in &map.extents[..mapped] {
            let from = extent.logical.max(start);
            let to = extent.logical.saturating_add(extent.length).min(end);
            if from < to {
                each(from, to, extent.flags & EXTENT_UNWRITTEN == 0);
            }
        }
        match map.extents[..mapped].last() {
            Some(last) if last.flags & EXTENT_LAST == 0 && mapped == BATCH => start = last.logical + last.length,
            _ => return Ok(()),
        }
    }
    Ok(())
}
