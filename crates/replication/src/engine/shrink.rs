//! A member leaves: quiesce, flush the others, take it out of the record, go on.

use super::cas::Purpose;
use super::members::{Link, Token};
use super::{Cx, Engine, Leaving, Notice, Phase, Suspended};
use crate::ids::{Slot, Slots, Time};
use crate::record::Change;
use crate::wire::{Failure, ReplyBody, RequestBody};

/// How far a shrink is; gone and begun anew whenever a kept member is lost.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Shrink {
    attempt: u32,
    waiting: u32,
}

impl Engine {
    /// Marks a required member as leaving; whether it can leave. The last one cannot, and a replica that is only
    /// about to be recorded is simply not brought in.
    pub(super) fn leave(&mut self, slot: Slot, why: Leaving, cx: &mut Cx<'_>) -> bool {
        if !self.required.has(slot) || self.leaving.has(slot) {
            return false;
        }
        if self.join.as_ref().is_some_and(|join| join.slot == slot) && !self.recorded.has(slot) {
            self.abort_join(why, cx);
            return true;
        }
        let kept = self.recorded.without(self.leaving).without(Slots::one(slot));
        if kept.is_empty() && self.config.rules.last_member() {
            return false;
        }
        self.leaving.insert(slot);
        if !matches!(why, Leaving::Disconnected | Leaving::Silent) {
            self.for_good.insert(slot);
        }
        self.shrink = None;
        cx.notice(Notice::Leaving { member: self.name(slot), why });
        self.cut(slot, true, cx);
        true
    }

    /// Members that were to leave for good, in favour of others, and can be had back: the record still names them,
    /// and no change that takes them out is on its way.
    pub(super) fn may_stay(&self) -> Slots {
        if self.unknown || self.asking(Purpose::Shrink) {
            return Slots::NONE;
        }
        self.for_good.and(self.recorded).iter().filter(|slot| !self.member(*slot).rebooted).collect()
    }

    /// If whoever was to be kept is gone as well, those on their way out stay: they hold everything that was
    /// acknowledged, since nothing is while somebody leaves. The others leave in their place.
    pub(super) fn drive_stay(&mut self, cx: &mut Cx<'_>) {
        let (kept, staying) = (self.recorded.without(self.leaving), self.may_stay());
        if staying.is_empty() || !kept.iter().all(|slot| self.is_gone(slot, cx.now)) {
            return;
        }
        self.leaving = self.leaving.without(staying);
        self.for_good = self.for_good.without(staying);
        self.shrink = None;
        for slot in staying.iter() {
            self.member_mut(slot).unwanted = false;
            cx.notice(Notice::Staying { member: self.name(slot) });
        }
        for slot in kept.iter() {
            let why = if self.member(slot).rebooted { Leaving::Rebooted } else { Leaving::Disconnected };
            self.leave(slot, why, cx);
        }
    }

    /// Whether nothing can be expected of a member: its host rebooted, or its connection did not come back in time.
    fn is_gone(&self, slot: Slot, now: Time) -> bool {
        let member = self.member(slot);
        let lost = member.lost.is_some_and(|lost| lost.after(self.config.limits.answer) <= now);
        member.link != Link::Open && (member.rebooted || lost)
    }

    pub(super) fn remove_member(&mut self, slot: Slot, cx: &mut Cx<'_>) {
        if usize::from(slot.0) >= self.members.len() {
            return;
        }
        self.member_mut(slot).unwanted = true;
        if self.join.as_ref().is_some_and(|join| join.slot == slot) {
            self.abort_join(Leaving::Asked, cx);
        }
        let established = matches!(self.phase, Phase::Waiting | Phase::Serving);
        if established && !self.leave(slot, Leaving::Asked, cx) && self.recorded.has(slot) {
            // The last one stays, whoever asks.
            self.member_mut(slot).unwanted = self.leaving.has(slot);
        }
    }

    /// Dials required members that are not connected, but not one whose removal is under way in the record.
    pub(super) fn dial_required(&mut self, cx: &mut Cx<'_>) {
        let recording = self.asking(Purpose::Shrink) || self.unknown;
        for slot in self.required.without(self.for_good).iter() {
            if self.member(slot).link == Link::Down && !(recording && self.leaving.has(slot)) {
                self.dial(slot, cx);
            }
        }
    }

    pub(super) fn drive_shrink(&mut self, cx: &mut Cx<'_>) {
        if self.asked.is_some() || self.unknown {
            return;
        }
        // One change at a time: a replica that is about to be recorded waits for another day.
        if self.join.as_ref().is_some_and(|join| join.required) {
            self.abort_join(Leaving::Asked, cx);
        }
        let kept = self.required.without(self.leaving);
        if !self.open_slots().holds(kept) {
            return;
        }
        match &self.shrink {
            None if self.config.rules.quiesce() && !self.stored_by(kept) => {}
            // A disk that could not flush is given time.
            None if !self.may_ask(cx) => {}
            None => self.flush_kept(kept, cx),
            Some(shrink) if shrink.waiting > 0 => {}
            Some(_) if self.may_ask(cx) => {
                let keep = self.names(self.recorded.without(self.leaving)).into_iter().collect();
                let change = Change::Shrink { by: self.config.holder, at: self.record.generation, keep };
                self.ask(change, Purpose::Shrink, cx);
            }
            Some(_) => {}
        }
    }

    /// Whether these members stored every write that is on its way, or said that they cannot.
    fn stored_by(&self, kept: Slots) -> bool {
        let writes = self.ios.iter().flatten().filter(|io| io.dispatched && io.is_write());
        writes.into_iter().all(|io| io.stored.with(io.broken).holds(kept))
    }

    /// What the kept members stored becomes durable; from now on they remember what the others miss.
    fn flush_kept(&mut self, kept: Slots, cx: &mut Cx<'_>) {
        self.start.attempt += 1;
        let attempt = self.start.attempt;
        let mut waiting = 0;
        for slot in kept.iter() {
            if self.config.rules.flush_before_shrink() {
                self.send(slot, RequestBody::Flush, Token::Shrink(attempt), cx);
                waiting += 1;
            }
            for gone in self.leaving.and(self.recorded).iter() {
                let member = self.name(gone);
                self.send(slot, RequestBody::MapStart { member }, Token::Shrink(attempt), cx);
                waiting += u32::from(self.config.rules.flush_before_shrink());
            }
        }
        self.shrink = Some(Shrink { attempt, waiting });
        if waiting == 0 {
            self.drive_shrink(cx);
        }
    }

    pub(super) fn shrink_answered(&mut self, slot: Slot, attempt: u32, body: ReplyBody, cx: &mut Cx<'_>) {
        let Some(shrink) = self.shrink.as_mut().filter(|shrink| shrink.attempt == attempt) else { return };
        if let ReplyBody::Failed(failure) = body {
            self.shrink = None;
            self.kept_failed(slot, failure, cx);
            return;
        }
        shrink.waiting = shrink.waiting.saturating_sub(1);
    }

    /// A member that was to stay cannot flush. If it is the last one, writes wait: its disk may recover.
    fn kept_failed(&mut self, slot: Slot, failure: Failure, cx: &mut Cx<'_>) {
        if !self.leave(slot, Leaving::Failed(failure), cx) {
            let retry = self.config.limits.record_retry;
            self.record_retry = Some(cx.now.after(retry));
            self.suspend(Suspended::NoMembers, cx);
        }
    }
}
