//! What goes into an engine and what comes out of it: events, effects, reasons.

use bytes::Bytes;
use thiserror::Error;

use crate::ids::{Epoch, Generation, Holder, MemberId, Session, Slot, Span, VolumeId};
use crate::record::{Change, Record, RecordRewound, Refusal};
use crate::region::Geometry;
use crate::rules::Rules;
use crate::wire::{ControlOp, Extent, Failure, Reply, Request};

/// What an engine is told at birth.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// The uid of this engine process.
    pub holder: Holder,
    /// The volume.
    pub volume: VolumeId,
    /// Size of volume and regions.
    pub geometry: Geometry,
    /// Times and limits.
    pub limits: Limits,
    /// All of them, but in a model.
    pub rules: Rules,
}

/// Times and limits, each with the value that a volume gets if nobody says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// How long a read may be served after the last sign of life of every member. A successor waits as long.
    pub lease: Span,
    /// What clocks of two hosts may differ over one lease: 10 % is far more than any quartz.
    pub drift: Span,
    /// A member that leaves a request unanswered for so long is removed. One second, so that with the flush and
    /// the change of the record I/O stalls for less than two.
    pub answer: Span,
    /// A member that answers, but leaves one request undone for so long, is removed: its disk hangs. Longer than
    /// a flush on a busy disk ever takes.
    pub hung: Span,
    /// How long a start waits for all members of the set before it goes on with those that answered.
    pub open: Span,
    /// Pause between attempts to reach a member.
    pub retry: Span,
    /// Pause between attempts to reach the record.
    pub record_retry: Span,
    /// Pause between attempts to bring a replica that is outside the set back.
    pub rejoin: Span,
    /// Resync: bytes per second; 0 is no limit.
    pub resync_bytes_per_second: u64,
    /// Resync: bytes copied in one piece, which writes to that piece wait for.
    pub resync_chunk: u32,
    /// Resync: how many pieces are on their way at a time.
    pub resync_depth: usize,
    /// Regions in the activity log beyond which quiet ones are cleared.
    pub log_regions: usize,
    /// After so long without a write the log is emptied, so that a reboot of an idle volume's host leaves no doubt.
    pub quiet: Span,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            lease: Span::millis(3000),
            drift: Span::millis(300),
            answer: Span::millis(1000),
            hung: Span::millis(15_000),
            open: Span::millis(1000),
            retry: Span::millis(100),
            record_retry: Span::millis(200),
            rejoin: Span::millis(1000),
            resync_bytes_per_second: 0,
            resync_chunk: 256 << 10,
            resync_depth: 4,
            log_regions: 256,
            quiet: Span::millis(5000),
        }
    }
}

/// A request of a frontend, numbered by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IoId(pub u64);

/// What a frontend asks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum IoOp {
    /// Data.
    Read { offset: u64, len: u32 },
    /// Store data, with `fua` on stable storage.
    Write { offset: u64, data: Bytes, fua: bool },
    /// Store zeroes.
    Zero { offset: u64, len: u32, fua: bool, unmap: bool },
    /// The range is not needed.
    Trim { offset: u64, len: u32 },
    /// Everything acknowledged so far becomes durable.
    Flush,
    /// Which parts are data, which holes.
    Status { offset: u64, len: u32 },
    /// An operation on the whole volume: done alone, at one moment of the history.
    Control(ControlOp),
}

/// How a request of a frontend ended.
pub type IoResult = Result<IoAnswer, IoError>;

/// What a frontend gets.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum IoAnswer {
    /// Done.
    Done,
    /// What was read.
    Data(Bytes),
    /// Consecutive extents from the offset that was asked for.
    Extents(Vec<Extent>),
    /// What a control operation says.
    Controlled(Bytes),
}

/// Why a request of a frontend failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum IoError {
    /// Another engine holds the volume. What had been `sent` to a replica may or may not have happened and must
    /// never be sent again; what had not been was in nobody's hands and may be given to another engine.
    #[error("another engine holds the volume")]
    Fenced { sent: bool },
    /// The engine is closed.
    #[error("the engine is stopped")]
    Stopped,
    /// No replica could do it.
    #[error("{0}")]
    Failed(Failure),
    /// Outside the volume, or longer than one request may be.
    #[error("the request does not fit the volume")]
    Invalid,
    /// The last replica lost power: what was acknowledged but not flushed may be gone.
    #[error("the last replica's host lost power; the volume must be attached again")]
    LastMemberLost,
}

/// What happens to an engine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// Take the volume: mint an epoch, open the replicas, serve. `older_stopped`: every engine that ever held
    /// the volume is known to be stopped, so that no lease is waited for.
    Start { older_stopped: bool },
    /// Become the target of a migration: be named in the record, read through the source. `at` is the record's
    /// generation on which the migration was decided (read from the record itself); if it has moved on, the engine
    /// stops, and the migration is begun again with a new one.
    StandBy { at: Generation },
    /// The standby takes the volume over.
    Promote,
    /// The standby gives up; or the engine stops in order: finishes what it has, flushes, releases the volume.
    Stop,
    /// There is a replica of this name; members that are not in sync are brought in.
    AddMember { member: MemberId },
    /// The replica is to leave the volume for good.
    RemoveMember { slot: Slot },
    /// A request of a frontend.
    Io { id: IoId, op: IoOp },
    /// The connection that [`Effect::Connect`] asked for is there and authenticated.
    Connected { slot: Slot, session: Session },
    /// It failed or is gone.
    Disconnected { slot: Slot, session: Session },
    /// A replica answered.
    Reply { slot: Slot, reply: Reply },
    /// What came of a change of the record.
    Cas { id: CasId, outcome: CasOutcome },
    /// What the source said to a request that was passed on with [`Effect::AskSource`].
    SourceAnswered { io: IoId, result: IoResult },
    /// The source does not answer any more: what was passed on waits for it, or for promotion.
    SourceGone,
    /// The source can be asked (again): what waits is passed on.
    SourceThere,
    /// This engine was told to stop, and said that it has served and stopped. Only if it was the direct predecessor does
    /// that say anything about everybody before it.
    SourceStopped { source: Holder },
    /// Every engine that ever held the volume before this one is known to be stopped.
    OlderStopped,
    /// The engine's own standby was promoted and says so: what it may no longer do, it stops doing at once.
    Superseded { by: Holder, epoch: Epoch },
    /// Whoever stands by is about to take over: what is quiet leaves the activity log now, so that the successor has less
    /// to make equal. Nothing depends on it.
    Tidy,
    /// The moment of [`Effect::SetTimer`] has come.
    Timer,
    /// Bytes per second of resync from now on; 0 is no limit.
    ResyncLimit { bytes_per_second: u64 },
    /// Compare what members hold, at so many bytes per second; 0 stops.
    Scrub { bytes_per_second: u64 },
    /// An operator accepts to serve from doubtful members, named here.
    AcceptLoss { member: MemberId },
}

/// Identifies a change of the record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CasId(pub u64);

/// What came of a change of the record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CasOutcome {
    /// It is done; this is the record now.
    Applied(Record),
    /// It was not legal on this record, which was read in the same step (never from a cache).
    Refused { refusal: Refusal, current: Record },
    /// It certainly never happened and never will: the holder of the record was not reached. (Reach it with a
    /// read before sending the change.)
    NotSent,
    /// It was sent, and nobody knows: it may have happened, may still happen, or never.
    Unknown,
}

/// What an engine wants done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Dial the replica in this slot; [`Event::Connected`] or [`Event::Disconnected`] follows.
    Connect { slot: Slot, session: Session },
    /// Drop the connection, or stop dialing; nothing follows, and events of that session are ignored.
    Disconnect { slot: Slot, session: Session },
    /// Send on the connection.
    Send { slot: Slot, session: Session, request: Request },
    /// Change the record; [`Event::Cas`] follows.
    Cas { id: CasId, change: Change },
    /// A request of a frontend ended.
    Complete { io: IoId, result: IoResult },
    /// Wake the engine then; replaces any earlier wish.
    SetTimer { at: crate::ids::Time },
    /// Something that people should know.
    Notice(Notice),
    /// Pass a request of the standby's frontend on to the source engine.
    AskSource { io: IoId, op: IoOp },
    /// Tell the source to stop; [`Event::SourceStopped`] follows when it answers.
    StopSource,
}

/// Where an engine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Nothing was asked of it yet.
    Idle,
    /// Named in the record; reads through the source.
    Standby,
    /// Its epoch is being minted.
    Starting,
    /// Replicas are being opened.
    Opening,
    /// What the logs name is being made equal.
    Equalising,
    /// Members make everything durable.
    Flushing,
    /// The record is told which members were opened.
    Recording,
    /// Older engines' leases are waited out.
    Waiting,
    /// Reads and writes.
    Serving,
    /// Another engine holds the volume.
    Fenced,
    /// It cannot go on: the last member lost power.
    Failed,
    /// It stopped in order.
    Stopped,
}

/// What people should know, with the facts as values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Notice {
    /// The engine is in another phase.
    Phase(Phase),
    /// The epoch that it minted.
    Started { epoch: Epoch, previous: Holder },
    /// Reads and writes are served.
    Serving { epoch: Epoch, in_sync: Vec<MemberId> },
    /// A start waits: members that answered are doubtful, and others did not answer.
    WaitingForMembers { doubtful: Vec<MemberId>, silent: Vec<MemberId> },
    /// What an earlier engine had in hand is equal on all members: bytes looked at, and bytes that had to be copied.
    Equalised { bytes: u64, copied: u64 },
    /// The record was set back.
    RecordRewound(RecordRewound),
    /// A member is being removed.
    Leaving { member: MemberId, why: Leaving },
    /// It was being removed and is needed after all: the others are gone as well.
    Staying { member: MemberId },
    /// It is removed; the record says so.
    Shrunk { member: MemberId, generation: Generation },
    /// A replica is brought back: what is to be copied.
    Resync { member: MemberId, bytes: u64, full: bool },
    /// How far that is.
    Progress { member: MemberId, done: u64, total: u64, copied: u64 },
    /// It is in sync; the record says so.
    Grown { member: MemberId, generation: Generation, copied: u64 },
    /// Bringing it back was given up for now.
    JoinFailed { member: MemberId, why: Leaving },
    /// How far a comparison of members is.
    Scrubbing { done: u64, total: u64, different: u64 },
    /// What members hold differs here; these are not like most of them.
    Different { offset: u64, len: u32, members: Vec<MemberId> },
    /// A comparison ended.
    Scrubbed { bytes: u64, different: u64 },
    /// Writes wait: a member is lost and the record cannot be changed.
    Suspended(Suspended),
    /// They go on.
    Resumed,
    /// Another engine holds the volume.
    Fenced { by: Holder, epoch: Epoch },
    /// The last member's host lost power.
    LastMemberLost { member: MemberId },
}

/// Why a member leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Leaving {
    /// The connection is gone and did not come back in time.
    Disconnected,
    /// It did not answer in time.
    Silent,
    /// Its disk failed or is full, or it refused.
    Failed(Failure),
    /// Its host rebooted.
    Rebooted,
    /// Its chain of snapshots is another one.
    Chain,
    /// Somebody asked for it.
    Asked,
    /// It missed a write while it was being brought back.
    MissedWrite,
}

/// Why I/O is suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Suspended {
    /// The record cannot be reached.
    RecordUnreachable,
    /// It is not known whether a change of the record happened.
    RecordUnknown,
    /// No member answers.
    NoMembers,
    /// All members' disks are full.
    NoSpace,
}
