//! What the kernel asks of the file, turned into block requests; what the engine answers, turned into replies.
//!
//! The host reads one request at a time from `/dev/fuse` into the buffer of [`Fuse::receive`] (as many reads may be
//! posted as it likes, each with a buffer of its own) and writes each [`Reply`] with one vectored write.
//!
//! - The file is opened for direct I/O, and the kernel may have [`MAX_BACKGROUND`] requests in flight: that is the
//!   bound on what this machine holds.
//! - A loop device uses `fallocate(PUNCH_HOLE)` for discards *and* for zeroes that may free space, and the two cannot
//!   be told apart. So both become write-zeroes: what was punched reads as zeroes, whatever snapshots lie below.
//! - There is no FUA on a loop device: the block layer follows such a write with a flush, which is FSYNC here.
//! - After a hand-over the kernel sends again what the dead engine had in hand, marked in the number of the request.
//!   Replies carry the number as it came.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};

use tether_replication::engine::{IoAnswer, IoOp};

use super::abi::{self, Attributes, Fallocate, InHeader, InitIn, InitOut, Io, errno, fallocate, init, op, open};
use crate::frontend::block::{self, ClientId, Completion, Request};
use crate::frontend::failure::{self, linux};

/// Longest write of one request, and longest read: as much as the kernel's default limit of 256 pages allows.
pub const MAX_WRITE_BYTES: u32 = 1 << 20;
const PAGE_BYTES: u32 = 4096;
/// Requests that the kernel may have in flight; a loop device has a queue of 128.
const MAX_BACKGROUND: u16 = 128;
/// What the kernel itself wants to have room for, beside the payload of a write.
const OVERHEAD_BYTES: usize = 4096;
/// Buffers that are kept to be used again; while a client writes faster than the engine, more are made and dropped.
const MAX_BUFFERS: usize = 8;
/// What new buffers are filled with: not zero, for which the allocator would give out memory that is not there yet.
const TOUCH: u8 = 0xa5;
/// A regular file that its owner may read and write.
const FILE_MODE: u32 = 0o100_600;
/// Flags that are taken if the kernel offers them.
const WANTED: u64 =
    init::ASYNC_READ | init::BIG_WRITES | init::ASYNC_DIO | init::MAX_PAGES | init::EXT | init::HAS_RESEND;

/// Size and unit of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub size: u64,
    /// Smallest unit of I/O.
    pub block: u32,
    pub read_only: bool,
}

/// One reply or notification: header and payload, to be written at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub header: Bytes,
    pub payload: Bytes,
}

impl Reply {
    fn error(unique: u64, error: i32) -> Self {
        let mut header = BytesMut::with_capacity(abi::OUT_HEADER_BYTES);
        abi::put_out_header(&mut header, unique, error, 0);
        Self { header: header.freeze(), payload: Bytes::new() }
    }

    fn with(unique: u64, payload: Bytes) -> Self {
        let mut header = BytesMut::with_capacity(abi::OUT_HEADER_BYTES);
        abi::put_out_header(&mut header, unique, 0, payload.len());
        Self { header: header.freeze(), payload }
    }

    fn rendered(unique: u64, put: impl FnOnce(&mut BytesMut)) -> Self {
        let mut payload = BytesMut::new();
        put(&mut payload);
        Self::with(unique, payload.freeze())
    }
}

#[derive(Clone, Copy, Debug)]
enum Wants {
    Data { len: u32 },
    Written { len: u32 },
    Plain,
}

/// What comes of a request.
#[derive(Debug, Default)]
pub struct Outcome {
    pub requests: Vec<Request>,
    pub replies: Vec<Reply>,
    /// The file system is gone: the loop device was detached.
    pub destroyed: bool,
}

/// The kernel's file, as a machine.
#[derive(Debug)]
pub struct Fuse {
    client: ClientId,
    geometry: Geometry,
    /// Longest write. It is agreed on when the connection begins, perhaps by a predecessor with other ideas.
    max_write: u32,
    pending: BTreeMap<u32, (u64, Wants)>,
    next: u32,
    /// Buffers that the host is not reading into.
    buffers: Vec<BytesMut>,
    /// The device is new, and nothing was written to it yet.
    untouched: bool,
}

impl Fuse {
    /// A machine for a connection that begins or has begun; `max_write` is what its holder says, or
    /// [`MAX_WRITE_BYTES`].
    pub fn new(client: ClientId, geometry: Geometry, max_write: u32) -> Self {
        Self { client, geometry, max_write, pending: BTreeMap::new(), next: 0, buffers: Vec::new(), untouched: false }
    }

    /// The same for a device that nobody ever had. Until the first write there is nothing to flush, and the answer to that
    /// must not wait for the engine to serve: the kernel asks while it binds a loop device, under a lock that everybody
    /// waits for who looks for a free one. An engine that waits for its replicas would keep all other volumes of the host
    /// from being attached.
    pub fn fresh(client: ClientId, geometry: Geometry, max_write: u32) -> Self {
        Self { untouched: true, ..Self::new(client, geometry, max_write) }
    }

    /// A buffer to read one request into; all its spare capacity may be used and is needed.
    ///
    /// Its memory is there already. If an engine is killed while the kernel copies a request into memory that must be
    /// brought in first, the kernel gives that up *and fails the request*: the one way in which a killed engine could
    /// be noticed by a pod.
    pub fn receive(&mut self) -> BytesMut {
        let needed = self.max_write as usize + OVERHEAD_BYTES;
        let fits = |buffer: &mut BytesMut| buffer.capacity() >= needed || buffer.try_reclaim(needed);
        if let Some(found) = self.buffers.iter_mut().position(fits) {
            return self.buffers.swap_remove(found);
        }
        // Twice: the second half is what small requests are cut from before the buffer must be used from its start.
        let mut buffer = BytesMut::with_capacity(2 * needed);
        buffer.resize(2 * needed, TOUCH);
        buffer.clear();
        buffer
    }

    /// Takes back a buffer of [`Fuse::receive`] that holds one request, or nothing if the read failed.
    pub fn received(&mut self, mut buffer: BytesMut, outcome: &mut Outcome) {
        let request = buffer.split().freeze();
        if self.buffers.len() < MAX_BUFFERS {
            self.buffers.push(buffer);
        }
        if !request.is_empty() {
            self.understand(request, outcome);
        }
    }

    /// The volume has grown. The notification that comes back is to be written first; then the loop device can be told
    /// to look ([`crate::device::link::Link::capacity`]).
    pub fn resize(&mut self, size: u64) -> Reply {
        self.geometry.size = size;
        Reply { header: abi::forget_attributes(), payload: Bytes::new() }
    }

    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }

    fn understand(&mut self, mut bytes: Bytes, outcome: &mut Outcome) {
        let whole = bytes.len();
        let Some(header) = InHeader::get(&mut bytes) else { return };
        let unique = header.unique;
        let reply = match header.opcode {
            op::FORGET | op::BATCH_FORGET => return,
            _ if header.len as usize != whole => Err(errno::EPROTO),
            op::FSYNC if self.untouched => Ok(Reply::with(unique, Bytes::new())),
            op::READ | op::WRITE | op::FSYNC | op::FALLOCATE => match self.operation(header.opcode, bytes) {
                Ok((operation, wants)) => {
                    self.untouched &= header.opcode == op::READ;
                    outcome.requests.push(self.start(unique, operation, wants));
                    return;
                }
                Err(error) => Err(error),
            },
            op::INIT => self.init(unique, &mut bytes),
            op::GETATTR => Ok(self.attributes(unique)),
            op::SETATTR => self.set_attributes(unique, &bytes),
            op::OPEN => Ok(Reply::rendered(unique, |out| {
                out.put_u64_ne(0);
                out.put_u32_ne(open::DIRECT_IO | open::NOFLUSH | open::PARALLEL_DIRECT_WRITES);
                out.put_u32_ne(0);
            })),
            op::STATFS => Ok(Reply::rendered(unique, |out| abi::put_statfs(out, self.geometry.size, PAGE_BYTES))),
            op::FLUSH | op::RELEASE => Ok(Reply::with(unique, Bytes::new())),
            op::DESTROY => {
                outcome.destroyed = true;
                Ok(Reply::with(unique, Bytes::new()))
            }
            // Requests of a loop device are not interrupted; the kernel stops asking after this answer.
            _ => Err(errno::ENOSYS),
        };
        outcome.replies.push(reply.unwrap_or_else(|error| Reply::error(unique, error)));
    }

    fn init(&self, unique: u64, bytes: &mut Bytes) -> Result<Reply, i32> {
        let theirs = InitIn::get(bytes).ok_or(errno::EPROTO)?;
        if theirs.major != abi::MAJOR || theirs.flags & init::ASYNC_DIO == 0 {
            return Err(errno::EPROTO);
        }
        // Without MAX_PAGES the kernel keeps to 32 pages, which is within what is offered.
        let ours = InitOut {
            max_readahead: theirs.max_readahead,
            flags: theirs.flags & WANTED,
            max_background: MAX_BACKGROUND,
            max_write: self.max_write,
            max_pages: (self.max_write / PAGE_BYTES) as u16,
        };
        Ok(Reply::rendered(unique, |out| ours.put(out)))
    }

    fn attributes(&self, unique: u64) -> Reply {
        let attributes = Attributes { size: self.geometry.size, mode: FILE_MODE, block: PAGE_BYTES };
        Reply::rendered(unique, |out| attributes.put(out))
    }

    /// Times may be set, to no effect; the size is the volume's.
    fn set_attributes(&self, unique: u64, bytes: &Bytes) -> Result<Reply, i32> {
        let valid = bytes.first_chunk::<4>().map(|valid| u32::from_ne_bytes(*valid)).ok_or(errno::EPROTO)?;
        if valid & abi::SETATTR_SIZE != 0 { Err(errno::EINVAL) } else { Ok(self.attributes(unique)) }
    }

    fn operation(&self, opcode: u32, mut bytes: Bytes) -> Result<(IoOp, Wants), i32> {
        match opcode {
            op::READ => {
                let Io { offset, len } = Io::get(&mut bytes).ok_or(errno::EPROTO)?;
                self.check(offset, u64::from(len))?;
                // The reply is cut to what is asked for; past the end there is nothing.
                Ok((IoOp::Read { offset, len }, Wants::Data { len }))
            }
            op::WRITE => {
                let Io { offset, len } = Io::get(&mut bytes).ok_or(errno::EPROTO)?;
                if bytes.len() != len as usize {
                    return Err(errno::EPROTO);
                }
                self.check_write(offset, u64::from(len))?;
                Ok((IoOp::Write { offset, data: bytes, fua: false }, Wants::Written { len }))
            }
            op::FALLOCATE => {
                let Fallocate { offset, len, mode } = Fallocate::get(&mut bytes).ok_or(errno::EPROTO)?;
                self.check_write(offset, len)?;
                // The block layer cuts at 32 bits; nobody else has the file.
                let len = u32::try_from(len).map_err(|_| errno::EINVAL)?;
                let unmap = match mode {
                    mode if mode == fallocate::PUNCH_HOLE | fallocate::KEEP_SIZE => true,
                    mode if mode == fallocate::ZERO_RANGE | fallocate::KEEP_SIZE => false,
                    _ => return Err(errno::EOPNOTSUPP),
                };
                Ok((IoOp::Zero { offset, len, fua: false, unmap }, Wants::Plain))
            }
            _ => Ok((IoOp::Flush, Wants::Plain)),
        }
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), i32> {
        let block = u64::from(self.geometry.block.max(1));
        let end = offset.checked_add(len).ok_or(errno::EINVAL)?;
        if end > self.geometry.size || !offset.is_multiple_of(block) || !len.is_multiple_of(block) || len == 0 {
            return Err(errno::EINVAL);
        }
        Ok(())
    }

    fn check_write(&self, offset: u64, len: u64) -> Result<(), i32> {
        if self.geometry.read_only {
            return Err(linux::EROFS);
        }
        if offset.checked_add(len).is_none_or(|end| end > self.geometry.size) {
            return Err(errno::ENOSPC);
        }
        self.check(offset, len)
    }

    fn start(&mut self, unique: u64, op: IoOp, wants: Wants) -> Request {
        while self.pending.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let io = self.client.io(self.next);
        self.pending.insert(self.next, (unique, wants));
        self.next = self.next.wrapping_add(1);
        Request { io, op }
    }

    /// The reply to the request that was completed; None if it is not known (any more).
    pub fn complete(&mut self, completion: Completion) -> Option<Reply> {
        let (unique, wants) = self.pending.remove(&block::sequence(completion.io))?;
        Some(match completion.result {
            Err(error) => Reply::error(unique, failure::linux(error)),
            Ok(given) => answer(unique, wants, given),
        })
    }
}

fn answer(unique: u64, wants: Wants, given: IoAnswer) -> Reply {
    match (wants, given) {
        (Wants::Data { len }, IoAnswer::Data(data)) if data.len() == len as usize => Reply::with(unique, data),
        (Wants::Written { len }, IoAnswer::Done) => Reply::rendered(unique, |out| {
            out.put_u32_ne(len);
            out.put_u32_ne(0);
        }),
        (Wants::Plain, IoAnswer::Done) => Reply::with(unique, Bytes::new()),
        // An answer of the wrong kind or length is worth no more than none.
        _ => Reply::error(unique, errno::EIO),
    }
}
