//! A client that knows what it wrote: NBD over a simulated connection, every request reported.
//!
//! It keeps a few requests in flight on a small set of sectors, so that reads, writes and failures meet. When its
//! connection ends, or a request stays unanswered for long, nobody knows what became of what was in flight; the
//! client goes on with a new connection to the address it was last told.

use std::collections::BTreeMap;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use tether_engine::host::{Address, ConnId, Effects, Event, IoEvent, Machine, Time, TimerId};
use tether_nbd::wire::{NBD_MAGIC, OPTION_MAGIC, REQUEST_MAGIC, SIMPLE_REPLY_MAGIC, option, reply};
use tether_store::files::fake::Random;

use crate::oracle::{SECTOR, Value};

/// How long an unanswered request is waited for before the connection is given up. Longer than any stall that the
/// protocol promises to bridge, so that only lost hosts are given up.
const PATIENCE_MS: u64 = 20_000;
const RECONNECT_MS: u64 = 100;
/// Places in the volume that are written: the first sectors of each. Few, so that requests meet.
const PLACES: u64 = 6;
const SECTORS_PER_PLACE: u64 = 16;

/// What a client did or learned, for the oracle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    Begun {
        request: u64,
        op: Op,
    },
    /// `data` of a read, by sector.
    Done {
        request: u64,
        values: Vec<Value>,
    },
    /// Answered with an error.
    Failed {
        request: u64,
        errno: u32,
    },
    /// Never answered.
    Lost {
        request: u64,
    },
}

/// A request, in sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Read { first: u64, count: u64 },
    Write { first: u64, count: u64, fua: bool },
    Zero { first: u64, count: u64, fua: bool },
    Trim { first: u64, count: u64 },
    Flush,
}

/// What a client may be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// The volume is served here from now on; an open connection is kept until it ends.
    Target(Address),
    /// As `Target`, and a connection to another place is left at once.
    Move(Address),
    /// As `Move`, to read only: until it is moved again it changes nothing.
    Visit(Address),
    /// No more requests.
    Pause,
    Resume,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Greeting,
    Option,
    Transmission,
}

#[derive(Debug)]
struct Link {
    conn: ConnId,
    open: bool,
    stage: Stage,
    input: BytesMut,
    pending: BTreeMap<u64, (Op, Time)>,
}

/// The machine of one client.
#[derive(Debug)]
pub struct Client {
    /// Numbers of requests are unique over all clients: this in the upper bits.
    id: u64,
    next: u64,
    target: Option<Address>,
    link: Option<Link>,
    random: Random,
    timer: Option<TimerId>,
    depth: usize,
    places: Vec<u64>,
    paused: bool,
    /// Whether it gives space back.
    trims: bool,
    /// Whether it only reads for now.
    visits: bool,
    pub reports: Vec<Report>,
}

impl Client {
    pub fn new(id: u64, size: u64, depth: usize, trims: bool, seed: u64) -> Self {
        let stride = size / SECTOR as u64 / PLACES;
        Self {
            id,
            next: 1,
            target: None,
            link: None,
            random: Random::new(seed),
            timer: None,
            depth,
            places: (0..PLACES).map(|place| place * stride / 8 * 8).collect(),
            paused: false,
            trims,
            visits: false,
            reports: Vec::new(),
        }
    }

    /// Where the connection in use, if any, was accepted.
    pub fn conn(&self) -> Option<ConnId> {
        self.link.as_ref().map(|link| link.conn)
    }

    pub fn idle(&self) -> bool {
        self.link.as_ref().is_none_or(|link| link.pending.is_empty())
    }

    fn command(&mut self, command: Command, out: &mut Effects<Self>) {
        match command {
            Command::Target(address) => self.target = Some(address),
            Command::Move(address) | Command::Visit(address) => {
                if self.target.replace(address.clone()) != Some(address)
                    && let Some(link) = &self.link
                {
                    out.io.abort(link.conn);
                    self.drop_link();
                }
            }
            Command::Pause => self.paused = true,
            Command::Resume => self.paused = false,
        }
    }

    fn op(&mut self) -> Op {
        let place = self.places[self.random.below(PLACES) as usize];
        let first = place + self.random.below(SECTORS_PER_PLACE - 1);
        let most = place + SECTORS_PER_PLACE - first;
        let count = match self.random.below(3) {
            0 => 1,
            1 => most.min(8),
            _ => 1 + self.random.below(most),
        };
        let fua = self.random.below(8) == 0;
        match self.random.below(100) {
            kind if self.visits && kind > 0 => Op::Read { first, count },
            _ if self.visits => Op::Flush,
            0..45 => Op::Read { first, count },
            45..84 => Op::Write { first, count, fua },
            84..88 => Op::Zero { first, count, fua },
            88..91 if self.trims => Op::Trim { first, count },
            _ => Op::Flush,
        }
    }

    fn dial(&mut self, now: Time, out: &mut Effects<Self>) {
        if self.link.is_some() {
            return;
        }
        let Some(target) = self.target.clone() else { return };
        let conn = out.io.dial(target, now.plus_millis(1000));
        self.link =
            Some(Link { conn, open: false, stage: Stage::Greeting, input: BytesMut::new(), pending: BTreeMap::new() });
    }

    fn drop_link(&mut self) {
        let Some(link) = self.link.take() else { return };
        for request in link.pending.into_keys() {
            self.reports.push(Report::Lost { request });
        }
    }

    fn wake(&mut self, now: Time, out: &mut Effects<Self>) {
        if let Some(timer) = self.timer {
            let most = if self.random.below(20) == 0 { 2000 } else { 20 };
            let think = 1 + self.random.below(most);
            out.io.set_timer(timer, now.plus_millis(think));
        }
    }

    fn timer(&mut self, now: Time, out: &mut Effects<Self>) {
        let late = |link: &Link| link.pending.values().any(|(_, since)| since.plus_millis(PATIENCE_MS) < now);
        if self.link.as_ref().is_some_and(late) {
            if let Some(link) = &self.link {
                out.io.abort(link.conn);
            }
            self.drop_link();
        }
        self.dial(now, out);
        self.ask(now, out);
        self.wake(now, out);
    }

    /// Sends requests up to the depth.
    fn ask(&mut self, now: Time, out: &mut Effects<Self>) {
        while !self.paused {
            let depth = self.depth;
            let ready = |link: &Link| link.stage == Stage::Transmission && link.pending.len() < depth;
            if !self.link.as_ref().is_some_and(ready) {
                return;
            }
            let op = self.op();
            let request = self.id << 32 | self.next;
            self.next += 1;
            self.reports.push(Report::Begun { request, op });
            let Some(link) = &mut self.link else { return };
            link.pending.insert(request, (op, now));
            out.io.send(link.conn, encode(request, op));
            if self.random.coin() {
                return;
            }
        }
    }

    fn received(&mut self, now: Time, out: &mut Effects<Self>) {
        while self.step(now, out) {}
        let failed = matches!(self.reports.last(), Some(Report::Failed { .. }));
        if !failed && self.link.as_ref().is_some_and(|link| link.pending.is_empty()) {
            self.ask(now, out);
        }
    }

    /// Takes one message from the stream, if it is complete.
    fn step(&mut self, _now: Time, out: &mut Effects<Self>) -> bool {
        let Some(link) = &mut self.link else { return false };
        match link.stage {
            Stage::Greeting => {
                if link.input.len() < 18 {
                    return false;
                }
                assert_eq!(link.input.get_u64(), NBD_MAGIC);
                assert_eq!(link.input.get_u64(), OPTION_MAGIC);
                link.input.advance(2);
                let mut hello = BytesMut::new();
                hello.put_u32(3);
                hello.put_u64(OPTION_MAGIC);
                hello.put_u32(option::GO);
                hello.put_u32(6);
                hello.put_u32(0);
                hello.put_u16(0);
                out.io.send(link.conn, hello.freeze());
                link.stage = Stage::Option;
                true
            }
            Stage::Option => {
                let Some(len) = link.input.get(16..20) else { return false };
                let len = u32::from_be_bytes(*len.first_chunk().expect("four bytes")) as usize;
                if link.input.len() < 20 + len {
                    return false;
                }
                let kind = u32::from_be_bytes(*link.input[12..].first_chunk().expect("four bytes"));
                link.input.advance(20 + len);
                assert!(kind == reply::ACK || kind == reply::INFO, "the server refused the export: {kind:#x}");
                if kind == reply::ACK {
                    link.stage = Stage::Transmission;
                }
                true
            }
            Stage::Transmission => self.reply(),
        }
    }

    fn reply(&mut self) -> bool {
        let Some(link) = &mut self.link else { return false };
        if link.input.len() < 16 {
            return false;
        }
        let mut head = &link.input[..16];
        assert_eq!(head.get_u32(), SIMPLE_REPLY_MAGIC);
        let (errno, request) = (head.get_u32(), head.get_u64());
        let (op, _) = *link.pending.get(&request).expect("an answer must belong to a request");
        let (first, len) = match op {
            Op::Read { first, count } if errno == 0 => (first, count as usize * SECTOR),
            _ => (0, 0),
        };
        if link.input.len() < 16 + len {
            return false;
        }
        link.input.advance(16);
        let data = link.input.split_to(len);
        link.pending.remove(&request);
        if errno != 0 {
            self.reports.push(Report::Failed { request, errno });
            return true;
        }
        let values = data.chunks_exact(SECTOR).zip(first..).map(|(bytes, sector)| Value::parse(sector, bytes));
        self.reports.push(Report::Done { request, values: values.collect() });
        true
    }
}

fn encode(request: u64, op: Op) -> Bytes {
    const FUA: u16 = 1;
    let (kind, first, count, fua) = match op {
        Op::Read { first, count } => (0, first, count, false),
        Op::Write { first, count, fua } => (1, first, count, fua),
        Op::Flush => (3, 0, 0, false),
        Op::Trim { first, count } => (4, first, count, false),
        Op::Zero { first, count, fua } => (6, first, count, fua),
    };
    let mut bytes = BytesMut::new();
    bytes.put_u32(REQUEST_MAGIC);
    bytes.put_u16(if fua { FUA } else { 0 });
    bytes.put_u16(kind);
    bytes.put_u64(request);
    bytes.put_u64(first * SECTOR as u64);
    bytes.put_u32((count * SECTOR as u64) as u32);
    if matches!(op, Op::Write { .. }) {
        for sector in first..first + count {
            let mut data = [0; SECTOR];
            Value::Data(request).fill(sector, &mut data);
            bytes.put_slice(&data);
        }
    }
    bytes.freeze()
}

impl Machine for Client {
    type Command = Command;
    type Answer = std::convert::Infallible;
    type Call = std::convert::Infallible;
    type Return = std::convert::Infallible;

    fn handle(&mut self, event: Event<'_, Self>, now: Time, out: &mut Effects<Self>) {
        match event {
            Event::Started => {
                self.timer = Some(out.io.timer());
                self.wake(now, out);
            }
            Event::Io(IoEvent::Timer { .. }) => self.timer(now, out),
            Event::Io(IoEvent::Connected { .. }) => {
                if let Some(link) = &mut self.link {
                    link.open = true;
                }
            }
            Event::Io(IoEvent::Received { conn, inbox }) => {
                let Some(link) = self.link.as_mut().filter(|link| link.conn == conn) else { return };
                link.input.extend_from_slice(&inbox.stream().split());
                self.received(now, out);
            }
            Event::Io(IoEvent::Closed { conn, .. } | IoEvent::ConnectFailed { conn, .. }) => {
                if self.conn() == Some(conn) {
                    self.drop_link();
                    if let Some(timer) = self.timer {
                        out.io.set_timer(timer, now.plus_millis(RECONNECT_MS));
                    }
                }
            }
            Event::Command { command, .. } => {
                if let Command::Move(_) | Command::Visit(_) = command {
                    self.visits = matches!(command, Command::Visit(_));
                }
                self.command(command, out);
            }
            Event::Io(_) => {}
            Event::Returned { value, .. } => match value {},
        }
    }
}
