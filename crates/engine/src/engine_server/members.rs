//! Connections to replicas: dialed when the engine wishes, proved, then messages both ways.
//!
//! An engine that stands by has them dialed and proved ahead: when it takes over, a client waits. Nothing is said on such
//! a connection until a session of the engine begins on it.

use std::collections::{BTreeMap, HashMap};

use bytes::BytesMut;
use tether_replication::engine::Event as EngineEvent;
use tether_replication::ids::{MAX_MEMBERS, MemberId, Session, Slot};
use tether_replication::wire::{Message, ReplyBody, Request};

use super::settings::Settings;
use super::{EngineServer, Sockets};
use crate::auth::{Dialer, HANDSHAKE_MS};
use crate::framing::{self, Framing, Headers};
use crate::host::{Address, ConnId, Effects, Inbox, Io, Time, TimerId};

/// What a connection is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To learn the name of the replica at an address.
    Name(Address),
    /// To be there when the engine wishes for a session at this address.
    Ahead(Address),
    /// A session of the engine.
    Session { slot: Slot, session: Session },
}

struct Link {
    purpose: Purpose,
    wanted: Option<MemberId>,
    stage: Stage,
}

enum Stage {
    Dialing,
    Proving(Box<Dialer>),
    Open(Framing),
}

/// Every connection to a replica.
pub(super) struct Members {
    links: HashMap<ConnId, Link>,
    /// By slot: the connection of the present session.
    sessions: [Option<(Session, ConnId)>; MAX_MEMBERS],
    pub addresses: BTreeMap<MemberId, Address>,
    pub errors: BTreeMap<MemberId, String>,
    headers: Headers,
}

impl Members {
    pub fn new(settings: &Settings) -> Self {
        let named =
            settings.replicas.iter().filter_map(|replica| Some((replica.name.clone()?, replica.address.clone())));
        Self {
            links: HashMap::new(),
            sessions: [None; MAX_MEMBERS],
            addresses: named.collect(),
            errors: BTreeMap::new(),
            headers: Headers::default(),
        }
    }

    /// Dials to find out who is there.
    pub fn ask_name(&mut self, address: &Address, now: Time, io: &mut Sockets) {
        let conn = io.dial(address.clone(), now.plus_millis(HANDSHAKE_MS));
        let purpose = Purpose::Name(address.clone());
        self.links.insert(conn, Link { purpose, wanted: None, stage: Stage::Dialing });
    }

    /// Dials every replica that is not connected, so that a session can begin at once.
    pub fn dial_ahead(&mut self, now: Time, io: &mut Sockets) {
        for (member, address) in &self.addresses {
            if !self.links.values().any(|link| link.wanted.as_ref() == Some(member)) {
                let conn = io.dial(address.clone(), now.plus_millis(HANDSHAKE_MS));
                let (purpose, wanted) = (Purpose::Ahead(address.clone()), Some(member.clone()));
                self.links.insert(conn, Link { purpose, wanted, stage: Stage::Dialing });
            }
        }
    }

    /// The connection that was dialed ahead, however far it is.
    fn take_ahead(&mut self, member: &MemberId, address: &Address) -> Option<(ConnId, Stage)> {
        let ahead = Purpose::Ahead(address.clone());
        let ours = |link: &Link| link.purpose == ahead && link.wanted.as_ref() == Some(member);
        let conn = self.links.iter().find(|(_, link)| ours(link)).map(|(conn, _)| *conn)?;
        self.links.remove(&conn).map(|link| (conn, link.stage))
    }

    /// Finds or dials a connection for a session; whether it is proved already. None: nobody knows where the replica is.
    fn dial(&mut self, slot: Slot, session: Session, member: &MemberId, now: Time, io: &mut Sockets) -> Option<bool> {
        let address = self.addresses.get(member)?.clone();
        let (conn, stage) = match self.take_ahead(member, &address) {
            Some(ahead) => ahead,
            None => (io.dial(address, now.plus_millis(HANDSHAKE_MS)), Stage::Dialing),
        };
        let is_proved = matches!(stage, Stage::Open(_));
        let purpose = Purpose::Session { slot, session };
        self.links.insert(conn, Link { purpose, wanted: Some(member.clone()), stage });
        if let Some((_, old)) = self.sessions[usize::from(slot.0)].replace((session, conn)) {
            self.links.remove(&old);
            io.abort(old);
        }
        Some(is_proved)
    }

    pub fn disconnect(&mut self, slot: Slot, session: Session, io: &mut Sockets) {
        let place = &mut self.sessions[usize::from(slot.0)];
        if let Some((_, conn)) = place.take_if(|(present, _)| *present == session) {
            self.links.remove(&conn);
            // What was sent may still leave: a `Close` is sent just before.
            io.close(conn);
        }
    }

    pub fn send(&mut self, slot: Slot, session: Session, request: &Request, io: &mut Sockets) {
        if let Some((present, conn)) = self.sessions[usize::from(slot.0)]
            && present == session
        {
            framing::send(conn, request.encode(), &mut self.headers, io);
        }
    }

    pub fn connected(&mut self, conn: ConnId, settings: &Settings, io: &mut Sockets) {
        let Some(link) = self.links.get_mut(&conn) else { return };
        let mut hello = BytesMut::new();
        let (key, wanted) = (settings.key.clone(), link.wanted.clone());
        let dialer = Dialer::new(key, settings.volume_id, wanted, io.random(), &mut hello);
        link.stage = Stage::Proving(Box::new(dialer));
        io.send(conn, hello.freeze());
    }

    /// Whether it is still open who is at the other end.
    fn is_proving(&self, conn: ConnId) -> bool {
        self.links.get(&conn).is_some_and(|link| matches!(link.stage, Stage::Proving(_)))
    }

    /// Forgets a connection that ended; what it was for.
    fn forget(&mut self, conn: ConnId, why: &str) -> Option<Purpose> {
        let link = self.links.remove(&conn)?;
        if let Purpose::Session { slot, .. } = link.purpose {
            self.sessions[usize::from(slot.0)].take_if(|(_, present)| *present == conn);
        }
        if let (Some(member), false) = (link.wanted, matches!(link.purpose, Purpose::Ahead(_))) {
            self.errors.insert(member, why.to_owned());
        }
        Some(link.purpose)
    }
}

impl EngineServer {
    pub(super) fn connect(&mut self, slot: Slot, session: Session, now: Time, io: &mut Sockets) {
        let member = self.engine.as_ref().and_then(|engine| engine.member_id(slot)).cloned();
        match member.and_then(|member| self.members.dial(slot, session, &member, now, io)) {
            None => self.apply(EngineEvent::Disconnected { slot, session }, now),
            Some(true) => self.apply(EngineEvent::Connected { slot, session }, now),
            Some(false) => {}
        }
    }

    /// A connection that was dialed is there; whoever is at the other end has to prove itself, and soon. A process that stands
    /// still is connected to all the same and says nothing, and if its host then goes, nothing else ever tells.
    pub(super) fn dialed(&mut self, conn: ConnId, now: Time, io: &mut Io) {
        let timer = io.timer();
        io.set_timer(timer, now.plus_millis(HANDSHAKE_MS));
        self.handshakes.insert(timer, conn);
        if self.source.is_source(conn) {
            self.source_connected(conn, io);
        } else {
            self.members.connected(conn, &self.settings, io);
        }
    }

    /// True if the timer was one of a handshake.
    pub(super) fn handshake_timer(&mut self, timer: TimerId, now: Time, out: &mut Effects<Self>) -> bool {
        let Some(conn) = self.handshakes.remove(&timer) else { return false };
        let why = "it did not prove itself in time";
        if self.source.is_proving(conn) {
            self.distrust_source(conn, why, now, out);
        } else if self.members.is_proving(conn) {
            self.distrust(conn, why, now, out);
        }
        true
    }

    /// A connection to a replica failed, or ended.
    pub(super) fn lost(&mut self, conn: ConnId, why: &str, now: Time, out: &mut Effects<Self>) {
        match self.members.forget(conn, why) {
            Some(Purpose::Session { slot, session }) => {
                self.watchers.change();
                self.apply(EngineEvent::Disconnected { slot, session }, now);
            }
            Some(Purpose::Name(address)) => self.nameless(&address, why, now, out),
            // It is dialed again when it is needed.
            Some(Purpose::Ahead(_)) | None => {}
        }
    }

    pub(super) fn member_received(&mut self, conn: ConnId, inbox: &mut Inbox, now: Time, out: &mut Effects<Self>) {
        let Some(link) = self.members.links.get_mut(&conn) else { return };
        if let Stage::Proving(dialer) = &mut link.stage {
            let mut said = BytesMut::new();
            let result = dialer.advance(inbox.stream(), &mut said);
            out.io.send(conn, said.freeze());
            let welcome = match result {
                Ok(Some(welcome)) => welcome,
                Ok(None) => return,
                Err(error) => return self.distrust(conn, &error.to_string(), now, out),
            };
            link.stage = Stage::Open(Framing::default());
            match link.purpose.clone() {
                Purpose::Session { slot, session } => {
                    self.members.errors.remove(&welcome.member);
                    self.watchers.change();
                    self.apply(EngineEvent::Connected { slot, session }, now);
                }
                Purpose::Ahead(_) => return,
                Purpose::Name(address) => {
                    self.members.links.remove(&conn);
                    out.io.abort(conn);
                    return self.named(&address, welcome, now, out);
                }
            }
        }
        self.member_messages(conn, inbox, now, out);
    }

    fn member_messages(&mut self, conn: ConnId, inbox: &mut Inbox, now: Time, out: &mut Effects<Self>) {
        loop {
            let Some(Link { stage: Stage::Open(framing), purpose: Purpose::Session { slot, .. }, .. }) =
                self.members.links.get_mut(&conn)
            else {
                return;
            };
            let slot = *slot;
            match framing.next(inbox) {
                Ok(Some(Message::Reply(reply))) => {
                    // A replica that is back is news, also if it never left the record.
                    if matches!(reply.body, ReplyBody::Opened { .. }) {
                        self.watchers.change();
                    }
                    self.apply(EngineEvent::Reply { slot, reply }, now);
                }
                Ok(Some(Message::Request(_))) => {
                    return self.distrust(conn, "the replica sent a request", now, out);
                }
                Ok(None) => return,
                Err(error) => return self.distrust(conn, &error.to_string(), now, out),
            }
        }
    }

    fn distrust(&mut self, conn: ConnId, why: &str, now: Time, out: &mut Effects<Self>) {
        tracing::warn!(why, "a replica's connection is of no use");
        out.io.abort(conn);
        self.lost(conn, why, now, out);
    }
}
