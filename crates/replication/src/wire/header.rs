//! The two fixed pieces of the wire: the hello of a connection and the header of a message.
//!
//! ```text
//! header, 48 bytes, little endian
//!  0  magic "Tdp" + version   4  kind   5  flags   6  aux (status | layer)
//!  8  id                     16  epoch            24  session
//! 32  offset                 40  len              44  length of the payload that follows
//! ```
//!
//! A receiver decodes the header alone, learns from it how long the payload is and what it is for, and may read
//! it straight into a buffer of its own ([`Header::payload`], [`Header::carries_data`]).

use bytes::BufMut;

use super::{RequestId, WireError};
use crate::ids::{Epoch, Session, VolumeId};

/// Version of the data protocol that this code speaks.
pub const VERSION: u8 = 1;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 48;

/// Bytes of a hello.
pub const HELLO_BYTES: usize = 64;

/// Longest payload. 32 MiB is what NBD clients send at most in one request.
pub const MAX_PAYLOAD_BYTES: u32 = 32 << 20;

/// Longest payload that is not data of the volume: names, lists of regions, extents.
pub const MAX_META_BYTES: u32 = 8 << 20;

const HEADER_MAGIC: [u8; 4] = [b'T', b'd', b'p', VERSION];
const HELLO_MAGIC: [u8; 8] = *b"TETHERdp";

/// The first thing that both sides of a connection say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hello {
    /// Oldest version that the speaker understands.
    pub oldest: u16,
    /// Newest version that it understands; the connection speaks the smaller of both sides' newest.
    pub newest: u16,
    /// Optional abilities, none so far; unknown bits are ignored.
    pub features: u32,
    /// The volume that the connection is about.
    pub volume: VolumeId,
    /// Unpredictable bytes for the challenge that authenticates the peer.
    pub nonce: [u8; 32],
}

impl Hello {
    /// A hello of this version.
    pub fn new(volume: VolumeId, nonce: [u8; 32]) -> Self {
        Self { oldest: u16::from(VERSION), newest: u16::from(VERSION), features: 0, volume, nonce }
    }

    /// The bytes of it.
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        let mut out = &mut bytes[..];
        out.put_slice(&HELLO_MAGIC);
        out.put_u16_le(self.oldest);
        out.put_u16_le(self.newest);
        out.put_u32_le(self.features);
        out.put_u128_le(self.volume.0);
        out.put_slice(&self.nonce);
        bytes
    }

    /// What the peer said.
    pub fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<Self, WireError> {
        if bytes[..8] != HELLO_MAGIC {
            return Err(WireError::NotTether);
        }
        let number = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let mut volume = [0; 16];
        volume.copy_from_slice(&bytes[16..32]);
        let mut nonce = [0; 32];
        nonce.copy_from_slice(&bytes[32..]);
        Ok(Self {
            oldest: number(8),
            newest: number(10),
            features: u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]),
            volume: VolumeId(u128::from_le_bytes(volume)),
            nonce,
        })
    }

    /// The version that both sides speak, or that there is none.
    pub fn agree(&self, peer: &Self) -> Result<u16, WireError> {
        let version = self.newest.min(peer.newest);
        if version < self.oldest.max(peer.oldest) {
            return Err(WireError::Version { ours: self.newest, theirs: (peer.oldest, peer.newest) });
        }
        if self.volume != peer.volume {
            return Err(WireError::Volume { ours: self.volume, theirs: peer.volume });
        }
        Ok(version)
    }
}

/// What a message is. Requests are below `0x80`, replies above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// See the variant of the same name of [`super::RequestBody`], also below.
    Open = 1,
    Read = 2,
    Write = 3,
    Zero = 4,
    Discard = 5,
    Flush = 6,
    Status = 7,
    Ping = 8,
    LogClear = 9,
    MapStart = 10,
    MapDrop = 11,
    Missed = 12,
    Checksum = 13,
    CopyRead = 14,
    CopyWrite = 15,
    ChainRead = 16,
    ChainSet = 17,
    Settled = 18,
    Control = 19,
    Close = 20,
    StandDown = 21,
    /// Without a result of its own, or a failure of any request.
    Done = 0x80,
    /// See the variant of the same name of [`super::ReplyBody`], also below.
    Opened = 0x81,
    Data = 0x82,
    Extents = 0x83,
    Regions = 0x84,
    Sum = 0x85,
    Chain = 0x86,
    Controlled = 0x87,
}

/// Kinds of requests; replies follow them in [`Kind::ALL`].
const REQUESTS: usize = 21;

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 29] = [
        Self::Open,
        Self::Read,
        Self::Write,
        Self::Zero,
        Self::Discard,
        Self::Flush,
        Self::Status,
        Self::Ping,
        Self::LogClear,
        Self::MapStart,
        Self::MapDrop,
        Self::Missed,
        Self::Checksum,
        Self::CopyRead,
        Self::CopyWrite,
        Self::ChainRead,
        Self::ChainSet,
        Self::Settled,
        Self::Control,
        Self::Close,
        Self::StandDown,
        Self::Done,
        Self::Opened,
        Self::Data,
        Self::Extents,
        Self::Regions,
        Self::Sum,
        Self::Chain,
        Self::Controlled,
    ];

    /// Whether an engine sends it.
    pub const fn is_request(self) -> bool {
        (self as u8) < 0x80
    }

    fn from_byte(byte: u8) -> Option<Self> {
        let at = if byte < 0x80 { usize::from(byte).checked_sub(1)? } else { usize::from(byte - 0x80) + REQUESTS };
        Self::ALL.get(at).copied().filter(|kind| *kind as u8 == byte)
    }

    /// Longest payload of this kind.
    pub const fn max_payload(self) -> u32 {
        match self {
            Self::Write | Self::CopyWrite | Self::Data => MAX_PAYLOAD_BYTES,
            Self::Read
            | Self::Zero
            | Self::Discard
            | Self::Flush
            | Self::Status
            | Self::Ping
            | Self::Checksum
            | Self::CopyRead
            | Self::ChainRead
            | Self::Settled
            | Self::Close
            | Self::StandDown
            | Self::Done => 0,
            Self::MapStart | Self::MapDrop | Self::Missed => crate::ids::MAX_MEMBER_NAME_BYTES as u32,
            Self::Sum => 16,
            Self::Open => super::OPEN_BYTES as u32,
            Self::LogClear
            | Self::ChainSet
            | Self::Control
            | Self::Opened
            | Self::Extents
            | Self::Regions
            | Self::Chain
            | Self::Controlled => MAX_META_BYTES,
        }
    }
}

/// The write must be on stable storage before it is answered.
pub(super) const FLAG_FUA: u8 = 1;
/// Zeroes may be made by punching a hole.
pub(super) const FLAG_UNMAP: u8 = 2;
/// Meaning of the flags of an [`Kind::Opened`].
pub(super) const FLAG_DOUBTFUL: u8 = 1;
/// The answer to [`Kind::Missed`]: there is no map, all of the volume may differ.
pub(super) const FLAG_NO_MAP: u8 = 1;

/// The fixed part of every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// What the message is.
    pub kind: Kind,
    /// Depends on the kind.
    pub flags: u8,
    /// Replies: [`super::Status`]. Copy requests: the layer.
    pub aux: u16,
    /// Which request, chosen by the engine; repeated in the reply.
    pub id: u64,
    /// The engine's epoch; in a refusal, the epoch that the replica promised.
    pub epoch: Epoch,
    /// The session that the request belongs to.
    pub session: Session,
    /// First byte of the volume that it is about, or a number that depends on the kind.
    pub offset: u64,
    /// How many bytes of the volume.
    pub len: u32,
    /// How many bytes follow the header.
    pub payload: u32,
}

impl Header {
    /// A header that says who and what; the body fills in the rest.
    pub(super) fn new(kind: Kind, id: RequestId, epoch: Epoch, session: Session) -> Self {
        Self { kind, flags: 0, aux: 0, id: id.0, epoch, session, offset: 0, len: 0, payload: 0 }
    }

    /// The bytes of it.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut out = &mut bytes[..];
        out.put_slice(&HEADER_MAGIC);
        out.put_u8(self.kind as u8);
        out.put_u8(self.flags);
        out.put_u16_le(self.aux);
        out.put_u64_le(self.id);
        out.put_u64_le(self.epoch.0);
        out.put_u64_le(self.session.0);
        out.put_u64_le(self.offset);
        out.put_u32_le(self.len);
        out.put_u32_le(self.payload);
        bytes
    }

    /// What the first bytes of a message say.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, WireError> {
        if bytes[..3] != HEADER_MAGIC[..3] {
            return Err(WireError::NotTether);
        }
        if bytes[3] != VERSION {
            let theirs = u16::from(bytes[3]);
            return Err(WireError::Version { ours: u16::from(VERSION), theirs: (theirs, theirs) });
        }
        let kind = Kind::from_byte(bytes[4]).ok_or(WireError::Kind(bytes[4]))?;
        let long = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(number)
        };
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let header = Self {
            kind,
            flags: bytes[5],
            aux: u16::from_le_bytes([bytes[6], bytes[7]]),
            id: long(8),
            epoch: Epoch(long(16)),
            session: Session(long(24)),
            offset: long(32),
            len: word(40),
            payload: word(44),
        };
        if header.payload > kind.max_payload() {
            return Err(WireError::TooLong { kind, len: header.payload, max: kind.max_payload() });
        }
        Ok(header)
    }

    /// Whether the payload is data of the volume, worth a buffer that direct I/O can use.
    pub const fn carries_data(&self) -> bool {
        matches!(self.kind, Kind::Write | Kind::CopyWrite | Kind::Data)
    }
}
