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
mod settings;
mod watch;

use std::collections::{BTreeMap, HashMap};

use tether_replication::engine::{CasId, Effect, Engine, Event as EngineEvent, Notice, Phase};
use tether_replication::ids::Time as EngineTime;

use crate::host::{
    Address, CallId, CommandId, ConnId, Effects, Event, Finish, Inbox, Io, IoEvent, ListenerId, Machine, Time, TimerId,
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
pub use settings::{Answer, Command, Info, MemberInfo, Nbd, Progress, ReplicaAddress, Settings};
use watch::Watchers;

/// How long an engine that stopped waits for its last replies to leave.
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
    listeners: BTreeMap<ListenerId, Option<Address>>,
    failed: Option<String>,
    /// The engine's one timer.
    timer: Option<TimerId>,
    farewell: Option<TimerId>,
}

impl EngineServer {
    pub fn new(settings: Settings) -> Self {
        let clients = Clients::new(&settings);
        let members = Members::new(&settings);
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
            listeners: BTreeMap::new(),
            failed: None,
            timer: None,
            farewell: None,
        }
    }

    fn started(&mut self, now: Time, out: &mut Effects<Self>) {
        self.timer = Some(out.io.timer());
        for nbd in &self.settings.nbd {
            self.listeners.insert(out.io.listen(nbd.address.clone()), None);
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
            IoEvent::Accepted { listener, conn, .. } => self.clients.accepted(listener, conn, &mut out.io),
            IoEvent::Connected { conn } => self.members.connected(conn, &self.settings, &mut out.io),
            IoEvent::ConnectFailed { conn, why } => self.lost(conn, &why.to_string(), now, out),
            IoEvent::Closed { conn, why } => {
                if !self.clients.closed(conn, &why) {
                    self.lost(conn, &why.to_string(), now, out);
                }
            }
            IoEvent::Listening { listener, local } => {
                self.clients.listening(listener, &self.listeners);
                self.listeners.insert(listener, Some(local));
                self.watchers.change();
                self.answer_listening(out);
            }
            IoEvent::ListenFailed { why, .. } => {
                self.failed = Some(why.clone());
                self.answer_listening(out);
                out.finish(Finish::Failed(why));
            }
            IoEvent::DeviceReadable { device, source } => self.device_readable(device, source, now, out),
            IoEvent::FileDone { .. } => {}
        }
    }

    fn received(&mut self, conn: ConnId, inbox: &mut Inbox, now: Time, out: &mut Effects<Self>) {
        if self.clients.is_client(conn) {
            return self.client_received(conn, inbox, now);
        }
        self.member_received(conn, inbox, now, out);
    }

    fn timer(&mut self, timer: TimerId, now: Time, out: &mut Effects<Self>) {
        if Some(timer) == self.timer {
            self.apply(EngineEvent::Timer, now);
        } else if Some(timer) == self.farewell {
            out.finish(Finish::Done);
        } else if !self.watchers.timer(timer) {
            self.birth_timer(timer, now, out);
        }
    }

    fn returned(&mut self, id: CallId, value: RecordReturn, now: Time, out: &mut Effects<Self>) {
        match value {
            RecordReturn::Changed(outcome) => {
                self.watchers.change();
                if let Some((id, _)) = self.calls.remove(&id) {
                    self.apply(EngineEvent::Cas { id, outcome }, now);
                }
            }
            RecordReturn::Loaded(result) => self.loaded(result, now, out),
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
                let call = out.call(RecordCall::Change(change));
                self.calls.insert(call, (id, now));
                self.watchers.listen_for_silence(now.plus_millis(control::RECORD_SILENT_MS), &mut out.io);
            }
            Effect::Notice(notice) => {
                self.notices.take(&notice, now);
                match notice {
                    Notice::Progress { .. } => return self.watchers.progress(now, &mut out.io),
                    Notice::Phase(phase) => self.phase_changed(phase, now, out),
                    _ => {}
                }
                self.watchers.change();
            }
            Effect::AskSource { .. } => self.apply(EngineEvent::SourceGone, now),
            Effect::StopSource => {}
        }
    }

    fn phase_changed(&mut self, phase: Phase, now: Time, out: &mut Effects<Self>) {
        self.control.phase_changed(phase, out);
        if phase == Phase::Stopped {
            self.clients.stop(&mut out.io);
            let timer = out.io.timer();
            out.io.set_timer(timer, now.plus_millis(FAREWELL_MS));
            self.farewell = Some(timer);
        }
    }

    fn answer_listening(&mut self, out: &mut Effects<Self>) {
        let answer = match &self.failed {
            Some(why) => Err(why.clone()),
            None => match self.listeners.values().cloned().collect::<Option<Vec<_>>>() {
                Some(all) => Ok(all),
                None => return,
            },
        };
        for id in self.control.take_listening() {
            out.answer(id, Answer::Listening(answer.clone()));
        }
    }

    /// The engine is of no use and never will be.
    fn give_up(&mut self, why: String, out: &mut Effects<Self>) {
        self.failed.get_or_insert_with(|| why.clone());
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
}

/// For members and birth: sending needs nothing but sockets.
type Sockets = Io;
