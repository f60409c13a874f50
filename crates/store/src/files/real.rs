//! A directory of a real filesystem.
//!
//! Data files are opened for direct I/O unless told otherwise, or unless the filesystem refuses. The directory
//! is locked while it is open: two processes on one replica would not see each other's changes.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FallocateFlags, FlockOperation, Mode, OFlags, SeekFrom, StatxFlags, fallocate, fdatasync, flock, fstat,
    fstatvfs, fsync, ftruncate, linkat, mkdirat, openat, renameat, statat, statx, unlinkat,
};
use rustix::io::{Errno, ReadWriteFlags, pread, pwrite, pwritev2};

use super::{Abilities, EachExtent, Files, Stat, fiemap};
use crate::AlignedBuf;
use crate::buffer::BLOCK;
use crate::op::{Fault, FileId, FileOp, OpKind, OpResult};

/// Mode of files that are created, as Longhorn's own.
const FILE_MODE: Mode = Mode::from_raw_mode(0o600);

/// How data files are opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Caching {
    /// Past the page cache (`O_DIRECT`), if the filesystem can.
    #[default]
    Direct,
    /// Through the page cache.
    Buffered,
}

/// An open directory, its lock, and the data files opened in it.
#[derive(Debug)]
pub struct StdFiles {
    path: PathBuf,
    dir: OwnedFd,
    open: Vec<Option<OwnedFd>>,
    abilities: Abilities,
    /// The filesystem lists extents.
    fiemap: bool,
    read_only: bool,
}

/// Why a directory could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("{path} is in use by another process; a replica directory has one user at a time")]
    InUse { path: PathBuf },
}

impl StdFiles {
    /// Opens (and, with `create`, makes) the directory and locks it.
    pub fn open(path: &Path, caching: Caching, create: bool) -> Result<Self, DirectoryError> {
        let failed = |source: Errno| DirectoryError::Io { path: path.to_owned(), source: source.into() };
        if create {
            match mkdirat(rustix::fs::CWD, path, Mode::from_raw_mode(0o700)) {
                Ok(()) => sync_parent(path).map_err(failed)?,
                Err(Errno::EXIST) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = openat(rustix::fs::CWD, path, flags, Mode::empty()).map_err(failed)?;
        match flock(&dir, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(DirectoryError::InUse { path: path.to_owned() }),
            Err(error) => return Err(failed(error)),
        }
        let (abilities, fiemap) = probe(&dir, caching).map_err(failed)?;
        Ok(Self { path: path.to_owned(), dir, open: Vec::new(), abilities, fiemap, read_only: false })
    }

    /// Opens the directory to look at it: not locked, files are opened for reading only.
    pub fn observe(path: &Path) -> Result<Self, DirectoryError> {
        let failed = |source: Errno| DirectoryError::Io { path: path.to_owned(), source: source.into() };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = openat(rustix::fs::CWD, path, flags, Mode::empty()).map_err(failed)?;
        let (abilities, fiemap) = probe(&dir, Caching::Direct).map_err(failed)?;
        Ok(Self { path: path.to_owned(), dir, open: Vec::new(), abilities, fiemap, read_only: true })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The descriptor behind a file, for a host that runs operations itself; valid until the file is closed.
    pub fn raw_fd(&self, file: FileId) -> RawFd {
        self.fd(file).as_raw_fd()
    }

    /// Runs one operation and waits for it.
    pub fn run(&self, op: FileOp) -> (crate::op::OpId, OpResult) {
        let fd = self.fd(op.file);
        let result = match op.kind {
            OpKind::Read { mut buffer } => read_exact_or_zero(fd, op.offset, &mut buffer).map(|()| Some(buffer)),
            OpKind::Write { data, dsync } => write_all(fd, op.offset, &data, dsync).map(|()| None),
            OpKind::Sync => fdatasync(fd).map(|()| None),
            OpKind::Punch { len } => {
                fallocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, op.offset, len).map(|()| None)
            }
            OpKind::Zero { len } => {
                fallocate(fd, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, op.offset, len).map(|()| None)
            }
        };
        let result = match result {
            Ok(Some(buffer)) => OpResult::Read(buffer),
            Ok(None) => OpResult::Done,
            Err(errno) => OpResult::Failed(Fault::from_errno(errno.raw_os_error())),
        };
        (op.id, result)
    }

    fn fd(&self, file: FileId) -> BorrowedFd<'_> {
        self.open[file.0 as usize].as_ref().expect("an operation's file must be open").as_fd()
    }

    fn open_flags(&self) -> OFlags {
        let flags = OFlags::CLOEXEC | if self.read_only { OFlags::RDONLY } else { OFlags::RDWR };
        if self.abilities.direct { flags | OFlags::DIRECT } else { flags }
    }
}

/// Makes the name of a new directory durable.
fn sync_parent(path: &Path) -> rustix::io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fsync(openat(rustix::fs::CWD, parent, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Finds out, with a file that never gets a name, what the filesystem can do.
fn probe(dir: &OwnedFd, caching: Caching) -> rustix::io::Result<(Abilities, bool)> {
    let unit = fstatvfs(dir)?.f_frsize;
    let mut abilities = Abilities { direct: false, memory_align: 1, unit };
    let Ok(plain) = openat(dir, ".", OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC, FILE_MODE) else {
        return Ok((abilities, false));
    };
    if caching == Caching::Direct
        && openat(dir, ".", OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC | OFlags::DIRECT, FILE_MODE).is_ok()
    {
        abilities.direct = true;
        let told = statx(&plain, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok();
        let align = told.filter(|told| told.stx_dio_offset_align <= BLOCK as u32).map(|told| told.stx_dio_mem_align);
        abilities.memory_align = align.filter(|align| *align > 0).map_or(BLOCK as usize, |align| align as usize);
    }
    // Only an answer that is right counts: some filesystems know the call but not their unwritten ranges.
    let mut seen = None;
    let fiemap = fallocate(&plain, FallocateFlags::empty(), 0, BLOCK).is_ok()
        && fiemap::extents(&plain, 0, BLOCK, true, &mut |_, _, written| seen = Some(written)).is_ok();
    Ok((abilities, fiemap && seen == Some(false)))
}

fn read_exact_or_zero(fd: BorrowedFd<'_>, offset: u64, buffer: &mut AlignedBuf) -> rustix::io::Result<()> {
    let mut done = 0;
    while done < buffer.len() {
        match pread(fd, &mut buffer[done..], offset + done as u64) {
            Ok(0) => {
                buffer[done..].fill(0);
                break;
            }
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn write_all(fd: BorrowedFd<'_>, offset: u64, data: &[u8], dsync: bool) -> rustix::io::Result<()> {
    let mut done = 0;
    while done < data.len() {
        let written = if dsync {
            pwritev2(fd, &[io::IoSlice::new(&data[done..])], offset + done as u64, ReadWriteFlags::DSYNC)
        } else {
            pwrite(fd, &data[done..], offset + done as u64)
        };
        match written {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl Files for StdFiles {
    fn list(&mut self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.dir)? {
            let entry = entry?;
            if let Ok(name) = entry.file_name().to_str()
                && !matches!(name, "." | "..")
            {
                names.push(name.to_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn stat(&mut self, name: &str) -> io::Result<Option<Stat>> {
        match statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(from_raw(&stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn read_file(&mut self, name: &str, limit: u64) -> io::Result<Option<Vec<u8>>> {
        let file = match openat(&self.dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let size = fstat(&file)?.st_size as u64;
        if size > limit {
            return Err(io::Error::other(format!("{name} has {size} bytes, more than the {limit} it can have")));
        }
        let mut contents = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(File::from(file), limit), &mut contents)?;
        Ok(Some(contents))
    }

    fn write_file(&mut self, name: &str, contents: &[u8]) -> io::Result<Stat> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let file = openat(&self.dir, name, flags, FILE_MODE)?;
        write_all(file.as_fd(), 0, contents, false)?;
        fsync(&file)?;
        Ok(from_raw(&fstat(&file)?))
    }

    fn create_sparse(&mut self, name: &str, size: u64) -> io::Result<()> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(&self.dir, name, flags, FILE_MODE)?;
        ftruncate(&file, size)?;
        Ok(fsync(&file)?)
    }

    fn resize(&mut self, name: &str, size: u64) -> io::Result<()> {
        let file = openat(&self.dir, name, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        ftruncate(&file, size)?;
        Ok(fsync(&file)?)
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        Ok(renameat(&self.dir, from, &self.dir, to)?)
    }

    fn link(&mut self, from: &str, to: &str) -> io::Result<()> {
        Ok(linkat(&self.dir, from, &self.dir, to, AtFlags::empty())?)
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        match unlinkat(&self.dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn sync_dir(&mut self) -> io::Result<()> {
        Ok(fsync(&self.dir)?)
    }

    fn open(&mut self, name: &str) -> io::Result<FileId> {
        let file = openat(&self.dir, name, self.open_flags(), Mode::empty())?;
        let free = self.open.iter().position(Option::is_none).unwrap_or_else(|| {
            self.open.push(None);
            self.open.len() - 1
        });
        self.open[free] = Some(file);
        Ok(FileId(free as u32))
    }

    fn close(&mut self, file: FileId) {
        self.open[file.0 as usize] = None;
    }

    fn read_at(&mut self, file: FileId, offset: u64, buffer: &mut AlignedBuf) -> io::Result<()> {
        Ok(read_exact_or_zero(self.fd(file), offset, buffer)?)
    }

    fn write_at(&mut self, file: FileId, offset: u64, data: &AlignedBuf) -> io::Result<()> {
        Ok(write_all(self.fd(file), offset, data, false)?)
    }

    fn sync(&mut self, file: FileId) -> io::Result<()> {
        Ok(fsync(self.fd(file))?)
    }

    fn extents(&mut self, file: FileId, start: u64, end: u64, each: EachExtent<'_>) -> io::Result<()> {
        let fd = self.fd(file);
        if self.fiemap {
            return Ok(fiemap::extents(fd, start, end, !self.abilities.direct, each)?);
        }
        let mut at = start;
        while at < end {
            let from = match rustix::fs::seek(fd, SeekFrom::Data(at)) {
                Ok(from) => from,
                Err(Errno::NXIO) => break,
                Err(error) => return Err(error.into()),
            };
            let to = rustix::fs::seek(fd, SeekFrom::Hole(from))?.min(end);
            if from >= end {
                break;
            }
            each(from, to, true);
            at = to;
        }
        Ok(())
    }

    fn punch(&mut self, file: FileId, start: u64, end: u64) -> io::Result<()> {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(self.fd(file), mode, start, end - start)?)
    }

    fn abilities(&self) -> Abilities {
        self.abilities
    }
}

fn from_raw(stat: &rustix::fs::Stat) -> Stat {
    Stat {
        inode: stat.st_ino,
        links: stat.st_nlink,
        size: stat.st_size as u64,
        allocated: stat.st_blocks as u64 * 512,
        modified_ns: stat.st_mtime.wrapping_mul(1_000_000_000).wrapping_add(stat.st_mtime_nsec as i64),
        changed_ns: stat.st_ctime.wrapping_mul(1_000_000_000).wrapping_add(stat.st_ctime_nsec as i64),
    }
}
