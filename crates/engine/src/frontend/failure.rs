//! Why a request failed, and the numbers under which NBD clients and the kernel learn it.
//!
//! | failure | NBD | kernel device | what a user sees |
//! |---|---|---|---|
//! | `Fenced` | `ESHUTDOWN` | `EIO` | another engine holds the volume; this connection or device is over |
//! | `Io` | `EIO` | `EIO` | no replica could serve it and none will come back |
//! | `NoSpace` | `ENOSPC` | `ENOSPC` | past the end, or no room that could be made |
//! | `Invalid` | `EINVAL` | `EINVAL` | a request that makes no sense for this volume |
//! | `ReadOnly` | `EPERM` | `EROFS` | a write to a volume that is attached read-only |
//! | `Unsupported` | `ENOTSUP` | `EOPNOTSUPP` | the volume cannot do this; the kernel falls back by itself |
//! | `ShuttingDown` | `ESHUTDOWN` | `EIO` | the engine was closed while the request was in flight |
//!
//! Suspended I/O is no failure: it is not completed until it can be.

use std::fmt;

use tether_nbd::wire::Errno;

/// The kinds of failures that users can tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Fenced,
    Io,
    NoSpace,
    Invalid,
    ReadOnly,
    Unsupported,
    ShuttingDown,
}

/// Linux' error numbers, as far as a block device may answer with them.
mod linux {
    pub const EIO: i32 = 5;
    pub const EINVAL: i32 = 22;
    pub const ENOSPC: i32 = 28;
    pub const EROFS: i32 = 30;
    pub const EOPNOTSUPP: i32 = 95;
}

impl Kind {
    pub const ALL: [Self; 7] =
        [Self::Fenced, Self::Io, Self::NoSpace, Self::Invalid, Self::ReadOnly, Self::Unsupported, Self::ShuttingDown];

    /// What an NBD client is told.
    pub fn nbd(self) -> Errno {
        match self {
            // Not EIO: a client that reconnects and replays must not replay into somebody else's volume.
            Self::Fenced | Self::ShuttingDown => Errno::Shutdown,
            Self::Io => Errno::Io,
            Self::NoSpace => Errno::NoSpace,
            Self::Invalid => Errno::Inval,
            Self::ReadOnly => Errno::Perm,
            Self::Unsupported => Errno::NotSup,
        }
    }

    /// What the kernel is told. Block layers know few numbers, and retry on some: a fenced device answers with the one
    /// that every file system takes as final.
    pub fn linux(self) -> i32 {
        match self {
            Self::Fenced | Self::Io | Self::ShuttingDown => linux::EIO,
            Self::NoSpace => linux::ENOSPC,
            Self::Invalid => linux::EINVAL,
            Self::ReadOnly => linux::EROFS,
            Self::Unsupported => linux::EOPNOTSUPP,
        }
    }
}

/// A kind, and the reason in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub kind: Kind,
    pub why: String,
}

impl Failure {
    pub fn new(kind: Kind, why: impl Into<String>) -> Self {
        Self { kind, why: why.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Failure {}
