//! What a frontend asks of the engine, and what it is told: `replication`'s own words, and who asked.
//!
//! Each request is completed exactly once, in any order. While I/O is suspended there is simply no completion: the
//! frontend keeps the request, and its limits stop the client. Ordering is the engine's: it serialises requests that
//! overlap in the order in which they were submitted, from whatever frontend they came, and a flush covers every
//! write that was completed before the flush was submitted, whoever wrote it.

use tether_replication::engine::{IoId, IoOp, IoResult};

/// One frontend of an engine: an NBD connection, or the kernel device. The host hands these out and never reuses one
/// while requests of it are in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u32);

impl ClientId {
    /// The engine's number for a request that this client numbered itself.
    pub fn io(self, sequence: u32) -> IoId {
        IoId((u64::from(self.0) << 32) | u64::from(sequence))
    }

    /// Whose request it is.
    pub fn of(io: IoId) -> Self {
        Self((io.0 >> 32) as u32)
    }
}

/// The client's own number of a request.
pub fn sequence(io: IoId) -> u32 {
    io.0 as u32
}

/// A request, for [`tether_replication::engine::Event::Io`]. Offsets and lengths are within the volume: frontends
/// check them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub io: IoId,
    pub op: IoOp,
}

/// An answer, from [`tether_replication::engine::Effect::Complete`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    pub io: IoId,
    pub result: IoResult,
}

/// Bytes that a request holds in memory, now or when it is answered; what limits count.
pub fn payload(op: &IoOp) -> u64 {
    match op {
        IoOp::Read { len, .. } => u64::from(*len),
        IoOp::Write { data, .. } => data.len() as u64,
        _ => 0,
    }
}
