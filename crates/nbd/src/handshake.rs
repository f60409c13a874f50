//! From the first byte of a connection to an agreed export.
//!
//! ```text
//!  greet() ─► client flags ─► options ─┬─ GO, EXPORT_NAME ─► Agreed (the session begins)
//!                               ▲   │  ├─ STARTTLS ────────► StartTls (the caller wraps the socket)
//!                               └───┘  └─ ABORT, broken ───► Closed
//! ```

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::wire::{self, OptionHeader, export, info, option, put_option_reply, reply};

/// Longest option data that is read; names are at most 4096 bytes and queries are few.
const MAX_OPTION_BYTES: u32 = 16 * 1024;
/// Longest export name, by the protocol.
const MAX_NAME_BYTES: usize = 4096;
/// Options that a client may send before it must have chosen; a client that talks on and on is cut off.
const MAX_OPTIONS: u32 = 256;
/// The one metadata context that is offered.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// The id under which replies carry it.
pub const BASE_ALLOCATION_ID: u32 = 1;

/// What is offered under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    pub name: String,
    pub description: String,
    pub size: u64,
    pub read_only: bool,
    /// Writes through one connection are seen, and flushed, by all of them.
    pub multi_conn: bool,
    pub block: BlockSize,
}

/// Constraints on the alignment and length of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSize {
    pub minimum: u32,
    pub preferred: u32,
    pub maximum: u32,
}

impl Export {
    /// The transmission flags that describe it.
    pub fn flags(&self) -> u16 {
        let mut flags = export::HAS_FLAGS | export::SEND_FLUSH | export::SEND_FUA | export::SEND_DF;
        if self.read_only {
            flags |= export::READ_ONLY;
        } else {
            flags |= export::SEND_TRIM | export::SEND_WRITE_ZEROES;
        }
        if self.multi_conn {
            flags |= export::CAN_MULTI_CONN;
        }
        flags
    }
}

/// Whether a connection must be, may be, or is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls {
    /// Not offered: the socket does not leave the machine.
    None,
    /// Nothing but STARTTLS and ABORT is answered until it happened.
    Required,
    /// The socket is wrapped already.
    Established,
}

/// What the client and the server agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreed {
    pub export: Export,
    pub structured: bool,
    /// Block status may be asked for.
    pub allocation: bool,
}

/// Where the handshake stands after some input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More input is needed.
    Going,
    /// The next byte belongs to the session.
    Agreed(Agreed),
    /// The reply is to be sent in clear, then the socket wrapped, then a new handshake continues in it.
    StartTls,
    /// The reply is to be sent, then the connection closed. The text says why.
    Closed(String),
}

#[derive(Debug)]
enum State {
    ClientFlags,
    Options,
    /// Bytes of an option that is too long to read are thrown away, then it is refused.
    Skip {
        option: u32,
        left: u32,
    },
    Over,
}

/// The server's side of the handshake.
#[derive(Debug)]
pub struct Handshake {
    exports: Vec<Export>,
    tls: Tls,
    state: State,
    no_zeroes: bool,
    structured: bool,
    /// The export whose allocation the client wants to see.
    context_for: Option<String>,
    options: u32,
}

impl Handshake {
    /// A handshake that offers `exports`; the first one is also the default, under the empty name.
    pub fn new(exports: Vec<Export>, tls: Tls) -> Self {
        let state = State::ClientFlags;
        Self { exports, tls, state, no_zeroes: false, structured: false, context_for: None, options: 0 }
    }

    /// The handshake that goes on inside TLS: the greeting is over, earlier agreements do not count.
    pub fn after_tls(exports: Vec<Export>, no_zeroes: bool) -> Self {
        let mut handshake = Self::new(exports, Tls::Established);
        handshake.state = State::Options;
        handshake.no_zeroes = no_zeroes;
        handshake
    }

    /// Whether the client gave up the padding of EXPORT_NAME; needed by [`Handshake::after_tls`].
    pub fn no_zeroes(&self) -> bool {
        self.no_zeroes
    }

    /// The volume was expanded before the client chose it.
    pub fn resize(&mut self, size: u64) {
        for export in &mut self.exports {
            export.size = size;
        }
    }

    /// The first bytes, which the server sends unasked.
    pub fn greet(out: &mut BytesMut) {
        out.put_u64(wire::NBD_MAGIC);
        out.put_u64(wire::OPTION_MAGIC);
        out.put_u16(wire::FLAG_FIXED_NEWSTYLE | wire::FLAG_NO_ZEROES);
    }

    /// Takes what it can from `input` and writes replies to `out`.
    pub fn advance(&mut self, input: &mut BytesMut, out: &mut BytesMut) -> Progress {
        loop {
            let step = match self.state {
                State::ClientFlags => self.client_flags(input),
                State::Options => self.option(input, out),
                State::Skip { option, left } => self.skip(option, left, input, out),
                State::Over => return Progress::Closed("the handshake is over".to_owned()),
            };
            match step {
                None => return Progress::Going,
                Some(Progress::Going) => {}
                Some(end) => {
                    self.state = State::Over;
                    return end;
                }
            }
        }
    }

    fn client_flags(&mut self, input: &mut BytesMut) -> Option<Progress> {
        if input.len() < 4 {
            return None;
        }
        let flags = input.get_u32();
        let known = u32::from(wire::FLAG_FIXED_NEWSTYLE | wire::FLAG_NO_ZEROES);
        if flags & !known != 0 || flags & u32::from(wire::FLAG_FIXED_NEWSTYLE) == 0 {
            let why = format!("client flags {flags:#x} are not those of the fixed newstyle handshake");
            return Some(Progress::Closed(why));
        }
        self.no_zeroes = flags & u32::from(wire::FLAG_NO_ZEROES) != 0;
        self.state = State::Options;
        Some(Progress::Going)
    }

    fn option(&mut self, input: &mut BytesMut, out: &mut BytesMut) -> Option<Progress> {
        if input.len() < wire::OPTION_BYTES {
            return None;
        }
        let header = OptionHeader::get(input);
        if header.magic != wire::OPTION_MAGIC {
            return Some(Progress::Closed(format!("{:#x} is not the magic of an option", header.magic)));
        }
        if header.len > MAX_OPTION_BYTES {
            input.advance(wire::OPTION_BYTES);
            self.state = State::Skip { option: header.option, left: header.len };
            return Some(Progress::Going);
        }
        if input.len() < wire::OPTION_BYTES + header.len as usize {
            return None;
        }
        input.advance(wire::OPTION_BYTES);
        let data = input.split_to(header.len as usize).freeze();
        self.options += 1;
        if self.options > MAX_OPTIONS {
            return Some(Progress::Closed(format!("more than {MAX_OPTIONS} options without a choice")));
        }
        Some(self.answer(header.option, data, out))
    }

    fn skip(&mut self, option: u32, left: u32, input: &mut BytesMut, out: &mut BytesMut) -> Option<Progress> {
        let taken = left.min(u32::try_from(input.len()).unwrap_or(u32::MAX));
        input.advance(taken as usize);
        if taken < left {
            self.state = State::Skip { option, left: left - taken };
            return None;
        }
        put_option_reply(out, option, reply::ERR_TOO_BIG, b"option is too long");
        self.state = State::Options;
        Some(Progress::Going)
    }

    fn answer(&mut self, code: u32, data: Bytes, out: &mut BytesMut) -> Progress {
        let clear_allowed = matches!(code, option::ABORT | option::STARTTLS);
        if self.tls == Tls::Required && !clear_allowed {
            if code == option::EXPORT_NAME {
                return Progress::Closed("the export was asked for in clear, but TLS is required".to_owned());
            }
            put_option_reply(out, code, reply::ERR_TLS_REQD, b"TLS is required");
            return Progress::Going;
        }
        match code {
            option::EXPORT_NAME => self.export_name(&data, out),
            option::ABORT => {
                put_option_reply(out, code, reply::ACK, b"");
                Progress::Closed("the client gave up".to_owned())
            }
            option::LIST => self.list(&data, out),
            option::STARTTLS => self.start_tls(&data, out),
            option::INFO | option::GO => self.info(code, data, out),
            option::STRUCTURED_REPLY => self.structured(&data, out),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.meta_context(code, data, out),
            other => {
                put_option_reply(out, other, reply::ERR_UNSUP, b"");
                Progress::Going
            }
        }
    }

    fn find(&self, name: &[u8]) -> Option<&Export> {
        if name.is_empty() {
            return self.exports.first();
        }
        self.exports.iter().find(|e| e.name.as_bytes() == name)
    }

    /// The old way to choose: no reply but the export, or the connection is closed.
    fn export_name(&self, name: &[u8], out: &mut BytesMut) -> Progress {
        let Some(export) = self.find(name) else {
            return Progress::Closed(format!("no export is called {:?}", String::from_utf8_lossy(name)));
        };
        out.put_u64(export.size);
        out.put_u16(export.flags());
        if !self.no_zeroes {
            out.put_bytes(0, 124);
        }
        self.agree(export)
    }

    fn agree(&self, export: &Export) -> Progress {
        let allocation = self.structured && self.context_for.as_deref() == Some(export.name.as_str());
        Progress::Agreed(Agreed { export: export.clone(), structured: self.structured, allocation })
    }

    fn list(&self, data: &[u8], out: &mut BytesMut) -> Progress {
        if !data.is_empty() {
            put_option_reply(out, option::LIST, reply::ERR_INVALID, b"LIST takes no data");
            return Progress::Going;
        }
        for export in &self.exports {
            let mut entry = BytesMut::new();
            entry.put_u32(export.name.len() as u32);
            entry.put_slice(export.name.as_bytes());
            entry.put_slice(export.description.as_bytes());
            put_option_reply(out, option::LIST, reply::SERVER, &entry);
        }
        put_option_reply(out, option::LIST, reply::ACK, b"");
        Progress::Going
    }

    fn start_tls(&self, data: &[u8], out: &mut BytesMut) -> Progress {
        if !data.is_empty() || self.tls == Tls::Established {
            put_option_reply(out, option::STARTTLS, reply::ERR_INVALID, b"STARTTLS is not possible here");
            return Progress::Going;
        }
        if self.tls == Tls::None {
            put_option_reply(out, option::STARTTLS, reply::ERR_POLICY, b"TLS is not configured");
            return Progress::Going;
        }
        put_option_reply(out, option::STARTTLS, reply::ACK, b"");
        Progress::StartTls
    }

    fn info(&self, code: u32, mut data: Bytes, out: &mut BytesMut) -> Progress {
        let Some((name, requests)) = read_info_request(&mut data) else {
            put_option_reply(out, code, reply::ERR_INVALID, b"malformed request");
            return Progress::Going;
        };
        let Some(export) = self.find(&name) else {
            put_option_reply(out, code, reply::ERR_UNKNOWN, b"no such export");
            return Progress::Going;
        };
        let mut put = |kind: u16, fill: &dyn Fn(&mut BytesMut)| {
            let mut entry = BytesMut::new();
            entry.put_u16(kind);
            fill(&mut entry);
            put_option_reply(out, code, reply::INFO, &entry);
        };
        put(info::EXPORT, &|e| {
            e.put_u64(export.size);
            e.put_u16(export.flags());
        });
        // Sent unasked too: a client that does not know it ignores it, one that does can align itself.
        put(info::BLOCK_SIZE, &|e| {
            e.put_u32(export.block.minimum);
            e.put_u32(export.block.preferred);
            e.put_u32(export.block.maximum);
        });
        if requests.contains(&info::NAME) {
            put(info::NAME, &|e| e.put_slice(export.name.as_bytes()));
        }
        if requests.contains(&info::DESCRIPTION) {
            put(info::DESCRIPTION, &|e| e.put_slice(export.description.as_bytes()));
        }
        put_option_reply(out, code, reply::ACK, b"");
        if code == option::GO { self.agree(export) } else { Progress::Going }
    }

    fn structured(&mut self, data: &[u8], out: &mut BytesMut) -> Progress {
        let answer = if data.is_empty() { reply::ACK } else { reply::ERR_INVALID };
        self.structured |= data.is_empty();
        put_option_reply(out, option::STRUCTURED_REPLY, answer, b"");
        Progress::Going
    }

    fn meta_context(&mut self, code: u32, mut data: Bytes, out: &mut BytesMut) -> Progress {
        let set = code == option::SET_META_CONTEXT;
        if set {
            self.context_for = None;
        }
        let Some((name, queries)) = read_context_request(&mut data) else {
            put_option_reply(out, code, reply::ERR_INVALID, b"malformed request");
            return Progress::Going;
        };
        if !self.structured {
            put_option_reply(out, code, reply::ERR_INVALID, b"structured replies must be negotiated first");
            return Progress::Going;
        }
        let Some(export) = self.find(&name).map(|e| e.name.clone()) else {
            put_option_reply(out, code, reply::ERR_UNKNOWN, b"no such export");
            return Progress::Going;
        };
        let matches =
            |query: &Bytes| query.as_ref() == BASE_ALLOCATION.as_bytes() || (!set && query.as_ref() == b"base:");
        if queries.iter().any(matches) || (!set && queries.is_empty()) {
            let mut entry = BytesMut::new();
            entry.put_u32(if set { BASE_ALLOCATION_ID } else { 0 });
            entry.put_slice(BASE_ALLOCATION.as_bytes());
            put_option_reply(out, code, reply::META_CONTEXT, &entry);
            if set {
                self.context_for = Some(export);
            }
        }
        put_option_reply(out, code, reply::ACK, b"");
        Progress::Going
    }
}

/// A length-prefixed string, or None if it is not all there.
fn read_string(data: &mut Bytes, max: usize) -> Option<Bytes> {
    if data.len() < 4 {
        return None;
    }
    let len = data.get_u32() as usize;
    (len <= max && len <= data.len()).then(|| data.split_to(len))
}

fn read_info_request(data: &mut Bytes) -> Option<(Bytes, Vec<u16>)> {
    let name = read_string(data, MAX_NAME_BYTES)?;
    if data.len() < 2 {
        return None;
    }
    let count = usize::from(data.get_u16());
    (data.len() == count * 2).then(|| (name, (0..count).map(|_| data.get_u16()).collect()))
}

fn read_context_request(data: &mut Bytes) -> Option<(Bytes, Vec<Bytes>)> {
    let name = read_string(data, MAX_NAME_BYTES)?;
    if data.len() < 4 {
        return None;
    }
    let count = data.get_u32();
    let mut queries = Vec::new();
    // Each query takes four bytes at least, so that the data itself bounds the loop.
    for _ in 0..count {
        queries.push(read_string(data, MAX_NAME_BYTES)?);
    }
    data.is_empty().then_some((name, queries))
}
