//! Connections to replicas: sessions, requests on their way, what an answer belongs to.

use super::cas::Purpose;
use super::ring::Ring;
use super::{Cx, Effect, Engine, Leaving, Notice, Phase};
use crate::ids::{BootId, MemberId, Session, Slot, Slots, Time};
use crate::region::RegionSet;
use crate::wire::{Failure, Open, Opened, Reply, ReplyBody, Request, RequestBody, RequestId, Role};

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Link {
    Down,
    Dialing,
    Opening,
    Open,
}

/// What an answer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Token {
    Open,
    Io(u32),
    Ping,
    /// A step of the start, of this attempt.
    Start(u32),
    /// A step of a shrink, of this attempt.
    Shrink(u32),
    /// A step of a join, of this attempt.
    Join(u32),
    /// A step of a piece of a copy: number of the copy, of the piece.
    Copy(u32, u32),
    /// A checksum for a comparison, of this number.
    Scrub(u32),
    Control,
    /// Nobody waits for it, but a failure means something.
    Aside,
}

/// A request on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pending {
    pub(super) token: Token,
    pub(super) sent: Time,
}

/// One replica, as the engine sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::struct_excessive_bools)] // independent facts, not states of one machine
pub(super) struct Member {
    pub(super) id: MemberId,
    pub(super) session: Session,
    pub(super) link: Link,
    pub(super) pending: Ring<Pending>,
    /// When the last request that it answered was sent: from then on it may have promised another epoch.
    pub(super) heard: Option<Time>,
    /// When it last said anything.
    pub(super) received: Time,
    pub(super) pinged: bool,
    /// When its connection was lost, while it is required.
    pub(super) lost: Option<Time>,
    /// Not dialed before this.
    pub(super) retry: Time,
    /// Not brought in before this.
    pub(super) rejoin: Time,
    /// The boot in which it was first opened by this engine.
    pub(super) boot: Option<BootId>,
    pub(super) doubtful: bool,
    pub(super) log: u64,
    pub(super) regions: RegionSet,
    pub(super) chain: u64,
    pub(super) size: u64,
    /// Left out of this start: it answered, but its disk failed.
    pub(super) excluded: bool,
    /// Somebody took it away from the volume.
    pub(super) unwanted: bool,
    /// Its host rebooted while it was required.
    pub(super) rebooted: bool,
}

impl Member {
    pub(super) fn new(id: MemberId) -> Self {
        Self {
            id,
            session: Session(0),
            link: Link::Down,
            pending: Ring::new(),
            heard: None,
            received: Time(0),
            pinged: false,
            lost: None,
            retry: Time(0),
            rejoin: Time(0),
            boot: None,
            doubtful: false,
            log: 0,
            regions: RegionSet::new(),
            chain: 0,
            size: 0,
            excluded: false,
            unwanted: false,
            rebooted: false,
        }
    }
}

impl Engine {
    pub(super) fn member(&self, slot: Slot) -> &Member {
        &self.members[usize::from(slot.0)]
    }

    pub(super) fn member_mut(&mut self, slot: Slot) -> &mut Member {
        &mut self.members[usize::from(slot.0)]
    }

    pub(super) fn name(&self, slot: Slot) -> MemberId {
        self.member(slot).id.clone()
    }

    pub(super) fn names(&self, slots: Slots) -> Vec<MemberId> {
        slots.iter().map(|slot| self.name(slot)).collect()
    }

    pub(super) fn is_open(&self, slot: Slot) -> bool {
        self.member(slot).link == Link::Open
    }

    /// All replicas that can be asked at the moment.
    pub(super) fn open_slots(&self) -> Slots {
        (0..self.members.len() as u8).map(Slot).filter(|slot| self.is_open(*slot)).collect()
    }

    /// Sends a request; the answer comes back with `token`.
    pub(super) fn send(&mut self, slot: Slot, body: RequestBody, token: Token, cx: &mut Cx<'_>) {
        let epoch = self.record.epoch;
        let member = self.member_mut(slot);
        let id = RequestId(member.pending.push(Pending { token, sent: cx.now }));
        let session = member.session;
        cx.fx.push(Effect::Send { slot, session, request: Request { id, epoch, session, body } });
    }

    /// Dials a replica that is not connected, if it is time.
    pub(super) fn dial(&mut self, slot: Slot, cx: &mut Cx<'_>) {
        let member = self.member_mut(slot);
        if member.link == Link::Down && member.retry <= cx.now {
            member.link = Link::Dialing;
            member.session = member.session.next();
            let session = member.session;
            cx.fx.push(Effect::Connect { slot, session });
        }
    }

    pub(super) fn connected(&mut self, slot: Slot, session: Session, cx: &mut Cx<'_>) {
        let member = self.member(slot);
        if member.session != session || member.link != Link::Dialing {
            return;
        }
        let role = if self.recorded.with(self.required).has(slot) { Role::Member } else { Role::Joiner };
        let (holder, volume) = (self.config.holder, self.config.volume);
        let open = Open { holder, volume, generation: self.record.generation, role };
        self.member_mut(slot).link = Link::Opening;
        self.member_mut(slot).received = cx.now;
        self.send(slot, RequestBody::Open(open), Token::Open, cx);
    }

    pub(super) fn disconnected(&mut self, slot: Slot, session: Session, cx: &mut Cx<'_>) {
        if self.member(slot).session == session && self.member(slot).link != Link::Down {
            let retry = self.config.limits.retry;
            self.cut(slot, false, cx);
            self.member_mut(slot).retry = cx.now.after(retry);
        }
    }

    /// Ends a session: what was sent in it is unanswered for good. `tell`: the connection is still there.
    pub(super) fn cut(&mut self, slot: Slot, tell: bool, cx: &mut Cx<'_>) {
        let member = self.member_mut(slot);
        if member.link == Link::Down {
            return;
        }
        let was_open = member.link == Link::Open;
        member.link = Link::Down;
        member.pinged = false;
        let session = member.session;
        let lost = member.pending.drain();
        if tell {
            cx.fx.push(Effect::Disconnect { slot, session });
        }
        if self.required.has(slot) && self.member(slot).lost.is_none() {
            self.member_mut(slot).lost = Some(cx.now);
        }
        for pending in lost {
            match pending.token {
                Token::Io(index) => self.unanswered(slot, index, cx),
                Token::Scrub(number) => {
                    self.scrub_answered(slot, number, &ReplyBody::Failed(Failure::Session), cx);
                }
                _ => {}
            }
        }
        if was_open {
            self.member_lost(slot, cx);
        } else if self.join.as_ref().is_some_and(|join| join.slot == slot) {
            self.abort_join(Leaving::Disconnected, cx);
        }
    }

    /// An open session ended.
    fn member_lost(&mut self, slot: Slot, cx: &mut Cx<'_>) {
        match self.phase {
            Phase::Equalising | Phase::Flushing if self.start.set.has(slot) => self.open_again(cx),
            Phase::Waiting | Phase::Serving => {
                if self.join.as_ref().is_some_and(|join| join.slot == slot || join.source == Some(slot)) {
                    let why = if self.join.as_ref().is_some_and(|join| join.slot == slot) {
                        Leaving::Disconnected
                    } else {
                        Leaving::MissedWrite
                    };
                    self.abort_join(why, cx);
                }
                if self.shrink.is_some() && !self.leaving.has(slot) {
                    self.shrink = None;
                }
                if self.control_lost(slot) && self.required.has(slot) {
                    self.leave(slot, Leaving::Disconnected, cx);
                }
            }
            _ => {}
        }
    }

    pub(super) fn reply(&mut self, slot: Slot, reply: Reply, cx: &mut Cx<'_>) {
        let from_sending = self.config.rules.lease_from_sending();
        if usize::from(slot.0) >= self.members.len() {
            return;
        }
        let member = self.member_mut(slot);
        if member.session != reply.session || member.link < Link::Opening {
            return;
        }
        let Some(Pending { token, sent }) = member.pending.take(reply.id.0) else { return };
        member.received = cx.now;
        if let ReplyBody::Failed(
            failure @ (Failure::Fenced { .. } | Failure::Session | Failure::NotOpen | Failure::Volume),
        ) = reply.body
        {
            return self.refused(slot, failure, cx);
        }
        let heard = if from_sending { sent } else { cx.now };
        if token != Token::Open && member.heard.is_none_or(|before| before < heard) {
            member.heard = Some(heard);
        }
        match token {
            Token::Open => self.open_answered(slot, sent, reply.body, cx),
            Token::Io(index) => self.io_answered(slot, index, reply.body, cx),
            Token::Ping => self.member_mut(slot).pinged = false,
            Token::Start(attempt) => self.start_answered(slot, attempt, reply.body, cx),
            Token::Shrink(attempt) => self.shrink_answered(slot, attempt, reply.body, cx),
            Token::Join(attempt) => self.join_answered(slot, attempt, reply.body, cx),
            Token::Copy(number, piece) => self.copy_answered(slot, number, piece, reply.body, cx),
            Token::Scrub(number) => self.scrub_answered(slot, number, &reply.body, cx),
            Token::Control => self.control_answered(slot, reply.body, cx),
            Token::Aside => {
                if let ReplyBody::Failed(failure) = reply.body {
                    self.member_failed(slot, failure, cx);
                }
            }
        }
        if !self.reads.is_empty() {
            self.look_at_reads(cx);
        }
    }

    /// A replica does not listen to this engine or this session.
    fn refused(&mut self, slot: Slot, failure: Failure, cx: &mut Cx<'_>) {
        let rejoin = self.config.limits.rejoin;
        if let Failure::Fenced { promised } = failure {
            self.fenced_by_replica(promised, cx);
        }
        if failure != Failure::Session {
            self.member_mut(slot).retry = cx.now.after(rejoin);
        }
        self.cut(slot, true, cx);
    }

    /// A replica promised this epoch and tells about itself.
    fn open_answered(&mut self, slot: Slot, sent: Time, body: ReplyBody, cx: &mut Cx<'_>) {
        let ReplyBody::Opened(opened) = body else {
            let retry = self.config.limits.rejoin;
            self.cut(slot, true, cx);
            self.member_mut(slot).retry = cx.now.after(retry);
            return;
        };
        let established = matches!(self.phase, Phase::Waiting | Phase::Serving);
        let rebooted = self.member(slot).boot.is_some_and(|boot| boot != opened.boot) || opened.doubtful;
        let generation = opened.generation;
        self.introduce(slot, sent, opened);
        if let Some(rewound) = self.record.rewound_by(self.record.epoch, generation) {
            self.cut(slot, true, cx);
            return cx.notice(Notice::RecordRewound(rewound));
        }
        if self.recorded.has(slot) && self.start.promised.is_none() {
            self.start.promised = Some(cx.now);
        }
        if !established {
            self.member_mut(slot).lost = None;
            return;
        }
        if self.join.as_ref().is_some_and(|join| join.slot == slot && !join.recording) && !self.recorded.has(slot) {
            return self.join_opened(slot, cx);
        }
        if !self.required.has(slot) {
            return;
        }
        if rebooted && self.config.rules.rebooted_is_away() {
            return self.member_rebooted(slot, cx);
        }
        if self.leaving.has(slot) && (self.asking(Purpose::Shrink) || self.unknown) {
            // The record may be without it already.
            return self.cut(slot, true, cx);
        }
        self.member_back(slot, cx);
    }

    fn introduce(&mut self, slot: Slot, sent: Time, opened: Opened) {
        let member = self.member_mut(slot);
        member.link = Link::Open;
        member.heard = member.heard.max(Some(sent));
        member.boot.get_or_insert(opened.boot);
        member.doubtful = opened.doubtful;
        (member.log, member.chain, member.size) = (opened.log, opened.chain, opened.size);
        member.regions = opened.regions;
    }

    /// A required member continues in a new session, with everything unacknowledged sent again.
    fn member_back(&mut self, slot: Slot, cx: &mut Cx<'_>) {
        self.member_mut(slot).lost = None;
        self.leaving.remove(slot);
        self.shrink = None;
        for index in 0..self.ios.len() as u32 {
            self.send_again(slot, index, cx);
        }
        self.resume(cx);
        self.look_at_all(cx);
    }

    pub(super) fn all_rebooted(&self) -> bool {
        self.required.iter().all(|slot| self.member(slot).rebooted)
    }

    /// A required member's host rebooted: what it had stored without a flush may be gone, so it is away. If that is
    /// so of every required member, nobody can go on as if nothing had happened.
    fn member_rebooted(&mut self, slot: Slot, cx: &mut Cx<'_>) {
        self.cut(slot, true, cx);
        let rejoin = self.config.limits.rejoin;
        self.member_mut(slot).retry = cx.now.after(rejoin);
        self.member_mut(slot).rebooted = true;
        if self.all_rebooted() {
            cx.notice(Notice::LastMemberLost { member: self.name(slot) });
            return self.fail(cx);
        }
        self.leave(slot, Leaving::Rebooted, cx);
    }
}
