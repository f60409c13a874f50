//! What a frontend asks of the engine, and what it is told: the one vocabulary of NBD and kernel devices.
//!
//! Each request is completed exactly once, in any order. While I/O is suspended there is simply no completion: the
//! frontend keeps the request, and its limits stop the client. Ordering is the engine's: it serialises requests that
//! overlap in the order in which they were submitted, from whatever frontend they came, and a flush covers every
//! write that was completed before the flush was submitted, whoever wrote it.

use std::fmt;

use bytes::Bytes;

use super::failure::Failure;

/// One frontend of an engine: an NBD connection, or the kernel device. The host hands these out and never reuses one
/// while requests of it are in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u32);

/// A request, among all that one engine has in flight.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

impl RequestId {
    pub fn new(client: ClientId, sequence: u32) -> Self {
        Self((u64::from(client.0) << 32) | u64::from(sequence))
    }

    /// Where the completion goes.
    pub fn client(self) -> ClientId {
        ClientId((self.0 >> 32) as u32)
    }

    /// The frontend's own number for it.
    pub fn sequence(self) -> u32 {
        self.0 as u32
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.client().0, self.sequence())
    }
}

/// What is asked for. Offsets and lengths are within the volume: frontends check them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    Read {
        offset: u64,
        len: u32,
    },
    /// `fua`: on stable storage of every in-sync replica before it is completed.
    Write {
        offset: u64,
        data: Bytes,
        fua: bool,
    },
    /// Reads as zeroes afterwards. `may_punch`: space may be given back, otherwise it stays allocated.
    WriteZeroes {
        offset: u64,
        len: u64,
        fua: bool,
        may_punch: bool,
    },
    /// The content is not needed any more; what is read afterwards is not defined.
    Trim {
        offset: u64,
        len: u64,
        fua: bool,
    },
    Flush,
    /// Which parts are allocated. The answer covers a prefix of the range, of at least one extent.
    Status {
        offset: u64,
        len: u64,
    },
}

impl Operation {
    /// Bytes that the request holds in memory, now or when it is answered; what limits count.
    pub fn payload(&self) -> u64 {
        match self {
            Self::Read { len, .. } => u64::from(*len),
            Self::Write { data, .. } => data.len() as u64,
            _ => 0,
        }
    }

    /// A word for logs and errors.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Read { .. } => "read",
            Self::Write { .. } => "write",
            Self::WriteZeroes { .. } => "write zeroes",
            Self::Trim { .. } => "trim",
            Self::Flush => "flush",
            Self::Status { .. } => "status",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub id: RequestId,
    pub operation: Operation,
}

/// A run of blocks in the same state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub len: u64,
    /// False: reads as zeroes and takes no space.
    pub allocated: bool,
}

/// What a request was completed with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// Everything but reads and status.
    Plain,
    /// All bytes of a read.
    Data(Bytes),
    /// A read of blocks that hold only zeroes, where that is known without reading.
    Zeroes,
    Extents(Vec<Extent>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    pub id: RequestId,
    pub result: Result<Done, Failure>,
}
