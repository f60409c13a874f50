//! The replica: keeps its promises, its activity log and its memory of what others missed.
//!
//! ```text
//!              open (newer)                     older requests applied
//!   (closed) ───────────────► draining ───────────────────────────────► promising
//!       ▲                        ▲                                          │ promise durable
//!       │ connection gone        │ open (newer)                             ▼
//!       └──────────────────── serving ◄──────────────────────────────── serving
//! ```
//!
//! From the moment an open is accepted nothing of an older epoch or session is served: what the store already
//! holds in its hands is waited for, what it does not is dropped. Then the promise is made durable, then answered.
//!
//! A write is applied only when all regions that it touches are durably in the activity log; in the steady state
//! they are, and the write goes straight to the store. Changes of the durable state are made one after the other,
//! and whatever came together in the meantime is made durable together.

mod api;
mod state;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

pub use api::{Config, Conn, Durable, Effect, Event, OpId, Promise, StateChange, StoreAnswer, StoreOp};
use state::{Ahead, Persisting};

use crate::ids::{Epoch, Session};
use crate::region::{Region, RegionSet};
use crate::wire::{Failure, Layer, Open, Opened, Reply, ReplyBody, Request, RequestBody, RequestId, Role};

/// Who is served at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Serving {
    conn: Conn,
    promise: Promise,
}

/// An open that is on its way to be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Opening {
    conn: Conn,
    id: RequestId,
    promise: Promise,
    open: Open,
    /// The promise was handed to the store.
    promised: bool,
}

/// A request in the hands of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct InFlight {
    conn: Conn,
    id: RequestId,
    session: Session,
    /// The regions that it writes, to be held against clears.
    regions: (Region, Region),
    what: What,
}

/// What the answer of the store means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum What {
    Ordinary,
    ChainSet,
    Control,
}

/// A write whose regions are not in the log yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Parked {
    conn: Conn,
    id: RequestId,
    session: Session,
    regions: (Region, Region),
    op: StoreOp,
}

/// The machine of one replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Replica {
    config: Config,
    durable: Durable,
    /// Identity of the chain of snapshots, from the store.
    chain: u64,
    serving: Option<Serving>,
    opening: Option<Opening>,
    /// Number of the log: changes with every open, so that clears of an older session are noticed.
    log_number: u64,
    /// Regions that are about to be in the log; not durable yet.
    adding: RegionSet,
    in_flight: BTreeMap<OpId, InFlight>,
    parked: VecDeque<Parked>,
    persisting: Persisting,
    /// A chain of snapshots that waits for the state to say so.
    chain_set: Option<(To, Bytes)>,
    next_op: u64,
    /// Writes applied before their log entry, which only a model without that rule has.
    ahead: Ahead,
}

impl Replica {
    /// A replica over a store that holds `durable` and a chain of snapshots with identity `chain`.
    pub fn new(config: Config, durable: Durable, chain: u64, effects: &mut Vec<Effect>) -> Self {
        let rebooted = durable.boot != config.boot;
        let doubtful = rebooted && !durable.log.is_empty();
        let mut replica = Self {
            config,
            durable,
            chain,
            serving: None,
            opening: None,
            log_number: 0,
            adding: RegionSet::new(),
            in_flight: BTreeMap::new(),
            parked: VecDeque::new(),
            persisting: Persisting::default(),
            chain_set: None,
            next_op: 0,
            ahead: Ahead::default(),
        };
        if rebooted {
            replica.persist(StateChange::Boot { boot: config.boot, doubtful }, None, effects);
        }
        replica
    }

    /// What is durable, or about to be.
    pub fn durable(&self) -> &Durable {
        &self.durable
    }

    /// Takes one event and appends what is to be done.
    pub fn apply(&mut self, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Request { conn, request } => self.request(conn, request, effects),
            Event::Gone { conn } => self.gone(conn, effects),
            Event::Stored { op, result } => {
                if self.persisting.op == Some(op) {
                    self.persisted(result, effects);
                } else {
                    self.stored(op, result, effects);
                }
                self.advance_open(effects);
            }
        }
    }

    fn gone(&mut self, conn: Conn, effects: &mut Vec<Effect>) {
        if self.opening.is_some_and(|opening| opening.conn == conn && !opening.promised) {
            self.opening = None;
        }
        if self.serving.is_some_and(|serving| serving.conn == conn) {
            self.serving = None;
        }
        if self.config.rules.drain() {
            self.parked.retain(|parked| parked.conn != conn);
        }
        self.advance_open(effects);
    }

    fn request(&mut self, conn: Conn, request: Request, effects: &mut Vec<Effect>) {
        let Request { id, epoch, session, body } = request;
        if let RequestBody::Open(open) = body {
            return self.open(conn, id, Promise { epoch, holder: open.holder, session }, open, effects);
        }
        match self.admit(conn, epoch, session) {
            Ok(()) => self.admitted(conn, id, session, body, effects),
            Err(failure) => send(conn, id, session, ReplyBody::Failed(failure), effects),
        }
    }

    /// Whether requests of this connection are served.
    fn admit(&self, conn: Conn, epoch: Epoch, session: Session) -> Result<(), Failure> {
        let newest = self.opening.map(|opening| opening.promise).or(self.durable.promise);
        let newest = newest.ok_or(Failure::NotOpen)?;
        if newest.epoch > epoch {
            return Err(Failure::Fenced { promised: newest.epoch });
        }
        let rules = self.config.rules;
        match self.serving {
            Some(serving) if serving.conn == conn && serving.promise.session == session => Ok(()),
            Some(serving) if serving.promise.epoch == epoch && !rules.session() => Ok(()),
            Some(serving) if serving.promise.epoch == epoch && !rules.holder() => Ok(()),
            _ if newest.epoch == epoch && newest.session > session => Err(Failure::Session),
            _ => Err(Failure::NotOpen),
        }
    }

    fn admitted(&mut self, conn: Conn, id: RequestId, session: Session, body: RequestBody, effects: &mut Vec<Effect>) {
        let to = (conn, id, session);
        let reads =
            |replica: &mut Self, op, effects: &mut Vec<Effect>| replica.issue(to, (0, 0), What::Ordinary, op, effects);
        match body {
            RequestBody::Open(_) => {}
            RequestBody::Read { offset, len } => reads(self, StoreOp::Read { offset, len }, effects),
            RequestBody::Status { offset, len } => reads(self, StoreOp::Status { offset, len }, effects),
            RequestBody::Flush => reads(self, StoreOp::Flush, effects),
            RequestBody::Checksum { layer, offset, len } => {
                reads(self, StoreOp::Checksum { layer, offset, len }, effects);
            }
            RequestBody::CopyRead { layer, offset, len } => {
                reads(self, StoreOp::CopyRead { layer, offset, len }, effects);
            }
            RequestBody::ChainRead => reads(self, StoreOp::ChainRead, effects),
            RequestBody::Write { offset, data, fua } => {
                let len = data.len() as u64;
                self.write(to, offset, len, StoreOp::Write { offset, data, fua }, effects);
            }
            RequestBody::Zero { offset, len, fua, unmap } => {
                self.write(to, offset, u64::from(len), StoreOp::Zero { offset, len, fua, unmap }, effects);
            }
            RequestBody::Discard { offset, len } => {
                self.write(to, offset, u64::from(len), StoreOp::Discard { offset, len }, effects);
            }
            RequestBody::CopyWrite { layer, offset, data } => {
                let len = if layer == Layer::LIVE { data.len() as u64 } else { 0 };
                self.write(to, offset, len, StoreOp::CopyWrite { layer, offset, data }, effects);
            }
            RequestBody::Control(op) => self.issue(to, (0, 0), What::Control, StoreOp::Control(op), effects),
            RequestBody::ChainSet { chain } => {
                // The chain is built only when it is durably known to be incomplete.
                self.chain_set = Some((to, chain));
                self.persist(StateChange::Rebuilding, None, effects);
            }
            RequestBody::Ping => send(conn, id, session, ReplyBody::Done, effects),
            RequestBody::LogClear { log, regions } => self.clear(to, log, &regions, effects),
            RequestBody::MapStart { member } => self.persist(StateChange::MapStart(member), Some(to), effects),
            RequestBody::MapDrop { member } => self.persist(StateChange::MapDrop(member), Some(to), effects),
            RequestBody::Settled => self.persist(StateChange::Settled, Some(to), effects),
            RequestBody::Missed { member } => {
                let missed = self.durable.maps.get(&member).map(|map| {
                    let mut regions = map.clone();
                    if self.config.rules.source_log() {
                        regions.extend(self.durable.log.iter());
                        regions.extend(self.adding.iter());
                    }
                    regions
                });
                send(conn, id, session, ReplyBody::Regions { missed, chain: self.chain_identity() }, effects);
            }
            // A replica is no engine.
            RequestBody::StandDown => send(conn, id, session, ReplyBody::Failed(Failure::Unsupported), effects),
            RequestBody::Close => {
                self.serving = None;
                send(conn, id, session, ReplyBody::Done, effects);
                effects.push(Effect::Close { conn });
            }
        }
    }

    /// Accepts an open, or refuses it because something newer was promised.
    fn open(&mut self, conn: Conn, id: RequestId, promise: Promise, open: Open, effects: &mut Vec<Effect>) {
        let newest = self.opening.map(|opening| opening.promise).or(self.durable.promise);
        let refusal = match newest {
            _ if open.volume != self.config.volume => Some(Failure::Volume),
            Some(newest) if newest.epoch > promise.epoch => Some(Failure::Fenced { promised: newest.epoch }),
            Some(newest)
                if newest.epoch == promise.epoch && newest.holder != promise.holder && self.config.rules.holder() =>
            {
                Some(Failure::Fenced { promised: newest.epoch })
            }
            Some(newest)
                if newest.epoch == promise.epoch
                    && newest.session > promise.session
                    && newest.holder == promise.holder =>
            {
                Some(Failure::Session)
            }
            _ => None,
        };
        if let Some(failure) = refusal {
            return send(conn, id, promise.session, ReplyBody::Failed(failure), effects);
        }
        if let Some(old) = self.opening.take() {
            send(old.conn, old.id, old.promise.session, ReplyBody::Failed(Failure::Session), effects);
        }
        self.serving = None;
        if self.config.rules.drain() {
            self.parked.clear();
            self.chain_set = None;
        }
        self.opening = Some(Opening { conn, id, promise, open, promised: false });
        self.advance_open(effects);
    }

    /// Makes the promise when nothing older is under way any more.
    fn advance_open(&mut self, effects: &mut Vec<Effect>) {
        let Some(opening) = self.opening.as_mut() else { return };
        let drained = self.in_flight.is_empty() && self.persisting.op.is_none();
        if opening.promised || (!drained && self.config.rules.drain()) {
            return;
        }
        opening.promised = true;
        let (promise, open) = (opening.promise, opening.open);
        if open.role == Role::Joiner {
            self.persist(StateChange::MapsDrop, None, effects);
        }
        if self.config.rules.persist() {
            self.persist(StateChange::Promise(promise, open.generation), None, effects);
        } else {
            self.durable.promise = Some(promise);
            self.opened(effects);
        }
    }

    /// Identity of the chain of snapshots; 0 while its content is not complete.
    fn chain_identity(&self) -> u64 {
        if self.durable.rebuilding { 0 } else { self.chain }
    }

    /// Answers an open: the promise is durable.
    fn opened(&mut self, effects: &mut Vec<Effect>) {
        let Some(opening) = self.opening.take() else { return };
        self.serving = Some(Serving { conn: opening.conn, promise: opening.promise });
        self.log_number += 1;
        let opened = Opened {
            boot: self.config.boot,
            doubtful: self.durable.doubtful,
            log: self.log_number,
            regions: self.durable.log.clone(),
            chain: self.chain_identity(),
            size: self.config.geometry.size,
            generation: self.durable.generation,
        };
        if !self.config.rules.doubt_kept() {
            self.durable.doubtful = false;
        }
        send(opening.conn, opening.id, opening.promise.session, ReplyBody::Opened(opened), effects);
    }
}

/// Where an answer goes: connection, request, session.
type To = (Conn, RequestId, Session);

fn send(conn: Conn, id: RequestId, session: Session, body: ReplyBody, effects: &mut Vec<Effect>) {
    effects.push(Effect::Send { conn, reply: Reply { id, session, body } });
}

#[cfg(test)]
impl Replica {
    /// Whether requests of this connection are served.
    pub(crate) fn serves(&self, conn: Conn, epoch: Epoch, session: Session) -> bool {
        self.admit(conn, epoch, session).is_ok()
    }
}
