//! Changes of the record: asking for them, and what every possible answer means.
//!
//! Whatever the answer, the record that came with it is adopted as a whole: [`Engine::adopt`] compares it with what
//! the engine believed, and members that are no longer in it are out, however that came about.

use super::{CasId, CasOutcome, Cx, Effect, Engine, IoError, Notice, Phase, Suspended};
use crate::ids::{Epoch, Slots};
use crate::record::{Change, Record, RecordRewound};

/// What a change of the record is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Purpose {
    Start,
    Promote,
    StandBy,
    ClearStandby,
    /// The start tells which members were opened.
    Opened,
    Shrink,
    Grow,
    /// An earlier change may have happened; after this it has or never will.
    Settle,
    /// A replica promised a newer epoch: is there one in the record?
    Probe {
        promised: Epoch,
    },
    Release,
}

/// The change that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Asked {
    id: CasId,
    pub(super) purpose: Purpose,
}

impl Engine {
    /// Whether a change may be asked for now.
    pub(super) fn may_ask(&self, cx: &Cx<'_>) -> bool {
        self.asked.is_none() && self.record_retry.is_none_or(|at| at <= cx.now)
    }

    pub(super) fn ask(&mut self, change: Change, purpose: Purpose, cx: &mut Cx<'_>) {
        self.record_retry = None;
        self.next_cas += 1;
        let id = CasId(self.next_cas);
        self.asked = Some(Asked { id, purpose });
        cx.fx.push(Effect::Cas { id, change });
    }

    /// Whether a change for this purpose is under way.
    pub(super) fn asking(&self, purpose: Purpose) -> bool {
        self.asked.is_some_and(|asked| asked.purpose == purpose)
    }

    /// Takes the volume, or becomes standby: repeated until there is an answer, which is safe because a record that
    /// names this process already says so.
    pub(super) fn drive_record(&mut self, cx: &mut Cx<'_>) {
        if !self.may_ask(cx) {
            return;
        }
        let holder = self.config.holder;
        match (self.phase, self.start.promoting) {
            (Phase::Starting, true) if self.config.rules.promotion_named() => {
                self.ask(Change::Promote { standby: holder }, Purpose::Promote, cx);
            }
            (Phase::Starting, _) => self.ask(Change::Start { holder }, Purpose::Start, cx),
            (Phase::Standby, _) if self.stopping => {
                self.ask(Change::ClearStandby { standby: holder }, Purpose::ClearStandby, cx);
            }
            (Phase::Standby, _) if self.record.standby != Some(holder) => {
                let change = Change::SetStandby { standby: holder, at: self.record.generation };
                self.ask(change, Purpose::StandBy, cx);
            }
            _ => {}
        }
    }

    /// Resolves an unknown outcome.
    pub(super) fn drive_unknown(&mut self, cx: &mut Cx<'_>) {
        if self.unknown && self.may_ask(cx) {
            let change = Change::Settle { by: self.config.holder, at: self.record.generation };
            self.ask(change, Purpose::Settle, cx);
        }
    }

    pub(super) fn cas_answered(&mut self, id: CasId, outcome: CasOutcome, cx: &mut Cx<'_>) {
        let Some(asked) = self.asked.filter(|asked| asked.id == id) else { return };
        self.asked = None;
        match outcome {
            CasOutcome::NotSent => self.record_unreachable(asked.purpose, cx),
            CasOutcome::Unknown => self.outcome_unknown(asked.purpose, cx),
            CasOutcome::Applied(record) => self.applied(asked.purpose, record, cx),
            CasOutcome::Refused { current, .. } => self.not_applied(asked.purpose, current, cx),
        }
    }

    fn record_unreachable(&mut self, purpose: Purpose, cx: &mut Cx<'_>) {
        let retry = self.config.limits.record_retry;
        self.record_retry = Some(cx.now.after(retry));
        match purpose {
            Purpose::Shrink => self.suspend(Suspended::RecordUnreachable, cx),
            Purpose::Grow => {
                if let Some(join) = self.join.as_mut() {
                    join.recording = false;
                }
            }
            _ => {}
        }
    }

    fn outcome_unknown(&mut self, purpose: Purpose, cx: &mut Cx<'_>) {
        // The first attempt to find out is made at once.
        let retry = self.config.limits.record_retry;
        let at_once = matches!(purpose, Purpose::Opened | Purpose::Shrink | Purpose::Grow | Purpose::Release);
        self.record_retry = (!at_once).then(|| cx.now.after(retry));
        match purpose {
            // Repeating it gives the answer.
            Purpose::Start | Purpose::Promote | Purpose::StandBy | Purpose::ClearStandby | Purpose::Probe { .. } => {}
            Purpose::Grow if !self.config.rules.grow_required_first() => {
                self.not_grown(cx);
            }
            _ if !self.config.rules.unknown() => {
                self.shrink = None;
                self.leaving = Slots::NONE;
            }
            Purpose::Opened | Purpose::Shrink | Purpose::Grow | Purpose::Settle | Purpose::Release => {
                self.unknown = true;
                self.suspend(Suspended::RecordUnknown, cx);
                if !matches!(self.phase, Phase::Waiting | Phase::Serving) {
                    self.open_again(cx);
                }
            }
        }
    }

    fn applied(&mut self, purpose: Purpose, record: Record, cx: &mut Cx<'_>) {
        match purpose {
            Purpose::Start | Purpose::Promote => self.minted(record, cx),
            Purpose::StandBy => self.record = record,
            Purpose::ClearStandby => self.end(Phase::Stopped, IoError::Stopped, cx),
            Purpose::Release => {
                self.record = record;
                self.end(Phase::Stopped, IoError::Stopped, cx);
            }
            Purpose::Probe { promised } => {
                let recorded = record.epoch;
                let generation = record.generation;
                self.record = record;
                cx.notice(Notice::RecordRewound(RecordRewound { recorded, promised, generation }));
                self.end(Phase::Failed, IoError::Stopped, cx);
            }
            Purpose::Opened | Purpose::Shrink | Purpose::Grow | Purpose::Settle => self.adopt(record, purpose, cx),
        }
    }

    fn not_applied(&mut self, purpose: Purpose, current: Record, cx: &mut Cx<'_>) {
        let mine = current.holder == self.config.holder;
        match purpose {
            // An earlier attempt of ours had been applied.
            Purpose::Start | Purpose::Promote if mine => self.minted(current, cx),
            Purpose::Start => self.record_retry = Some(cx.now.after(self.config.limits.record_retry)),
            Purpose::StandBy if current.standby == Some(self.config.holder) => self.record = current,
            Purpose::StandBy | Purpose::Promote | Purpose::ClearStandby => {
                self.record = current;
                self.end(Phase::Stopped, IoError::Stopped, cx);
            }
            _ if !mine => self.fenced_by_record(current, cx),
            Purpose::Release => {
                self.record = current;
                if self.record.released {
                    self.end(Phase::Stopped, IoError::Stopped, cx);
                }
            }
            Purpose::Probe { .. } | Purpose::Opened | Purpose::Shrink | Purpose::Grow | Purpose::Settle => {
                self.adopt(current, Purpose::Settle, cx);
            }
        }
    }

    /// The record is this one, and this engine holds it: who is in it, is in; who is not, is out.
    pub(super) fn adopt(&mut self, record: Record, purpose: Purpose, cx: &mut Cx<'_>) {
        self.unknown = false;
        self.record_retry = None;
        let before = self.recorded;
        self.record = record;
        let names: Vec<_> = self.record.in_sync.iter().cloned().collect();
        self.recorded = names.iter().filter_map(|name| self.slot_of(name)).collect();
        match self.phase {
            Phase::Waiting | Phase::Serving => self.adopt_serving(before, cx),
            Phase::Recording if purpose == Purpose::Opened => self.opened_recorded(cx),
            Phase::Opening | Phase::Equalising | Phase::Flushing | Phase::Recording => self.open_again(cx),
            _ => {}
        }
    }

    fn adopt_serving(&mut self, before: Slots, cx: &mut Cx<'_>) {
        let generation = self.record.generation;
        let joining = self.join.as_ref().filter(|join| join.required).map(|join| join.slot);
        let grown = joining.filter(|slot| self.recorded.has(*slot));
        let sent = self.join.as_ref().is_some_and(|join| join.recording);
        self.required = self.recorded;
        if let (Some(slot), None, false) = (joining, grown, sent) {
            self.required.insert(slot);
        }
        self.leaving = self.leaving.and(self.recorded);
        self.for_good = self.for_good.and(self.recorded);
        if self.leaving == self.recorded {
            // Whoever is left is the last one, and stays.
            (self.leaving, self.for_good) = (Slots::NONE, Slots::NONE);
        }
        self.shrink = None;
        for slot in before.without(self.recorded).iter() {
            let rejoin = self.config.limits.rejoin;
            self.cut(slot, true, cx);
            let member = self.member_mut(slot);
            (member.lost, member.rebooted) = (None, false);
            member.rejoin = cx.now.after(rejoin);
            cx.notice(Notice::Shrunk { member: self.name(slot), generation });
        }
        match (grown, sent) {
            (Some(_), _) => self.grown(cx),
            (None, true) => self.not_grown(cx),
            (None, false) => {}
        }
        for index in 0..self.ios.len() {
            if let Some(io) = self.ios[index].as_mut() {
                io.sent = io.sent.without(before.without(self.recorded));
            }
        }
        if let Some(last) = self.required.first().filter(|_| self.all_rebooted()) {
            cx.notice(Notice::LastMemberLost { member: self.name(last) });
            return self.fail(cx);
        }
        self.resume(cx);
        self.look_at_all(cx);
    }

    pub(super) fn suspend(&mut self, why: Suspended, cx: &mut Cx<'_>) {
        if self.suspended != Some(why) {
            self.suspended = Some(why);
            cx.notice(Notice::Suspended(why));
        }
    }

    /// Writes go on, if nothing holds them back any more.
    pub(super) fn resume(&mut self, cx: &mut Cx<'_>) {
        if self.suspended.is_some() && self.full_retry.is_none() && self.writes_may_go() {
            self.suspended = None;
            cx.notice(Notice::Resumed);
        }
    }

    fn fenced_by_record(&mut self, current: Record, cx: &mut Cx<'_>) {
        cx.notice(Notice::Fenced { by: current.holder, epoch: current.epoch });
        self.end(Phase::Fenced, IoError::Fenced { sent: true }, cx);
    }

    /// A replica promised a newer epoch. While serving that means a successor; at a start it may also mean that the
    /// record was set back, which the record itself must tell.
    pub(super) fn fenced_by_replica(&mut self, promised: Epoch, cx: &mut Cx<'_>) {
        if matches!(self.phase, Phase::Waiting | Phase::Serving) {
            cx.notice(Notice::Fenced { by: crate::ids::Holder::NOBODY, epoch: promised });
            return self.end(Phase::Fenced, IoError::Fenced { sent: true }, cx);
        }
        if self.asked.is_none() && !self.unknown {
            let change = Change::Settle { by: self.config.holder, at: self.record.generation };
            self.ask(change, Purpose::Probe { promised }, cx);
        }
    }

    /// The engine will never serve again: everything that waits fails.
    pub(super) fn end(&mut self, phase: Phase, error: IoError, cx: &mut Cx<'_>) {
        self.set_phase(phase, cx);
        self.asked = None;
        self.unknown = false;
        (self.join, self.copy, self.shrink, self.barrier) = (None, None, None, None);
        self.scrub = None;
        self.leaving = Slots::NONE;
        for slot in (0..self.members.len() as u8).map(crate::ids::Slot) {
            self.cut(slot, true, cx);
        }
        for index in 0..self.ios.len() {
            let Some(io) = self.ios[index].take() else { continue };
            let error = if let IoError::Fenced { .. } = error { IoError::Fenced { sent: io.ever_sent } } else { error };
            if let Some(id) = io.client {
                cx.fx.push(Effect::Complete { io: id, result: Err(error) });
            }
        }
        self.ios.clear();
        self.free.clear();
        self.queue.clear();
        self.held.clear();
        self.reads.clear();
        self.active = 0;
        self.locks = super::Locks::new(self.config.rules);
        self.activity = super::Activity::default();
        self.last_write = None;
    }

    /// The last member lost power under this engine.
    pub(super) fn fail(&mut self, cx: &mut Cx<'_>) {
        self.end(Phase::Failed, IoError::LastMemberLost, cx);
    }
}
