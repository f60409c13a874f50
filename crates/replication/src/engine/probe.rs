//! What a model may ask of an engine or do to it that no host can.

use super::{Cx, Effect, Engine, Leaving, Phase};
use crate::ids::{Session, Slot, Slots, Time};

impl Engine {
    /// Sessions are numbered from here on: a process that took over another one's epoch must not repeat its numbers.
    /// Replicas are brought in only when a test says so.
    pub(crate) fn prepare(&mut self, first: Session) {
        for member in &mut self.members {
            (member.session, member.rejoin) = (first, Time(u64::MAX));
        }
    }

    /// A member does not answer in time.
    pub(crate) fn suspect(&mut self, slot: Slot, now: Time, effects: &mut Vec<Effect>) {
        let cx = &mut Cx { now, fx: effects };
        self.leave(slot, Leaving::Silent, cx);
        self.drive(cx);
    }

    /// Whether a member could be found silent.
    pub(crate) fn can_suspect(&self, slot: Slot) -> bool {
        let others = self.recorded.without(self.leaving).without(Slots::one(slot));
        matches!(self.phase, Phase::Waiting | Phase::Serving)
            && self.required.has(slot)
            && !self.leaving.has(slot)
            && (!others.is_empty() || !self.config.rules.last_member())
    }

    /// The start does not wait for more members.
    pub(crate) fn give_up_waiting(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let cx = &mut Cx { now, fx: effects };
        self.start.deadline = now;
        self.drive(cx);
    }

    /// Whether there is a member to go on with, and one to wait for.
    pub(crate) fn is_waiting_for_members(&self, now: Time) -> bool {
        let open = self.open_slots().and(self.recorded);
        self.phase == Phase::Opening && !open.is_empty() && open != self.recorded && self.start.deadline > now
    }

    /// Asks all required members for a sign of life.
    pub(crate) fn heartbeat(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let cx = &mut Cx { now, fx: effects };
        for slot in self.required.and(self.open_slots()).iter() {
            if !self.member(slot).pinged {
                self.ping(slot, cx);
            }
        }
    }

    /// Members that a read could be sent to now with an answer that counts.
    pub(crate) fn could_read(&self, now: Time) -> Slots {
        let busy = self.locks.writes() && self.config.rules.read_waits();
        if self.phase != Phase::Serving || busy || !self.lease_holds(now) {
            return Slots::NONE;
        }
        self.readable()
    }

    /// Whether the lease would need a sign of life.
    pub(crate) fn lease_lapsed(&self, now: Time) -> bool {
        self.phase == Phase::Serving && !self.lease_holds(now)
    }

    /// Whether it has its set of members, so that it serves until something happens.
    pub(crate) fn is_established(&self) -> bool {
        matches!(self.phase, Phase::Waiting | Phase::Serving)
    }

    /// Whether everything that was asked of it is done, and more could be.
    pub(crate) fn is_well(&self) -> bool {
        self.writes_may_go() && self.pending() == 0 && !self.readable().is_empty()
    }

    /// Enough time goes by to dial any member again.
    pub(crate) fn end_pauses(&mut self, now: Time, effects: &mut Vec<Effect>) {
        for member in &mut self.members {
            member.retry = now;
        }
        self.drive(&mut Cx { now, fx: effects });
    }

    /// Replicas that could be brought in.
    pub(crate) fn could_join(&self) -> Slots {
        if self.may_join() { self.outsiders() } else { Slots::NONE }
    }

    /// The session with a member, if it is open.
    pub(crate) fn open_session(&self, slot: Slot) -> Option<Session> {
        self.is_open(slot).then(|| self.member(slot).session)
    }
}
