//! The world: hosts with clocks and disks, processes on them, connections between them, one queue of what comes next.

use std::collections::BTreeMap;

use bytes::BytesMut;
use tether_engine::engine_server::{Answer, Command};
use tether_engine::host::{Broken, CallId, CommandId, ConnId, IoEffect, IoEvent, Time, TimerId};
use tether_engine::record::RecordCall;
use tether_store::files::fake::{FakeDisk, Random};
use tether_store::{FileOp, OpId, OpKind, OpResult};

use crate::client;
use crate::faults::Fault;
use crate::history::History;
use crate::log::Log;
use crate::net::{Piece, PieceBox, Wire};
use crate::oracle::Violation;
use crate::process::{Process, Told, Wants};
use crate::queue::Queue;
use crate::record::RecordService;

/// Steps of a run after which it is called endless: ten times what the longest one takes.
const MAX_STEPS: u64 = 3_000_000;
/// Far above what any protocol of seconds needs.
const MAX_TIMERS_PER_SECOND: u64 = 2000;

/// A machine: power, a clock, at most one disk.
#[derive(Debug)]
pub struct Host {
    pub up: bool,
    /// What its clock shows at time zero, and how fast it runs: parts per million more than true.
    pub offset: u64,
    pub ppm: i64,
    pub disk: Option<FakeDisk>,
    /// Operations of its disk take so many times as long.
    pub slow: u64,
    /// Counts boots.
    pub boot: u64,
}

impl Host {
    fn clock(&self, now: u64) -> Time {
        Time((self.offset as i64 + now as i64 + now as i64 * self.ppm / 1_000_000) as u64)
    }

    /// When its clock shows `at`.
    pub(crate) fn moment(&self, at: Time) -> u64 {
        let since = at.0.saturating_sub(self.offset);
        (u128::from(since) * 1_000_000).div_ceil((1_000_000 + self.ppm) as u128) as u64
    }
}

/// What comes next.
#[derive(Debug)]
pub enum Action {
    Told(usize, Told),
    Timer(usize, TimerId, u64),
    /// A dial reaches the other host.
    Dialed(usize),
    Connected(usize),
    Accepted(usize),
    DialOver(usize, ConnId),
    Arrive {
        wire: usize,
        side: usize,
        piece: PieceBox,
    },
    Show {
        process: usize,
        conn: ConnId,
        again: bool,
    },
    Sent {
        process: usize,
        conn: ConnId,
        bytes: u64,
    },
    FileRun(usize, FileOp),
    FileDone(usize, OpId, OpResult),
    Call(usize, CallId, RecordCall),
    LateChange(RecordCall),
    Fault(Fault),
    /// Whoever runs volumes looks after them.
    Look,
    /// A pause of a run.
    Mark,
    /// An engine answered; never queued.
    Answered,
}

/// Bugs planted below the machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// `fdatasync` returns at once.
    SyncIsSkipped,
    /// A reboot is not noticed.
    BootIsNotNoticed,
}

/// Everything.
pub struct World {
    pub queue: Queue<Action>,
    pub random: Random,
    pub log: Log,
    pub hosts: Vec<Host>,
    pub processes: Vec<Process>,
    pub(crate) wires: Vec<Wire>,
    /// Pairs of hosts that do not hear each other, with how often they were cut.
    pub cuts: BTreeMap<(usize, usize), u32>,
    /// What waits for processes that are stopped.
    waiting: BTreeMap<usize, Vec<Action>>,
    pub record: RecordService,
    pub history: History,
    pub violation: Option<Violation>,
    pub plant: Option<Plant>,
    /// Answers of engines since somebody looked.
    pub answers: Vec<(usize, CommandId, Answer)>,
    answered: bool,
    /// By process: timers that fired in a second.
    timers: BTreeMap<usize, (u64, u64)>,
    pub steps: u64,
    /// Reads that standbys answered.
    pub read_through: u64,
    pub finished: Vec<usize>,
}

impl World {
    pub fn new(seed: u64, keep_log: bool) -> Self {
        Self {
            queue: Queue::new(),
            random: Random::new(seed),
            log: Log::new(keep_log),
            hosts: Vec::new(),
            processes: Vec::new(),
            wires: Vec::new(),
            cuts: BTreeMap::new(),
            waiting: BTreeMap::new(),
            record: RecordService::default(),
            history: History::default(),
            violation: None,
            plant: None,
            answers: Vec::new(),
            answered: false,
            timers: BTreeMap::new(),
            steps: 0,
            read_through: 0,
            finished: Vec::new(),
        }
    }

    pub fn note(&mut self, text: &str) {
        self.log.line(self.queue.now(), text);
    }

    fn clock(&self, process: usize) -> Time {
        self.hosts[self.processes[process].host].clock(self.queue.now())
    }

    /// Puts a process on its host and starts it.
    pub fn spawn(&mut self, process: Process) -> usize {
        let index = self.processes.len();
        self.note(&format!("start {} on host {}", process.name, process.host));
        self.processes.push(process);
        self.queue.after(0, Action::Told(index, Told::Started));
        index
    }

    pub fn command(&mut self, process: usize, command: Command) -> CommandId {
        let id = CommandId(self.processes[process].next_command);
        self.processes[process].next_command += 1;
        self.queue.after(0, Action::Told(process, Told::Engine(id, command)));
        id
    }

    /// Ends a process; its host tells the peers.
    pub fn kill(&mut self, index: usize, silently: bool) {
        let process = &mut self.processes[index];
        if !process.alive {
            return;
        }
        process.alive = false;
        process.stopped = false;
        let name = process.name.clone();
        let conns = std::mem::take(&mut process.conns);
        self.waiting.remove(&index);
        self.note(&format!("kill {name}"));
        if !silently {
            for end in conns.values() {
                self.transmit(end.wire, 1 - end.side, Piece::Reset);
            }
        }
    }

    pub fn stop(&mut self, index: usize) {
        if self.processes[index].alive {
            self.processes[index].stopped = true;
            self.note(&format!("SIGSTOP {}", self.processes[index].name));
        }
    }

    pub fn cont(&mut self, index: usize) {
        if !self.processes[index].stopped {
            return;
        }
        self.processes[index].stopped = false;
        self.note(&format!("SIGCONT {}", self.processes[index].name));
        for action in self.waiting.remove(&index).unwrap_or_default() {
            self.queue.after(0, action);
        }
    }

    /// Runs the next thing. False if there is none or the run is over.
    pub fn step(&mut self) -> Option<Action> {
        while self.violation.is_none() {
            let action = self.queue.pop()?;
            self.steps += 1;
            if self.steps > MAX_STEPS {
                self.violation = Some(Violation(format!("more than {MAX_STEPS} steps: something turns in circles")));
            }
            match action {
                Action::Fault(_) | Action::Look | Action::Mark => return Some(action),
                other => self.run(other),
            }
            if std::mem::take(&mut self.answered) {
                return Some(Action::Answered);
            }
        }
        None
    }

    fn run(&mut self, action: Action) {
        let Some(target) = self.target(&action) else { return self.run_kernel(action) };
        if !self.processes[target].alive {
            return;
        }
        if self.processes[target].stopped {
            self.waiting.entry(target).or_default().push(action);
            return;
        }
        let now = self.clock(target);
        let process = &mut self.processes[target];
        let name = process.name.clone();
        match action {
            Action::Told(_, told) => {
                self.log.line(self.queue.now(), &format!("{name}: {told:?}"));
                self.processes[target].tell(told, now);
            }
            Action::Timer(_, timer, setting) => {
                if process.timers.get(&timer) != Some(&setting) {
                    return;
                }
                process.timers.remove(&timer);
                self.count_timer(target);
                self.log.line(self.queue.now(), &format!("{name}: timer {}", timer.0));
                self.processes[target].tell_io(IoEvent::Timer { timer }, now);
            }
            Action::Show { conn, again, .. } => {
                self.log.line(self.queue.now(), &format!("{name}: receives on {}", conn.0));
                if self.processes[target].show(conn, again, now) {
                    self.queue.after(1, Action::Show { process: target, conn, again: false });
                }
            }
            Action::Sent { conn, bytes, .. } => {
                if process.conns.contains_key(&conn) {
                    process.tell_io(IoEvent::Sent { conn, bytes }, now);
                }
            }
            Action::FileDone(_, op, result) => {
                let text = match &result {
                    OpResult::Failed(fault) => format!("{name}: file operation {} failed: {fault}", op.0),
                    _ => format!("{name}: file operation {} done", op.0),
                };
                self.log.line(self.queue.now(), &text);
                self.processes[target].tell_io(IoEvent::FileDone { op, result }, now);
            }
            Action::Connected(wire) => self.connected(wire, now),
            Action::Accepted(wire) => self.accepted(wire, now),
            Action::DialOver(_, conn) => {
                if process.conns.get(&conn).is_some_and(|end| !end.open) {
                    process.conns.remove(&conn);
                    process.tell_io(IoEvent::ConnectFailed { conn, why: Broken::TimedOut }, now);
                }
            }
            other => unreachable!("{other:?} must not be for a process"),
        }
        self.obey(target);
    }

    /// A process that wakes itself all the time does not wait for anything: it is busy for nothing.
    fn count_timer(&mut self, process: usize) {
        let second = self.queue.now() / 1_000_000;
        let counted = self.timers.entry(process).or_default();
        *counted = if counted.0 == second { (second, counted.1 + 1) } else { (second, 1) };
        if counted.1 > MAX_TIMERS_PER_SECOND {
            let why = format!("{} sets its timer to the past over and over", self.processes[process].name);
            self.violation.get_or_insert(Violation(why));
        }
    }

    fn target(&self, action: &Action) -> Option<usize> {
        match action {
            Action::Told(process, _)
            | Action::Timer(process, ..)
            | Action::DialOver(process, _)
            | Action::Show { process, .. }
            | Action::Sent { process, .. }
            | Action::FileDone(process, ..) => Some(*process),
            Action::Connected(wire) => Some(self.wires[*wire].ends[0].0),
            Action::Accepted(wire) => Some(self.wires[*wire].ends[1].0),
            _ => None,
        }
    }

    fn run_kernel(&mut self, action: Action) {
        match action {
            Action::Dialed(wire) => self.dialed(wire),
            Action::Arrive { wire, side, piece } => self.arrive(wire, side, piece.0),
            Action::FileRun(process, op) => self.run_file(process, op),
            Action::Call(process, id, call) => self.call(process, id, &call),
            Action::LateChange(call) => {
                let outcome = self.record.apply(&call);
                self.note(&format!("record: late {call:?}: {outcome:?}"));
            }
            other => unreachable!("{other:?} must be for a process"),
        }
    }

    fn run_file(&mut self, process: usize, op: FileOp) {
        let host = self.processes[process].host;
        if !self.processes[process].alive {
            return;
        }
        let id = op.id;
        let disk = self.hosts[host].disk.clone().expect("a host of a replica must have a disk");
        let skipped = self.plant == Some(Plant::SyncIsSkipped) && matches!(op.kind, OpKind::Sync);
        let result = if skipped { OpResult::Done } else { disk.run(op).1 };
        let after = (5 + self.random.below(100)) * self.hosts[host].slow;
        self.queue.after(after, Action::FileDone(process, id, result));
    }

    fn call(&mut self, process: usize, id: CallId, call: &RecordCall) {
        let (value, delay, late) = self.record.call(call, &mut self.random);
        self.note(&format!("record: {} {call:?}: {value:?}", self.processes[process].name));
        if let Some(after) = late {
            self.queue.after(after, Action::LateChange(call.clone()));
        }
        self.queue.after(delay, Action::Told(process, Told::Returned(id, value)));
    }

    /// Does what a process wants.
    fn obey(&mut self, index: usize) {
        let wants = self.processes[index].wants();
        let Wants { io, calls, answers, reports, finished } = wants;
        let mut out: BTreeMap<ConnId, BytesMut> = BTreeMap::new();
        for effect in io {
            match effect {
                IoEffect::Send { conn, bytes } => out.entry(conn).or_default().extend_from_slice(&bytes),
                other => {
                    if let IoEffect::Close { conn } = &other {
                        let bytes = out.remove(conn);
                        self.send(index, *conn, bytes);
                    }
                    self.effect(index, other);
                }
            }
        }
        for (conn, bytes) in out {
            self.send(index, conn, Some(bytes));
        }
        for (id, call) in calls {
            let delay = 300 + self.random.below(4000);
            self.queue.after(delay, Action::Call(index, id, call));
        }
        for (id, answer) in answers {
            self.answers.push((index, id, answer));
            self.answered = true;
        }
        for report in reports {
            let through = self.peer_of_client(index).map(|peer| self.processes[peer].holder).unwrap_or_default();
            self.note(&format!("{}: {report:?}", self.processes[index].name));
            let epoch = self.record.epochs.contains_key(&through);
            if let (client::Report::Done { values, .. }, false) = (&report, epoch) {
                self.read_through += u64::from(!values.is_empty());
            }
            if let Err(violation) = self.history.take(report, through, self.queue.now()) {
                self.note(&violation.to_string());
                self.violation.get_or_insert(violation);
            }
        }
        if finished.is_some() && !self.finished.contains(&index) {
            self.note(&format!("{} finished: {finished:?}", self.processes[index].name));
            self.finished.push(index);
        }
    }

    /// The engine at the other end of a client's connection.
    pub fn peer_of_client(&self, client: usize) -> Option<usize> {
        let crate::process::Kind::Client(hosted) = &self.processes[client].kind else { return None };
        let end = self.processes[client].conns.get(&hosted.machine.conn()?)?;
        Some(self.wires[end.wire].ends[1].0)
    }

    fn send(&mut self, process: usize, conn: ConnId, bytes: Option<BytesMut>) {
        let Some(bytes) = bytes else { return };
        let Some(end) = self.processes[process].conns.get(&conn) else { return };
        let (wire, side, reports) = (end.wire, end.side, end.reports);
        let len = bytes.len() as u64;
        let mut bytes = bytes.freeze();
        if len > 1 && self.random.below(8) == 0 {
            let first = bytes.split_to(1 + self.random.below(len - 1) as usize);
            self.transmit(wire, 1 - side, Piece::Bytes(first));
        }
        self.transmit(wire, 1 - side, Piece::Bytes(bytes));
        if reports {
            self.queue.after(20, Action::Sent { process, conn, bytes: len });
        }
    }

    fn effect(&mut self, index: usize, effect: IoEffect) {
        let now = self.queue.now();
        match effect {
            IoEffect::Listen { listener, address } => {
                self.processes[index].listeners.insert(listener, address.clone());
                let time = self.clock(index);
                self.processes[index].tell_io(IoEvent::Listening { listener, local: address }, time);
                self.obey(index);
            }
            IoEffect::Unlisten { listener } => drop(self.processes[index].listeners.remove(&listener)),
            IoEffect::Dial { conn, address, deadline } => self.dial(index, conn, &address, deadline),
            IoEffect::Close { conn } => self.hang_up(index, conn, Piece::Fin),
            IoEffect::Abort { conn } => self.hang_up(index, conn, Piece::Reset),
            IoEffect::Pause { conn } => {
                if let Some(end) = self.processes[index].conns.get_mut(&conn) {
                    end.paused = true;
                }
            }
            IoEffect::Resume { conn, most } => {
                if let Some(end) = self.processes[index].conns.get_mut(&conn) {
                    if let Some(most) = most {
                        end.inbox.limit(most);
                    }
                    if std::mem::take(&mut end.paused) {
                        self.queue.after(0, Action::Show { process: index, conn, again: true });
                    }
                }
            }
            IoEffect::Align { conn, alignment } => {
                if let Some(end) = self.processes[index].conns.get_mut(&conn) {
                    end.inbox.align(alignment);
                }
            }
            IoEffect::ReportSent { conn } => {
                if let Some(end) = self.processes[index].conns.get_mut(&conn) {
                    end.reports = true;
                }
            }
            IoEffect::File { op, .. } => {
                let slow = self.hosts[self.processes[index].host].slow;
                let after = (20 + self.random.below(200)) * slow;
                self.queue.after(after, Action::FileRun(index, op));
            }
            IoEffect::SetTimer { timer, at } => {
                let process = &mut self.processes[index];
                process.next_command += 1;
                let setting = process.next_command;
                process.timers.insert(timer, setting);
                let when = self.hosts[process.host].moment(at).max(now + 1);
                self.queue.at(when, Action::Timer(index, timer, setting));
            }
            IoEffect::CancelTimer { timer } => drop(self.processes[index].timers.remove(&timer)),
            IoEffect::OpenDevice { .. } | IoEffect::DeviceReply { .. } | IoEffect::CloseDevice { .. } => {
                unreachable!("no kernel device is asked for here")
            }
            IoEffect::Send { .. } => unreachable!("what is sent in one turn must leave together"),
        }
    }
}
