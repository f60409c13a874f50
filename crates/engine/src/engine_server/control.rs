//! Commands: what people and controllers ask of a running engine.

use std::collections::HashMap;

use bytes::Bytes;
use tether_replication::engine::{Event as EngineEvent, IoAnswer, IoId, IoOp, IoResult, Phase};
use tether_replication::ids::{MemberId, Slot};
use tether_replication::wire::{ControlKind, ControlOp};

use super::clients::CONTROL;
use super::settings::{Answer, Command, Info, MemberInfo};
use super::{EngineServer, notices};
use crate::frontend::nbd::listen::uri;
use crate::host::{CommandId, Effects, Finish, Time};
use crate::replica_server::SnapshotArgs;

/// A record that is well answers within milliseconds.
pub(super) const RECORD_SILENT_MS: u64 = 1000;

/// Commands that wait for their answer.
#[derive(Debug, Default)]
pub(super) struct Control {
    waiting: HashMap<IoId, (CommandId, Wants)>,
    serving: Vec<CommandId>,
    stopping: Vec<CommandId>,
    promoting: Vec<CommandId>,
    /// Stops that wait for the device to be detached.
    pub detaching: Vec<CommandId>,
    next: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wants {
    Done,
    Snapshots,
    Expanded,
}

impl Control {
    /// Whether somebody waits for the end.
    pub fn is_stopping(&self) -> bool {
        !self.stopping.is_empty()
    }

    /// Answers those who waited for this phase.
    pub fn phase_changed(&mut self, phase: Phase, out: &mut Effects<EngineServer>) {
        let (answer, who) = match phase {
            Phase::Serving => (Answer::Done, [&mut self.serving, &mut self.promoting]),
            Phase::Stopped => {
                for id in std::mem::take(&mut self.promoting) {
                    let why = "the record does not name this engine as standby: the migration was rolled back";
                    out.answer(id, Answer::Failed(why.to_owned()));
                }
                (Answer::Done, [&mut self.stopping, &mut self.promoting])
            }
            Phase::Fenced => {
                let why = "another engine holds the volume".to_owned();
                (Answer::Failed(why), [&mut self.serving, &mut self.promoting])
            }
            Phase::Failed => {
                let why = "the last replica's host lost power; attach the volume again".to_owned();
                (Answer::Failed(why), [&mut self.serving, &mut self.promoting])
            }
            _ => return,
        };
        for id in who.into_iter().flat_map(std::mem::take) {
            out.answer(id, answer.clone());
        }
    }
}

impl EngineServer {
    pub(super) fn run_command(&mut self, id: CommandId, command: Command, now: Time, out: &mut Effects<Self>) {
        match command {
            Command::Listening => {
                self.listening.ask(id);
                self.answer_listening(out);
            }
            Command::Info => out.answer(id, Answer::Info(Box::new(self.info(now)))),
            Command::Watch { seen } => self.watch(id, seen, now, out),
            Command::Serving => match self.phase() {
                Phase::Serving => out.answer(id, Answer::Done),
                Phase::Fenced | Phase::Failed | Phase::Stopped => {
                    out.answer(id, Answer::Failed(format!("the engine is {:?}", self.phase())));
                }
                _ => self.control.serving.push(id),
            },
            Command::Stop => self.stop(id, now, out),
            Command::Close => {
                if !self.detach_first(id, out) {
                    self.stop(id, now, out);
                }
            }
            Command::Line { name, older_stopped } => {
                if older_stopped {
                    self.apply(EngineEvent::OlderStopped, now);
                }
                self.clients.line_is(name, &mut out.io);
                self.watchers.change();
                out.answer(id, Answer::Done);
            }
            Command::ServeDevice(device) => self.serve_device(id, device, out),
            Command::DeviceIs(is) => {
                self.device_is = is.map(Some);
                self.watchers.change();
                out.answer(id, Answer::Done);
            }
            Command::Abandon => {
                out.answer(id, Answer::Done);
                out.finish(Finish::Failed("it was abandoned".to_owned()));
            }
            Command::Panic => panic!("a defect on purpose"),
            Command::AddReplica { name, address } => self.add_replica(id, name, address, now, out),
            _ if self.engine.is_none() => {
                let why = "the engine has not started yet: it waits for replicas or for the record".to_owned();
                out.answer(id, Answer::Failed(why));
            }
            Command::Rollback { standby } => self.roll_back(id, standby, now, out),
            Command::Source { address } => {
                self.move_source(address, now, out);
                out.answer(id, Answer::Done);
            }
            // For a standby these would be its first writes.
            Command::SnapshotCreate { .. }
            | Command::SnapshotList
            | Command::SnapshotRevert { .. }
            | Command::SnapshotDelete { .. }
            | Command::SnapshotPurge
            | Command::Expand { .. }
                if self.phase() == Phase::Standby =>
            {
                let why = "the engine is standby: ask the engine that holds the volume, or promote this one first";
                out.answer(id, Answer::Failed(why.to_owned()));
            }
            other => self.run_on_engine(id, other, now, out),
        }
    }

    pub(super) fn stop(&mut self, id: CommandId, now: Time, out: &mut Effects<Self>) {
        if self.engine.is_none() || matches!(self.phase(), Phase::Fenced | Phase::Failed) {
            out.answer(id, Answer::Done);
            return self.phase_changed(Phase::Stopped, now, out);
        }
        self.control.stopping.push(id);
        self.apply(EngineEvent::Stop, now);
    }

    fn run_on_engine(&mut self, id: CommandId, command: Command, now: Time, out: &mut Effects<Self>) {
        match command {
            Command::SnapshotCreate { name, created, labels } => {
                let args = SnapshotArgs { name, created, user_created: true, labels };
                self.control_op(id, ControlKind::SnapshotCreate, 0, args.to_bytes(), Wants::Done, now);
            }
            Command::SnapshotRevert { name, created } => {
                let args = SnapshotArgs { name, created, ..SnapshotArgs::default() };
                self.control_op(id, ControlKind::SnapshotRevert, 0, args.to_bytes(), Wants::Done, now);
            }
            Command::SnapshotDelete { name } => {
                let args = SnapshotArgs { name, ..SnapshotArgs::default() };
                self.control_op(id, ControlKind::SnapshotDelete, 0, args.to_bytes(), Wants::Done, now);
            }
            Command::SnapshotPurge => {
                self.control_op(id, ControlKind::SnapshotPurge, 0, Bytes::new(), Wants::Done, now);
            }
            Command::SnapshotList => {
                self.control_op(id, ControlKind::Custom, 0, Bytes::new(), Wants::Snapshots, now);
            }
            Command::Expand { size } => {
                self.control_op(id, ControlKind::Expand, size, Bytes::new(), Wants::Expanded, now);
            }
            Command::Flush => self.ask_engine(id, IoOp::Flush, Wants::Done, now),
            Command::RemoveReplica { name } => self.remove_replica(id, &name, now, out),
            Command::ResyncLimit { bytes_per_second } => {
                self.apply(EngineEvent::ResyncLimit { bytes_per_second }, now);
                out.answer(id, Answer::Done);
            }
            Command::Scrub { bytes_per_second } => self.scrub(id, bytes_per_second, now, out),
            Command::Promote => {
                if self.phase() == Phase::Standby {
                    self.control.promoting.push(id);
                    self.apply(EngineEvent::Promote, now);
                } else {
                    out.answer(id, Answer::Failed(format!("the engine is {:?}, not standby", self.phase())));
                }
            }
            Command::AcceptLoss { name } => match MemberId::new(&name) {
                Some(member) => {
                    self.apply(EngineEvent::AcceptLoss { member }, now);
                    out.answer(id, Answer::Done);
                }
                None => out.answer(id, Answer::Failed(format!("{name:?} is no name of a replica"))),
            },
            Command::Listening
            | Command::Serving
            | Command::Info
            | Command::Watch { .. }
            | Command::Stop
            | Command::Abandon
            | Command::Panic
            | Command::Close
            | Command::ServeDevice(_)
            | Command::Line { .. }
            | Command::DeviceIs(_)
            | Command::Rollback { .. }
            | Command::Source { .. }
            | Command::AddReplica { .. } => {}
        }
    }

    fn scrub(&mut self, id: CommandId, bytes_per_second: u64, now: Time, out: &mut Effects<Self>) {
        if self.phase() != Phase::Serving {
            let why = format!("the engine is {:?}; replicas are compared by the one that serves", self.phase());
            return out.answer(id, Answer::Failed(why));
        }
        self.notices.scrub = None;
        self.apply(EngineEvent::Scrub { bytes_per_second }, now);
        out.answer(id, Answer::Done);
    }

    fn control_op(&mut self, id: CommandId, kind: ControlKind, size: u64, body: Bytes, wants: Wants, now: Time) {
        self.ask_engine(id, IoOp::Control(ControlOp { kind, size, body }), wants, now);
    }

    fn ask_engine(&mut self, id: CommandId, op: IoOp, wants: Wants, now: Time) {
        let io = CONTROL.io(self.control.next);
        self.control.next = self.control.next.wrapping_add(1);
        self.control.waiting.insert(io, (id, wants));
        self.apply(EngineEvent::Io { id: io, op }, now);
    }

    pub(super) fn control_complete(&mut self, io: IoId, result: IoResult, out: &mut Effects<Self>) {
        let Some((id, wants)) = self.control.waiting.remove(&io) else { return };
        let answer = match (result, wants) {
            (Err(error), _) => Answer::Failed(error.to_string()),
            (Ok(IoAnswer::Controlled(body)), Wants::Snapshots) => {
                Answer::Snapshots(String::from_utf8_lossy(&body).into_owned())
            }
            (Ok(_), Wants::Expanded) => {
                let size = self.engine.as_ref().map_or(self.settings.size, tether_replication::engine::Engine::size);
                self.resized(size, out);
                Answer::Done
            }
            (Ok(_), _) => Answer::Done,
        };
        out.answer(id, answer);
    }

    /// The volume has another size; frontends learn it.
    pub(super) fn resized(&mut self, size: u64, out: &mut Effects<Self>) {
        if self.settings.size != size {
            self.settings.size = size;
            self.clients.resize(size);
            self.device_resized(size, out);
        }
    }

    fn add_replica(
        &mut self,
        id: CommandId,
        name: Option<String>,
        address: crate::host::Address,
        now: Time,
        out: &mut Effects<Self>,
    ) {
        match name.as_deref().map(MemberId::new) {
            Some(None) => return out.answer(id, Answer::Failed(format!("{name:?} is no name of a replica"))),
            Some(Some(member)) => {
                self.members.addresses.insert(member.clone(), address);
                self.apply(EngineEvent::AddMember { member }, now);
            }
            None => self.members.ask_name(&address, now, &mut out.io),
        }
        out.answer(id, Answer::Done);
    }

    fn remove_replica(&mut self, id: CommandId, name: &str, now: Time, out: &mut Effects<Self>) {
        let engine = self.engine.as_ref();
        let at = engine.and_then(|engine| engine.members().position(|(member, ..)| member.as_str() == name));
        let Some(at) = at else {
            return out
                .answer(id, Answer::Failed(format!("no replica is called {name:?}; `tether engine info` lists them")));
        };
        let last = engine.is_some_and(|engine| {
            let record = engine.record();
            record.in_sync.len() == 1 && record.in_sync.iter().any(|member| member.as_str() == name)
        });
        if last {
            let why = format!("{name:?} is the last in-sync replica: without it the data would be gone");
            return out.answer(id, Answer::Failed(why));
        }
        self.apply(EngineEvent::RemoveMember { slot: Slot(at as u8) }, now);
        self.members.addresses.retain(|member, _| member.as_str() != name);
        out.answer(id, Answer::Done);
    }

    pub(super) fn phase(&self) -> Phase {
        self.engine.as_ref().map_or(Phase::Idle, tether_replication::engine::Engine::phase)
    }

    /// Why requests wait, if they do.
    fn suspended(&self, now: Time) -> Option<String> {
        if let Some(why) = self.notices.suspended {
            return Some(notices::suspended(why).to_owned());
        }
        let since = self.calls.values().map(|(_, since)| *since).min()?;
        let silent = now.0.saturating_sub(since.0) / 1000;
        (silent >= RECORD_SILENT_MS)
            .then(|| format!("the record does not answer since {} s: whoever keeps it is away or hangs", silent / 1000))
    }

    pub(super) fn info(&self, now: Time) -> Info {
        let address =
            |member: &MemberId| self.members.addresses.get(member).map_or_else(String::new, ToString::to_string);
        let nbd = self.listening.locals().zip(&self.settings.nbd);
        let peer = self.peers.listener.and_then(|listener| self.listening.local(listener));
        let mut info = Info {
            volume: self.settings.volume.clone(),
            size: self.settings.size,
            phase: format!("{:?}", self.phase()),
            holder: self.settings.holder.to_string(),
            suspended: self.suspended(now),
            nbd: nbd.map(|(local, nbd)| uri(local, &self.settings.volume, &nbd.security)).collect(),
            line: self.clients.line().map(str::to_owned),
            peer: peer.map(ToString::to_string),
            clients: self.clients.len(),
            scrub: self.notices.scrub,
            device: self.device_is.clone().ok().flatten(),
            device_error: self.device_is.clone().err(),
            events: self.notices.kept(),
            version: self.watchers.version,
            ..Info::default()
        };
        let Some(engine) = &self.engine else { return info };
        let record = engine.record();
        info.size = engine.size();
        info.epoch = record.epoch.0;
        info.generation = record.generation.0;
        info.in_sync = record.in_sync.iter().map(ToString::to_string).collect();
        info.standby = record.standby.map(|standby| standby.to_string());
        info.requests_in_flight = engine.pending();
        let members = engine.members().map(|(member, in_sync, connected)| MemberInfo {
            name: member.to_string(),
            address: address(member),
            in_sync,
            connected,
            resync: self.notices.progress.get(member).copied(),
            last_error: self.members.errors.get(member).cloned(),
        });
        info.replicas = members.collect();
        info
    }
}
