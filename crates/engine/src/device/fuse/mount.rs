//! Opens `/dev/fuse` and makes the file system behind it, mounted nowhere.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

/// A FUSE file system could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot make a FUSE file system ({call}): {source}")]
pub struct MountError {
    call: &'static str,
    source: io::Error,
}

/// A file system whose root is a regular file.
#[derive(Debug)]
pub struct Mounted {
    /// Where the kernel's requests are read, without blocking. The first one is there already.
    pub fuse: OwnedFd,
    /// The file, as a place: it can be opened by way of `/proc/self/fd`. Once a loop device has it open this is not
    /// needed any more.
    pub root: OwnedFd,
}

/// Makes one. This does not wait for anybody to answer.
pub fn mount() -> Result<Mounted, MountError> {
    let failed = |call: &'static str| move |error: rustix::io::Errno| MountError { call, source: error.into() };
    let fuse: OwnedFd = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/fuse")
        .map_err(|source| MountError { call: "open /dev/fuse", source })?
        .into();
    let context = rustix::mount::fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC).map_err(failed("fsopen"))?;
    let number = fuse.as_raw_fd().to_string();
    let options =
        [("source", "tether"), ("fd", number.as_str()), ("rootmode", "100600"), ("user_id", "0"), ("group_id", "0")];
    for (key, value) in options {
        rustix::mount::fsconfig_set_string(context.as_fd(), key, value).map_err(failed("fsconfig"))?;
    }
    rustix::mount::fsconfig_create(context.as_fd()).map_err(failed("fsconfig create"))?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let root = rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
        .map_err(failed("fsmount"))?;
    Ok(Mounted { fuse, root })
}
