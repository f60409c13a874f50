//! Messages to bytes and back: never panics, never copies the data of a write or a read.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::header::{FLAG_DOUBTFUL, FLAG_FUA, FLAG_NO_MAP, FLAG_UNMAP};
use super::{
    ControlKind, ControlOp, Extent, Failure, HEADER_BYTES, Header, Kind, Layer, Open, Opened, Reply, ReplyBody,
    Request, RequestBody, RequestId, Role, WireError,
};
use crate::ids::{BootId, Epoch, Generation, Holder, MemberId, VolumeId};
use crate::region::RegionSet;

/// Payload of an open: holder, volume, generation, role.
pub const OPEN_BYTES: usize = 16 + 16 + 8 + 1;
/// Fixed part of the payload of an opened: boot, log, chain, size, generation.
const OPENED_BYTES: usize = 16 + 8 * 4;
/// One word of a region set: its number and its bits.
const WORD_BYTES: usize = 12;
/// One extent: length and flags.
const EXTENT_BYTES: usize = 5;

/// Either direction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// To a replica.
    Request(Request),
    /// To an engine.
    Reply(Reply),
}

/// Takes the next message off `input`, if all of it is there. After an error the connection is of no use.
pub fn decode(input: &mut BytesMut) -> Result<Option<Message>, WireError> {
    let Some(start) = input.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let header = Header::decode(start)?;
    let total = HEADER_BYTES + header.payload as usize;
    if input.len() < total {
        input.reserve(total - input.len());
        return Ok(None);
    }
    input.advance(HEADER_BYTES);
    decode_parts(&header, input.split_to(header.payload as usize).freeze()).map(Some)
}

/// The message of a header and its payload, which was received into a buffer of the caller's choice.
pub fn decode_parts(header: &Header, payload: Bytes) -> Result<Message, WireError> {
    if payload.len() != header.payload as usize {
        return Err(WireError::Malformed(header.kind));
    }
    if header.kind.is_request() {
        let body = request_body(header, payload).ok_or(WireError::Malformed(header.kind))?;
        let (id, epoch, session) = (RequestId(header.id), header.epoch, header.session);
        return Ok(Message::Request(Request { id, epoch, session, body }));
    }
    let body = reply_body(header, payload).ok_or(WireError::Malformed(header.kind))?;
    Ok(Message::Reply(Reply { id: RequestId(header.id), session: header.session, body }))
}

impl Message {
    /// Header and payload, to be sent one after the other.
    pub fn encode(&self) -> ([u8; HEADER_BYTES], Bytes) {
        match self {
            Self::Request(request) => request.encode(),
            Self::Reply(reply) => reply.encode(),
        }
    }
}

impl Request {
    /// Header and payload, to be sent one after the other.
    pub fn encode(&self) -> ([u8; HEADER_BYTES], Bytes) {
        let mut header = Header::new(self.body.kind(), self.id, self.epoch, self.session);
        let payload = self.body.fill(&mut header);
        header.payload = payload.len() as u32;
        (header.encode(), payload)
    }
}

impl Reply {
    /// Header and payload, to be sent one after the other.
    pub fn encode(&self) -> ([u8; HEADER_BYTES], Bytes) {
        let mut header = Header::new(self.body.kind(), self.id, Epoch(0), self.session);
        let payload = self.body.fill(&mut header);
        header.payload = payload.len() as u32;
        (header.encode(), payload)
    }
}

impl RequestBody {
    /// The kind of message that carries this.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Open(_) => Kind::Open,
            Self::Read { .. } => Kind::Read,
            Self::Write { .. } => Kind::Write,
            Self::Zero { .. } => Kind::Zero,
            Self::Discard { .. } => Kind::Discard,
            Self::Flush => Kind::Flush,
            Self::Status { .. } => Kind::Status,
            Self::Ping => Kind::Ping,
            Self::LogClear { .. } => Kind::LogClear,
            Self::MapStart { .. } => Kind::MapStart,
            Self::MapDrop { .. } => Kind::MapDrop,
            Self::Missed { .. } => Kind::Missed,
            Self::Checksum { .. } => Kind::Checksum,
            Self::CopyRead { .. } => Kind::CopyRead,
            Self::CopyWrite { .. } => Kind::CopyWrite,
            Self::ChainRead => Kind::ChainRead,
            Self::ChainSet { .. } => Kind::ChainSet,
            Self::Settled => Kind::Settled,
            Self::Control(_) => Kind::Control,
            Self::Close => Kind::Close,
            Self::StandDown => Kind::StandDown,
        }
    }

    fn fill(&self, header: &mut Header) -> Bytes {
        match self {
            Self::Read { offset, len } | Self::Discard { offset, len } | Self::Status { offset, len } => {
                (header.offset, header.len) = (*offset, *len);
            }
            Self::Write { offset, data, fua } => {
                (header.offset, header.len) = (*offset, data.len() as u32);
                header.flags = if *fua { FLAG_FUA } else { 0 };
                return data.clone();
            }
            Self::Zero { offset, len, fua, unmap } => {
                (header.offset, header.len) = (*offset, *len);
                header.flags = if *fua { FLAG_FUA } else { 0 } | if *unmap { FLAG_UNMAP } else { 0 };
            }
            Self::Checksum { layer, offset, len } | Self::CopyRead { layer, offset, len } => {
                (header.aux, header.offset, header.len) = (layer.0, *offset, *len);
            }
            Self::CopyWrite { layer, offset, data } => {
                (header.aux, header.offset, header.len) = (layer.0, *offset, data.len() as u32);
                return data.clone();
            }
            Self::Flush | Self::Ping | Self::ChainRead | Self::Settled | Self::Close | Self::StandDown => {}
            Self::Open(open) => return put_open(open),
            Self::LogClear { log, regions } => {
                header.offset = *log;
                return put_regions(BytesMut::new(), regions);
            }
            Self::MapStart { member } | Self::MapDrop { member } | Self::Missed { member } => {
                return Bytes::copy_from_slice(member.as_str().as_bytes());
            }
            Self::ChainSet { chain } => return chain.clone(),
            Self::Control(op) => {
                (header.aux, header.offset) = (op.kind as u16, op.size);
                return op.body.clone();
            }
        }
        Bytes::new()
    }
}

fn request_body(header: &Header, payload: Bytes) -> Option<RequestBody> {
    let Header { offset, len, aux, .. } = *header;
    let layer = Layer(aux);
    let fua = header.flags & FLAG_FUA != 0;
    let member = |payload: &Bytes| MemberId::new(std::str::from_utf8(payload).ok()?);
    let whole = payload.len() == len as usize;
    Some(match header.kind {
        Kind::Open => RequestBody::Open(get_open(payload)?),
        Kind::Read => RequestBody::Read { offset, len },
        Kind::Write if whole => RequestBody::Write { offset, data: payload, fua },
        Kind::Zero => RequestBody::Zero { offset, len, fua, unmap: header.flags & FLAG_UNMAP != 0 },
        Kind::Discard => RequestBody::Discard { offset, len },
        Kind::Flush => RequestBody::Flush,
        Kind::Status => RequestBody::Status { offset, len },
        Kind::Ping => RequestBody::Ping,
        Kind::LogClear => RequestBody::LogClear { log: offset, regions: get_regions(payload)? },
        Kind::MapStart => RequestBody::MapStart { member: member(&payload)? },
        Kind::MapDrop => RequestBody::MapDrop { member: member(&payload)? },
        Kind::Missed => RequestBody::Missed { member: member(&payload)? },
        Kind::Checksum => RequestBody::Checksum { layer, offset, len },
        Kind::CopyRead => RequestBody::CopyRead { layer, offset, len },
        Kind::CopyWrite if whole => RequestBody::CopyWrite { layer, offset, data: payload },
        Kind::ChainRead => RequestBody::ChainRead,
        Kind::ChainSet => RequestBody::ChainSet { chain: payload },
        Kind::Settled => RequestBody::Settled,
        Kind::Control => {
            let kind = ControlKind::ALL.into_iter().find(|kind| *kind as u16 == aux)?;
            RequestBody::Control(ControlOp { kind, size: offset, body: payload })
        }
        Kind::Close => RequestBody::Close,
        Kind::StandDown => RequestBody::StandDown,
        _ => return None,
    })
}

impl ReplyBody {
    /// The kind of message that carries this.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Done | Self::Failed(_) => Kind::Done,
            Self::Opened(_) => Kind::Opened,
            Self::Data(_) => Kind::Data,
            Self::Extents(_) => Kind::Extents,
            Self::Regions { .. } => Kind::Regions,
            Self::Sum(_) => Kind::Sum,
            Self::Chain { .. } => Kind::Chain,
            Self::Controlled(_) => Kind::Controlled,
        }
    }

    fn fill(&self, header: &mut Header) -> Bytes {
        match self {
            Self::Done => Bytes::new(),
            Self::Failed(failure) => {
                header.aux = failure.code();
                if let Failure::Fenced { promised } = failure {
                    header.epoch = *promised;
                }
                Bytes::new()
            }
            Self::Opened(opened) => {
                header.flags = if opened.doubtful { FLAG_DOUBTFUL } else { 0 };
                put_opened(opened)
            }
            Self::Data(data) | Self::Controlled(data) => {
                header.len = data.len() as u32;
                data.clone()
            }
            Self::Extents(extents) => put_extents(extents),
            Self::Regions { missed, chain } => {
                header.offset = *chain;
                header.flags = if missed.is_none() { FLAG_NO_MAP } else { 0 };
                missed.as_ref().map_or_else(Bytes::new, |regions| put_regions(BytesMut::new(), regions))
            }
            Self::Sum(sum) => Bytes::copy_from_slice(&sum.to_le_bytes()),
            Self::Chain { layers, chain } => {
                header.offset = u64::from(*layers);
                chain.clone()
            }
        }
    }
}

fn reply_body(header: &Header, mut payload: Bytes) -> Option<ReplyBody> {
    if header.kind != Kind::Done && header.aux != 0 {
        return None;
    }
    Some(match header.kind {
        Kind::Done if header.aux == 0 => ReplyBody::Done,
        Kind::Done => ReplyBody::Failed(Failure::from_code(header.aux, header.epoch)?),
        Kind::Opened => ReplyBody::Opened(get_opened(payload, header.flags & FLAG_DOUBTFUL != 0)?),
        Kind::Data => ReplyBody::Data(payload),
        Kind::Extents => ReplyBody::Extents(get_extents(payload)?),
        Kind::Regions if header.flags & FLAG_NO_MAP != 0 => ReplyBody::Regions { missed: None, chain: header.offset },
        Kind::Regions => ReplyBody::Regions { missed: Some(get_regions(payload)?), chain: header.offset },
        Kind::Sum if payload.len() == 16 => ReplyBody::Sum(payload.get_u128_le()),
        Kind::Chain => ReplyBody::Chain { layers: u16::try_from(header.offset).ok()?, chain: payload },
        Kind::Controlled => ReplyBody::Controlled(payload),
        _ => return None,
    })
}

impl Failure {
    const fn code(self) -> u16 {
        match self {
            Self::Fenced { .. } => 1,
            Self::Session => 2,
            Self::NotOpen => 3,
            Self::Volume => 4,
            Self::NoSpace => 5,
            Self::Io => 6,
            Self::Invalid => 7,
            Self::Conflict => 8,
            Self::Unsupported => 9,
        }
    }

    const fn from_code(code: u16, promised: Epoch) -> Option<Self> {
        Some(match code {
            1 => Self::Fenced { promised },
            2 => Self::Session,
            3 => Self::NotOpen,
            4 => Self::Volume,
            5 => Self::NoSpace,
            6 => Self::Io,
            7 => Self::Invalid,
            8 => Self::Conflict,
            9 => Self::Unsupported,
            _ => return None,
        })
    }
}

fn put_open(open: &Open) -> Bytes {
    let mut out = BytesMut::with_capacity(OPEN_BYTES);
    out.put_u128_le(open.holder.0);
    out.put_u128_le(open.volume.0);
    out.put_u64_le(open.generation.0);
    out.put_u8(u8::from(open.role == Role::Joiner));
    out.freeze()
}

fn get_open(mut payload: Bytes) -> Option<Open> {
    if payload.len() != OPEN_BYTES {
        return None;
    }
    Some(Open {
        holder: Holder(payload.get_u128_le()),
        volume: VolumeId(payload.get_u128_le()),
        generation: Generation(payload.get_u64_le()),
        role: match payload.get_u8() {
            0 => Role::Member,
            1 => Role::Joiner,
            _ => return None,
        },
    })
}

fn put_opened(opened: &Opened) -> Bytes {
    let mut out = BytesMut::with_capacity(OPENED_BYTES + opened.regions.words().len() * WORD_BYTES);
    out.put_u128_le(opened.boot.0);
    out.put_u64_le(opened.log);
    out.put_u64_le(opened.chain);
    out.put_u64_le(opened.size);
    out.put_u64_le(opened.generation.0);
    put_regions(out, &opened.regions)
}

fn get_opened(mut payload: Bytes, doubtful: bool) -> Option<Opened> {
    if payload.len() < OPENED_BYTES {
        return None;
    }
    let boot = BootId(payload.get_u128_le());
    let (log, chain, size) = (payload.get_u64_le(), payload.get_u64_le(), payload.get_u64_le());
    let generation = Generation(payload.get_u64_le());
    Some(Opened { boot, doubtful, log, regions: get_regions(payload)?, chain, size, generation })
}

fn put_regions(mut out: BytesMut, regions: &RegionSet) -> Bytes {
    out.reserve(regions.words().len() * WORD_BYTES);
    for (high, bits) in regions.words() {
        out.put_u32_le(high);
        out.put_u64_le(bits);
    }
    out.freeze()
}

/// Words come in ascending order and none is empty: one set has one encoding.
fn get_regions(mut payload: Bytes) -> Option<RegionSet> {
    let mut set = RegionSet::new();
    while payload.len() >= WORD_BYTES {
        let (high, bits) = (payload.get_u32_le(), payload.get_u64_le());
        set.push_word(high, bits)?;
    }
    payload.is_empty().then_some(set)
}

fn put_extents(extents: &[Extent]) -> Bytes {
    let mut out = BytesMut::with_capacity(extents.len() * EXTENT_BYTES);
    for extent in extents {
        out.put_u32_le(extent.len);
        out.put_u8(u8::from(extent.allocated) | u8::from(extent.zero) << 1);
    }
    out.freeze()
}

fn get_extents(mut payload: Bytes) -> Option<Vec<Extent>> {
    if !payload.len().is_multiple_of(EXTENT_BYTES) {
        return None;
    }
    let mut extents = Vec::with_capacity(payload.len() / EXTENT_BYTES);
    while payload.has_remaining() {
        let (len, flags) = (payload.get_u32_le(), payload.get_u8());
        if flags > 3 {
            return None;
        }
        extents.push(Extent { len, allocated: flags & 1 != 0, zero: flags & 2 != 0 });
    }
    Some(extents)
}
