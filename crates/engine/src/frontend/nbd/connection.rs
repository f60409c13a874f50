//! One NBD connection, from greeting to goodbye, without a socket.
//!
//! ```text
//!             ┌───────────┐  GO   ┌─────────┐  DISC   ┌──────────┐ all answered ┌──────┐
//!   new() ───►│ Handshake ├──────►│ Session ├────────►│ Draining ├─────────────►│ Over │
//!             └──┬──▲───┬─┘       └────┬────┘         └────┬─────┘              └──────┘
//!       STARTTLS │  │   │ refused      │ broken, gone      │ gone                  ▲
//!                └──┘   └──────────────┴───────────────────┴───────────────────────┘
//! ```
//!
//! The host keeps a stream of received bytes: it receives at most [`Connection::wanted`] bytes behind its end and
//! calls [`Connection::feed`]. It sends what [`Connection::output`] gives and says so with [`Connection::sent`].
//! Requests come out of `feed`, `sent` and [`Connection::complete`]; the engine answers each of them once.
//!
//! **Bounds.** At most [`Limits::requests`] commands and about [`Limits::bytes`] of payload (being written, being read
//! or waiting for the client to take it) are held; past that nothing is received, and TCP stops the client.
//!
//! **Copies.** Small commands are received many at a time; their payloads are slices of the one buffer. A payload
//! of [`LARGE_BYTES`] or more is received alone, with the header of the next command behind it, into a buffer made
//! for it. Only what had arrived of a first large payload before its length was known is moved once. Payload is not
//! aligned: the engine only passes it on, and it is the replica that writes it to a disk.

use bytes::{Bytes, BytesMut};
use tether_nbd::handshake::{Export, Handshake, Progress};
use tether_nbd::session::{self, Event, Session};
use tether_nbd::wire::{Errno, REQUEST_BYTES};
use tether_replication::wire::Extent;

use super::export::Volume;
use super::flight::{Answer, Content, Finished, Flight};
use super::listen::Security;
use super::output::Output;
use super::tls::Layer;
use crate::frontend::block::{ClientId, Completion, Request};
use crate::frontend::failure;

/// Bytes received at once while commands are small: a queue of sixteen 4 KiB writes.
const CHUNK_BYTES: usize = 64 * 1024;
/// From this length on a payload is received into a buffer of its own: moving less costs less than a system call.
pub const LARGE_BYTES: usize = 32 * 1024;
/// Bytes of a refused payload that are received at once, to be thrown away.
const SKIP_BYTES: usize = CHUNK_BYTES;

/// How much one connection may have in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub requests: usize,
    pub bytes: u64,
}

impl Default for Limits {
    /// 128 commands are more than any client keeps in flight on one connection; 8 MiB keep a 10 Gbit/s link busy for
    /// 6 ms, longer than a write takes, and sixteen connections still fit into the memory of an engine.
    fn default() -> Self {
        Self { requests: 128, bytes: 8 << 20 }
    }
}

#[derive(Debug)]
enum Phase {
    Handshake(Handshake),
    Session(Session),
    /// The client said goodbye; what is in flight is still answered.
    Draining(Session),
    Over(String),
}

#[derive(Debug)]
enum Transport {
    Clear,
    Tls(Box<Layer>),
}

/// The server's side of one connection.
#[derive(Debug)]
pub struct Connection {
    exports: Vec<Export>,
    security: Security,
    phase: Phase,
    transport: Transport,
    /// Plain bytes that are not understood yet.
    input: BytesMut,
    /// What [`Connection::missing`] said when the input was last looked at.
    wanted: usize,
    /// The last payload was large: receive exactly what is missing.
    exact: bool,
    flight: Flight,
    output: Output,
    limits: Limits,
}

impl Connection {
    /// A connection that was just accepted; the greeting is ready to be sent.
    pub fn new(client: ClientId, volume: &Volume, security: Security, limits: Limits) -> Self {
        let exports = volume.exports();
        let mut output = Output::default();
        output.write(Handshake::greet);
        Self {
            phase: Phase::Handshake(Handshake::new(exports.clone(), security.tls())),
            exports,
            security,
            transport: Transport::Clear,
            input: BytesMut::new(),
            wanted: CHUNK_BYTES,
            exact: false,
            flight: Flight::new(client),
            output,
            limits,
        }
    }

    /// How many bytes to receive at most, behind what is left in the stream (as many as there is room for, if that is
    /// less). Zero: none for now, either because the
    /// limits are reached (until something is completed or sent) or because the connection is ending.
    pub fn wanted(&self) -> usize {
        let ending = matches!(self.phase, Phase::Draining(_) | Phase::Over(_));
        if ending || !self.has_room() { 0 } else { self.wanted }
    }

    /// Takes what it can from the `stream` of received bytes. The beginning of a command may be left there, with room
    /// for [`Connection::wanted`] more bytes behind it: the payload of a write is then in one piece where it was
    /// received.
    pub fn feed(&mut self, stream: &mut BytesMut, submit: &mut Vec<Request>) {
        match &mut self.transport {
            Transport::Tls(layer) => match layer.decrypt(stream, &mut self.input) {
                Ok(true) => {}
                Ok(false) => self.over("the client closed its TLS session"),
                Err(error) => self.over(error.to_string()),
            },
            Transport::Clear if self.input.is_empty() => std::mem::swap(&mut self.input, stream),
            Transport::Clear => self.input.unsplit(stream.split()),
        }
        self.advance(submit);
        match self.transport {
            Transport::Tls(_) => make_room(stream, CHUNK_BYTES),
            // What cannot be understood for want of room stays here, to be gone on with when there is.
            Transport::Clear if !self.has_room() => make_room(stream, CHUNK_BYTES),
            Transport::Clear => {
                std::mem::swap(&mut self.input, stream);
                make_room(stream, self.wanted);
            }
        }
    }

    /// How much to receive next.
    fn missing(&self) -> usize {
        let (Transport::Clear, Phase::Session(session)) = (&self.transport, &self.phase) else { return CHUNK_BYTES };
        let missing = session.missing(&self.input);
        if session.skipping() {
            missing.clamp(1, SKIP_BYTES)
        } else if missing >= LARGE_BYTES {
            missing + REQUEST_BYTES
        } else if self.exact {
            missing.max(1)
        } else {
            missing.max(CHUNK_BYTES)
        }
    }

    /// The client is gone, or its socket failed. Requests in flight go on; their completions are dropped.
    pub fn gone(&mut self, why: impl Into<String>) {
        self.over(why);
        self.output = Output::default();
    }

    /// Takes an answer of the engine. Commands that waited for room may come out.
    pub fn complete(&mut self, completion: Completion, submit: &mut Vec<Request>) {
        let Some(finished) = self.flight.complete(completion) else { return };
        match &self.phase {
            Phase::Session(session) => answer(session, finished, &mut self.output),
            Phase::Draining(session) => {
                answer(session, finished, &mut self.output);
                if self.flight.is_empty() {
                    self.over("the client said goodbye");
                }
            }
            Phase::Handshake(_) | Phase::Over(_) => {}
        }
        self.advance(submit);
    }

    /// What is to be sent, in order; the host sends all of it before it asks again.
    pub fn output(&mut self) -> Vec<Bytes> {
        let Transport::Tls(layer) = &mut self.transport else { return self.output.take() };
        match layer.encrypt(&self.output.take_plain()) {
            Ok(segments) => {
                self.output.hand_over(segments.iter().map(|s| s.len() as u64).sum());
                segments
            }
            Err(error) => {
                self.gone(error.to_string());
                Vec::new()
            }
        }
    }

    /// Bytes of [`Connection::output`] have left; commands that waited for room may come out.
    pub fn sent(&mut self, bytes: u64, submit: &mut Vec<Request>) {
        self.output.sent(bytes);
        self.advance(submit);
    }

    /// The volume has grown; what is beyond the old end may be used from now on.
    pub fn resize(&mut self, size: u64) {
        for export in &mut self.exports {
            export.size = size;
        }
        match &mut self.phase {
            Phase::Handshake(handshake) => handshake.resize(size),
            Phase::Session(session) | Phase::Draining(session) => session.resize(size),
            Phase::Over(_) => {}
        }
    }

    /// Why the connection is to be closed, once everything of [`Connection::output`] is sent.
    pub fn is_over(&self) -> Option<&str> {
        match &self.phase {
            Phase::Over(why) => Some(why),
            _ => None,
        }
    }

    /// Commands that the engine has not answered yet.
    pub fn in_flight(&self) -> usize {
        self.flight.len()
    }

    fn has_room(&self) -> bool {
        self.flight.len() < self.limits.requests && self.flight.bytes() + self.output.waiting() < self.limits.bytes
    }

    fn over(&mut self, why: impl Into<String>) {
        if !matches!(self.phase, Phase::Over(_)) {
            self.phase = Phase::Over(why.into());
            self.input = BytesMut::new();
        }
    }

    /// Understands as much of the input as there is room for.
    fn advance(&mut self, submit: &mut Vec<Request>) {
        // Without input there is nothing to understand, and what is wanted was said when there was.
        if self.input.is_empty() {
            return;
        }
        while self.step(submit) {}
        self.wanted = self.missing();
    }

    fn step(&mut self, submit: &mut Vec<Request>) -> bool {
        let room = self.has_room();
        match &mut self.phase {
            Phase::Handshake(handshake) => {
                let (input, output) = (&mut self.input, &mut self.output);
                match output.write(|out| handshake.advance(input, out)) {
                    Progress::Going => return false,
                    Progress::Agreed(agreed) => self.phase = Phase::Session(Session::new(agreed)),
                    Progress::StartTls => return self.start_tls(),
                    Progress::Closed(why) => self.over(why),
                }
            }
            Phase::Session(session) if room => {
                let (input, output) = (&mut self.input, &mut self.output);
                match output.write(|out| session.next(input, out)) {
                    None => return false,
                    Some(Event::Request(request)) => {
                        if let session::Command::Write { data, .. } = &request.command {
                            self.exact = data.len() >= LARGE_BYTES;
                        }
                        self.flight.start(request, submit);
                    }
                    Some(Event::Disconnect) => self.drain(),
                    Some(Event::Broken(why)) => self.over(why),
                }
            }
            Phase::Session(_) | Phase::Draining(_) | Phase::Over(_) => return false,
        }
        true
    }

    fn drain(&mut self) {
        let over = Phase::Over("the client said goodbye".to_owned());
        let phase = std::mem::replace(&mut self.phase, over);
        if let (Phase::Session(session), false) = (phase, self.flight.is_empty()) {
            self.phase = Phase::Draining(session);
        }
        self.input = BytesMut::new();
    }

    /// The reply in clear is queued; from the next byte on the socket carries TLS.
    fn start_tls(&mut self) -> bool {
        if !self.input.is_empty() {
            // Whoever can insert clear bytes here could have them understood as if they were protected.
            self.over("bytes in clear after STARTTLS");
            return false;
        }
        let Phase::Handshake(handshake) = &self.phase else { return false };
        let no_zeroes = handshake.no_zeroes();
        match self.security.layer() {
            Ok(mut layer) => {
                layer.clear_first(self.output.take_plain());
                self.transport = Transport::Tls(Box::new(layer));
                self.phase = Phase::Handshake(Handshake::after_tls(self.exports.clone(), no_zeroes));
            }
            Err(error) => self.over(error.to_string()),
        }
        false
    }
}

/// Room for `more` bytes behind what `buffer` holds. What it holds is at most the beginning of one command.
fn make_room(buffer: &mut BytesMut, more: usize) {
    if buffer.capacity() - buffer.len() >= more || buffer.try_reclaim(more) {
        return;
    }
    let mut fresh = BytesMut::with_capacity((buffer.len() + more).max(CHUNK_BYTES));
    fresh.extend_from_slice(buffer);
    *buffer = fresh;
}

fn answer(session: &Session, finished: Finished, output: &mut Output) {
    let cookie = finished.cookie;
    match (finished.result, finished.answer) {
        (Err(error), _) => fail(session, cookie, failure::nbd(error), &error.to_string(), output),
        (Ok(Content::Data(pieces)), Answer::Read { offset, len }) => {
            let answered: usize = pieces.iter().map(Bytes::len).sum();
            if answered != len as usize {
                let why = format!("the read came back with {answered} bytes of {len}");
                return fail(session, cookie, Errno::Io, &why, output);
            }
            output.write(|out| session.reply_data_header(cookie, offset, len, out));
            for piece in pieces {
                output.payload(piece);
            }
        }
        (Ok(Content::Extents(extents)), Answer::Status { one }) => {
            let told = |e: &Extent| session::Extent { len: e.len, hole: !e.allocated, zero: e.zero };
            let extents: Vec<session::Extent> = extents.iter().filter(|e| e.len > 0).map(told).collect();
            if extents.is_empty() {
                return fail(session, cookie, Errno::Io, "the volume's allocation is not known", output);
            }
            output.write(|out| session.reply_status(cookie, &extents, one, out));
        }
        (Ok(_), _) => output.write(|out| session.reply_ok(cookie, out)),
    }
}

fn fail(session: &Session, cookie: u64, errno: Errno, why: &str, output: &mut Output) {
    output.write(|out| session.reply_failed(cookie, errno, why, out));
}
