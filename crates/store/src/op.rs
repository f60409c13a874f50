//! File operations as values: what the store wants done, and what came of it.
//!
//! The store opens no socket and waits for nothing: a host takes [`FileOp`]s, runs them (io_uring, a blocking
//! loop, a simulated disk) and hands each [`OpResult`] back. Operations that are out at the same time are
//! independent; the host may run them in any order.

use bytes::Bytes;

use crate::buffer::AlignedBuf;

/// A file that [`Files::open`](crate::files::Files::open) opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u32);

/// Names one operation until it completed; reused afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// One operation on one file.
#[derive(Debug)]
pub struct FileOp {
    pub id: OpId,
    pub file: FileId,
    /// Where it begins, in bytes; zero for [`OpKind::Sync`].
    pub offset: u64,
    pub kind: OpKind,
}

#[derive(Debug)]
pub enum OpKind {
    /// Fill the buffer. What lies beyond the end of the file reads as zeroes; the host transfers the whole.
    Read { buffer: AlignedBuf },
    /// Write all of `data`; with `dsync`, complete only when it survives a power loss (`RWF_DSYNC`).
    Write { data: Bytes, dsync: bool },
    /// `fdatasync`: everything that completed on this file before survives a power loss.
    Sync,
    /// Make a hole (`FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE`).
    Punch { len: u64 },
    /// Make zeroes that keep their space (`FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE`).
    Zero { len: u64 },
}

/// What came of an operation.
#[derive(Debug)]
pub enum OpResult {
    /// A read: the buffer it was given, filled.
    Read(AlignedBuf),
    /// Anything else.
    Done,
    Failed(Fault),
}

/// Why an operation failed, as far as the store tells cases apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The filesystem is full, or a quota is used up.
    #[error("no space left on the filesystem")]
    NoSpace,
    /// The device failed.
    #[error("I/O error")]
    Io,
    /// The filesystem does not know this operation.
    #[error("operation not supported by the filesystem")]
    Unsupported,
    /// Any other errno.
    #[error("errno {0}")]
    Other(i32),
}

impl Fault {
    /// From the errno of a failed system call (positive).
    pub fn from_errno(errno: i32) -> Self {
        use rustix::io::Errno;
        match Errno::from_raw_os_error(errno) {
            Errno::NOSPC | Errno::DQUOT => Self::NoSpace,
            Errno::IO => Self::Io,
            Errno::OPNOTSUPP | Errno::NOSYS => Self::Unsupported,
            _ => Self::Other(errno),
        }
    }
}

impl From<&std::io::Error> for Fault {
    fn from(error: &std::io::Error) -> Self {
        error.raw_os_error().map_or(Self::Io, Self::from_errno)
    }
}
