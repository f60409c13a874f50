//! A laboratory: one engine and real replicas over memory, everything arrives at once unless a test holds it back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

use crate::engine::{CasOutcome, Config, Effect, Engine, Event, IoError, IoId, IoOp, IoResult, Limits, Notice};
use crate::ids::{BootId, Holder, MemberId, Session, Slot, Span, Time, VolumeId};
use crate::record::Record;
use crate::region::Geometry;
use crate::replica::{self, Conn, Durable, Replica, StoreAnswer, StoreOp};
use crate::rules::Rules;
use crate::wire::{ControlKind, Failure, Reply};

/// 64 regions of 64 bytes.
pub(super) const GEOMETRY: Geometry = Geometry { size: 4096, shift: 6 };

#[allow(clippy::struct_excessive_bools)] // independent faults
pub(super) struct Store {
    pub(super) machine: Replica,
    pub(super) data: Vec<u8>,
    pub(super) durable: Durable,
    pub(super) chain: u64,
    pub(super) boot: u128,
    pub(super) full: bool,
    pub(super) broken: bool,
    /// Reads fail.
    pub(super) blind: bool,
    /// Says nothing.
    pub(super) silent: bool,
    /// Cannot be connected to.
    pub(super) down: bool,
    pub(super) flushes: usize,
}

pub(super) struct Lab {
    pub(super) engine: Engine,
    pub(super) stores: Vec<Store>,
    pub(super) record: Record,
    pub(super) record_down: bool,
    pub(super) now: Time,
    pub(super) done: BTreeMap<u64, IoResult>,
    pub(super) notices: Vec<Notice>,
    pub(super) to_source: Vec<(IoId, IoOp)>,
    pub(super) stop_source: bool,
    pub(super) timers: usize,
    effects: VecDeque<Effect>,
    links: BTreeMap<Slot, Session>,
    next_io: u64,
}

pub(super) fn name(at: usize) -> MemberId {
    MemberId::new(&format!("r{at}")).unwrap()
}

impl Lab {
    pub(super) fn new(replicas: usize) -> Self {
        let stores = (0..replicas)
            .map(|_| {
                let durable = Durable { boot: BootId(1), ..Durable::default() };
                Store {
                    machine: machine(&durable, 1, 1, GEOMETRY),
                    data: vec![0; GEOMETRY.size as usize],
                    durable,
                    chain: 1,
                    boot: 1,
                    full: false,
                    broken: false,
                    blind: false,
                    silent: false,
                    down: false,
                    flushes: 0,
                }
            })
            .collect();
        Self {
            engine: engine(1, Limits { resync_chunk: 32, ..Limits::default() }, replicas),
            stores,
            record: Record::new((0..replicas).map(name)),
            record_down: false,
            now: Time(1_000_000),
            done: BTreeMap::new(),
            notices: Vec::new(),
            to_source: Vec::new(),
            stop_source: false,
            timers: 0,
            effects: VecDeque::new(),
            links: BTreeMap::new(),
            next_io: 0,
        }
    }

    pub(super) fn serving(replicas: usize) -> Self {
        let mut lab = Self::new(replicas);
        lab.tell(Event::Start { older_stopped: true });
        assert_eq!(crate::engine::Phase::Serving, lab.engine.phase());
        lab
    }

    /// Another engine process in the place of this one, which is gone without a word.
    pub(super) fn replace_engine(&mut self, holder: u128) {
        self.links.clear();
        self.effects.clear();
        self.engine = engine(holder, Limits { resync_chunk: 32, ..Limits::default() }, self.stores.len());
    }

    pub(super) fn tell(&mut self, event: Event) {
        let mut effects = Vec::new();
        self.engine.apply(event, self.now, &mut effects);
        self.effects.extend(effects);
        while let Some(effect) = self.effects.pop_front() {
            self.run(effect);
        }
    }

    fn run(&mut self, effect: Effect) {
        match effect {
            Effect::Connect { slot, session } => {
                let event = if self.stores[usize::from(slot.0)].down {
                    Event::Disconnected { slot, session }
                } else {
                    self.links.insert(slot, session);
                    Event::Connected { slot, session }
                };
                self.tell_later(event);
            }
            Effect::Disconnect { slot, session } => {
                if self.links.get(&slot) == Some(&session) {
                    self.links.remove(&slot);
                }
            }
            Effect::Send { slot, session, request } => {
                let conn = Conn(session.0);
                if self.links.get(&slot) == Some(&session) {
                    for reply in self.stores[usize::from(slot.0)].handle(replica::Event::Request { conn, request }) {
                        self.tell_later(Event::Reply { slot, reply });
                    }
                }
            }
            Effect::Cas { id, change } => {
                let outcome = match self.record.apply(&change) {
                    _ if self.record_down => CasOutcome::NotSent,
                    Ok(record) => {
                        self.record = record.clone();
                        CasOutcome::Applied(record)
                    }
                    Err(refusal) => CasOutcome::Refused { refusal, current: self.record.clone() },
                };
                self.tell_later(Event::Cas { id, outcome });
            }
            Effect::Complete { io, result } => {
                assert!(self.done.insert(io.0, result).is_none(), "answered twice");
            }
            Effect::SetTimer { .. } => self.timers += 1,
            Effect::Notice(notice) => self.notices.push(notice),
            Effect::AskSource { io, op } => self.to_source.push((io, op)),
            Effect::StopSource => self.stop_source = true,
        }
    }

    fn tell_later(&mut self, event: Event) {
        let mut effects = Vec::new();
        self.engine.apply(event, self.now, &mut effects);
        self.effects.extend(effects);
    }

    /// Submits a request; its number.
    pub(super) fn submit(&mut self, op: IoOp) -> u64 {
        self.next_io += 1;
        let id = self.next_io;
        self.tell(Event::Io { id: IoId(id), op });
        id
    }

    pub(super) fn write(&mut self, offset: u64, byte: u8) -> u64 {
        self.submit(IoOp::Write { offset, data: Bytes::from(vec![byte; 16]), fua: false })
    }

    pub(super) fn read(&mut self, offset: u64) -> u64 {
        self.submit(IoOp::Read { offset, len: 16 })
    }

    pub(super) fn is_ok(&self, io: u64) -> bool {
        self.done.get(&io).is_some_and(Result::is_ok)
    }

    pub(super) fn error(&self, io: u64) -> Option<IoError> {
        self.done.get(&io).and_then(|result| result.clone().err())
    }

    /// Time goes by, with timers as the engine wishes.
    pub(super) fn pass(&mut self, span: Span) {
        let end = self.now.after(span);
        for _ in 0..100_000 {
            let Some(at) = self.engine.armed().filter(|at| *at <= end) else {
                self.now = end;
                return;
            };
            self.now = self.now.max(at);
            self.tell(Event::Timer);
        }
        panic!("the engine never rests");
    }

    /// The replica's process dies.
    pub(super) fn kill(&mut self, at: usize) {
        self.stores[at].down = true;
        if let Some(session) = self.links.remove(&Slot(at as u8)) {
            self.tell(Event::Disconnected { slot: Slot(at as u8), session });
        }
    }

    /// It starts again; its host may have rebooted.
    pub(super) fn revive(&mut self, at: usize, rebooted: bool) {
        let store = &mut self.stores[at];
        store.down = false;
        store.silent = false;
        store.boot += u128::from(rebooted);
        store.restart();
    }

    pub(super) fn in_sync(&self) -> BTreeSet<MemberId> {
        self.record.in_sync.clone()
    }

    pub(super) fn copied(&self) -> Option<u64> {
        self.notices.iter().rev().find_map(|notice| match notice {
            Notice::Grown { copied, .. } => Some(*copied),
            _ => None,
        })
    }
}

fn machine(durable: &Durable, chain: u64, boot: u128, geometry: Geometry) -> Replica {
    let config = replica::Config { volume: VolumeId(1), geometry, boot: BootId(boot), rules: Rules::default() };
    Replica::new(config, durable.clone(), chain, &mut Vec::new())
}

pub(super) fn engine(holder: u128, limits: Limits, replicas: usize) -> Engine {
    let config =
        Config { holder: Holder(holder), volume: VolumeId(1), geometry: GEOMETRY, limits, rules: Rules::default() };
    Engine::new(config, (0..replicas).map(name))
}

impl Store {
    fn restart(&mut self) {
        let geometry = Geometry { size: self.data.len() as u64, ..GEOMETRY };
        let rebooted = self.durable.boot != BootId(self.boot);
        if rebooted {
            let doubtful = !self.durable.log.is_empty();
            self.durable.apply(&replica::StateChange::Boot { boot: BootId(self.boot), doubtful });
        }
        self.machine = machine(&self.durable, self.chain, self.boot, geometry);
    }

    fn handle(&mut self, event: replica::Event) -> Vec<Reply> {
        let (mut events, mut replies) = (VecDeque::from([event]), Vec::new());
        if self.silent {
            return replies;
        }
        while let Some(event) = events.pop_front() {
            let mut effects = Vec::new();
            self.machine.apply(event, &mut effects);
            for effect in effects {
                match effect {
                    replica::Effect::Store { op, request } => {
                        let result = self.store(&request);
                        events.push_back(replica::Event::Stored { op, result });
                    }
                    replica::Effect::Send { reply, .. } => replies.push(reply),
                    replica::Effect::Close { .. } => {}
                }
            }
        }
        replies
    }

    fn store(&mut self, op: &StoreOp) -> Result<StoreAnswer, Failure> {
        let range = |offset: u64, len: usize| offset as usize..offset as usize + len;
        match op {
            StoreOp::Write { .. } | StoreOp::CopyWrite { .. } if self.full => Err(Failure::NoSpace),
            StoreOp::Write { .. } | StoreOp::CopyWrite { .. } | StoreOp::Flush if self.broken => Err(Failure::Io),
            StoreOp::Read { .. } if self.blind => Err(Failure::Io),
            StoreOp::Write { offset, data, .. } | StoreOp::CopyWrite { offset, data, .. } => {
                self.data[range(*offset, data.len())].copy_from_slice(data);
                Ok(StoreAnswer::Done)
            }
            StoreOp::Zero { offset, len, .. } | StoreOp::Discard { offset, len } => {
                self.data[range(*offset, *len as usize)].fill(0);
                Ok(StoreAnswer::Done)
            }
            StoreOp::Flush => {
                self.flushes += 1;
                Ok(StoreAnswer::Done)
            }
            StoreOp::Persist(changes) => {
                for change in changes {
                    self.durable.apply(change);
                }
                Ok(StoreAnswer::Done)
            }
            StoreOp::Read { offset, len } | StoreOp::CopyRead { offset, len, .. } => {
                Ok(StoreAnswer::Data(Bytes::copy_from_slice(&self.data[range(*offset, *len as usize)])))
            }
            StoreOp::Checksum { offset, len, .. } => {
                let bytes = &self.data[range(*offset, *len as usize)];
                Ok(StoreAnswer::Sum(bytes.iter().fold(7, |sum: u128, byte| sum.wrapping_mul(257) + u128::from(*byte))))
            }
            StoreOp::ChainRead => {
                Ok(StoreAnswer::Chain { layers: 0, chain: Bytes::copy_from_slice(&self.chain.to_le_bytes()) })
            }
            StoreOp::ChainSet { chain } => {
                self.chain = u64::from_le_bytes(chain[..8].try_into().unwrap());
                Ok(self.controlled())
            }
            StoreOp::Control(op) => {
                if self.broken {
                    return Err(Failure::Io);
                }
                match op.kind {
                    ControlKind::Expand => self.data.resize(op.size as usize, 0),
                    ControlKind::Custom => {}
                    _ => self.chain += 1,
                }
                Ok(self.controlled())
            }
            StoreOp::Status { .. } => Ok(StoreAnswer::Extents(Vec::new())),
        }
    }

    fn controlled(&self) -> StoreAnswer {
        StoreAnswer::Controlled { chain: self.chain, size: self.data.len() as u64, body: Bytes::new() }
    }
}
