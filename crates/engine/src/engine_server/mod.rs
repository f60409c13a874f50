//! An engine as a machine: members, frontends, the record, commands; `replication::Engine` in the middle.
//!
//! ```text
//!   NBD connections ─► clients ─┐                      ┌─► members ─► connections to replicas
//!   commands ─► control ────────┼─► replication::Engine ┤
//!   birth (names, record) ──────┘                      └─► calls to the record
//! ```
//!
//! Every event ends in [`EngineServer::settle`], which carries the engine's effects to where they belong until none
//! is left. What goes out on connections in one turn leaves together.

mod birth;
mod clients;
mod control;
mod device;
mod members;
mod notices;
mod peers;
mod rollback;
mod settings;
mod source;
mod watch;

use std::collections::HashMap;

use tether_replication::engine::{CasId, Effect, Engine, Event as EngineEvent, Notice, Phase};
use tether_replication::ids::Time as EngineTime;
use tether_replication::record::Change;

use crate::host::{
    Broken, CallId, CommandId, ConnId, Effects, Event, Finish, Inbox, Io, IoEvent, Listening, Machine, Time, TimerId,
};
use crate::record::{RecordCall, RecordReturn};
use birth::Birth;
use clients::Clients;
use control::Control;
pub(crate) use device::BLOCK_BYTES as DEVICE_BLOCK_BYTES;
use device::Device;
pub use device::DeviceFd;
use members::Members;
use notices::Notices;
use peers::Peers;
use rollback::Rollback;
pub use settings::{Answer, Command, Info, MemberInfo, Nbd, Progress, ReplicaAddress, Scrub, Settings};
use source::Source;
use watch::Watchers;

/// How long an engine that stopped waits for its last replies to leave, if there is anybody who waits for one.
const FAREWELL_MS: u64 = 500;

/// The machine of one engine process.
pub struct EngineServer {
    settings: Settings,
    birth: Birth,
    /// There from the moment that the record is known.
    engine: Option<Engine>,
    effects: Vec<Effect>,
    spare: Vec<Effect>,
    members: Members,
    clients: Clients,
    control: Control,
    device: Option<Device>,
    /// Where the kernel device is, or why there is none.
    device_is: Result<Option<String>, String>,
    notices: Notices,
    watchers: Watchers,
    /// Changes of the record under way, and since when.
    calls: HashMap<CallId, (CasId, Time)>,
    listening: Listening,
    peers: Peers,
    source: Source,
    rollback: Rollback,
    /// A standby was reading through this engine when it was fenced: the volume moves, and nobody has decided yet where
    /// it stays. What clients ask, and what was in nobody's hands, is not answered until the engine is stopped: the
    /// client of a volume that moves waits, and does not see its disk fail.
    moves: bool,
    /// The engine's one timer.
    timer: Option<TimerId>,
    farewell: Option<TimerId>,
    /// When connections that were dialed have to be proved.
    handshakes: HashMap<TimerId, ConnId>,
}

impl EngineServer {
    pub fn new(settings: Settings) -> Self {
        let clients = Clients::new(&settings);
        let members = Members::new(&settings);
        let source = Source::new(settings.source.clone());
        Self {
            settings,
            birth: Birth::default(),
            engine: None,
            effects: Vec::new(),
            spare: Vec::new(),
            members,
            clients,
            control: Control::default(),
            device: None,
            device_is: Ok(None),
            notices: Notices::default(),
            watchers: Watchers::default(),
            calls: HashMap::new(),
            listening: Listening::default(),
            peers: Peers::default(),
            source,
            rollback: Rollback::default(),
            moves: false,
            timer: None,
            handshakes: HashMap::new(),
            farewell: None,
        }
    }

    fn started(&mut self, now: Time, out: &mut Effects<Self>) {
        self.timer = Some(out.io.timer());
        for nbd in &self.settings.nbd {
            self.listening.listen(nbd.address.clone(), &mut out.io);
        }
        // Behind those of clients, which are known by their places.
        if let Some(address) = self.settings.peer_listen.clone() {
            self.peers.listener = Some(self.listening.listen(address, &mut out.io));
        }
        self.begin_birth(now, out);
    }

    /// Gives the engine an event.
    fn apply(&mut self, event: EngineEvent, now: Time) {
        if let Some(engine) = &mut self.engine {
            engine.apply(event, EngineTime(now.0), &mut self.effects);
        }
    }

    fn io(&mut self, event: IoEvent<'_>, now: Time, out: &mut Effects<Self>) {
        match event {
            IoEvent::Received { conn, inbox } => self.received(conn, inbox, now, out),
            IoEvent::Sent { conn, bytes } => self.client_sent(conn, bytes, now),
            IoEvent::Timer { timer } => self.timer(timer, now, out),
            IoEvent::Accepted { listener, conn, .. } if self.peers.listener == Some(listener) => {
                self.peers.accepted(conn, &self.settings.key, now, &mut out.io);
            }
            IoEvent::Accepted { listener, conn, .. } => self.clients.accepted(listener, conn, &mut out.io),
            IoEvent::Connected { conn } => self.dialed(conn, now, &mut out.io),
            IoEvent::ConnectFailed { conn, why } | IoEvent::Closed { conn, why } => self.ended(conn, &why, now, out),
            IoEvent::Listening { listener, local } => {
                if let Some(at) = self.listening.position(listener) {
                    self.clients.listening(listener, at);
                }
                self.listening.is_at(listener, local);
                self.watchers.change();
                self.answer_listening(out);
            }
            IoEvent::ListenFailed { why, .. } => self.give_up(why, out),
            IoEvent::DeviceReadable { device, source } => self.device_readable(device, source, now, out),
            IoEvent::FileDone { .. } => {}
        }
    }

    fn received(&mut self, conn: ConnId, inbox: &mut Inbox, now: Time, out: &mut Effects<Self>) {
        if self.clients.is_client(conn) {
            self.client_received(conn, inbox, now);
        } else if self.source.is_source(conn) {
            self.source_received(conn, inbox, now, out);
        } else if self.peers.is_peer(conn) {
            self.peer_received(conn, inbox, now, out);
        } else {
            self.member_received(conn, inbox, now, out);
        }
    }

    /// A connection failed, or ended.
    fn ended(&mut self, conn: ConnId, why: &Broken, now: Time, out: &mut Effects<Self>) {
        if self.source.is_source(conn) {
            self.source_lost(&why.to_string(), now, &mut out.io);
        } else if !self.clients.closed(conn, why) && !self.peers.closed(conn, &mut out.io) {
            self.lost(conn, &why.to_string(), now, out);
        }
    }

    fn timer(&mut self, timer: TimerId, now: Time, out: &mut Effects<Self>) {
        if Some(timer) == self.timer {
            self.apply(EngineEvent::Timer, now);
        } else if Some(timer) == self.farewell {
            out.finish(Finish::Done);
        } else if !self.watchers.timer(timer)
            && !self.peers.timer(timer, &mut out.io)
            && !self.handshake_timer(timer, now, out)
            && !self.source_timer(timer, now, out)
        {
            self.birth_timer(timer, now, out);
        }
    }

    fn returned(&mut self, id: CallId, value: RecordReturn, now: Time, out: &mut Effects<Self>) {
        match value {
            RecordReturn::Changed(outcome) => {
                self.watchers.change();
                match self.calls.remove(&id) {
                    Some((id, _)) => self.record_changed(id, outcome, now),
                    None => self.rolled_back(id, outcome, out),
                }
            }
            RecordReturn::Loaded(result) => {
                if !self.source_loaded(id, &result, now, out) && !self.roll_back_from(id, &result, out) {
                    self.loaded(result, now, out);
                }
            }
            RecordReturn::Created(result) => self.created(result, now, out),
            RecordReturn::Detached(result) => self.detached(result, now, out),
        }
    }

    /// Carries effects to where they belong until none is left.
    fn settle(&mut self, now: Time, out: &mut Effects<Self>) {
        while !self.effects.is_empty() {
            let mut effects = std::mem::replace(&mut self.effects, std::mem::take(&mut self.spare));
            for effect in effects.drain(..) {
                self.obey(effect, now, out);
            }
            self.spare = effects;
        }
        self.clients.flush(&mut out.io);
        self.tell_watchers(now, out);
    }

    fn obey(&mut self, effect: Effect, now: Time, out: &mut Effects<Self>) {
        match effect {
            Effect::Send { slot, session, request } => self.members.send(slot, session, &request, &mut out.io),
            Effect::Complete { io, result } => self.complete(io, result, now, out),
            Effect::SetTimer { at } => {
                if let Some(timer) = self.timer {
                    out.io.set_timer(timer, Time(at.0));
                }
            }
            Effect::Connect { slot, session } => self.connect(slot, session, now, &mut out.io),
            Effect::Disconnect { slot, session } => self.members.disconnect(slot, session, &mut out.io),
            Effect::Cas { id, change } => {
                if matches!(change, Change::Promote { .. }) {
                    self.tidy_source(now, &mut out.io);
                }
                let call = out.call(RecordCall::Change(change));
                self.calls.insert(call, (id, now));
                self.watchers.listen_for_silence(now.plus_millis(control::RECORD_SILENT_MS), &mut out.io);
            }
            Effect::Notice(notice) => {
                self.notices.take(&notice, now);
                match notice {
                    Notice::Progress { .. } | Notice::Scrubbing { .. } => {
                        return self.watchers.progress(now, &mut out.io);
                    }
                    Notice::Phase(phase) => self.phase_changed(phase, now, out),
                    _ => {}
                }
                self.watchers.change();
            }
            Effect::AskSource { io, op } => self.ask_source(io, &op, now, out),
            Effect::StopSource => self.stop_source(&mut out.io),
        }
    }

    fn phase_changed(&mut self, phase: Phase, now: Time, out: &mut Effects<Self>) {
        let is_heard = self.clients.len() > 0 || self.peers.has_standby() || self.source.is_connected();
        self.control.phase_changed(phase, out);
        self.find_source(out);
        self.leave_source(phase, &mut out.io);
        self.moves |= phase == Phase::Fenced && self.peers.has_standby();
        if let (Phase::Serving, Some(engine)) = (phase, &self.engine) {
            // The replicas know better than whoever started the engine.
            let size = engine.size();
            self.resized(size, out);
            if self.settings.line {
                out.call(RecordCall::Served);
            }
        }
        if matches!(phase, Phase::Fenced | Phase::Failed) && self.control.is_stopping() {
            // Whoever told it to stop waits for the end, and there is nothing left to end in order.
            self.phase_changed(Phase::Stopped, now, out);
        }
        if phase == Phase::Stopped {
            self.clients.stop(&mut out.io);
            let timer = out.io.timer();
            out.io.set_timer(timer, now.plus_millis(if is_heard { FAREWELL_MS } else { 0 }));
            self.farewell = Some(timer);
        }
    }

    fn answer_listening(&mut self, out: &mut Effects<Self>) {
        let Some((waiting, listened)) = self.listening.answers() else { return };
        let clients = self.settings.nbd.len();
        let listened = listened.map(|all| all.into_iter().take(clients).collect::<Vec<_>>());
        for id in waiting {
            out.answer(id, Answer::Listening(listened.clone()));
        }
    }

    /// The engine is of no use and never will be.
    fn give_up(&mut self, why: String, out: &mut Effects<Self>) {
        self.listening.fail(&why);
        self.answer_listening(out);
        out.finish(Finish::Failed(why));
    }

    fn command(&mut self, id: CommandId, command: Command, now: Time, out: &mut Effects<Self>) {
        self.run_command(id, command, now, out);
    }
}

impl Machine for EngineServer {
    type Command = Command;
    type Answer = Answer;
    type Call = RecordCall;
    type Return = RecordReturn;

    fn handle(&mut self, event: Event<'_, Self>, now: Time, out: &mut Effects<Self>) {
        match event {
            Event::Started => self.started(now, out),
            Event::Io(event) => self.io(event, now, out),
            Event::Command { id, command } => self.command(id, command, now, out),
            Event::Returned { id, value } => self.returned(id, value, now, out),
        }
        self.settle(now, out);
    }

    fn in_hand(&self) -> usize {
        self.engine.as_ref().map_or(0, Engine::pending)
    }
}

/// For members and birth: sending needs nothing but sockets.
type Sockets = Io;
