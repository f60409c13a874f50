//! The network: connections between processes that are slow, stall, are cut, or end without a word.

use bytes::Bytes;
use tether_engine::host::{Address, Broken, ConnId, IoEvent, Time};

use crate::process::End;
use crate::world::{Action, World};

/// A connection: bytes of each direction stay in order or it ends.
#[derive(Debug)]
pub(crate) struct Wire {
    pub ends: [(usize, ConnId); 2],
    /// What was dialed.
    address: Address,
    accepted: bool,
    /// By receiving side: when the last piece arrives.
    last: [u64; 2],
    /// By receiving side: what did not get through and is sent again when the way is open.
    held: [Vec<Piece>; 2],
}

#[derive(Debug, Clone)]
pub(crate) enum Piece {
    Bytes(Bytes),
    Fin,
    Reset,
}

/// Keeps the pieces private.
#[derive(Debug)]
pub struct PieceBox(pub(crate) Piece);

fn pair(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

impl World {
    pub fn cut(&mut self, a: usize, b: usize) {
        *self.cuts.entry(pair(a, b)).or_default() += 1;
        self.note(&format!("cut hosts {a} and {b}"));
    }

    pub fn heal(&mut self, a: usize, b: usize) {
        if let Some(count) = self.cuts.get_mut(&pair(a, b)) {
            *count -= 1;
            if *count == 0 {
                self.cuts.remove(&pair(a, b));
            }
            self.note(&format!("heal hosts {a} and {b}"));
            self.send_again();
        }
    }

    pub fn open_way(&self, a: usize, b: usize) -> bool {
        self.hosts[a].up && self.hosts[b].up && !self.cuts.contains_key(&pair(a, b))
    }

    /// What did not get through is tried again; some connections do not live to see it.
    pub fn send_again(&mut self) {
        for index in 0..self.wires.len() {
            let [(a, _), (b, _)] = self.wires[index].ends;
            if self.wires[index].held.iter().all(Vec::is_empty)
                || !self.open_way(self.processes[a].host, self.processes[b].host)
            {
                continue;
            }
            if self.random.below(4) == 0 {
                self.wires[index].held = [Vec::new(), Vec::new()];
                self.transmit(index, 0, Piece::Reset);
                self.transmit(index, 1, Piece::Reset);
                continue;
            }
            for side in 0..2 {
                for piece in std::mem::take(&mut self.wires[index].held[side]) {
                    self.transmit(index, side, piece);
                }
            }
        }
    }

    /// Ends all connections between two hosts, as a firewall that forgot them would.
    pub fn reset_connections(&mut self, a: usize, b: usize) {
        self.note(&format!("reset connections of hosts {a} and {b}"));
        for index in 0..self.wires.len() {
            let [(x, _), (y, _)] = self.wires[index].ends;
            if self.wires[index].accepted && pair(self.processes[x].host, self.processes[y].host) == pair(a, b) {
                self.transmit(index, 0, Piece::Reset);
                self.transmit(index, 1, Piece::Reset);
            }
        }
    }

    pub(crate) fn delay(&mut self) -> u64 {
        match self.random.below(60) {
            0 => 1000 + self.random.below(60_000),
            _ => 30 + self.random.below(250),
        }
    }

    pub(crate) fn transmit(&mut self, wire: usize, side: usize, piece: Piece) {
        let delay = self.delay();
        let now = self.queue.now();
        let at = (now + delay).max(self.wires[wire].last[side] + 1);
        self.wires[wire].last[side] = at;
        self.queue.at(at, Action::Arrive { wire, side, piece: PieceBox(piece) });
    }

    pub(crate) fn dialed(&mut self, wire: usize) {
        let [(dialer, conn), (listener, _)] = self.wires[wire].ends;
        let (from, to) = (self.processes[dialer].host, self.processes[listener].host);
        if !self.open_way(from, to) || !self.processes[dialer].conns.contains_key(&conn) {
            return;
        }
        if !self.processes[listener].alive || self.processes[listener].listeners.is_empty() {
            self.queue.after(50, Action::DialOver(dialer, conn));
            return;
        }
        let accepted = self.processes[listener].accept();
        let end = End { wire, side: 1, open: true, ..End::default() };
        self.processes[listener].conns.insert(accepted, end);
        self.wires[wire].ends[1].1 = accepted;
        self.wires[wire].accepted = true;
        self.queue.after(10, Action::Accepted(wire));
        let delay = self.delay();
        self.queue.after(delay, Action::Connected(wire));
        self.wires[wire].last[0] = self.queue.now() + delay;
    }

    pub(crate) fn accepted(&mut self, wire: usize, now: Time) {
        let (process, conn) = self.wires[wire].ends[1];
        let process = &mut self.processes[process];
        let at = |(_, local): &(&_, &Address)| **local == self.wires[wire].address;
        let Some(listener) = process.listeners.iter().find(at).map(|(listener, _)| *listener) else { return };
        if process.conns.contains_key(&conn) {
            process.tell_io(IoEvent::Accepted { listener, conn, peer: None }, now);
        }
    }

    pub(crate) fn connected(&mut self, wire: usize, now: Time) {
        let (index, conn) = self.wires[wire].ends[0];
        let process = &mut self.processes[index];
        if let Some(end) = process.conns.get_mut(&conn) {
            end.open = true;
            process.tell_io(IoEvent::Connected { conn }, now);
            self.queue.after(0, Action::Show { process: index, conn, again: false });
        } else {
            self.transmit(wire, 1, Piece::Reset);
        }
    }

    pub(crate) fn arrive(&mut self, wire: usize, side: usize, piece: Piece) {
        let (to, conn) = self.wires[wire].ends[side];
        let from = self.wires[wire].ends[1 - side].0;
        if !self.open_way(self.processes[from].host, self.processes[to].host) || !self.wires[wire].held[side].is_empty()
        {
            self.wires[wire].held[side].push(piece);
            return;
        }
        let process = &mut self.processes[to];
        let Some(end) = process.conns.get_mut(&conn).filter(|_| process.alive) else {
            if matches!(piece, Piece::Bytes(_)) {
                self.transmit(wire, 1 - side, Piece::Reset);
            }
            return;
        };
        match piece {
            Piece::Bytes(bytes) => end.arrived.push_back(bytes),
            Piece::Fin => end.ended = Some(Broken::Ended),
            Piece::Reset => {
                // What was not received yet is lost with the connection.
                end.arrived.clear();
                end.ended = Some(Broken::Failed(std::io::ErrorKind::ConnectionReset));
            }
        }
        if end.open {
            self.queue.after(0, Action::Show { process: to, conn, again: false });
        }
    }

    pub(crate) fn dial(&mut self, index: usize, conn: ConnId, address: &Address, deadline: Time) {
        let at = self.hosts[self.processes[index].host].moment(deadline);
        self.queue.at(at, Action::DialOver(index, conn));
        let wire = self.wires.len();
        self.processes[index].conns.insert(conn, End { wire, side: 0, ..End::default() });
        let listener = self.processes.iter().rposition(|p| p.listeners.values().any(|local| local == address));
        // Nobody ever listened there: silence. Whoever did last answers, or its host refuses.
        let peer = listener.unwrap_or(index);
        let ends = [(index, conn), (peer, ConnId(0))];
        self.wires.push(Wire {
            ends,
            address: address.clone(),
            accepted: false,
            last: [0; 2],
            held: [Vec::new(), Vec::new()],
        });
        if listener.is_some() {
            let delay = self.delay();
            self.queue.after(delay, Action::Dialed(wire));
            self.wires[wire].last[1] = self.queue.now() + delay;
        }
    }

    pub(crate) fn hang_up(&mut self, index: usize, conn: ConnId, piece: Piece) {
        if let Some(end) = self.processes[index].conns.remove(&conn) {
            self.transmit(end.wire, 1 - end.side, piece);
        }
    }
}
