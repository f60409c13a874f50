//! Numbers and layouts of the kernel's FUSE interface, as far as one regular file needs them.
//!
//! Everything is in the byte order of the machine.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// The version of the interface that is spoken; the kernel takes the lower of both minors.
pub const MAJOR: u32 = 7;
pub const MINOR: u32 = 40;

/// The one inode.
pub const ROOT: u64 = 1;

/// Bytes of the header of every request.
pub const IN_HEADER_BYTES: usize = 40;
/// Bytes of the header of every reply.
pub const OUT_HEADER_BYTES: usize = 16;
/// Bytes of the arguments of reads and writes, after the header.
pub const IO_BYTES: usize = 40;

/// Operations.
pub mod op {
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
}

/// What is agreed on when the connection begins.
pub mod init {
    /// Several reads at a time.
    pub const ASYNC_READ: u64 = 1;
    /// Writes longer than a page.
    pub const BIG_WRITES: u64 = 1 << 5;
    /// Direct I/O is not waited for one request after the other.
    pub const ASYNC_DIO: u64 = 1 << 15;
    /// The field `max_pages` counts.
    pub const MAX_PAGES: u64 = 1 << 22;
    /// The upper half of the flags counts.
    pub const EXT: u64 = 1 << 30;
    /// Requests in hand can be asked for again.
    pub const HAS_RESEND: u64 = 1 << 39;
}

/// How the file was opened.
pub mod open {
    /// No page cache between loop device and engine.
    pub const DIRECT_IO: u32 = 1;
    /// Nothing to say when it is closed.
    pub const NOFLUSH: u32 = 1 << 5;
    /// Writes do not wait for each other.
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// How long the kernel may remember attributes: as good as for ever.
const ATTRIBUTES_VALID_S: u64 = 1 << 30;
/// The notification that something the kernel remembers of the file is not so any more.
pub const NOTIFY_INVAL_INODE: i32 = 2;
/// The notification that asks the kernel for all requests again that were read and not answered.
pub const NOTIFY_RESEND: i32 = 7;
/// Set in the number of a request that is sent again; replies carry it as well.
pub const UNIQUE_RESEND: u64 = 1 << 63;

/// Modes of fallocate.
pub mod fallocate {
    pub const KEEP_SIZE: u32 = 1;
    pub const PUNCH_HOLE: u32 = 2;
    pub const ZERO_RANGE: u32 = 16;
}

/// Set in SETATTR if the size is to change.
pub const SETATTR_SIZE: u32 = 1 << 3;

/// Error numbers that this side of the interface answers with.
pub mod errno {
    pub const EINVAL: i32 = 22;
    pub const ENOSPC: i32 = 28;
    pub const ENOSYS: i32 = 38;
    pub const EIO: i32 = 5;
    pub const EPROTO: i32 = 71;
    pub const EOPNOTSUPP: i32 = 95;
}

/// The header of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InHeader {
    pub len: u32,
    pub opcode: u32,
    pub unique: u64,
    pub nodeid: u64,
}

impl InHeader {
    /// Reads a header, or None if it is not all there.
    pub fn get(bytes: &mut Bytes) -> Option<Self> {
        if bytes.len() < IN_HEADER_BYTES {
            return None;
        }
        let header = Self {
            len: bytes.get_u32_ne(),
            opcode: bytes.get_u32_ne(),
            unique: bytes.get_u64_ne(),
            nodeid: bytes.get_u64_ne(),
        };
        bytes.advance(IN_HEADER_BYTES - 24);
        Some(header)
    }
}

/// The arguments of a read or a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Io {
    pub offset: u64,
    pub len: u32,
}

impl Io {
    pub fn get(bytes: &mut Bytes) -> Option<Self> {
        if bytes.len() < IO_BYTES {
            return None;
        }
        bytes.advance(8);
        let io = Self { offset: bytes.get_u64_ne(), len: bytes.get_u32_ne() };
        bytes.advance(IO_BYTES - 20);
        Some(io)
    }
}

/// The arguments of fallocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fallocate {
    pub offset: u64,
    pub len: u64,
    pub mode: u32,
}

impl Fallocate {
    pub fn get(bytes: &mut Bytes) -> Option<Self> {
        if bytes.len() < 32 {
            return None;
        }
        bytes.advance(8);
        Some(Self { offset: bytes.get_u64_ne(), len: bytes.get_u64_ne(), mode: bytes.get_u32_ne() })
    }
}

/// The kernel's side of the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitIn {
    pub major: u32,
    pub minor: u32,
    pub max_readahead: u32,
    pub flags: u64,
}

impl InitIn {
    pub fn get(bytes: &mut Bytes) -> Option<Self> {
        if bytes.len() < 16 {
            return None;
        }
        let (major, minor, max_readahead) = (bytes.get_u32_ne(), bytes.get_u32_ne(), bytes.get_u32_ne());
        let low = u64::from(bytes.get_u32_ne());
        let high = if low & init::EXT != 0 && bytes.len() >= 4 { u64::from(bytes.get_u32_ne()) } else { 0 };
        Some(Self { major, minor, max_readahead, flags: low | (high << 32) })
    }
}

/// Our side of the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitOut {
    pub max_readahead: u32,
    pub flags: u64,
    pub max_background: u16,
    pub max_write: u32,
    pub max_pages: u16,
}

impl InitOut {
    pub fn put(&self, out: &mut BytesMut) {
        out.put_u32_ne(MAJOR);
        out.put_u32_ne(MINOR);
        out.put_u32_ne(self.max_readahead);
        out.put_u32_ne(self.flags as u32);
        out.put_u16_ne(self.max_background);
        // Congestion: where the kernel begins to hold back what it did not have to send.
        out.put_u16_ne(self.max_background / 4 * 3);
        out.put_u32_ne(self.max_write);
        out.put_u32_ne(1);
        out.put_u16_ne(self.max_pages);
        out.put_u16_ne(0);
        out.put_u32_ne((self.flags >> 32) as u32);
        out.put_bytes(0, 7 * 4);
    }
}

/// Attributes of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    pub size: u64,
    pub mode: u32,
    pub block: u32,
}

impl Attributes {
    /// As the answer to GETATTR, to be remembered until [`forget_attributes`]: programs that only list loop devices
    /// look at the file's attributes, and must not wait for an engine that is away.
    pub fn put(&self, out: &mut BytesMut) {
        out.put_u64_ne(ATTRIBUTES_VALID_S);
        out.put_u64_ne(0);
        out.put_u64_ne(ROOT);
        out.put_u64_ne(self.size);
        out.put_u64_ne(self.size / 512);
        out.put_bytes(0, 3 * 8 + 3 * 4);
        out.put_u32_ne(self.mode);
        out.put_u32_ne(1);
        out.put_bytes(0, 3 * 4);
        out.put_u32_ne(self.block);
        out.put_u32_ne(0);
    }
}

/// The answer to STATFS. The block size becomes the discard granularity of the loop device.
pub fn put_statfs(out: &mut BytesMut, size: u64, block: u32) {
    out.put_u64_ne(size / u64::from(block));
    out.put_bytes(0, 4 * 8);
    out.put_u32_ne(block);
    out.put_u32_ne(255);
    out.put_u32_ne(block);
    out.put_bytes(0, 7 * 4);
}

/// The header of a reply; `error` is zero or a positive error number, `rest` the bytes that follow.
pub fn put_out_header(out: &mut BytesMut, unique: u64, error: i32, rest: usize) {
    out.put_u32_ne((OUT_HEADER_BYTES + rest) as u32);
    out.put_i32_ne(-error);
    out.put_u64_ne(unique);
}

/// The notification that makes the kernel ask for the attributes when it needs them next.
pub fn forget_attributes() -> Bytes {
    let mut out = BytesMut::with_capacity(OUT_HEADER_BYTES + 24);
    out.put_u32_ne(OUT_HEADER_BYTES as u32 + 24);
    out.put_i32_ne(NOTIFY_INVAL_INODE);
    out.put_u64_ne(0);
    out.put_u64_ne(ROOT);
    // A negative offset: attributes only, there are no cached pages.
    out.put_i64_ne(-1);
    out.put_i64_ne(0);
    out.freeze()
}

/// The notification that asks for requests again.
pub fn resend() -> Bytes {
    let mut out = BytesMut::with_capacity(OUT_HEADER_BYTES);
    out.put_u32_ne(OUT_HEADER_BYTES as u32);
    out.put_i32_ne(NOTIFY_RESEND);
    out.put_u64_ne(0);
    out.freeze()
}
