//! The directory of one replica as seen by rare, blocking work: names, metadata, whole small files.
//!
//! [`StdFiles`](real::StdFiles) is the real one, [`FakeFiles`](fake::FakeFiles) the one that fails on purpose.
//! Data does not go through this trait but through [`FileOp`](crate::op::FileOp)s on files opened here.

pub mod fake;
mod fiemap;
pub mod overlay;
pub mod real;

use std::io;

use crate::op::FileId;

/// What `stat` tells about a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    pub inode: u64,
    /// Number of names.
    pub links: u64,
    pub size: u64,
    /// Bytes that the file occupies.
    pub allocated: u64,
    /// Last change of the contents, in nanoseconds since the epoch.
    pub modified_ns: i64,
    /// Last change of the contents, the size or the number of names, in nanoseconds since the epoch.
    pub changed_ns: i64,
}

/// What the filesystem and the way files were opened allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abilities {
    /// Reads and writes bypass the page cache, so buffers must be aligned.
    pub direct: bool,
    /// Alignment that memory of a transfer needs, in bytes.
    pub memory_align: usize,
    /// Allocation unit, in bytes. A unit larger than [`BLOCK`](crate::buffer::BLOCK) would hide
    /// neighbouring blocks of older layers, so such filesystems are refused.
    pub unit: u64,
}

/// Called with start, end, and whether the range was written.
pub type EachExtent<'a> = &'a mut dyn FnMut(u64, u64, bool);

/// A directory: metadata, whole small files, and the opening of data files. Names have no slashes.
///
/// Nothing is durable before the matching sync: contents after `write_file`/`sync`, names after `sync_dir`.
pub trait Files {
    fn list(&mut self) -> io::Result<Vec<String>>;
    /// None if there is no such file.
    fn stat(&mut self, name: &str) -> io::Result<Option<Stat>>;
    /// The whole file; None if there is no such file. A file longer than `limit` is an error.
    fn read_file(&mut self, name: &str, limit: u64) -> io::Result<Option<Vec<u8>>>;
    /// Creates or replaces the file with `contents`, durably (the name needs [`sync_dir`](Self::sync_dir)).
    fn write_file(&mut self, name: &str, contents: &[u8]) -> io::Result<Stat>;
    /// Creates an empty file of `size` that must not exist yet, durably but for its name.
    fn create_sparse(&mut self, name: &str, size: u64) -> io::Result<()>;
    /// Changes the size of a file, durably.
    fn resize(&mut self, name: &str, size: u64) -> io::Result<()>;
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;
    fn link(&mut self, from: &str, to: &str) -> io::Result<()>;
    /// Removes the name; fine if there is none.
    fn remove(&mut self, name: &str) -> io::Result<()>;
    fn sync_dir(&mut self) -> io::Result<()>;

    /// Opens a file for [`FileOp`](crate::op::FileOp)s.
    fn open(&mut self, name: &str) -> io::Result<FileId>;
    /// No operation may be out on the file.
    fn close(&mut self, file: FileId);
    /// Blocking read of block-aligned data; zeroes beyond the end.
    fn read_at(&mut self, file: FileId, offset: u64, buffer: &mut crate::AlignedBuf) -> io::Result<()>;
    /// Blocking write of block-aligned data.
    fn write_at(&mut self, file: FileId, offset: u64, data: &crate::AlignedBuf) -> io::Result<()>;
    fn sync(&mut self, file: FileId) -> io::Result<()>;
    /// Calls `each` with start and end of every allocated range within `start..end`, in order, clipped to it, and
    /// whether it was written. An allocated range that was not is as good as a hole: a write to it never finished.
    fn extents(&mut self, file: FileId, start: u64, end: u64, each: EachExtent<'_>) -> io::Result<()>;
    /// Makes a hole.
    fn punch(&mut self, file: FileId, start: u64, end: u64) -> io::Result<()>;
    fn abilities(&self) -> Abilities;
}

impl<T: Files + ?Sized> Files for Box<T> {
    fn list(&mut self) -> io::Result<Vec<String>> {
        (**self).list()
    }
    fn stat(&mut self, name: &str) -> io::Result<Option<Stat>> {
        (**self).stat(name)
    }
    fn read_file(&mut self, name: &str, limit: u64) -> io::Result<Option<Vec<u8>>> {
        (**self).read_file(name, limit)
    }
    fn write_file(&mut self, name: &str, contents: &[u8]) -> io::Result<Stat> {
        (**self).write_file(name, contents)
    }
    fn create_sparse(&mut self, name: &str, size: u64) -> io::Result<()> {
        (**self).create_sparse(name, size)
    }
    fn resize(&mut self, name: &str, size: u64) -> io::Result<()> {
        (**self).resize(name, size)
    }
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        (**self).rename(from, to)
    }
    fn link(&mut self, from: &str, to: &str) -> io::Result<()> {
        (**self).link(from, to)
    }
    fn remove(&mut self, name: &str) -> io::Result<()> {
        (**self).remove(name)
    }
    fn sync_dir(&mut self) -> io::Result<()> {
        (**self).sync_dir()
    }
    fn open(&mut self, name: &str) -> io::Result<FileId> {
        (**self).open(name)
    }
    fn close(&mut self, file: FileId) {
        (**self).close(file);
    }
    fn read_at(&mut self, file: FileId, offset: u64, buffer: &mut crate::AlignedBuf) -> io::Result<()> {
        (**self).read_at(file, offset, buffer)
    }
    fn write_at(&mut self, file: FileId, offset: u64, data: &crate::AlignedBuf) -> io::Result<()> {
        (**self).write_at(file, offset, data)
    }
    fn sync(&mut self, file: FileId) -> io::Result<()> {
        (**self).sync(file)
    }
    fn extents(&mut self, file: FileId, start: u64, end: u64, each: EachExtent<'_>) -> io::Result<()> {
        (**self).extents(file, start, end, each)
    }
    fn punch(&mut self, file: FileId, start: u64, end: u64) -> io::Result<()> {
        (**self).punch(file, start, end)
    }
    fn abilities(&self) -> Abilities {
        (**self).abilities()
    }
}
