//! What engine and replica say to each other on the data port, and its bytes.
//!
//! A connection opens with a [`Hello`] in both directions (and the challenge that authenticates the peers, which
//! is the shell's), then the engine sends [`Request`]s and the replica [`Reply`]s, matched by id, in any order.
//! A standby speaks to the engine it reads through in the same words: reads, and at last [`RequestBody::StandDown`].
//! A message is a fixed [`Header`] and a payload; payloads of data are never copied or looked at here.

mod codec;
mod header;
#[cfg(test)]
mod tests;

use std::fmt;

use bytes::Bytes;
use thiserror::Error;

pub use codec::{Message, OPEN_BYTES, decode, decode_parts};
pub use header::{HEADER_BYTES, HELLO_BYTES, Header, Hello, Kind, MAX_META_BYTES, MAX_PAYLOAD_BYTES, VERSION};

use crate::ids::{BootId, Epoch, Generation, Holder, MemberId, Session, VolumeId};
use crate::region::{Region, RegionSet};

/// Identifies a request within its session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Which content a copy is about: one layer of the chain of snapshots, as the whole volume looked when that
/// snapshot was taken, or the live volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Layer(pub u16);

impl Layer {
    /// What the volume holds now.
    pub const LIVE: Self = Self(u16::MAX);
}

/// From engine to replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// Chosen by the engine.
    pub id: RequestId,
    /// The engine's epoch.
    pub epoch: Epoch,
    /// The session; requests of an older one are refused.
    pub session: Session,
    /// What it asks.
    pub body: RequestBody,
}

/// What an engine asks of a replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RequestBody {
    /// Promise this epoch, holder and session. First request of a session.
    Open(Open),
    /// Data of the live volume.
    Read { offset: u64, len: u32 },
    /// Store data; with `fua` on stable storage.
    Write { offset: u64, data: Bytes, fua: bool },
    /// Store zeroes; with `unmap` they may be a hole.
    Zero { offset: u64, len: u32, fua: bool, unmap: bool },
    /// The range is not needed any more.
    Discard { offset: u64, len: u32 },
    /// Everything answered so far must be on stable storage.
    Flush,
    /// Which parts are data, which holes.
    Status { offset: u64, len: u32 },
    /// Nothing but an answer: renews the lease.
    Ping,
    /// These regions are equal and durable on every recorded member: forget them (into the missed maps).
    LogClear { log: u64, regions: RegionSet },
    /// A member leaves: remember from now on what it misses.
    MapStart { member: MemberId },
    /// A member is in sync again: forget what it missed.
    MapDrop { member: MemberId },
    /// Which regions may `member` lack? Missed map and current activity log, or that there is no map.
    Missed { member: MemberId },
    /// Checksum of a range of a layer.
    Checksum { layer: Layer, offset: u64, len: u32 },
    /// Data of a layer, to be copied.
    CopyRead { layer: Layer, offset: u64, len: u32 },
    /// Copied data; into the live volume it is logged like a write.
    CopyWrite { layer: Layer, offset: u64, data: Bytes },
    /// The chain of snapshots, in words of the store.
    ChainRead,
    /// Become a replica with this chain of snapshots, whose content follows; forget every missed map.
    ChainSet { chain: Bytes },
    /// What the log named is equal on all members: no longer doubtful.
    Settled,
    /// An operation on the whole volume; no other request is on its way.
    Control(ControlOp),
    /// The session ends.
    Close,
    /// From a promoted standby to the engine that it read through: the epoch of this request is newer, stop.
    StandDown,
}

/// What an engine introduces itself with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Open {
    /// The engine process.
    pub holder: Holder,
    /// The volume.
    pub volume: VolumeId,
    /// The record's generation, kept by the replica to notice a record that was set back.
    pub generation: Generation,
    /// In which role the replica takes part.
    pub role: Role,
}

/// Why a replica is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// It is in the recorded set.
    Member,
    /// It is not; it is about to be resynced. What it remembers about others' gaps is out of date.
    Joiner,
}

/// An operation on the whole volume, done at a moment when nothing else is under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ControlOp {
    /// What kind of operation.
    pub kind: ControlKind,
    /// New size in bytes, for [`ControlKind::Expand`]; zero otherwise.
    pub size: u64,
    /// Arguments in words of the store.
    pub body: Bytes,
}

/// What a [`ControlOp`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum ControlKind {
    /// Freeze the live volume as a snapshot.
    SnapshotCreate = 1,
    /// Mark a snapshot as not needed.
    SnapshotDelete = 2,
    /// The live volume becomes what it was at a snapshot.
    SnapshotRevert = 3,
    /// Fold away what is not needed.
    SnapshotPurge = 4,
    /// Make the volume larger.
    Expand = 5,
    /// Something that changes neither data nor chain.
    Custom = 6,
}

impl ControlKind {
    /// Every kind.
    pub const ALL: [Self; 6] = [
        Self::SnapshotCreate,
        Self::SnapshotDelete,
        Self::SnapshotRevert,
        Self::SnapshotPurge,
        Self::Expand,
        Self::Custom,
    ];

    /// Whether the chain of snapshots is another one afterwards.
    pub const fn changes_chain(self) -> bool {
        !matches!(self, Self::Custom)
    }
}

/// From replica to engine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reply {
    /// Of which request.
    pub id: RequestId,
    /// In which session it was asked.
    pub session: Session,
    /// The answer.
    pub body: ReplyBody,
}

/// What a replica answers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ReplyBody {
    /// Done; nothing to say.
    Done,
    /// Not done.
    Failed(Failure),
    /// The promise is durable, and nothing older is under way any more.
    Opened(Opened),
    /// What was read.
    Data(Bytes),
    /// Consecutive extents from the offset that was asked for.
    Extents(Vec<Extent>),
    /// What a member may lack, or nothing if that is not known; identity of the answering replica's own chain of
    /// snapshots (0: not complete).
    Regions { missed: Option<RegionSet>, chain: u64 },
    /// A checksum.
    Sum(u128),
    /// The chain of snapshots.
    Chain { layers: u16, chain: Bytes },
    /// What a control operation says.
    Controlled(Bytes),
}

/// What a replica says of itself when it is opened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Opened {
    /// The boot of its host: data that was not flushed is there only if it is still the same.
    pub boot: BootId,
    /// Its host lost power since regions were written, so that some of them may be old.
    pub doubtful: bool,
    /// Number of its activity log; clears must name it.
    pub log: u64,
    /// Regions that may differ between members.
    pub regions: RegionSet,
    /// Identifies the chain of snapshots.
    pub chain: u64,
    /// Size of its volume.
    pub size: u64,
    /// The newest generation of the record that it had heard of before.
    pub generation: Generation,
}

/// Why a request was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Failure {
    /// A newer epoch, or another holder of this one, was promised.
    Fenced { promised: Epoch },
    /// The session is not the newest of this engine.
    Session,
    /// The session was not opened.
    NotOpen,
    /// The replica belongs to another volume.
    Volume,
    /// No space left.
    NoSpace,
    /// The disk failed.
    Io,
    /// The request makes no sense for this volume.
    Invalid,
    /// What it names does not exist, or exists already.
    Conflict,
    /// The store cannot do this.
    Unsupported,
}

/// One extent of a block status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// Length in bytes.
    pub len: u32,
    /// Whether storage is allocated.
    pub allocated: bool,
    /// Whether it reads as zeroes.
    pub zero: bool,
}

/// Bytes that are not a message of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    /// Some other protocol.
    #[error("the peer does not speak Tether's data protocol")]
    NotTether,
    /// No version in common.
    #[error("the peer speaks versions {} to {} of the data protocol, we speak {ours}", theirs.0, theirs.1)]
    Version { ours: u16, theirs: (u16, u16) },
    /// A connection about another volume.
    #[error("the peer talks about volume {theirs}, not {ours}")]
    Volume { ours: VolumeId, theirs: VolumeId },
    /// A kind of message that this version does not have.
    #[error("kind {0:#04x} of message is not known")]
    Kind(u8),
    /// More than a message of this kind may carry.
    #[error("a {kind:?} message of {len} bytes is longer than {max}")]
    TooLong { kind: Kind, len: u32, max: u32 },
    /// The payload does not fit its kind.
    #[error("the payload of a {0:?} message is malformed")]
    Malformed(Kind),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fenced { promised } => write!(f, "the replica promised epoch {promised} to another engine"),
            Self::Session => f.write_str("a newer session replaced this one"),
            Self::NotOpen => f.write_str("the session was not opened"),
            Self::Volume => f.write_str("the replica belongs to another volume"),
            Self::NoSpace => f.write_str("no space left on the replica's disk"),
            Self::Io => f.write_str("the replica's disk failed"),
            Self::Invalid => f.write_str("the request does not fit this volume"),
            Self::Conflict => f.write_str("what the request names does not exist, or exists already"),
            Self::Unsupported => f.write_str("the replica cannot do this"),
        }
    }
}

/// How many bytes a list of this many regions may take at most, for bounds of a sender.
pub const fn region_words(regions: Region) -> usize {
    (regions as usize).div_ceil(64)
}
