//! A volume as a kernel block device, `/dev/longhorn/<volume>`, that outlives its engine.
//!
//! ```text
//!   pod ─► file system ─► /dev/loopN ─► FUSE file ─► /dev/fuse ─┬─► engine (may be killed at any time)
//!                                                              └── holder (keeps it open)
//! ```
//!
//! - [`fuse`]: the machine that understands the kernel; the engine's event loop reads and writes `/dev/fuse` for it.
//! - [`holder`]: a tiny process for each device. It keeps `/dev/fuse` open while engines come and go, so that requests
//!   wait instead of failing, and hands it to the next engine. It also runs everything that waits for the device.
//! - [`link`]: the engine's side of that.
//! - [`leftovers`]: what dead processes left behind, found and removed.
//!
//! The file system with its one file is mounted nowhere: the loop device alone holds it. So there is no mount point
//! that could be left over, and nobody else can open the file.
//!
//! Another kind of device (ublk, where the kernel has it) would implement [`Kind`] and bring a machine of its own; holder
//! and link carry whatever descriptor must outlive the engine.

pub mod fuse;
pub mod holder;
pub mod leftovers;
pub mod link;
pub mod loops;
pub mod place;
mod sys;

use std::path::Path;

use crate::frontend::block::Completion;

pub use sys::serve_memory_pressure;

/// A kernel device without the kernel: what its machine can do, whatever the interface below.
pub trait Kind {
    /// What the host writes back.
    type Reply;

    /// Takes an answer of the engine.
    fn complete(&mut self, completion: Completion) -> Option<Self::Reply>;

    /// The volume has grown; what the kernel is to be told.
    fn resize(&mut self, size: u64) -> Self::Reply;

    /// Requests that the kernel waits for.
    fn in_flight(&self) -> usize;
}

impl Kind for fuse::machine::Fuse {
    type Reply = fuse::machine::Reply;

    fn complete(&mut self, completion: Completion) -> Option<Self::Reply> {
        Self::complete(self, completion)
    }

    fn resize(&mut self, size: u64) -> Self::Reply {
        Self::resize(self, size)
    }

    fn in_flight(&self) -> usize {
        Self::in_flight(self)
    }
}

/// Why there can be no kernel device here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    #[error("a kernel device needs root; without it the volume can be reached over NBD")]
    NotRoot,
    #[error(
        "a kernel device needs {0}, which does not exist here (a container needs it passed through); \
         without it the volume can be reached over NBD"
    )]
    Missing(&'static str),
}

/// Whether kernel devices are possible on this machine.
pub fn available() -> Result<(), Unavailable> {
    if !rustix::process::geteuid().is_root() {
        return Err(Unavailable::NotRoot);
    }
    let needed = ["/dev/fuse", loops::CONTROL];
    needed.iter().find(|path| !Path::new(path).exists()).map_or(Ok(()), |path| Err(Unavailable::Missing(path)))
}
