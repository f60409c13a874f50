//! Engines, replicas, connections, disks and the record, as one value that can be copied and compared.
//!
//! The volume is one block of one byte, so that a region is the block. Connections keep the order of what is sent
//! (they are TCP); what was sent on a connection that its engine gave up may still arrive.

use std::collections::VecDeque;

use bytes::Bytes;

use super::monitor::{Monitor, Value, Values};
use crate::engine::{self, CasId, Engine, IoAnswer, IoError, IoId, IoOp, Limits, Phase};
use crate::ids::{BootId, Holder, MemberId, Session, Slot, Span, Time, VolumeId};
use crate::record::{Change, Record};
use crate::region::Geometry;
use crate::replica::{self, Conn, Durable, OpId, Replica, StateChange, StoreAnswer, StoreOp};
use crate::rules::Rules;
use crate::wire::{Failure, Kind, Reply, Request, RequestBody};

/// One lease, the only span of time that the model knows.
pub(super) const LEASE: Span = Span(10);

/// Far enough never to come.
const NEVER: Span = Span(u64::MAX / 4);

/// An engine process and what its host holds for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Host {
    /// Nothing: it crashed, or was not started.
    pub(super) engine: Option<Engine>,
    pub(super) cas: Option<(CasId, Change)>,
    pub(super) dials: Vec<(Slot, Session)>,
    /// What a flush that is under way keeps.
    pub(super) flush: Option<Values>,
    /// The record's set and epoch when this engine was started, for worlds without the rule about it.
    pub(super) seen: Option<Record>,
    /// Writes that had been sent when the engine was fenced, for worlds that send them again.
    pub(super) replay: Vec<Value>,
    /// What a read that is under way may return.
    pub(super) reading: Option<Values>,
    /// Power was lost since it was sent: it may tell of what is gone by now.
    pub(super) reading_across_loss: bool,
    pub(super) starts: u8,
    /// A message to the source, that it should stop, is on its way.
    pub(super) tells: bool,
    /// An engine that served ended here and can still say so.
    pub(super) ended: Option<Holder>,
}

/// A connection, or what is left of one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Link {
    pub(super) engine: u8,
    pub(super) replica: u8,
    pub(super) session: Session,
    /// The engine still uses it.
    pub(super) alive: bool,
    /// The replica's end is gone, which the engine does not know yet.
    pub(super) dead_end: bool,
    pub(super) to_replica: VecDeque<Request>,
    pub(super) to_engine: VecDeque<Reply>,
}

/// A replica, its disk and its host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Disk {
    pub(super) machine: Replica,
    pub(super) durable: Durable,
    pub(super) value: Value,
    pub(super) flushed: Value,
    /// The value was written since the host last booted with a log that was not empty.
    pub(super) sure: bool,
    pub(super) boot: u8,
    /// Operations in the hands of the store, in worlds that look into it.
    pub(super) ops: Vec<(OpId, StoreOp)>,
    /// The next write fails.
    pub(super) broken: bool,
}

/// What a world allows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::struct_excessive_bools)] // independent switches
pub(super) struct Scope {
    pub(super) rules: Rules,
    pub(super) engines: u8,
    pub(super) replicas: u8,
    pub(super) writes: u8,
    pub(super) budget: Budget,
    /// Requests whose arrival is a step of its own; all others arrive at once.
    pub(super) fine: &'static [Kind],
    /// Answers to these take a step of their own.
    pub(super) fine_answers: &'static [Kind],
    /// Operations of the store take a step of their own.
    pub(super) fine_store: bool,
    /// So do reads of copies.
    pub(super) slow_copies: bool,
    /// Reads are sent and answered, not done at once.
    pub(super) split_reads: bool,
    pub(super) migration: bool,
    /// One, or two: the one that is looked at and the one beside it.
    pub(super) blocks: u8,
}

/// How often what may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Budget {
    pub(super) crashes: u8,
    pub(super) breaks: u8,
    pub(super) suspicions: u8,
    pub(super) restarts: u8,
    pub(super) reboots: u8,
    pub(super) unknown: u8,
    pub(super) joins: u8,
    pub(super) flushes: u8,
    pub(super) ticks: u8,
    pub(super) errors: u8,
    /// Members that a start does not wait for.
    pub(super) impatience: u8,
    /// Times that the record is not reached.
    pub(super) unreachable: u8,
    /// Writes to the block beside.
    pub(super) beside: u8,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) record: Record,
    /// A change whose outcome nobody knows, still on its way.
    pub(super) delayed: Option<Change>,
    pub(super) hosts: Vec<Host>,
    pub(super) links: Vec<Link>,
    pub(super) disks: Vec<Disk>,
    pub(super) now: Time,
    pub(super) monitor: Monitor,
    pub(super) written: u8,
    pub(super) budget: Budget,
    pub(super) violation: Option<&'static str>,
    /// Which engines the migration's story knows: (standby was closed).
    pub(super) rolled_back: bool,
}

pub(super) fn member(replica: u8) -> MemberId {
    MemberId::new(["a", "b", "c", "d"][usize::from(replica)]).unwrap()
}

fn limits() -> Limits {
    Limits {
        lease: LEASE,
        drift: Span(0),
        answer: NEVER,
        hung: NEVER,
        open: NEVER,
        retry: Span(0),
        record_retry: LEASE,
        rejoin: NEVER,
        resync_bytes_per_second: 0,
        resync_chunk: 1,
        resync_depth: 1,
        log_regions: 0,
        quiet: NEVER,
    }
}

/// A region is a block is a byte.
fn geometry(scope: &Scope) -> Geometry {
    Geometry { size: u64::from(scope.blocks), shift: 0 }
}

impl World {
    /// Nobody holds the volume; replicas are equal and empty.
    pub(super) fn new(scope: &Scope) -> Self {
        let disks = (0..scope.replicas).map(|_| Disk::new(scope)).collect();
        let host = Host {
            engine: None,
            cas: None,
            dials: Vec::new(),
            flush: None,
            seen: None,
            replay: Vec::new(),
            reading: None,
            reading_across_loss: false,
            starts: 0,
            tells: false,
            ended: None,
        };
        Self {
            record: Record::new((0..scope.replicas).map(member)),
            delayed: None,
            hosts: vec![host; usize::from(scope.engines)],
            links: Vec::new(),
            disks,
            now: Time(0),
            monitor: Monitor::new(),
            written: 0,
            budget: scope.budget,
            violation: None,
            rolled_back: false,
        }
    }

    pub(super) fn holder(scope: &Scope, engine: u8, starts: u8) -> Holder {
        let process = if scope.rules.new_epoch() { starts } else { 1 };
        Holder(u128::from(engine) * 16 + u128::from(process))
    }

    /// A new engine process.
    pub(super) fn spawn(&mut self, scope: &Scope, at: u8) {
        let host = &mut self.hosts[usize::from(at)];
        host.starts += 1;
        let looks_back = !scope.rules.set_of_the_start() || !scope.rules.holder();
        host.seen = looks_back.then(|| self.record.clone());
        (host.cas, host.flush, host.reading) = (None, None, None);
        (host.tells, host.ended) = (false, None);
        host.dials.clear();
        let config = engine::Config {
            holder: Self::holder(scope, at, host.starts),
            volume: VolumeId(1),
            geometry: geometry(scope),
            limits: limits(),
            rules: scope.rules,
        };
        let mut engine = Engine::new(config, (0..scope.replicas).map(member));
        engine.prepare(Session(u64::from(host.starts) * 16));
        host.engine = Some(engine);
    }

    pub(super) fn tell(&mut self, scope: &Scope, at: u8, event: engine::Event) {
        let mut effects = Vec::new();
        let now = self.now;
        if let Some(engine) = self.hosts[usize::from(at)].engine.as_mut() {
            engine.apply(event, now, &mut effects);
        }
        self.engine_effects(scope, at, effects);
    }

    /// A step that only a test can take on an engine.
    pub(super) fn poke(
        &mut self,
        scope: &Scope,
        at: u8,
        poke: impl FnOnce(&mut Engine, Time, &mut Vec<engine::Effect>),
    ) {
        let mut effects = Vec::new();
        let now = self.now;
        if let Some(engine) = self.hosts[usize::from(at)].engine.as_mut() {
            poke(engine, now, &mut effects);
        }
        self.engine_effects(scope, at, effects);
    }

    fn engine_effects(&mut self, scope: &Scope, at: u8, effects: Vec<engine::Effect>) {
        for effect in effects {
            match effect {
                engine::Effect::Connect { slot, session } => {
                    let host = &mut self.hosts[usize::from(at)];
                    host.dials.retain(|(other, _)| *other != slot);
                    host.dials.push((slot, session));
                    host.dials.sort_unstable();
                }
                engine::Effect::Disconnect { slot, session } => {
                    self.hosts[usize::from(at)].dials.retain(|(other, _)| *other != slot);
                    self.abandon(at, slot.0, session);
                }
                engine::Effect::Send { slot, session, request } => {
                    if let Some(link) = self.link_mut(at, slot.0, session).filter(|link| !link.dead_end) {
                        link.to_replica.push_back(request);
                    }
                }
                engine::Effect::Cas { id, change } => self.hosts[usize::from(at)].cas = Some((id, change)),
                engine::Effect::Complete { io, result } => self.completed(scope, at, io, result),
                engine::Effect::SetTimer { .. } | engine::Effect::Notice(_) | engine::Effect::AskSource { .. } => {}
                engine::Effect::StopSource => self.hosts[usize::from(at)].tells = true,
            }
        }
        let ended = |engine: &&Engine| matches!(engine.phase(), Phase::Fenced | Phase::Failed | Phase::Stopped);
        if let Some(engine) = self.hosts[usize::from(at)].engine.as_ref().filter(ended) {
            let served = (scope.migration && engine.has_served()).then(|| engine.holder());
            self.kill(at);
            self.hosts[usize::from(at)].ended = served;
        }
    }

    fn link_mut(&mut self, engine: u8, replica: u8, session: Session) -> Option<&mut Link> {
        self.links
            .iter_mut()
            .find(|link| link.alive && link.engine == engine && link.replica == replica && link.session == session)
    }

    /// The engine closes a connection; what it sent may still arrive.
    fn abandon(&mut self, engine: u8, replica: u8, session: Session) {
        if let Some(link) = self.link_mut(engine, replica, session) {
            link.alive = false;
            link.to_engine.clear();
        }
        self.forget_idle_links();
    }

    /// What is left of a connection matters only while a request is on it that changes data.
    pub(super) fn forget_idle_links(&mut self) {
        for link in self.links.iter_mut().filter(|link| !link.alive) {
            let changes_data =
                |request: &Request| matches!(request.body, RequestBody::Write { .. } | RequestBody::CopyWrite { .. });
            link.to_replica.retain(changes_data);
        }
        self.links.retain(|link| link.alive || !link.to_replica.is_empty());
        self.links.sort_by_key(|link| (link.engine, link.replica, link.session));
    }

    fn completed(&mut self, scope: &Scope, at: u8, io: IoId, result: Result<IoAnswer, IoError>) {
        let host = &mut self.hosts[usize::from(at)];
        match (io, result) {
            (FLUSH, result) => {
                if let (Some(kept), Ok(_)) = (host.flush.take(), result) {
                    self.monitor.flush_acknowledged(kept);
                }
            }
            (READ, Ok(IoAnswer::Data(data))) => {
                let seen = host.reading.take();
                let across_loss = std::mem::take(&mut host.reading_across_loss);
                let now_legal = self.monitor.readable().has(data[0]);
                if now_legal && !across_loss {
                    self.monitor.read(data[0]);
                } else if !seen.is_some_and(|seen| seen.has(data[0])) {
                    self.violate("I2/I3: a read returned what no history explains");
                }
            }
            (READ, _) => (host.reading, host.reading_across_loss) = (None, false),
            (IoId(value), Err(IoError::Fenced { sent: true })) if !scope.rules.no_replay() => {
                host.replay.push(value as Value);
            }
            (BESIDE, _) | (_, Err(_)) => {}
            (IoId(value), Ok(_)) => {
                if !self.monitor.acknowledge(value as Value) {
                    self.violate("I1: acknowledged writes do not form one history");
                }
            }
        }
    }

    /// One line about the disks and the record, for people.
    pub(super) fn summary(&self) -> String {
        let disk = |disk: &Disk| {
            let (log, doubt) = (disk.durable.log.iter().collect::<Vec<_>>(), disk.durable.doubtful);
            let doubt = if doubt { " doubtful" } else { "" };
            format!("{}/{} sure {} log {log:?}{doubt}", disk.value, disk.flushed, disk.sure)
        };
        let disks: Vec<_> = self.disks.iter().map(disk).collect();
        let phases: Vec<_> = self.hosts.iter().map(|host| host.engine.as_ref().map(Engine::phase)).collect();
        let legal: Vec<_> = (0..8).filter(|value| self.monitor.readable().has(*value)).collect();
        let in_sync: Vec<_> = self.record.in_sync.iter().collect();
        format!("[{}] in sync {in_sync:?}, engines {phases:?}, legal {legal:?}", disks.join("; "))
    }

    pub(super) fn violate(&mut self, what: &'static str) {
        self.violation.get_or_insert(what);
    }

    /// One request arrives.
    pub(super) fn arrive(&mut self, scope: &Scope, at: usize) {
        let link = &mut self.links[at];
        let Some(request) = link.to_replica.pop_front() else { return };
        let (replica, conn) = (link.replica, conn(link));
        self.tell_replica(scope, replica, replica::Event::Request { conn, request });
        self.forget_idle_links();
    }

    /// One answer arrives.
    pub(super) fn answer(&mut self, scope: &Scope, at: usize) {
        let link = &mut self.links[at];
        let (engine, slot) = (link.engine, Slot(link.replica));
        if let Some(reply) = link.to_engine.pop_front() {
            self.tell(scope, engine, engine::Event::Reply { slot, reply });
        }
    }

    pub(super) fn tell_replica(&mut self, scope: &Scope, at: u8, event: replica::Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let mut effects = Vec::new();
            self.disks[usize::from(at)].machine.apply(event, &mut effects);
            self.replica_effects(scope, at, effects, &mut events);
        }
    }

    fn replica_effects(
        &mut self,
        scope: &Scope,
        at: u8,
        effects: Vec<replica::Effect>,
        events: &mut VecDeque<replica::Event>,
    ) {
        for effect in effects {
            match effect {
                replica::Effect::Send { conn: to, reply } => {
                    let link = self.links.iter_mut().find(|link| link.alive && link.replica == at && conn(link) == to);
                    if let Some(link) = link {
                        link.to_engine.push_back(reply);
                    }
                }
                replica::Effect::Close { .. } => {}
                replica::Effect::Store { op, request } => {
                    let slow = match request {
                        StoreOp::Write { .. } | StoreOp::Persist(_) => scope.fine_store,
                        StoreOp::Read { .. } => scope.fine_store && scope.split_reads,
                        StoreOp::CopyRead { .. } => scope.slow_copies,
                        _ => false,
                    };
                    if slow {
                        self.disks[usize::from(at)].ops.push((op, request));
                    } else {
                        let result = self.disks[usize::from(at)].run(&request);
                        events.push_back(replica::Event::Stored { op, result });
                    }
                }
            }
        }
    }

    /// The process of a replica starts again, perhaps because its host did.
    pub(super) fn restart_replica(&mut self, scope: &Scope, at: u8) {
        for link in self.links.iter_mut().filter(|link| link.replica == at) {
            link.to_replica.clear();
            link.dead_end = true;
        }
        let disk = &mut self.disks[usize::from(at)];
        disk.ops.clear();
        let mut effects = Vec::new();
        if !scope.rules.persist() {
            disk.durable.promise = None;
        }
        disk.machine = Replica::new(disk.config(scope), disk.durable.clone(), 1, &mut effects);
        let mut events = VecDeque::new();
        let plain = Scope { fine_store: false, slow_copies: false, ..scope.clone() };
        self.replica_effects(&plain, at, effects, &mut events);
        while let Some(event) = events.pop_front() {
            self.tell_replica(&plain, at, event);
        }
        self.forget_idle_links();
    }

    /// Everything arrives that is not a step of its own, until nothing does any more.
    pub(super) fn settle(&mut self, scope: &Scope) {
        while self.violation.is_none() {
            let request = self.links.iter().position(|link| {
                let fine = |request: &Request| scope.fine.contains(&request.body.kind());
                link.alive && link.to_replica.front().is_some_and(|request| !fine(request))
            });
            if let Some(at) = request {
                self.arrive(scope, at);
                continue;
            }
            let reply = self.links.iter().position(|link| {
                let fine = |reply: &Reply| scope.fine_answers.contains(&reply.body.kind());
                link.alive && link.to_engine.front().is_some_and(|reply| !fine(reply))
            });
            match reply {
                Some(at) => self.answer(scope, at),
                None => return,
            }
        }
    }
}

pub(super) const FLUSH: IoId = IoId(100);
pub(super) const READ: IoId = IoId(101);
pub(super) const BESIDE: IoId = IoId(102);

pub(super) fn write(value: Value) -> IoOp {
    IoOp::Write { offset: 0, data: Bytes::copy_from_slice(&[value]), fua: false }
}

pub(super) fn conn(link: &Link) -> Conn {
    Conn(u64::from(link.engine) << 32 | link.session.0)
}

impl Disk {
    fn new(scope: &Scope) -> Self {
        let durable = Durable { boot: BootId(1), ..Durable::default() };
        let config =
            replica::Config { volume: VolumeId(1), geometry: geometry(scope), boot: BootId(1), rules: scope.rules };
        let machine = Replica::new(config, durable.clone(), 1, &mut Vec::new());
        Self { machine, durable, value: 0, flushed: 0, sure: true, boot: 1, ops: Vec::new(), broken: false }
    }

    fn config(&self, scope: &Scope) -> replica::Config {
        let boot = BootId(u128::from(self.boot));
        replica::Config { volume: VolumeId(1), geometry: geometry(scope), boot, rules: scope.rules }
    }

    /// Does an operation.
    pub(super) fn run(&mut self, op: &StoreOp) -> Result<StoreAnswer, Failure> {
        match op {
            StoreOp::Write { offset: 1, .. } | StoreOp::CopyWrite { offset: 1, .. } => Ok(StoreAnswer::Done),
            StoreOp::Write { data, .. } | StoreOp::CopyWrite { data, .. } => {
                if std::mem::take(&mut self.broken) {
                    return Err(Failure::Io);
                }
                // A doubtful one is made equal as a whole, or not at all.
                self.value = data[0];
                self.sure |= !self.durable.doubtful;
                Ok(StoreAnswer::Done)
            }
            StoreOp::Flush => {
                self.flushed = self.value;
                Ok(StoreAnswer::Done)
            }
            StoreOp::Persist(changes) => {
                for change in changes {
                    self.durable.apply(change);
                    self.sure |= *change == StateChange::Settled;
                }
                Ok(StoreAnswer::Done)
            }
            StoreOp::Read { .. } | StoreOp::CopyRead { .. } => {
                Ok(StoreAnswer::Data(Bytes::copy_from_slice(&[self.value])))
            }
            StoreOp::Checksum { .. } => Ok(StoreAnswer::Sum(u128::from(self.value))),
            StoreOp::ChainRead => Ok(StoreAnswer::Chain { layers: 0, chain: Bytes::new() }),
            StoreOp::ChainSet { .. } | StoreOp::Control(_) => {
                Ok(StoreAnswer::Controlled { chain: 1, size: 1, body: Bytes::new() })
            }
            StoreOp::Zero { .. } | StoreOp::Discard { .. } | StoreOp::Status { .. } => Err(Failure::Unsupported),
        }
    }
}
