//! An engine without replicas: its volume is a sparse file in memory, which outlives the process if it has a name.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use bytes::{Bytes, BytesMut};
use rustix::fs::{FallocateFlags, SeekFrom};
use tether_engine::frontend::block::{Completion, Request};
use tether_replication::engine::{IoAnswer, IoError, IoOp, IoResult};
use tether_replication::wire::{Extent, Failure};

pub struct Ram {
    file: File,
}

impl Ram {
    /// A volume that is gone with the process.
    pub fn new(size: u64) -> io::Result<Self> {
        let file = tempfile::tempfile_in("/dev/shm").or_else(|_| tempfile::tempfile())?;
        file.set_len(size)?;
        Ok(Self { file })
    }

    /// A volume that the next engine finds again.
    pub fn named(path: &Path, size: u64) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path)?;
        file.set_len(size)?;
        Ok(Self { file })
    }

    pub fn resize(&self, size: u64) -> io::Result<()> {
        self.file.set_len(size)
    }

    pub fn serve(&self, request: &Request) -> Completion {
        Completion { io: request.io, result: self.run(&request.op) }
    }

    fn run(&self, op: &IoOp) -> IoResult {
        self.attempt(op).map_err(|error| match error.kind() {
            io::ErrorKind::StorageFull => IoError::Failed(Failure::NoSpace),
            _ => IoError::Failed(Failure::Io),
        })
    }

    fn attempt(&self, op: &IoOp) -> io::Result<IoAnswer> {
        match op {
            IoOp::Read { offset, len } => {
                let mut data = BytesMut::zeroed(*len as usize);
                self.file.read_exact_at(&mut data, *offset)?;
                Ok(IoAnswer::Data(data.freeze()))
            }
            IoOp::Write { offset, data, .. } => {
                self.file.write_all_at(data, *offset)?;
                Ok(IoAnswer::Done)
            }
            IoOp::Zero { offset, len, .. } | IoOp::Trim { offset, len } => {
                let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&self.file, mode, *offset, u64::from(*len))?;
                Ok(IoAnswer::Done)
            }
            IoOp::Flush => Ok(IoAnswer::Done),
            IoOp::Status { offset, len } => Ok(IoAnswer::Extents(self.extents(*offset, u64::from(*len))?)),
            IoOp::Control(_) => Ok(IoAnswer::Controlled(Bytes::new())),
        }
    }

    fn extents(&self, start: u64, len: u64) -> io::Result<Vec<Extent>> {
        let (mut at, end) = (start, start + len);
        let mut extents = Vec::new();
        while at < end {
            let data = match rustix::fs::seek(&self.file, SeekFrom::Data(at)) {
                Err(rustix::io::Errno::NXIO) => end,
                found => found?.min(end),
            };
            let hole = if data == at { rustix::fs::seek(&self.file, SeekFrom::Hole(at))?.min(end) } else { data };
            let allocated = data == at;
            extents.push(Extent { len: (hole - at) as u32, allocated, zero: !allocated });
            at = hole;
        }
        Ok(extents)
    }
}
