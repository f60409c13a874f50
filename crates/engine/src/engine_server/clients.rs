//! NBD clients: their connections, their requests to the engine, the answers back.

use std::collections::{BTreeMap, HashMap};

use tether_replication::engine::{Event as EngineEvent, IoError, IoId, IoResult};
use tether_replication::ids::Time as EngineTime;

use super::device::DEVICE;
use super::peers::PEERS;
use super::settings::{Nbd, Settings};
use super::{EngineServer, Sockets};
use crate::frontend::block::{ClientId, Completion, Request};
use crate::frontend::nbd::connection::{Connection, Limits};
use crate::frontend::nbd::export::{Lineage, Volume};
use crate::frontend::nbd::listen::MAX_CONNECTIONS;
use crate::host::{Broken, ConnId, Effects, Inbox, ListenerId, Time};

/// Sector size: what every client can live with, and what the store reads, changes and writes if it must.
const BLOCK_BYTES: u32 = 512;
/// Requests of commands carry this client's id.
pub(super) const CONTROL: ClientId = ClientId(0);

struct Client {
    id: ClientId,
    connection: Connection,
    /// Nothing is received for now.
    paused: bool,
    /// Its output, room or end is to be looked at.
    stirred: bool,
}

/// Every NBD connection.
pub(super) struct Clients {
    volume: Volume,
    nbd: Vec<Nbd>,
    /// Which address a listener is for, by its place in `nbd`.
    listeners: BTreeMap<ListenerId, usize>,
    by_conn: BTreeMap<ConnId, Client>,
    by_id: HashMap<ClientId, ConnId>,
    stirred: Vec<ConnId>,
    submit: Vec<Request>,
    next: u32,
    /// Connections that wait until it is known in which line this engine stands: what a client that replays asks for
    /// must not be refused, or granted, too early. None: it is known.
    held: Option<Vec<(ListenerId, ConnId)>>,
}

impl Clients {
    pub fn new(settings: &Settings) -> Self {
        let volume = Volume {
            name: settings.volume.clone(),
            size: settings.size,
            read_only: false,
            block: BLOCK_BYTES,
            lineage: None,
        };
        Self {
            volume,
            nbd: settings.nbd.clone(),
            listeners: BTreeMap::new(),
            by_conn: BTreeMap::new(),
            by_id: HashMap::new(),
            stirred: Vec::new(),
            submit: Vec::new(),
            next: CONTROL.0 + 1,
            held: settings.line.then(Vec::new),
        }
    }

    pub fn len(&self) -> usize {
        self.by_conn.len()
    }

    pub fn is_client(&self, conn: ConnId) -> bool {
        self.by_conn.contains_key(&conn)
    }

    /// Listeners were made in the order of the addresses.
    pub fn listening(&mut self, listener: ListenerId, at: usize) {
        if at < self.nbd.len() {
            self.listeners.insert(listener, at);
        }
    }

    /// The line is known, or there is none.
    pub fn line_is(&mut self, name: Option<String>, io: &mut Sockets) {
        self.volume.lineage = name.map(Lineage);
        for (listener, conn) in self.held.take().into_iter().flatten() {
            io.resume(conn);
            self.accepted(listener, conn, io);
        }
    }

    pub fn line(&self) -> Option<&str> {
        self.volume.lineage.as_ref().map(|Lineage(name)| name.as_str())
    }

    pub fn accepted(&mut self, listener: ListenerId, conn: ConnId, io: &mut Sockets) {
        if let Some(held) = self.held.as_mut().filter(|held| held.len() < MAX_CONNECTIONS) {
            held.push((listener, conn));
            return io.pause(conn);
        }
        let nbd = self.listeners.get(&listener).and_then(|at| self.nbd.get(*at));
        let Some(nbd) = nbd.filter(|_| self.by_conn.len() < MAX_CONNECTIONS) else {
            tracing::warn!(most = MAX_CONNECTIONS, "an NBD client was turned away");
            return io.abort(conn);
        };
        let id = ClientId(self.next);
        // After four billion connections the number of a dead one comes again; those of control, standbys and device are left out.
        self.next = if self.next + 1 == PEERS.0 { CONTROL.0 + 1 } else { self.next + 1 };
        let connection = Connection::new(id, &self.volume, nbd.security.clone(), Limits::default());
        io.report_sent(conn);
        self.by_conn.insert(conn, Client { id, connection, paused: false, stirred: false });
        self.by_id.insert(id, conn);
        self.stir(conn);
    }

    /// True if it was a client.
    pub fn closed(&mut self, conn: ConnId, why: &Broken) -> bool {
        if let Some(held) = &mut self.held {
            held.retain(|(_, other)| *other != conn);
        }
        let Some(client) = self.by_conn.remove(&conn) else { return false };
        tracing::debug!(%why, "an NBD client is gone");
        self.by_id.remove(&client.id);
        true
    }

    pub fn resize(&mut self, size: u64) {
        self.volume.size = size;
        for client in self.by_conn.values_mut() {
            client.connection.resize(size);
        }
    }

    /// No more clients; those there are get what was answered and are closed.
    pub fn stop(&mut self, io: &mut Sockets) {
        for listener in self.listeners.keys() {
            io.unlisten(*listener);
        }
        self.flush(io);
        for (_, conn) in self.held.iter_mut().flat_map(std::mem::take) {
            io.abort(conn);
        }
        for conn in std::mem::take(&mut self.by_conn).into_keys() {
            io.close(conn);
        }
        self.by_id.clear();
    }

    fn stir(&mut self, conn: ConnId) {
        if let Some(client) = self.by_conn.get_mut(&conn)
            && !client.stirred
        {
            client.stirred = true;
            self.stirred.push(conn);
        }
    }

    /// Sends what is to be sent, receives what there is room for, ends what is over.
    pub fn flush(&mut self, io: &mut Sockets) {
        for conn in std::mem::take(&mut self.stirred) {
            let Some(client) = self.by_conn.get_mut(&conn) else { continue };
            client.stirred = false;
            for bytes in client.connection.output() {
                io.send(conn, bytes);
            }
            if let Some(why) = client.connection.is_over() {
                tracing::debug!(why, "an NBD connection is over");
                let id = client.id;
                io.close(conn);
                self.by_conn.remove(&conn);
                self.by_id.remove(&id);
                continue;
            }
            match client.connection.wanted() {
                0 if !client.paused => {
                    client.paused = true;
                    io.pause(conn);
                }
                0 => {}
                wanted => {
                    client.paused = false;
                    io.resume_with(conn, wanted);
                }
            }
        }
    }
}

impl EngineServer {
    pub(super) fn client_received(&mut self, conn: ConnId, inbox: &mut Inbox, now: Time) {
        let Some(client) = self.clients.by_conn.get_mut(&conn) else { return };
        client.connection.feed(inbox.stream(), &mut self.clients.submit);
        self.clients.stir(conn);
        self.submit(now);
    }

    pub(super) fn client_sent(&mut self, conn: ConnId, bytes: u64, now: Time) {
        let Some(client) = self.clients.by_conn.get_mut(&conn) else { return };
        client.connection.sent(bytes, &mut self.clients.submit);
        if client.paused {
            self.clients.stir(conn);
        }
        self.submit(now);
    }

    /// Gives the engine what clients asked for; before there is one, it waits.
    pub(super) fn submit(&mut self, now: Time) {
        let Some(engine) = &mut self.engine else { return };
        for request in self.clients.submit.drain(..) {
            let event = EngineEvent::Io { id: request.io, op: request.op };
            engine.apply(event, EngineTime(now.0), &mut self.effects);
        }
    }

    pub(super) fn complete(&mut self, io: IoId, result: IoResult, now: Time, out: &mut Effects<Self>) {
        let id = ClientId::of(io);
        if id == CONTROL {
            return self.control_complete(io, result, out);
        }
        if id == PEERS {
            return self.peer_complete(io, result, out);
        }
        if self.moves && result == Err(IoError::Fenced { sent: false }) {
            return;
        }
        if id == DEVICE {
            return self.device_complete(io, result, out);
        }
        let Some(conn) = self.clients.by_id.get(&id).copied() else { return };
        let Some(client) = self.clients.by_conn.get_mut(&conn) else { return };
        client.connection.complete(Completion { io, result }, &mut self.clients.submit);
        self.clients.stir(conn);
        if !self.clients.submit.is_empty() {
            self.submit(now);
        }
    }
}
