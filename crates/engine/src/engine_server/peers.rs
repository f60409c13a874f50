//! Standbys of this engine: they read through it, until one of them says that it has taken over.
//!
//! A standby proves that it holds the volume's key and names the engine it means by its uid, as an engine does with a
//! replica. What it asks goes to the engine like any client's request, so that its reads are as fresh as the engine's own.

use std::collections::{BTreeMap, HashMap};

use bytes::BytesMut;
use tether_replication::engine::{Event as EngineEvent, IoAnswer, IoError, IoId, IoOp, IoResult, Phase};
use tether_replication::ids::{Epoch, Holder, MemberId};
use tether_replication::wire::{Failure, Message, Reply, ReplyBody, Request, RequestBody};

use super::EngineServer;
use crate::auth::{self, HANDSHAKE_MS, Welcome};
use crate::framing::{self, Framing, Headers};
use crate::frontend::block::ClientId;
use crate::host::{Alignment, ConnId, Effects, Inbox, Io, ListenerId, Time, TimerId};

/// Connections at a time. A migration has one standby; more are reconnects whose predecessors were not noticed yet.
const MAX_PEERS: usize = 8;
/// Requests of all standbys under way: what their frontends may have in hand, several times over.
const MAX_REQUESTS: usize = 4096;

enum Peer {
    Stranger { handshake: Box<auth::Listener>, timer: TimerId },
    Standby(Framing),
}

/// Every connection of a standby.
#[derive(Default)]
pub(super) struct Peers {
    pub listener: Option<ListenerId>,
    by_conn: BTreeMap<ConnId, Peer>,
    timers: HashMap<TimerId, ConnId>,
    asked: HashMap<IoId, (ConnId, Request)>,
    next: u32,
    headers: Headers,
}

/// Requests of standbys carry this client's id.
pub(super) const PEERS: ClientId = ClientId(u32::MAX - 1);

/// How an engine is called where replicas have names.
pub(super) fn name_of(holder: Holder) -> MemberId {
    MemberId::new(&holder.to_string()).expect("a uid must do as a name")
}

impl Peers {
    pub fn accepted(&mut self, conn: ConnId, key: &auth::Key, now: Time, io: &mut Io) {
        if self.by_conn.len() == MAX_PEERS {
            return io.abort(conn);
        }
        let timer = io.timer();
        io.set_timer(timer, now.plus_millis(HANDSHAKE_MS));
        self.timers.insert(timer, conn);
        let handshake = Box::new(auth::Listener::new(key.clone(), io.random()));
        self.by_conn.insert(conn, Peer::Stranger { handshake, timer });
    }

    pub fn is_peer(&self, conn: ConnId) -> bool {
        self.by_conn.contains_key(&conn)
    }

    /// Somebody reads through this engine.
    pub fn has_standby(&self) -> bool {
        self.by_conn.values().any(|peer| matches!(peer, Peer::Standby(_)))
    }

    /// True if it was one; what it asked is answered into the void.
    pub fn closed(&mut self, conn: ConnId, io: &mut Io) -> bool {
        let Some(peer) = self.by_conn.remove(&conn) else { return false };
        if let Peer::Stranger { timer, .. } = peer {
            self.timers.remove(&timer);
            io.cancel_timer(timer);
        }
        true
    }

    fn turn_away(&mut self, conn: ConnId, io: &mut Io) {
        io.abort(conn);
        self.closed(conn, io);
    }

    /// True if the timer was one of these.
    pub fn timer(&mut self, timer: TimerId, io: &mut Io) -> bool {
        let Some(conn) = self.timers.remove(&timer) else { return false };
        self.turn_away(conn, io);
        true
    }

    fn reply(&mut self, conn: ConnId, request: &Request, body: ReplyBody, io: &mut Io) {
        let reply = Reply { id: request.id, session: request.session, body };
        framing::send(conn, reply.encode(), &mut self.headers, io);
    }
}

impl EngineServer {
    pub(super) fn peer_received(&mut self, conn: ConnId, inbox: &mut Inbox, now: Time, out: &mut Effects<Self>) {
        if let Some(Peer::Stranger { .. }) = self.peers.by_conn.get(&conn) {
            self.greet_peer(conn, inbox, &mut out.io);
        }
        while let Some(Peer::Standby(framing)) = self.peers.by_conn.get_mut(&conn) {
            match framing.next(inbox) {
                Ok(Some(Message::Request(request))) => self.peer_asks(conn, request, now, out),
                Ok(None) => return,
                Ok(Some(Message::Reply(_))) | Err(_) => {
                    tracing::warn!("a standby's connection is of no use");
                    return self.peers.turn_away(conn, &mut out.io);
                }
            }
        }
    }

    fn greet_peer(&mut self, conn: ConnId, inbox: &mut Inbox, io: &mut Io) {
        let Some(Peer::Stranger { handshake, timer }) = self.peers.by_conn.get_mut(&conn) else { return };
        let mut said = BytesMut::new();
        let proved = match handshake.advance(inbox.stream(), &mut said) {
            Ok(Some(proved)) => proved,
            Ok(None) => return io.send(conn, said.freeze()),
            Err(error) => {
                tracing::warn!(%error, "somebody at the port for standbys was not believed");
                return self.peers.turn_away(conn, io);
            }
        };
        let member = name_of(self.settings.holder);
        let meant = proved.wanted.as_deref() == Some(member.as_str());
        if proved.volume != self.settings.volume_id || !meant {
            tracing::warn!(wanted = ?proved.wanted, "a standby looked for another engine or volume");
            return self.peers.turn_away(conn, io);
        }
        let size = self.engine.as_ref().map_or(self.settings.size, tether_replication::engine::Engine::size);
        handshake.welcome(&Welcome { member, size, fresh: false }, &mut said);
        let timer = *timer;
        io.send(conn, said.freeze());
        io.cancel_timer(timer);
        io.align(conn, Alignment::Any);
        self.peers.timers.remove(&timer);
        self.peers.by_conn.insert(conn, Peer::Standby(Framing::default()));
        tracing::info!("a standby reads through this engine");
    }

    fn peer_asks(&mut self, conn: ConnId, request: Request, now: Time, out: &mut Effects<Self>) {
        let op = match request.body {
            RequestBody::Read { offset, len } => IoOp::Read { offset, len },
            RequestBody::Status { offset, len } => IoOp::Status { offset, len },
            RequestBody::Flush => {
                // It may be about to take over; in any case it will not be long.
                self.apply(EngineEvent::Tidy, now);
                IoOp::Flush
            }
            RequestBody::StandDown => return self.stand_down(conn, &request, now, out),
            _ => {
                let body = ReplyBody::Failed(Failure::Unsupported);
                return self.peers.reply(conn, &request, body, &mut out.io);
            }
        };
        if self.engine.is_none() || self.peers.asked.len() == MAX_REQUESTS {
            return self.peers.turn_away(conn, &mut out.io);
        }
        let io = PEERS.io(self.peers.next);
        self.peers.next = self.peers.next.wrapping_add(1);
        self.peers.asked.insert(io, (conn, request));
        self.apply(EngineEvent::Io { id: io, op }, now);
    }

    /// The standby was promoted. Only an engine that waited for those before it spares its successor the wait.
    fn stand_down(&mut self, conn: ConnId, request: &Request, now: Time, out: &mut Effects<Self>) {
        let by = self.engine.as_ref().and_then(|engine| engine.record().standby).unwrap_or(Holder::NOBODY);
        self.apply(EngineEvent::Superseded { by, epoch: request.epoch }, now);
        let stopped = self.engine.as_ref().is_some_and(|engine| {
            engine.has_served() && matches!(engine.phase(), Phase::Fenced | Phase::Failed | Phase::Stopped)
        });
        let body = if stopped { ReplyBody::Done } else { ReplyBody::Failed(Failure::Conflict) };
        self.peers.reply(conn, request, body, &mut out.io);
    }

    pub(super) fn peer_complete(&mut self, io: IoId, result: IoResult, out: &mut Effects<Self>) {
        let Some((conn, request)) = self.peers.asked.remove(&io) else { return };
        if !self.peers.is_peer(conn) {
            return;
        }
        let body = match result {
            Ok(IoAnswer::Data(data)) => ReplyBody::Data(data),
            Ok(IoAnswer::Extents(extents)) => ReplyBody::Extents(extents),
            Ok(IoAnswer::Done | IoAnswer::Controlled(_)) => ReplyBody::Done,
            Err(IoError::Failed(failure)) => ReplyBody::Failed(failure),
            Err(IoError::Invalid) => ReplyBody::Failed(Failure::Invalid),
            // This engine is over, one way or another: the standby waits for the next.
            Err(IoError::Fenced { .. } | IoError::Stopped | IoError::LastMemberLost) => {
                ReplyBody::Failed(Failure::Fenced { promised: Epoch(0) })
            }
        };
        self.peers.reply(conn, &request, body, &mut out.io);
    }
}
