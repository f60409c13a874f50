//! Commands and replies, once an export is agreed on.
//!
//! [`Session::next`] turns bytes into [`Request`]s; whoever serves them answers each cookie once with one of
//! the `reply_…` functions, in any order. A command that is wrong in itself (past the end, unaligned, unknown)
//! is answered here and never reaches the device.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::handshake::{Agreed, BASE_ALLOCATION_ID};
use crate::wire::{self, Errno, RequestHeader, chunk, command, flag};

/// Extents in one block-status reply; the client asks again from where it ends.
pub const MAX_STATUS_EXTENTS: usize = 4096;
/// Longest reason that a failed command is answered with; the protocol allows 4096 bytes.
const MAX_REASON_BYTES: usize = 1024;

/// What the client wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    Read {
        offset: u64,
        len: u32,
    },
    Write {
        offset: u64,
        data: Bytes,
        fua: bool,
    },
    Flush,
    Trim {
        offset: u64,
        len: u32,
        fua: bool,
    },
    /// `may_punch` is false if the client wants the blocks to stay allocated.
    WriteZeroes {
        offset: u64,
        len: u32,
        fua: bool,
        may_punch: bool,
    },
    /// `one`: a single extent is enough.
    BlockStatus {
        offset: u64,
        len: u32,
        one: bool,
    },
}

/// A command with the cookie that its reply must carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub cookie: u64,
    pub command: Command,
}

/// What came out of the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Request(Request),
    /// The client is done; what is in flight is still answered.
    Disconnect,
    /// The client broke the protocol; the connection is to be closed.
    Broken(String),
}

/// A run of blocks in the same state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub len: u32,
    pub hole: bool,
    pub zero: bool,
}

/// The server's side of the transmission phase.
#[derive(Debug)]
pub struct Session {
    agreed: Agreed,
    /// The size may grow under a running session.
    size: u64,
    over: bool,
    /// Payload of a write that was refused, still to be thrown away.
    skip: u64,
}

impl Session {
    pub fn new(agreed: Agreed) -> Self {
        let size = agreed.export.size;
        Self { agreed, size, over: false, skip: 0 }
    }

    /// The volume was expanded: commands up to the new end are accepted from now on.
    pub fn resize(&mut self, size: u64) {
        self.size = size;
    }

    /// The next event in `input`, or None if more bytes are needed. Replies to refused commands go to `out`.
    pub fn next(&mut self, input: &mut BytesMut, out: &mut BytesMut) -> Option<Event> {
        loop {
            if self.over {
                return None;
            }
            if self.skip > 0 {
                let taken = self.skip.min(input.len() as u64);
                input.advance(taken as usize);
                self.skip -= taken;
                if self.skip > 0 {
                    return None;
                }
            }
            if input.len() < wire::REQUEST_BYTES {
                return None;
            }
            let header = RequestHeader::get(input);
            if header.magic != wire::REQUEST_MAGIC {
                self.over = true;
                return Some(Event::Broken(format!("{:#x} is not the magic of a request", header.magic)));
            }
            if header.command == command::DISCONNECT {
                self.over = true;
                return Some(Event::Disconnect);
            }
            if let Err((errno, why)) = self.check(&header) {
                input.advance(wire::REQUEST_BYTES);
                self.reply_failed(header.cookie, errno, why, out);
                if header.command == command::WRITE {
                    self.skip = u64::from(header.len);
                }
                continue;
            }
            let payload = if header.command == command::WRITE { header.len as usize } else { 0 };
            if input.len() < wire::REQUEST_BYTES + payload {
                return None;
            }
            input.advance(wire::REQUEST_BYTES);
            let data = input.split_to(payload).freeze();
            return Some(Event::Request(Request { cookie: header.cookie, command: parsed(&header, data) }));
        }
    }

    /// How many bytes are missing before [`Session::next`] can get any further with `input`, so that the caller can
    /// receive the payload of a write in one piece, where it will stay. Meaningful after `next` returned None.
    pub fn missing(&self, input: &[u8]) -> usize {
        if self.skip > 0 {
            // At least the rest of the refused payload; it may be received in pieces of any size.
            return usize::try_from(self.skip).unwrap_or(usize::MAX);
        }
        if input.len() < wire::REQUEST_BYTES {
            return wire::REQUEST_BYTES - input.len();
        }
        let header = RequestHeader::get(input);
        let payload = if header.command == command::WRITE { header.len as usize } else { 0 };
        (wire::REQUEST_BYTES + payload).saturating_sub(input.len())
    }

    /// Whether the bytes that come next are thrown away.
    pub fn skipping(&self) -> bool {
        self.skip > 0
    }

    fn check(&self, header: &RequestHeader) -> Result<(), (Errno, &'static str)> {
        let export = &self.agreed.export;
        let allowed = match header.command {
            command::READ => flag::DF,
            command::WRITE | command::TRIM => flag::FUA,
            command::FLUSH => 0,
            command::WRITE_ZEROES => flag::FUA | flag::NO_HOLE,
            command::BLOCK_STATUS if self.agreed.allocation => flag::REQ_ONE,
            command::BLOCK_STATUS => return Err((Errno::Inval, "base:allocation was not negotiated")),
            _ => return Err((Errno::Inval, "the command is unknown or was not offered")),
        };
        if header.flags & !allowed != 0 {
            return Err((Errno::Inval, "a flag of the command is not supported"));
        }
        if header.command == command::FLUSH {
            let plain = header.offset == 0 && header.len == 0;
            return if plain { Ok(()) } else { Err((Errno::Inval, "FLUSH takes no offset and no length")) };
        }
        let writes = matches!(header.command, command::WRITE | command::TRIM | command::WRITE_ZEROES);
        if writes && export.read_only {
            return Err((Errno::Perm, "the export is read-only"));
        }
        let end = header.offset.checked_add(u64::from(header.len));
        if end.is_none_or(|end| end > self.size) {
            let past = if header.command == command::WRITE { Errno::NoSpace } else { Errno::Inval };
            return Err((past, "past the end of the export"));
        }
        if header.len == 0 && header.command == command::BLOCK_STATUS {
            return Err((Errno::Inval, "the length must not be zero"));
        }
        let carries_data = matches!(header.command, command::READ | command::WRITE);
        if carries_data && header.len > export.block.maximum {
            return Err((Errno::Overflow, "longer than the maximum block size"));
        }
        let minimum = u64::from(export.block.minimum.max(1));
        // The tail of an export whose size is not a multiple may be shorter than a block.
        let aligned_end = end.is_some_and(|end| end.is_multiple_of(minimum) || end == self.size);
        if !header.offset.is_multiple_of(minimum) || !aligned_end {
            return Err((Errno::Inval, "not aligned to the minimum block size"));
        }
        Ok(())
    }

    /// Answers a read. Zero runs are not looked for: whoever serves the read knows holes better.
    pub fn reply_data(&self, cookie: u64, offset: u64, data: &[u8], out: &mut BytesMut) {
        self.reply_data_header(cookie, offset, data.len() as u32, out);
        out.put_slice(data);
    }

    /// The bytes before the data of a successful read, for callers that send the data themselves.
    pub fn reply_data_header(&self, cookie: u64, offset: u64, len: u32, out: &mut BytesMut) {
        if self.agreed.structured && len > 0 {
            wire::put_chunk(out, chunk::DONE, chunk::OFFSET_DATA, cookie, len + 8);
            out.put_u64(offset);
        } else if self.agreed.structured {
            wire::put_chunk(out, chunk::DONE, chunk::NONE, cookie, 0);
        } else {
            wire::put_simple_reply(out, 0, cookie);
        }
    }

    /// Answers a command without data.
    pub fn reply_ok(&self, cookie: u64, out: &mut BytesMut) {
        wire::put_simple_reply(out, 0, cookie);
    }

    /// Answers a command that failed; `why` reaches clients that negotiated structured replies.
    pub fn reply_failed(&self, cookie: u64, errno: Errno, why: &str, out: &mut BytesMut) {
        // With structured replies every error may carry its reason; the protocol asks for it only after reads.
        if !self.agreed.structured {
            wire::put_simple_reply(out, errno as u32, cookie);
            return;
        }
        let end = (0..=why.len().min(MAX_REASON_BYTES)).rev().find(|&end| why.is_char_boundary(end));
        let why = &why.as_bytes()[..end.unwrap_or(0)];
        wire::put_chunk(out, chunk::DONE, chunk::ERROR, cookie, 6 + why.len() as u32);
        out.put_u32(errno as u32);
        out.put_u16(why.len() as u16);
        out.put_slice(why);
    }

    /// Answers block status with at least one extent; the first starts at the asked offset.
    pub fn reply_status(&self, cookie: u64, extents: &[Extent], one: bool, out: &mut BytesMut) {
        let take = if one { 1 } else { MAX_STATUS_EXTENTS };
        let extents = &extents[..extents.len().min(take)];
        wire::put_chunk(out, chunk::DONE, chunk::BLOCK_STATUS, cookie, 4 + 8 * extents.len() as u32);
        out.put_u32(BASE_ALLOCATION_ID);
        for extent in extents {
            let hole = if extent.hole { wire::allocation::HOLE } else { 0 };
            let zero = if extent.zero { wire::allocation::ZERO } else { 0 };
            out.put_u32(extent.len);
            out.put_u32(hole | zero);
        }
    }
}

fn parsed(header: &RequestHeader, data: Bytes) -> Command {
    let has = |bit: u16| header.flags & bit != 0;
    let (offset, len) = (header.offset, header.len);
    match header.command {
        command::READ => Command::Read { offset, len },
        command::WRITE => Command::Write { offset, data, fua: has(flag::FUA) },
        command::FLUSH => Command::Flush,
        command::TRIM => Command::Trim { offset, len, fua: has(flag::FUA) },
        command::WRITE_ZEROES => {
            Command::WriteZeroes { offset, len, fua: has(flag::FUA), may_punch: !has(flag::NO_HOLE) }
        }
        _ => Command::BlockStatus { offset, len, one: has(flag::REQ_ONE) },
    }
}
