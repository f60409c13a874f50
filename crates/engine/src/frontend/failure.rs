//! The numbers under which NBD clients and the kernel learn why a request failed.
//!
//! | failure | NBD | kernel device | what a user sees |
//! |---|---|---|---|
//! | fenced | `ESHUTDOWN` | `EIO` | another engine holds the volume; this connection or device is over |
//! | stopped | `ESHUTDOWN` | `EIO` | the engine was closed while the request was in flight |
//! | last member lost | `EIO` | `EIO` | acknowledged writes may be gone; the volume must be attached again |
//! | a replica's disk | `EIO` | `EIO` | no replica could serve it |
//! | no space | `ENOSPC` | `ENOSPC` | past the end of the volume, or no room that could be made |
//! | invalid | `EINVAL` | `EINVAL` | a request that makes no sense for this volume |
//! | unsupported | `ENOTSUP` | `EOPNOTSUPP` | the store cannot do this; the kernel falls back by itself |
//!
//! Suspended I/O is no failure: it is not completed until it can be.

use tether_nbd::wire::Errno;
use tether_replication::engine::IoError;
use tether_replication::wire::Failure;

/// Linux' error numbers, as far as a block device may answer with them.
pub mod linux {
    pub const EIO: i32 = 5;
    pub const EINVAL: i32 = 22;
    pub const ENOSPC: i32 = 28;
    pub const EROFS: i32 = 30;
    pub const EOPNOTSUPP: i32 = 95;
}

/// What an NBD client is told.
pub fn nbd(error: IoError) -> Errno {
    match error {
        // Not EIO: this server will not serve the volume again, and a client should not try.
        IoError::Fenced { .. } | IoError::Stopped | IoError::Failed(Failure::Fenced { .. }) => Errno::Shutdown,
        IoError::Failed(Failure::NoSpace) => Errno::NoSpace,
        IoError::Failed(Failure::Unsupported) => Errno::NotSup,
        IoError::Invalid | IoError::Failed(Failure::Invalid) => Errno::Inval,
        IoError::LastMemberLost | IoError::Failed(_) => Errno::Io,
    }
}

/// What the kernel is told. Block layers know few numbers, and retry on some: a fenced device answers with the one
/// that every file system takes as final.
pub fn linux(error: IoError) -> i32 {
    match nbd(error) {
        Errno::NoSpace => linux::ENOSPC,
        Errno::NotSup => linux::EOPNOTSUPP,
        Errno::Inval => linux::EINVAL,
        _ => linux::EIO,
    }
}
