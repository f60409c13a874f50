//! Time: when the engine wants to be woken, and what has come due.
//!
//! An idle engine wants nothing. Under load the earliest moment moves on with every request; the timer that is
//! armed is left where it is and, when it fires early, is simply set again: about one per second.

use super::members::{Link, Member, Token};
use super::{Cx, Effect, Engine, Leaving, Phase};
use crate::ids::{Slot, Slots, Span, Time};

impl Engine {
    /// Sets the timer, if an earlier moment than the armed one is wanted.
    pub(super) fn arm(&mut self, cx: &mut Cx<'_>) {
        let Some(at) = self.wanted(cx.now) else { return };
        if self.armed.is_none_or(|armed| at < armed) {
            self.armed = Some(at);
            cx.fx.push(Effect::SetTimer { at });
        }
    }

    /// The earliest moment at which something is due. What [`Engine::drive`] could have done by now and did not
    /// waits for another event, not for time.
    fn wanted(&self, now: Time) -> Option<Time> {
        let established = matches!(self.phase, Phase::Waiting | Phase::Serving);
        let members = match self.phase {
            Phase::Idle | Phase::Standby | Phase::Starting | Phase::Fenced | Phase::Failed | Phase::Stopped => None,
            _ => self
                .members
                .iter()
                .enumerate()
                .filter_map(|(at, member)| self.member_due(Slot(at as u8), member, now))
                .min(),
        };
        let opening = (self.phase == Phase::Opening && self.start.deadline > now).then_some(self.start.deadline);
        let waiting = (self.phase == Phase::Waiting).then(|| self.wait_ends());
        let joining = (established && self.may_join())
            .then(|| self.outsiders().iter().map(|slot| self.member(slot).rejoin).filter(|at| *at > now).min())
            .flatten();
        let depth = self.config.limits.resync_depth;
        let copying =
            self.copy.as_ref().filter(|job| job.wants_more(depth) && job.not_before > now).map(|job| job.not_before);
        let serving = self.phase == Phase::Serving;
        let quiet = self.last_write.filter(|_| serving).map(|last| last.after(self.config.limits.quiet));
        let record = self.record_retry.filter(|at| self.asked.is_none() && *at > now);
        let scrub = self.scrub.as_ref().filter(|_| serving).and_then(|scrub| scrub.due(now));
        [members, opening, waiting, joining, copying, scrub, quiet, record, self.full_retry].into_iter().flatten().min()
    }

    /// When something is due about one member: dial it again, ask for a sign of life, give it up.
    fn member_due(&self, slot: Slot, member: &Member, now: Time) -> Option<Time> {
        let limits = self.config.limits;
        let wanted = self.recorded.with(self.required).without(self.for_good).has(slot);
        let dial = (wanted && member.link == Link::Down && member.retry > now).then_some(member.retry);
        let given_up = member.lost.map(|lost| lost.after(limits.answer));
        let given_up = given_up.filter(|at| self.may_leave(slot) || (*at > now && !self.may_stay().is_empty()));
        let silent = Self::silence(member).map(|since| {
            let patience = if member.pinged { limits.answer } else { Span(limits.answer.0 / 2) };
            since.after(patience)
        });
        let hung = self.patience(member);
        [dial, given_up, silent, hung].into_iter().flatten().min()
    }

    /// Since when a connected member owes an answer without having said anything.
    fn silence(member: &Member) -> Option<Time> {
        if member.link != Link::Open {
            return None;
        }
        member.pending.oldest().map(|oldest| oldest.sent.max(member.received))
    }

    /// When to give up a request: a promise may have to wait for what older engines left, other requests only for
    /// the disk. A control operation may take its time, as long as the member gives signs of life.
    fn patience(&self, member: &Member) -> Option<Time> {
        let limits = self.config.limits;
        if member.pending.oldest().is_some_and(|oldest| oldest.token == Token::Control) {
            return None;
        }
        let span = if member.link == Link::Open { limits.hung } else { Span(limits.answer.0.saturating_mul(3)) };
        member.pending.oldest().map(|oldest| oldest.sent.after(span))
    }

    fn may_leave(&self, slot: Slot) -> bool {
        let established = matches!(self.phase, Phase::Waiting | Phase::Serving);
        let kept = self.recorded.without(self.leaving).without(Slots::one(slot));
        established && self.required.has(slot) && !self.leaving.has(slot) && !kept.is_empty()
    }

    /// Does what is due.
    pub(super) fn time_passed(&mut self, cx: &mut Cx<'_>) {
        for slot in (0..self.members.len() as u8).map(Slot) {
            self.member_time_passed(slot, cx);
        }
        if self.full_retry.is_some_and(|at| at <= cx.now) {
            self.retry_full(cx);
        }
        let quiet = self.config.limits.quiet;
        if self.phase == Phase::Serving && self.last_write.is_some_and(|last| last.after(quiet) <= cx.now) {
            if self.barrier.is_some() || !self.writes_may_go() {
                self.last_write = Some(cx.now);
            } else {
                self.last_write = None;
                self.flush_quietly(cx);
            }
        }
    }

    fn member_time_passed(&mut self, slot: Slot, cx: &mut Cx<'_>) {
        let limits = self.config.limits;
        let member = self.member(slot);
        let hung = self.patience(member).is_some_and(|at| at <= cx.now);
        let silent = Self::silence(member).is_some_and(|since| since.after(limits.answer) <= cx.now);
        let quiet = Self::silence(member).is_some_and(|since| since.after(Span(limits.answer.0 / 2)) <= cx.now);
        let pinged = member.pinged;
        if hung || (silent && pinged) {
            if !self.leave(slot, Leaving::Silent, cx) {
                // The last one, or not required: another connection may do better.
                self.member_mut(slot).retry = cx.now.after(limits.retry);
                self.cut(slot, true, cx);
            }
        } else if quiet && !pinged {
            self.ping(slot, cx);
        }
        let lost = self.member(slot).lost.is_some_and(|lost| lost.after(limits.answer) <= cx.now);
        if lost && self.may_leave(slot) {
            self.leave(slot, Leaving::Disconnected, cx);
        }
    }

    /// The moment of the timer that is armed.
    pub fn armed(&self) -> Option<Time> {
        self.armed
    }
}
