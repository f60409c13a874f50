//! A replica comes in: open, copy what it lacks, require it, flush, record it.
//!
//! ```text
//!  Opening ─► Planning ─► Copying ─► Flushing ─► Settling ─► Recording ─► in sync
//!                │           ▲          └─ required for every write, flush and lease from here on
//!                └─► Chain ──┘  the chain of snapshots differs, or nobody knows what the replica missed:
//!                               layer by layer, comparing checksums
//! ```
//!
//! From the moment it is open the replica gets every write. What it lacks from before is what the source's missed
//! map and activity log name, and what its own log names: it may hold writes that nobody acknowledged.

use super::cas::Purpose;
use super::copy::CopyJob;
use super::members::{Link, Token};
use super::{Cx, Engine, IoOp, Leaving, Notice, Phase};
use crate::ids::{Slot, Slots};
use crate::record::Change;
use crate::region::RegionSet;
use crate::wire::{Layer, ReplyBody, RequestBody};

/// A replica on its way in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::struct_excessive_bools)] // independent facts, not states of one machine
pub(super) struct Join {
    attempt: u32,
    pub(super) slot: Slot,
    pub(super) source: Option<Slot>,
    stage: Stage,
    /// It gets every write.
    pub(super) receives: bool,
    /// Every write, flush and lease needs it.
    pub(super) required: bool,
    /// The change that records it is under way, or its outcome is unknown.
    pub(super) recording: bool,
    /// Members that do not know what it missed.
    asked: Slots,
    /// Layers of the chain still to be compared below the live volume; the next one.
    layers: u16,
    next_layer: u16,
    /// What its log names by now.
    regions: RegionSet,
    copied: u64,
    settle: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Opening,
    Planning,
    ReadingChain,
    SettingChain,
    Copying,
    Flushing,
    Settling,
    Recording,
}

impl Engine {
    pub(super) fn drive_join(&mut self, cx: &mut Cx<'_>) {
        self.dial_required(cx);
        let Some(join) = &self.join else { return self.begin_join(cx) };
        match join.stage {
            Stage::Opening => {
                let slot = join.slot;
                if self.member(slot).link == Link::Down {
                    self.abort_join(Leaving::Disconnected, cx);
                }
            }
            Stage::Copying => {
                self.pump_copy(cx);
                if self.copy.as_ref().is_none_or(CopyJob::is_done) {
                    self.copied(cx);
                    self.drive_join(cx);
                }
            }
            Stage::Recording if !join.recording && self.leaving.is_empty() && self.may_ask(cx) => {
                let member = self.name(join.slot);
                let change = Change::Grow { by: self.config.holder, at: self.record.generation, member };
                if let Some(join) = self.join.as_mut() {
                    join.recording = true;
                }
                self.ask(change, Purpose::Grow, cx);
            }
            _ => {}
        }
    }

    /// Whether a replica could be brought in now.
    pub(super) fn may_join(&self) -> bool {
        self.phase == Phase::Serving
            && self.join.is_none()
            && self.leaving.is_empty()
            && self.asked.is_none()
            && self.barrier.is_none()
            && !self.stopping
            && self.open_slots().holds(self.required)
    }

    /// Replicas that are outside and wanted.
    pub(super) fn outsiders(&self) -> Slots {
        let all = (0..self.members.len() as u8).map(Slot);
        all.filter(|slot| !self.required.has(*slot) && !self.member(*slot).unwanted).collect()
    }

    fn begin_join(&mut self, cx: &mut Cx<'_>) {
        if !self.may_join() {
            return;
        }
        let ready = |slot: &Slot| self.member(*slot).link == Link::Down && self.member(*slot).rejoin <= cx.now;
        let Some(slot) = self.outsiders().iter().find(ready) else { return };
        self.start.attempt += 1;
        self.join = Some(Join {
            attempt: self.start.attempt,
            slot,
            source: None,
            stage: Stage::Opening,
            receives: false,
            required: false,
            recording: false,
            asked: Slots::NONE,
            layers: 0,
            next_layer: 0,
            regions: RegionSet::new(),
            copied: 0,
            settle: false,
        });
        let member = self.member_mut(slot);
        (member.boot, member.retry) = (None, cx.now);
        self.dial(slot, cx);
    }

    /// It promised this epoch: from now on it gets every write.
    pub(super) fn join_opened(&mut self, slot: Slot, cx: &mut Cx<'_>) {
        let own = self.member(slot).regions.clone();
        let doubtful = self.member(slot).doubtful;
        if let Some(join) = self.join.as_mut() {
            (join.receives, join.settle, join.stage) = (true, doubtful, Stage::Planning);
            join.regions = own;
        }
        self.ask_what_is_missed(cx);
    }

    fn ask_what_is_missed(&mut self, cx: &mut Cx<'_>) {
        let open = self.readable();
        let Some(join) = self.join.as_mut() else { return };
        let (token, slot) = (Token::Join(join.attempt), join.slot);
        match open.without(join.asked).first() {
            Some(source) => {
                join.source = Some(source);
                join.asked.insert(source);
                let member = self.name(slot);
                self.send(source, RequestBody::Missed { member }, token, cx);
            }
            None => self.abort_join(Leaving::Disconnected, cx),
        }
    }

    pub(super) fn join_answered(&mut self, slot: Slot, attempt: u32, body: ReplyBody, cx: &mut Cx<'_>) {
        let Some(join) = self.join.as_ref().filter(|join| join.attempt == attempt) else { return };
        let token = Token::Join(attempt);
        let joiner = join.slot;
        match (join.stage, body) {
            (Stage::Planning, ReplyBody::Regions { missed, chain }) => self.plan(slot, missed, chain, cx),
            (Stage::ReadingChain, ReplyBody::Chain { layers, chain }) => {
                if let Some(join) = self.join.as_mut() {
                    (join.layers, join.settle, join.stage) = (layers, true, Stage::SettingChain);
                }
                self.send(joiner, RequestBody::ChainSet { chain }, token, cx);
            }
            (Stage::SettingChain, ReplyBody::Done) => self.copy_next_layer(cx),
            (Stage::Flushing, ReplyBody::Done) => self.settle_joiner(cx),
            (Stage::Settling, ReplyBody::Done) => self.set_stage(Stage::Recording),
            (_, ReplyBody::Failed(failure)) => self.abort_join(Leaving::Failed(failure), cx),
            _ => self.abort_join(Leaving::MissedWrite, cx),
        }
    }

    fn set_stage(&mut self, stage: Stage) {
        if let Some(join) = self.join.as_mut() {
            join.stage = stage;
        }
    }

    /// What is to be copied, and how.
    fn plan(&mut self, source: Slot, missed: Option<RegionSet>, chain: u64, cx: &mut Cx<'_>) {
        let Some(join) = self.join.as_ref() else { return };
        let (slot, asked, attempt) = (join.slot, join.asked, join.attempt);
        let joiner = self.member(slot);
        let same_chain = chain != 0 && joiner.chain == chain && joiner.size == self.config.geometry.size;
        let geometry = self.config.geometry;
        let member = self.name(slot);
        match missed {
            Some(mut regions) if same_chain => {
                if self.config.rules.own_log() {
                    regions.extend(join.regions.iter());
                }
                let job = CopyJob::resync(source, slot, Layer::LIVE, regions, geometry, false);
                cx.notice(Notice::Resync { member, bytes: job.total, full: false });
                self.begin_copy(job);
            }
            None if same_chain && !asked.holds(self.readable()) => self.ask_what_is_missed(cx),
            None if same_chain => {
                cx.notice(Notice::Resync { member, bytes: geometry.size, full: true });
                let job = CopyJob::resync(source, slot, Layer::LIVE, geometry.all().collect(), geometry, true);
                self.begin_copy(job);
            }
            _ => {
                cx.notice(Notice::Resync { member, bytes: geometry.size, full: true });
                self.set_stage(Stage::ReadingChain);
                self.send(source, RequestBody::ChainRead, Token::Join(attempt), cx);
            }
        }
    }

    fn begin_copy(&mut self, mut job: CopyJob) {
        self.copies += 1;
        job.number = self.copies;
        self.copy = Some(job);
        self.set_stage(Stage::Copying);
    }

    /// Layers are compared from the oldest up, then the live volume.
    fn copy_next_layer(&mut self, cx: &mut Cx<'_>) {
        let geometry = self.config.geometry;
        let Some(join) = self.join.as_mut() else { return };
        let Some(source) = join.source else { return self.abort_join(Leaving::Disconnected, cx) };
        let layer = if join.next_layer < join.layers { Layer(join.next_layer) } else { Layer::LIVE };
        join.next_layer += 1;
        let job = CopyJob::resync(source, join.slot, layer, geometry.all().collect(), geometry, true);
        self.begin_copy(job);
    }

    fn copied(&mut self, cx: &mut Cx<'_>) {
        let Some(job) = self.copy.take() else { return };
        let Some(join) = self.join.as_mut() else { return };
        join.copied += job.copied;
        join.regions.extend(job.touched.iter());
        if job.layer == Layer::LIVE { self.require(cx) } else { self.copy_next_layer(cx) }
    }

    /// It holds everything: from now on nothing is acknowledged without it, and then it flushes.
    fn require(&mut self, cx: &mut Cx<'_>) {
        let rules = self.config.rules;
        let Some(join) = self.join.as_mut() else { return };
        let (slot, token) = (join.slot, Token::Join(join.attempt));
        join.stage = Stage::Flushing;
        if rules.grow_required_first() && rules.flush_after_required() {
            join.required = true;
            self.required.insert(slot);
            self.flushes_include(slot, cx);
        }
        if rules.flush_before_grow() {
            self.send(slot, RequestBody::Flush, token, cx);
        } else {
            self.settle_joiner(cx);
        }
    }

    /// A flush that is on its way counts only if it is also done by the replica that is required from now on.
    fn flushes_include(&mut self, slot: Slot, cx: &mut Cx<'_>) {
        for index in 0..self.ios.len() as u32 {
            let Some(io) = self.ios[index as usize].as_mut() else { continue };
            if io.dispatched && matches!(io.op, IoOp::Flush) {
                self.send_again(slot, index, cx);
            }
        }
    }

    fn settle_joiner(&mut self, cx: &mut Cx<'_>) {
        let Some(join) = self.join.as_mut() else { return };
        if !self.config.rules.flush_after_required() {
            join.required = true;
            self.required.insert(join.slot);
        }
        if !join.settle {
            return self.set_stage(Stage::Recording);
        }
        join.stage = Stage::Settling;
        let (slot, token) = (join.slot, Token::Join(join.attempt));
        self.send(slot, RequestBody::Settled, token, cx);
    }

    /// The record names it.
    pub(super) fn grown(&mut self, cx: &mut Cx<'_>) {
        let Some(join) = self.join.take() else { return };
        let member = self.name(join.slot);
        self.member_mut(join.slot).doubtful = false;
        self.required.insert(join.slot);
        self.activity.inherit(&join.regions);
        if !join.regions.is_empty() {
            self.last_write = Some(cx.now);
        }
        for slot in self.recorded.without(Slots::one(join.slot)).and(self.open_slots()).iter() {
            self.send(slot, RequestBody::MapDrop { member: member.clone() }, Token::Aside, cx);
        }
        let generation = self.record.generation;
        cx.notice(Notice::Grown { member, generation, copied: join.copied });
    }

    /// Gives a join up for now. If the record may already name the replica, that must be known first: it stays
    /// required until then.
    pub(super) fn abort_join(&mut self, why: Leaving, cx: &mut Cx<'_>) {
        let Some(join) = self.join.as_ref() else { return };
        let slot = join.slot;
        if join.recording {
            return self.cut(slot, true, cx);
        }
        self.join = None;
        if !self.recorded.has(slot) {
            self.required.remove(slot);
        }
        self.drop_copy(cx);
        self.cut(slot, true, cx);
        let rejoin = self.config.limits.rejoin;
        let member = self.member_mut(slot);
        member.rejoin = cx.now.after(rejoin);
        member.lost = None;
        cx.notice(Notice::JoinFailed { member: self.name(slot), why });
        for io in self.ios.iter_mut().flatten().filter(|io| !io.is_read()) {
            io.sent.remove(slot);
        }
        self.look_at_all(cx);
    }

    /// The record certainly does not name it.
    pub(super) fn not_grown(&mut self, cx: &mut Cx<'_>) {
        if let Some(join) = self.join.as_mut() {
            join.recording = false;
        }
        self.abort_join(Leaving::Disconnected, cx);
    }
}
