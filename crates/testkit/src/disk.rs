//! What a load runs on: a volume behind an NBD socket, or a file or device that is opened past the page cache.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::nbd::{Client, Failure};

/// Direct I/O wants memory that is aligned to this.
const ALIGN: usize = 4096;

/// Where a volume is reached.
#[derive(Clone, Debug)]
pub enum Place {
    /// A unix socket on which NBD is spoken.
    Nbd(PathBuf),
    /// A file or a block device.
    File(PathBuf),
}

impl<P: AsRef<Path> + ?Sized> From<&P> for Place {
    fn from(socket: &P) -> Self {
        Self::Nbd(socket.as_ref().to_owned())
    }
}

impl Place {
    /// Connects, or opens.
    pub fn open(&self) -> io::Result<Disk> {
        match self {
            Self::Nbd(socket) => Client::connect(socket).map(Disk::Nbd),
            Self::File(path) => {
                let direct = OFlags::DIRECT.bits() as i32;
                let file = OpenOptions::new().read(true).write(true).custom_flags(direct).open(path)?;
                Ok(Disk::File(file, Aligned::new()))
            }
        }
    }
}

/// Blocks to read and write.
#[derive(Debug)]
pub enum Disk {
    Nbd(Client),
    File(File, Aligned),
}

/// A buffer for direct I/O.
#[derive(Debug)]
pub struct Aligned {
    memory: Vec<u8>,
}

impl Aligned {
    fn new() -> Self {
        Self { memory: Vec::new() }
    }

    fn take(&mut self, len: usize) -> &mut [u8] {
        self.memory.resize(len + ALIGN, 0);
        let start = self.memory.as_ptr().align_offset(ALIGN);
        &mut self.memory[start..start + len]
    }
}

/// A file's error is an answer: the kernel says that it did not do what it was asked.
fn refused(error: io::Error) -> Failure {
    error.raw_os_error().map_or(Failure::Broken(error), |number| Failure::Refused(number as u32))
}

impl Disk {
    pub fn read(&mut self, offset: u64, len: u32) -> Result<Vec<u8>, Failure> {
        match self {
            Self::Nbd(client) => client.read(offset, len),
            Self::File(file, aligned) => {
                let buffer = aligned.take(len as usize);
                file.read_exact_at(buffer, offset).map_err(refused)?;
                Ok(buffer.to_vec())
            }
        }
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Failure> {
        match self {
            Self::Nbd(client) => client.write(offset, data),
            Self::File(file, aligned) => {
                let buffer = aligned.take(data.len());
                buffer.copy_from_slice(data);
                file.write_all_at(buffer, offset).map_err(refused)
            }
        }
    }

    pub fn flush(&mut self) -> Result<(), Failure> {
        match self {
            Self::Nbd(client) => client.flush(),
            Self::File(file, _) => file.sync_data().map_err(refused),
        }
    }
}
