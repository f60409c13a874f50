//! A replica as a machine: connections that prove themselves, the protocol, the store.
//!
//! ```text
//!   connection ─► auth ─► framing ─► replication::Replica ─► store glue ─► store::Volume ─► file operations
//! ```
//!
//! One process, one thread, one open directory: the protocol sees a store that does what it is told, the store
//! sees requests, and neither knows of sockets or descriptors.

mod glue;
mod hashing;
mod persist;

use std::collections::{BTreeMap, HashMap};

use bytes::BytesMut;
use tether_replication::ids::{BootId, MemberId, VolumeId};
use tether_replication::region::Geometry;
use tether_replication::replica::{Config, Conn, Effect, Event as ReplicaEvent, Replica};
use tether_replication::rules::Rules;
use tether_replication::wire::Message;
use tether_store::{Files, Volume};

use crate::auth::{self, HANDSHAKE_MS, Key, Welcome};
use crate::framing::{self, Framing, Headers};
use crate::host::{
    Address, Alignment, ConnId, Effects, Event, Finish, Inbox, Io, IoEvent, Listening, Machine, Time, TimerId,
};
use glue::Store;
pub use glue::{Located, SnapshotArgs};
pub use hashing::{HashSnapshot, Hashed};

/// Connections that have not proved themselves; more are closed at once. An engine has one at a time.
const MAX_STRANGERS: usize = 32;

/// What a replica is told.
#[derive(Clone, Debug)]
pub struct Settings {
    pub listen: Vec<Address>,
    pub key: Key,
    pub boot: BootId,
    /// All of them, but in a simulation of what each is for.
    pub rules: Rules,
}

/// What other threads may ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Where it listens; answered when it does.
    Listening,
    Info,
    /// The sum of a snapshot's image, noted beside it as Longhorn does.
    Hash(HashSnapshot),
    /// Ends in order: what is under way is finished, the directory closed.
    Stop,
}

/// What they get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Listening(Result<Vec<Address>, String>),
    Info(Info),
    Hashed(Hashed),
    Stopping,
}

/// A replica as people see it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Info {
    pub name: String,
    /// Empty until the first engine came.
    pub volume: String,
    pub size: u64,
    pub epoch: u64,
    /// Regions that may differ from other replicas'.
    pub active_regions: u64,
    pub doubtful: bool,
    pub out_of_sync: Option<String>,
    pub connections: usize,
    pub index_bytes: usize,
}

enum Peer {
    Stranger { handshake: Box<auth::Listener>, timer: TimerId },
    Engine(Framing),
}

/// The machine of one replica process.
pub struct ReplicaServer<F: Files + Located> {
    settings: Settings,
    store: Store<F>,
    /// Made when it is known which volume this is a replica of.
    replica: Option<Replica>,
    effects: Vec<Effect>,
    spare: Vec<Effect>,
    peers: BTreeMap<ConnId, Peer>,
    timers: HashMap<TimerId, ConnId>,
    headers: Headers,
    listening: Listening,
    stopping: bool,
}

impl<F: Files + Located> ReplicaServer<F> {
    pub fn new(settings: Settings, volume: Volume<F>) -> Self {
        Self {
            settings,
            store: Store::new(volume),
            replica: None,
            effects: Vec::new(),
            spare: Vec::new(),
            peers: BTreeMap::new(),
            timers: HashMap::new(),
            headers: Headers::default(),
            listening: Listening::default(),
            stopping: false,
        }
    }

    /// The directory, after the end.
    pub fn into_volume(self) -> Volume<F> {
        self.store.into_volume()
    }

    fn io(&mut self, event: IoEvent<'_>, now: Time, out: &mut Effects<Self>) {
        match event {
            IoEvent::FileDone { op, result } => {
                self.store.completed(op, result);
                self.settle(&mut out.io);
            }
            IoEvent::Received { conn, inbox } => self.received(conn, inbox, &mut out.io),
            IoEvent::Accepted { conn, .. } => self.accepted(conn, now, &mut out.io),
            IoEvent::Closed { conn, .. } => self.closed(conn, &mut out.io),
            IoEvent::Timer { timer } => {
                if let Some(conn) = self.timers.remove(&timer) {
                    tracing::debug!(?conn, "no proof in time");
                    self.drop_peer(conn, &mut out.io);
                }
            }
            IoEvent::Listening { listener, local } => {
                self.listening.is_at(listener, local);
                self.answer_listening(out);
            }
            IoEvent::ListenFailed { why, .. } => {
                self.listening.fail(&why);
                self.answer_listening(out);
                out.finish(Finish::Failed(why));
            }
            IoEvent::Connected { .. }
            | IoEvent::ConnectFailed { .. }
            | IoEvent::Sent { .. }
            | IoEvent::DeviceReadable { .. } => {}
        }
    }

    fn answer_listening(&mut self, out: &mut Effects<Self>) {
        let Some((waiting, listened)) = self.listening.answers() else { return };
        for id in waiting {
            out.answer(id, Answer::Listening(listened.clone()));
        }
    }

    fn accepted(&mut self, conn: ConnId, now: Time, io: &mut Io) {
        if self.timers.len() >= MAX_STRANGERS || self.stopping {
            return io.abort(conn);
        }
        let timer = io.timer();
        io.set_timer(timer, now.plus_millis(HANDSHAKE_MS));
        self.timers.insert(timer, conn);
        let handshake = Box::new(auth::Listener::new(self.settings.key.clone(), io.random()));
        self.peers.insert(conn, Peer::Stranger { handshake, timer });
    }

    /// Forgets a connection and ends it.
    fn drop_peer(&mut self, conn: ConnId, io: &mut Io) {
        io.abort(conn);
        self.closed(conn, io);
    }

    fn closed(&mut self, conn: ConnId, io: &mut Io) {
        match self.peers.remove(&conn) {
            Some(Peer::Stranger { timer, .. }) => {
                self.timers.remove(&timer);
                io.cancel_timer(timer);
            }
            Some(Peer::Engine(_)) => {
                if let Some(replica) = &mut self.replica {
                    replica.apply(ReplicaEvent::Gone { conn: Conn(conn.0) }, &mut self.effects);
                }
                self.settle(io);
            }
            None => {}
        }
    }

    fn received(&mut self, conn: ConnId, inbox: &mut Inbox, io: &mut Io) {
        if let Some(Peer::Stranger { .. }) = self.peers.get(&conn) {
            self.greet(conn, inbox, io);
        }
        let Some(Peer::Engine(framing)) = self.peers.get_mut(&conn) else { return };
        loop {
            match framing.next(inbox) {
                Ok(Some(Message::Request(request))) => {
                    let replica = self.replica.as_mut().expect("a proved engine must have been preceded by a volume");
                    replica.apply(ReplicaEvent::Request { conn: Conn(conn.0), request }, &mut self.effects);
                }
                Ok(Some(Message::Reply(_))) => {
                    tracing::warn!(?conn, "an engine sent a reply");
                    return self.drop_peer(conn, io);
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(?conn, %error, "the engine's connection is of no use");
                    return self.drop_peer(conn, io);
                }
            }
        }
        self.settle(io);
    }

    /// Goes on with the handshake of a stranger.
    fn greet(&mut self, conn: ConnId, inbox: &mut Inbox, io: &mut Io) {
        let Some(Peer::Stranger { handshake, timer }) = self.peers.get_mut(&conn) else { return };
        let mut out = BytesMut::new();
        let result = handshake.advance(inbox.stream(), &mut out);
        let proved = match result {
            Ok(Some(proved)) => proved,
            Ok(None) => return io.send(conn, out.freeze()),
            Err(error) => {
                tracing::warn!(%error, "somebody at the data port was not believed");
                return self.drop_peer(conn, io);
            }
        };
        let member = self.store.member();
        let ours = self.store.volume_id();
        let known = ours.is_none_or(|ours| ours == proved.volume);
        if !known || proved.wanted.as_ref().is_some_and(|wanted| wanted != member.as_str()) {
            tracing::warn!(wanted = ?proved.wanted, %member, known, "an engine looked for another replica or volume");
            return self.drop_peer(conn, io);
        }
        let welcome = Welcome { member, size: self.store.size(), fresh: self.store.is_fresh() };
        handshake.welcome(&welcome, &mut out);
        let timer = *timer;
        io.send(conn, out.freeze());
        io.cancel_timer(timer);
        self.timers.remove(&timer);
        io.align(conn, Alignment::Block);
        inbox.align(Alignment::Block);
        self.peers.insert(conn, Peer::Engine(Framing::default()));
        self.belong_to(proved.volume, io);
    }

    /// Makes the protocol's machine when the volume is known; the first engine that proves itself says which.
    fn belong_to(&mut self, volume: VolumeId, io: &mut Io) {
        if self.replica.is_some() {
            return;
        }
        self.store.belong_to(volume);
        let config = Config {
            volume,
            geometry: Geometry::new(self.store.size()),
            boot: self.settings.boot,
            rules: self.settings.rules,
        };
        let durable = self.store.durable(self.settings.boot);
        self.replica = Some(Replica::new(config, durable, self.store.chain_id(), &mut self.effects));
        self.settle(io);
    }

    /// Carries effects to the store and to engines until nothing is left to do at once.
    fn settle(&mut self, io: &mut Io) {
        while let Some(replica) = self.replica.as_mut() {
            let mut effects = std::mem::replace(&mut self.effects, std::mem::take(&mut self.spare));
            for effect in effects.drain(..) {
                match effect {
                    Effect::Store { op, request } => self.store.start(op, request),
                    Effect::Send { conn, reply } => {
                        framing::send(ConnId(conn.0), reply.encode(), &mut self.headers, io);
                    }
                    Effect::Close { conn } => io.close(ConnId(conn.0)),
                }
            }
            self.spare = effects;
            let answered = self.store.answered();
            if answered.is_empty() {
                break;
            }
            for (op, result) in answered {
                replica.apply(ReplicaEvent::Stored { op, result }, &mut self.effects);
            }
        }
        self.store.flush_ops(io);
    }

    fn info(&self) -> Info {
        self.store.info(self.peers.len())
    }

    /// Whether a stop that was asked for can be done.
    fn check_stopped(&mut self, out: &mut Effects<Self>) {
        if self.stopping && self.store.is_idle() {
            out.finish(Finish::Done);
        }
    }
}

impl<F: Files + Located> Machine for ReplicaServer<F> {
    type Command = Command;
    type Answer = Answer;
    type Call = std::convert::Infallible;
    type Return = std::convert::Infallible;

    fn handle(&mut self, event: Event<'_, Self>, now: Time, out: &mut Effects<Self>) {
        match event {
            Event::Started => {
                for address in self.settings.listen.clone() {
                    self.listening.listen(address, &mut out.io);
                }
                if let Some(volume) = self.store.volume_id() {
                    self.belong_to(volume, &mut out.io);
                }
            }
            Event::Io(event) => self.io(event, now, out),
            Event::Command { id, command } => match command {
                Command::Listening => {
                    self.listening.ask(id);
                    self.answer_listening(out);
                }
                Command::Info => out.answer(id, Answer::Info(self.info())),
                Command::Hash(_) if self.replica.is_none() => {
                    out.answer(id, Answer::Hashed(Err("no engine has used this replica yet".to_owned())));
                }
                Command::Hash(asked) => {
                    self.store.hash(id, asked);
                    self.settle(&mut out.io);
                }
                Command::Stop => {
                    self.stopping = true;
                    self.store.stop_hashing();
                    let conns: Vec<_> = self.peers.keys().copied().collect();
                    for conn in conns {
                        self.drop_peer(conn, &mut out.io);
                    }
                    out.answer(id, Answer::Stopping);
                }
            },
            Event::Returned { value, .. } => match value {},
        }
        for (id, hashed) in self.store.hashed() {
            out.answer(id, Answer::Hashed(hashed));
        }
        self.check_stopped(out);
    }

    fn in_hand(&self) -> usize {
        self.store.in_hand()
    }
}

/// A replica's name from the store's text.
pub(crate) fn member_or(name: &str, fallback: &str) -> MemberId {
    MemberId::new(name).or_else(|| MemberId::new(fallback)).unwrap_or_else(|| MemberId::new("replica").expect("a name"))
}
