//! The engine: serves one volume from its replicas, alone.
//!
//! ```text
//!  Idle ─StandBy─► Standby ─Promote─┐
//!    └───────Start──────────────► Starting ──► Opening ◄─────────────┐ a member is lost
//!                                              │ enough members      │
//!                                              ▼                     │
//!                                          Equalising ──► Flushing ──┤
//!                                                            │       │
//!                       Serving ◄── Waiting ◄── Recording ◄──┘───────┘
//!                          │           (from any phase: Fenced; Stopped; from Serving also Failed)
//!                          ├─ a member is lost: quiesce ─► flush ─► record without it ─► go on
//!                          └─ a replica is outside: open ─► copy ─► required ─► flush ─► record with it
//! ```
//!
//! [`Engine::apply`] takes one event; what it changes is written down at once, and [`Engine::drive`] then starts
//! whatever the new state asks for. Nothing is remembered of *how* a state was reached, so that a lost member, a
//! refused change of the record or an unknown outcome all lead to "look again", not to a path of their own.

mod activity;
mod api;
mod cas;
mod control;
mod copy;
mod io;
mod join;
mod locks;
mod members;
#[cfg(test)]
mod probe;
mod ring;
mod scrub;
mod shrink;
mod standby;
mod start;
#[cfg(test)]
mod tests;
mod timer;

use std::collections::VecDeque;

use activity::Activity;
pub use api::{
    CasId, CasOutcome, Config, Effect, Event, IoAnswer, IoError, IoId, IoOp, IoResult, Leaving, Limits, Notice, Phase,
    Suspended,
};
use cas::Asked;
use control::Barrier;
use copy::CopyJob;
use io::Io;
use join::Join;
use locks::Locks;
use members::Member;
use scrub::Scrub;
use shrink::Shrink;
use start::Start;

use crate::ids::{Epoch, Holder, MAX_MEMBERS, MemberId, Slot, Slots, Time};
use crate::record::Record;

/// The moment, and where effects go.
struct Cx<'a> {
    now: Time,
    fx: &'a mut Vec<Effect>,
}

impl Cx<'_> {
    fn notice(&mut self, notice: Notice) {
        self.fx.push(Effect::Notice(notice));
    }
}

/// The machine of one engine process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Engine {
    config: Config,
    phase: Phase,
    /// As the last answered change of it left it.
    record: Record,
    /// `record.in_sync`, by slot.
    recorded: Slots,
    /// Who must store a write before it is acknowledged: never less than `recorded`.
    required: Slots,
    members: Vec<Member>,
    /// The change of the record that is under way.
    asked: Option<Asked>,
    next_cas: u64,
    /// A change of the record may have happened or not.
    unknown: bool,
    /// No attempt to change the record before this.
    record_retry: Option<Time>,
    start: Start,
    /// Members on their way out.
    leaving: Slots,
    /// Of these, the ones that cannot come back before they are out.
    for_good: Slots,
    shrink: Option<Shrink>,
    join: Option<Join>,
    copy: Option<CopyJob>,
    copies: u32,
    scrub: Option<Scrub>,
    ios: Vec<Option<Io>>,
    free: Vec<u32>,
    /// Not begun: the engine does not serve yet, or a control operation is before it.
    queue: VecDeque<u32>,
    /// Begun, not sent: writes and flushes wait until all required members can take them.
    held: VecDeque<u32>,
    /// Reads that no member can take at the moment, or that were answered and wait for the lease.
    reads: Vec<u32>,
    /// Requests begun and not ended.
    active: usize,
    barrier: Option<Barrier>,
    locks: Locks,
    activity: Activity,
    /// When the last write was sent, while the activity log is not empty.
    last_write: Option<Time>,
    /// All members' disks are full: when to try again.
    full_retry: Option<Time>,
    suspended: Option<Suspended>,
    /// A clean stop is under way.
    stopping: bool,
    armed: Option<Time>,
}

impl Engine {
    /// An engine that does nothing yet, with the replicas known so far.
    pub fn new(config: Config, members: impl IntoIterator<Item = MemberId>) -> Self {
        let rules = config.rules;
        let mut engine = Self {
            config,
            phase: Phase::Idle,
            record: Record::default(),
            recorded: Slots::NONE,
            required: Slots::NONE,
            members: Vec::new(),
            asked: None,
            next_cas: 0,
            unknown: false,
            record_retry: None,
            start: Start::default(),
            leaving: Slots::NONE,
            for_good: Slots::NONE,
            shrink: None,
            join: None,
            copy: None,
            copies: 0,
            scrub: None,
            ios: Vec::new(),
            free: Vec::new(),
            queue: VecDeque::new(),
            held: VecDeque::new(),
            reads: Vec::new(),
            active: 0,
            barrier: None,
            locks: Locks::new(rules),
            activity: Activity::default(),
            last_write: None,
            full_retry: None,
            suspended: None,
            stopping: false,
            armed: None,
        };
        for member in members {
            engine.slot_of(&member);
        }
        engine
    }

    /// Takes one event and appends what is to be done.
    pub fn apply(&mut self, event: Event, now: Time, effects: &mut Vec<Effect>) {
        let cx = &mut Cx { now, fx: effects };
        match event {
            Event::Io { id, op } => self.submit(id, op, cx),
            Event::Reply { slot, reply } => self.reply(slot, reply, cx),
            Event::Connected { slot, session } => self.connected(slot, session, cx),
            Event::Disconnected { slot, session } => self.disconnected(slot, session, cx),
            Event::Cas { id, outcome } => self.cas_answered(id, outcome, cx),
            Event::Timer => {
                self.armed = None;
                self.time_passed(cx);
            }
            Event::Start { older_stopped } => self.begin(older_stopped, cx),
            Event::StandBy { at } => self.stand_by(at, cx),
            Event::Promote => self.promote(cx),
            Event::Stop => self.stop(cx),
            Event::AddMember { member } => {
                if let Some(slot) = self.slot_of(&member) {
                    let member = self.member_mut(slot);
                    (member.unwanted, member.rejoin) = (false, Time(0));
                }
            }
            Event::RemoveMember { slot } => self.remove_member(slot, cx),
            Event::SourceAnswered { io, result } => self.source_answered(io, result, cx),
            Event::SourceGone => self.source_gone(),
            Event::SourceThere => self.source_there(cx),
            Event::Superseded { by, epoch } => self.superseded(by, epoch, cx),
            Event::SourceStopped { source } => self.source_stopped(source),
            Event::OlderStopped => self.start.older_stopped = true,
            Event::Tidy => self.tidy(cx),
            Event::Scrub { bytes_per_second } => self.scrub(bytes_per_second, cx),
            Event::ResyncLimit { bytes_per_second } => self.config.limits.resync_bytes_per_second = bytes_per_second,
            Event::AcceptLoss { member } => {
                if let Some(slot) = self.slot_of(&member) {
                    self.start.accepted.insert(slot);
                }
            }
        }
        self.drive(cx);
        self.arm(cx);
    }

    /// Starts whatever the state asks for.
    fn drive(&mut self, cx: &mut Cx<'_>) {
        match self.phase {
            Phase::Starting | Phase::Standby => self.drive_record(cx),
            Phase::Opening => self.drive_opening(cx),
            Phase::Equalising => self.drive_equalising(cx),
            Phase::Recording => self.drive_recording(cx),
            Phase::Waiting => {
                self.drive_established(cx);
                self.drive_waiting(cx);
            }
            Phase::Serving => self.drive_established(cx),
            Phase::Idle | Phase::Flushing | Phase::Fenced | Phase::Failed | Phase::Stopped => {}
        }
    }

    /// What goes on while the engine has its set of members: lost ones leave, others join, held requests go.
    fn drive_established(&mut self, cx: &mut Cx<'_>) {
        if self.unknown {
            return self.drive_unknown(cx);
        }
        self.drive_barrier(cx);
        if !self.leaving.is_empty() {
            self.drive_full(cx);
            self.drive_stay(cx);
            self.drive_shrink(cx);
        }
        self.drive_join(cx);
        self.drive_scrub(cx);
        self.drive_held(cx);
        if !self.reads.is_empty() {
            self.look_at_reads(cx);
        }
        self.drive_stop(cx);
    }

    fn set_phase(&mut self, phase: Phase, cx: &mut Cx<'_>) {
        if self.phase != phase {
            self.phase = phase;
            cx.notice(Notice::Phase(phase));
        }
    }

    /// Where the engine is.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The epoch that it minted.
    pub fn epoch(&self) -> Epoch {
        self.record.epoch
    }

    /// The record as the engine last saw it.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Size of the volume in bytes.
    pub fn size(&self) -> u64 {
        self.config.geometry.size
    }

    /// Its uid.
    pub fn holder(&self) -> Holder {
        self.config.holder
    }

    /// Whether every older engine is out: it served, so that it waited for them. Only then does its stop spare a
    /// successor the wait ([`Event::SourceStopped`]).
    pub fn has_served(&self) -> bool {
        self.start.served
    }

    /// The name of the replica in a slot.
    pub fn member_id(&self, slot: Slot) -> Option<&MemberId> {
        self.members.get(usize::from(slot.0)).map(|member| &member.id)
    }

    /// The slot of a replica; a new one if it is not known yet and there is room.
    pub fn slot_of(&mut self, id: &MemberId) -> Option<Slot> {
        if let Some(at) = self.members.iter().position(|member| member.id == *id) {
            return Some(Slot(at as u8));
        }
        if self.members.len() == MAX_MEMBERS {
            return None;
        }
        self.members.push(Member::new(id.clone()));
        Some(Slot(self.members.len() as u8 - 1))
    }

    /// Replicas known to this engine: name, whether it is in sync, whether it is connected.
    pub fn members(&self) -> impl Iterator<Item = (&MemberId, bool, bool)> {
        self.members.iter().enumerate().map(|(at, member)| {
            let slot = Slot(at as u8);
            (&member.id, self.recorded.has(slot), self.is_open(slot))
        })
    }

    /// Requests begun or waiting, for people and tests.
    pub fn pending(&self) -> usize {
        self.active + self.queue.len()
    }
}
