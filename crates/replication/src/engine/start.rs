//! The start of an engine: mint an epoch, open the members, make them equal, flush, record, wait, serve.

use super::cas::Purpose;
use super::copy::CopyJob;
use super::members::Token;
use super::{Cx, Effect, Engine, Notice, Phase};
use crate::ids::{Slot, Slots, Span, Time};
use crate::record::{Change, Record};
use crate::region::RegionSet;
use crate::wire::{Layer, ReplyBody, RequestBody};

/// How far a start is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[allow(clippy::struct_excessive_bools)] // independent facts, not states of one machine
pub(super) struct Start {
    /// Steps of an earlier attempt do not count.
    pub(super) attempt: u32,
    /// Answers that this step waits for.
    pub(super) waiting: u32,
    pub(super) deadline: Time,
    /// When the epoch was minted.
    minted: Time,
    /// When a recorded member was first known to have promised it.
    pub(super) promised: Option<Time>,
    /// The members that this engine goes on with.
    pub(super) set: Slots,
    /// What their logs named.
    regions: RegionSet,
    step: Step,
    pub(super) older_stopped: bool,
    pub(super) promoting: bool,
    pub(super) served: bool,
    /// Members whose loss an operator accepted.
    pub(super) accepted: Slots,
    told_waiting: bool,
}

/// Which step of the flush is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Step {
    #[default]
    Flush,
    Settle,
}

impl Engine {
    pub(super) fn begin(&mut self, older_stopped: bool, cx: &mut Cx<'_>) {
        if self.phase == Phase::Idle {
            self.start.older_stopped = older_stopped;
            self.set_phase(Phase::Starting, cx);
        }
    }

    /// The record names this engine.
    pub(super) fn minted(&mut self, record: Record, cx: &mut Cx<'_>) {
        cx.notice(Notice::Started { epoch: record.epoch, previous: record.previous });
        let alone = record.alone;
        self.start.minted = cx.now;
        self.start.older_stopped |= alone;
        if self.start.promoting {
            cx.fx.push(Effect::StopSource);
        }
        self.set_phase(Phase::Opening, cx);
        self.adopt(record, Purpose::Start, cx);
    }

    /// Looks again at who is there.
    pub(super) fn open_again(&mut self, cx: &mut Cx<'_>) {
        self.set_phase(Phase::Opening, cx);
        let wait = self.config.limits.open;
        self.start.attempt += 1;
        self.start.waiting = 0;
        self.start.deadline = cx.now.after(wait);
        self.start.set = Slots::NONE;
        self.copy = None;
        self.required = self.recorded;
    }

    pub(super) fn drive_opening(&mut self, cx: &mut Cx<'_>) {
        for slot in self.recorded.iter() {
            self.dial(slot, cx);
        }
        if self.unknown {
            return self.drive_unknown(cx);
        }
        let ready: Slots =
            self.recorded.and(self.open_slots()).iter().filter(|slot| !self.member(*slot).excluded).collect();
        if ready.is_empty() && cx.now >= self.start.deadline {
            // Nobody else is left: a disk that failed may do better next time.
            self.members.iter_mut().for_each(|member| member.excluded = false);
        }
        let all = ready == self.recorded;
        if ready.is_empty() || (!all && cx.now < self.start.deadline) || self.asked.is_some() {
            return;
        }
        let sure: Slots =
            ready.iter().filter(|slot| !self.member(*slot).doubtful || self.start.accepted.has(*slot)).collect();
        if sure.is_empty() && !all && self.config.rules.doubt() {
            if self.recorded.iter().any(|slot| self.member(slot).excluded) {
                // The others alone are no basis: whoever failed before is needed after all.
                self.members.iter_mut().for_each(|member| member.excluded = false);
                return self.drive_opening(cx);
            }
            if !self.start.told_waiting {
                self.start.told_waiting = true;
                let (doubtful, silent) = (self.names(ready), self.names(self.recorded.without(ready)));
                cx.notice(Notice::WaitingForMembers { doubtful, silent });
            }
            return;
        }
        self.start.told_waiting = false;
        let basis = if sure.is_empty() || !self.config.rules.source_not_doubtful() { ready } else { sure };
        let source = basis.first().expect("a basis to serve must have a member");
        self.equalise(source, ready, cx);
    }

    /// Members with another chain of snapshots than the source are left out and rebuilt later.
    fn equalise(&mut self, source: Slot, ready: Slots, cx: &mut Cx<'_>) {
        let (chain, size) = (self.member(source).chain, self.member(source).size);
        let like_source = |slot: &Slot| self.member(*slot).chain == chain && self.member(*slot).size == size;
        let set: Slots = ready.iter().filter(like_source).collect();
        self.config.geometry.size = size;
        let rules = self.config.rules;
        let logs = if rules.union() { set } else { Slots::one(source) };
        let skip = !rules.equalise() || (self.start.promoting && !rules.promotion_equalises());
        let mut regions = RegionSet::new();
        for slot in logs.iter().filter(|_| !skip) {
            regions.extend(self.member(slot).regions.iter());
        }
        self.start.set = set;
        self.start.regions = regions.clone();
        let targets = set.without(Slots::one(source));
        self.set_phase(Phase::Equalising, cx);
        if !targets.is_empty() && !regions.is_empty() {
            self.copies += 1;
            let mut job = CopyJob::equalise(source, targets, regions, self.config.geometry);
            job.number = self.copies;
            self.copy = Some(job);
        }
        self.drive_equalising(cx);
    }

    pub(super) fn drive_equalising(&mut self, cx: &mut Cx<'_>) {
        self.pump_copy(cx);
        if self.phase == Phase::Equalising && self.copy.as_ref().is_none_or(CopyJob::is_done) {
            if let Some(job) = self.copy.take() {
                cx.notice(Notice::Equalised { bytes: job.total, copied: job.copied });
            }
            self.flush_at_start(cx);
        }
    }

    fn flush_at_start(&mut self, cx: &mut Cx<'_>) {
        let (set, left_out) = (self.start.set, self.recorded.without(self.start.set));
        self.set_phase(Phase::Flushing, cx);
        self.start.step = Step::Flush;
        self.start.waiting = 0;
        if left_out.is_empty() && self.start.regions.is_empty() {
            return self.settle_at_start(cx);
        }
        let token = Token::Start(self.start.attempt);
        for slot in set.iter() {
            if self.config.rules.flush_at_start() {
                self.send(slot, RequestBody::Flush, token, cx);
                self.start.waiting += 1;
            }
            for gone in left_out.iter() {
                let member = self.name(gone);
                self.send(slot, RequestBody::MapStart { member }, token, cx);
                self.start.waiting += u32::from(self.config.rules.flush_at_start());
            }
        }
        if self.start.waiting == 0 {
            self.settle_at_start(cx);
        }
    }

    /// What was doubtful is equal and durable now.
    fn settle_at_start(&mut self, cx: &mut Cx<'_>) {
        self.start.step = Step::Settle;
        let token = Token::Start(self.start.attempt);
        for slot in self.start.set.iter() {
            if !self.config.rules.clear_after_start() {
                let (log, regions) = (self.member(slot).log, self.start.regions.clone());
                self.send(slot, RequestBody::LogClear { log, regions }, token, cx);
                self.start.waiting += 1;
            }
            if self.member(slot).doubtful {
                self.send(slot, RequestBody::Settled, token, cx);
                self.start.waiting += 1;
            }
        }
        if self.start.waiting == 0 {
            self.record_set(cx);
        }
    }

    pub(super) fn start_answered(&mut self, slot: Slot, attempt: u32, body: ReplyBody, cx: &mut Cx<'_>) {
        if attempt != self.start.attempt || self.phase != Phase::Flushing {
            return;
        }
        if let ReplyBody::Failed(_) = body {
            return self.exclude(slot, cx);
        }
        self.start.waiting = self.start.waiting.saturating_sub(1);
        match (self.start.waiting, self.start.step) {
            (0, Step::Flush) => self.settle_at_start(cx),
            (0, Step::Settle) => self.record_set(cx),
            _ => {}
        }
    }

    /// A member's disk failed during the start: go on without it, unless it is the only one.
    pub(super) fn exclude(&mut self, slot: Slot, cx: &mut Cx<'_>) {
        let rejoin = self.config.limits.rejoin;
        let others = self.recorded.without(Slots::one(slot)).iter().any(|slot| !self.member(slot).excluded);
        self.member_mut(slot).excluded = others;
        self.member_mut(slot).retry = cx.now.after(rejoin);
        self.cut(slot, true, cx);
        self.open_again(cx);
    }

    fn record_set(&mut self, cx: &mut Cx<'_>) {
        self.set_phase(Phase::Recording, cx);
        self.drive_recording(cx);
    }

    pub(super) fn drive_recording(&mut self, cx: &mut Cx<'_>) {
        if self.start.set == self.recorded || !self.config.rules.record_opened() {
            return self.opened_recorded(cx);
        }
        if self.may_ask(cx) {
            let keep = self.names(self.start.set).into_iter().collect();
            let change = Change::Shrink { by: self.config.holder, at: self.record.generation, keep };
            self.ask(change, Purpose::Opened, cx);
        }
    }

    /// The record says which members were opened.
    pub(super) fn opened_recorded(&mut self, cx: &mut Cx<'_>) {
        if !self.config.rules.record_opened() {
            self.recorded = self.start.set;
        }
        if self.recorded != self.start.set {
            return self.open_again(cx);
        }
        self.required = self.recorded;
        let regions = std::mem::take(&mut self.start.regions);
        self.activity.inherit(&regions);
        if !regions.is_empty() {
            self.last_write = Some(cx.now);
        }
        self.set_phase(Phase::Waiting, cx);
        for slot in self.outsiders().iter() {
            self.cut(slot, true, cx);
        }
        for slot in self.recorded.iter() {
            self.member_mut(slot).doubtful = false;
            self.member_mut(slot).regions = RegionSet::new();
            if !self.is_open(slot) {
                self.member_mut(slot).lost = Some(cx.now);
            }
        }
        self.drive_established(cx);
        self.drive_waiting(cx);
    }

    /// Older engines may serve reads until their lease ends.
    pub(super) fn drive_waiting(&mut self, cx: &mut Cx<'_>) {
        if self.phase == Phase::Waiting && (self.start.older_stopped || cx.now >= self.wait_ends()) {
            self.start.served = true;
            self.set_phase(Phase::Serving, cx);
            cx.notice(Notice::Serving { epoch: self.record.epoch, in_sync: self.names(self.recorded) });
            self.begin_queued(cx);
        }
    }

    /// When every older engine's lease has ended.
    pub(super) fn wait_ends(&self) -> Time {
        let promised = self.start.promised.unwrap_or(self.start.minted);
        let from = if self.config.rules.wait_after_promise() { promised } else { self.start.minted };
        let limits = self.config.limits;
        from.after(Span(limits.lease.0 + limits.drift.0))
    }

    /// Which layer the start copies: the live volume.
    pub(super) const START_LAYER: Layer = Layer::LIVE;
}
