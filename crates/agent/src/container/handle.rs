//! A process by a handle of the kernel's, whose end can be awaited.
#![allow(unsafe_code, reason = "tokio asks for a promise about the descriptor that it is given")]

use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Whatever process has the pid now.
pub(super) struct Handle(AsyncFd<OwnedFd>);

impl Handle {
    pub fn open(pid: u32) -> Option<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
        let descriptor = pidfd_open(pid, PidfdFlags::NONBLOCK).ok()?;
        // SAFETY: the descriptor is owned by the value that is registered, which neither closes nor replaces it.
        let registered = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) };
        registered.ok().map(Self)
    }

    /// Returns once the process has ended.
    pub async fn ended(&self) {
        let _ = self.0.readable().await;
    }
}
