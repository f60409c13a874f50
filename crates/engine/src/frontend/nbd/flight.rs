//! Commands that the engine works on: which cookie they carry, what they still wait for.
//!
//! A command longer than one piece becomes several requests with consecutive sequence numbers and is answered when
//! the last of them is completed, with the first failure if there is one.

use std::collections::BTreeMap;

use bytes::Bytes;
use tether_nbd::session::{Command, Request as Asked};

use tether_replication::engine::{IoAnswer, IoError, IoOp};
use tether_replication::wire::Extent;

use crate::frontend::block::{self, ClientId, Completion, Request};

/// Longest read or write that is given to the engine in one request. One mebibyte keeps the buffers between engine
/// and replicas small and is past the point where longer requests are any faster.
pub const MAX_PIECE_BYTES: u32 = 1 << 20;

/// How the answer to a command looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Plain,
    Read { offset: u64, len: u32 },
    Status { one: bool },
}

/// A command that can be answered.
#[derive(Debug)]
pub struct Finished {
    pub cookie: u64,
    pub answer: Answer,
    pub result: Result<Content, IoError>,
}

#[derive(Debug)]
pub enum Content {
    Plain,
    /// The pieces of a read, in order.
    Data(Vec<Bytes>),
    Extents(Vec<Extent>),
}

#[derive(Debug)]
struct Pending {
    cookie: u64,
    answer: Answer,
    payload: u64,
    /// One bit of truth per piece; a piece that is completed twice does not count twice.
    waiting: Vec<bool>,
    data: Vec<Bytes>,
    extents: Vec<Extent>,
    failure: Option<IoError>,
}

/// All commands of one connection that are not answered yet.
#[derive(Debug)]
pub struct Flight {
    client: ClientId,
    /// By the sequence number of the first piece.
    pending: BTreeMap<u32, Pending>,
    next: u32,
    bytes: u64,
}

impl Flight {
    pub fn new(client: ClientId) -> Self {
        Self { client, pending: BTreeMap::new(), next: 0, bytes: 0 }
    }

    pub fn len(&self) -> usize {
        self.pending.len()
    }

    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Payload of what is in flight.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes a command in and gives out its requests.
    pub fn start(&mut self, asked: Asked, submit: &mut Vec<Request>) {
        let (answer, operations) = operations(asked.command);
        let payload = operations.iter().map(block::payload).sum();
        let count = operations.len();
        let first = self.sequence(count as u32);
        let data = match answer {
            Answer::Read { .. } => vec![Bytes::new(); count],
            _ => Vec::new(),
        };
        let pending = Pending {
            cookie: asked.cookie,
            answer,
            payload,
            waiting: vec![true; count],
            data,
            extents: Vec::new(),
            failure: None,
        };
        self.bytes += payload;
        self.pending.insert(first, pending);
        for (i, op) in operations.into_iter().enumerate() {
            submit.push(Request { io: self.client.io(first + i as u32), op });
        }
    }

    /// The first of `count` free consecutive numbers. Numbers wrap; what is still in flight is stepped over.
    fn sequence(&mut self, count: u32) -> u32 {
        let mut first = self.next;
        loop {
            if first.checked_add(count).is_none() {
                first = 0;
            }
            let before = self.pending.range(..first + count).next_back();
            match before.map(|(start, pending)| start + pending.waiting.len() as u32) {
                Some(end) if end > first => first = end,
                _ => break,
            }
        }
        self.next = first + count;
        first
    }

    /// Notes a completion; returns the command if this was its last piece.
    pub fn complete(&mut self, completion: Completion) -> Option<Finished> {
        let sequence = block::sequence(completion.io);
        let (&first, pending) = self.pending.range_mut(..=sequence).next_back()?;
        let piece = (sequence - first) as usize;
        if !std::mem::take(pending.waiting.get_mut(piece)?) {
            return None;
        }
        match completion.result {
            Err(failure) => {
                pending.failure.get_or_insert(failure);
            }
            Ok(answer) => pending.note(piece, answer),
        }
        if pending.waiting.iter().any(|waiting| *waiting) {
            return None;
        }
        let pending = self.pending.remove(&first)?;
        self.bytes -= pending.payload;
        Some(pending.finish())
    }
}

impl Pending {
    fn note(&mut self, piece: usize, answer: IoAnswer) {
        match (answer, self.answer) {
            (IoAnswer::Data(data), Answer::Read { .. }) => self.data[piece] = data,
            (IoAnswer::Extents(extents), _) => self.extents = extents,
            _ => {}
        }
    }

    fn finish(self) -> Finished {
        let content = match self.answer {
            Answer::Plain => Content::Plain,
            Answer::Read { .. } => Content::Data(self.data),
            Answer::Status { .. } => Content::Extents(self.extents),
        };
        Finished { cookie: self.cookie, answer: self.answer, result: self.failure.map_or(Ok(content), Err) }
    }
}

/// The requests of a command: at least one.
fn operations(command: Command) -> (Answer, Vec<IoOp>) {
    match command {
        Command::Read { offset, len } => {
            let piece =
                |start: u32| IoOp::Read { offset: offset + u64::from(start), len: (len - start).min(MAX_PIECE_BYTES) };
            (Answer::Read { offset, len }, starts(len).map(piece).collect())
        }
        Command::Write { offset, data, fua } => {
            let piece = |start: u32| {
                let end = data.len().min(start as usize + MAX_PIECE_BYTES as usize);
                IoOp::Write { offset: offset + u64::from(start), data: data.slice(start as usize..end), fua }
            };
            (Answer::Plain, starts(data.len() as u32).map(piece).collect())
        }
        Command::Flush => (Answer::Plain, vec![IoOp::Flush]),
        // Nothing is promised about trimmed content, so there is nothing that FUA could make durable.
        Command::Trim { offset, len, .. } => (Answer::Plain, vec![IoOp::Trim { offset, len }]),
        Command::WriteZeroes { offset, len, fua, may_punch } => {
            (Answer::Plain, vec![IoOp::Zero { offset, len, fua, unmap: may_punch }])
        }
        Command::BlockStatus { offset, len, one } => (Answer::Status { one }, vec![IoOp::Status { offset, len }]),
    }
}

/// Where pieces begin; an empty command is one empty piece.
fn starts(len: u32) -> impl Iterator<Item = u32> {
    (0..len.max(1)).step_by(MAX_PIECE_BYTES as usize)
}
