//! One process: a machine unchanged, and what its kernel keeps for it (connections, timers).

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use tether_engine::engine_server::{Answer, Command, EngineServer};
use tether_engine::host::{
    Address, Broken, CallId, CommandId, ConnId, Effects, Event, Finish, Inbox, IoEffect, IoEvent, ListenerId, Machine,
    Time, TimerId,
};
use tether_engine::record::{RecordCall, RecordReturn};
use tether_engine::replica_server::ReplicaServer;
use tether_replication::ids::Holder;
use tether_store::files::fake::{FakeFiles, Random};

use crate::client::{self, Client};

/// A machine and its effects.
pub struct Hosted<M: Machine> {
    pub machine: M,
    effects: Effects<M>,
}

impl<M: Machine> Hosted<M> {
    pub fn new(machine: M, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let randomness = move |bytes: &mut [u8]| bytes.fill_with(|| random.next_u64() as u8);
        Self { machine, effects: Effects::new(Box::new(randomness)) }
    }

    fn tell(&mut self, event: Event<'_, M>, now: Time) {
        self.machine.handle(event, now, &mut self.effects);
    }
}

/// What kinds of processes there are.
pub enum Kind {
    Replica(Box<Hosted<ReplicaServer<FakeFiles>>>),
    Engine(Box<Hosted<EngineServer>>),
    Client(Box<Hosted<Client>>),
}

/// What is told to a process beside sockets, files and timers.
#[derive(Debug)]
pub enum Told {
    Started,
    Engine(CommandId, Command),
    Client(client::Command),
    Returned(CallId, RecordReturn),
}

/// What a process wants after an event.
#[derive(Debug, Default)]
pub struct Wants {
    pub io: Vec<IoEffect>,
    pub calls: Vec<(CallId, RecordCall)>,
    pub answers: Vec<(CommandId, Answer)>,
    pub reports: Vec<client::Report>,
    pub finished: Option<Finish>,
}

/// One end of a connection.
#[derive(Debug, Default)]
pub struct End {
    pub wire: usize,
    pub side: usize,
    pub inbox: Inbox,
    pub paused: bool,
    pub open: bool,
    pub reports: bool,
    /// Arrived and not yet received by the process.
    pub arrived: VecDeque<Bytes>,
    /// The peer ended the connection behind that.
    pub ended: Option<Broken>,
}

/// A process.
pub struct Process {
    pub name: String,
    pub host: usize,
    pub kind: Kind,
    pub alive: bool,
    /// Stopped by a signal: what happens to it waits.
    pub stopped: bool,
    pub conns: BTreeMap<ConnId, End>,
    pub listeners: BTreeMap<ListenerId, Address>,
    /// By timer: which setting of it is the last.
    pub timers: BTreeMap<TimerId, u64>,
    pub next_command: u64,
    /// The uid of an engine.
    pub holder: Holder,
}

impl Process {
    pub fn new(name: String, host: usize, kind: Kind) -> Self {
        Self {
            name,
            host,
            kind,
            alive: true,
            stopped: false,
            conns: BTreeMap::new(),
            listeners: BTreeMap::new(),
            timers: BTreeMap::new(),
            next_command: 0,
            holder: Holder::NOBODY,
        }
    }

    pub fn tell(&mut self, told: Told, now: Time) {
        match (&mut self.kind, told) {
            (Kind::Replica(hosted), Told::Started) => hosted.tell(Event::Started, now),
            (Kind::Engine(hosted), Told::Started) => hosted.tell(Event::Started, now),
            (Kind::Client(hosted), Told::Started) => hosted.tell(Event::Started, now),
            (Kind::Engine(hosted), Told::Engine(id, command)) => hosted.tell(Event::Command { id, command }, now),
            (Kind::Engine(hosted), Told::Returned(id, value)) => hosted.tell(Event::Returned { id, value }, now),
            (Kind::Client(hosted), Told::Client(command)) => {
                hosted.tell(Event::Command { id: CommandId(0), command }, now);
            }
            (_, told) => unreachable!("{told:?} must go to another kind of process than {}", self.name),
        }
    }

    pub fn tell_io(&mut self, event: IoEvent<'_>, now: Time) {
        tell_io(&mut self.kind, event, now);
    }

    /// Shows what arrived on a connection, as much as the process has room for. True if there may be more to show.
    pub fn show(&mut self, conn: ConnId, again: bool, now: Time) -> bool {
        let Some(end) = self.conns.get_mut(&conn).filter(|end| end.open && !end.paused) else { return false };
        let mut tell = again && !end.inbox.stream().is_empty();
        if !tell && let Some(mut bytes) = end.arrived.pop_front() {
            let room = end.inbox.room().len().min(bytes.len());
            let rest = bytes.split_off(room);
            if !rest.is_empty() {
                end.arrived.push_front(rest);
            }
            tell = end.inbox.push(&bytes);
        }
        let more = !end.arrived.is_empty() || end.ended.is_some();
        if tell {
            let event = IoEvent::Received { conn, inbox: &mut end.inbox };
            tell_io(&mut self.kind, event, now);
        } else if end.arrived.is_empty()
            && let Some(why) = end.ended.take()
        {
            self.conns.remove(&conn);
            tell_io(&mut self.kind, IoEvent::Closed { conn, why }, now);
            return false;
        }
        more
    }

    pub fn accept(&mut self) -> ConnId {
        match &mut self.kind {
            Kind::Replica(hosted) => hosted.effects.io.accept(),
            Kind::Engine(hosted) => hosted.effects.io.accept(),
            Kind::Client(hosted) => hosted.effects.io.accept(),
        }
    }

    /// What it wants since the last time.
    pub fn wants(&mut self) -> Wants {
        let mut wants = Wants::default();
        match &mut self.kind {
            Kind::Replica(hosted) => {
                hosted.effects.io.take(&mut wants.io);
                wants.finished = hosted.effects.finished().cloned();
            }
            Kind::Engine(hosted) => {
                hosted.effects.io.take(&mut wants.io);
                wants.calls = hosted.effects.take_calls().collect();
                wants.answers = hosted.effects.take_answers().collect();
                wants.finished = hosted.effects.finished().cloned();
            }
            Kind::Client(hosted) => {
                hosted.effects.io.take(&mut wants.io);
                wants.reports = std::mem::take(&mut hosted.machine.reports);
            }
        }
        wants
    }
}

fn tell_io(kind: &mut Kind, event: IoEvent<'_>, now: Time) {
    match kind {
        Kind::Replica(hosted) => hosted.tell(Event::Io(event), now),
        Kind::Engine(hosted) => hosted.tell(Event::Io(event), now),
        Kind::Client(hosted) => hosted.tell(Event::Io(event), now),
    }
}
