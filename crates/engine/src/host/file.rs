//! File operations.
use bytes::Bytes;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u32);

#[derive(Clone, Debug)]
pub enum FileOp {
    Read { file: FileId, offset: u64, len: usize },
    Write { file: FileId, offset: u64, data: Bytes },
    Sync { file: FileId },
    Punch { file: FileId, offset: u64, len: u64 },
    Zero { file: FileId, offset: u64, len: u64 },
}

pub type OpResult = Result<Option<Bytes>, std::io::ErrorKind>;
