//! Operations on the whole volume: everything before them ends first, everything after them waits.

use bytes::Bytes;

use super::members::Token;
use super::{Cx, Effect, Engine, IoAnswer, IoError, IoOp, Leaving, Phase};
use crate::ids::{Slot, Slots};
use crate::wire::{ControlKind, Failure, ReplyBody, RequestBody};

/// The control operation that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Barrier {
    io: u32,
    running: bool,
    left: Slots,
    done: Slots,
    failed: Slots,
    failure: Option<Failure>,
    answer: Bytes,
}

impl Engine {
    pub(super) fn begin_control(&mut self, io: u32) {
        let none = Slots::NONE;
        self.barrier = Some(Barrier {
            io,
            running: false,
            left: none,
            done: none,
            failed: none,
            failure: None,
            answer: Bytes::new(),
        });
    }

    pub(super) fn drive_barrier(&mut self, cx: &mut Cx<'_>) {
        let Some(barrier) = &self.barrier else { return };
        if barrier.running {
            return self.end_control(cx);
        }
        if self.active > 0 || self.is_comparing() || !self.writes_may_go() || self.asked.is_some() {
            return;
        }
        let Some(IoOp::Control(op)) = self.ios[barrier.io as usize].as_ref().map(|io| io.op.clone()) else { return };
        if self.join.as_ref().is_some_and(|join| join.recording) {
            return;
        }
        if op.kind.changes_chain() && self.join.is_some() {
            self.abort_join(Leaving::Chain, cx);
        }
        let required = self.required;
        if let Some(barrier) = self.barrier.as_mut() {
            (barrier.running, barrier.left) = (true, required);
            if let Some(io) = self.ios[barrier.io as usize].as_mut() {
                io.ever_sent = true;
            }
        }
        for slot in required.iter() {
            self.send(slot, RequestBody::Control(op.clone()), Token::Control, cx);
        }
    }

    pub(super) fn control_answered(&mut self, slot: Slot, body: ReplyBody, _cx: &mut Cx<'_>) {
        let Some(barrier) = self.barrier.as_mut().filter(|barrier| barrier.left.has(slot)) else { return };
        barrier.left.remove(slot);
        match body {
            ReplyBody::Controlled(answer) => {
                barrier.done.insert(slot);
                barrier.answer = answer;
            }
            ReplyBody::Failed(failure) => {
                barrier.failed.insert(slot);
                barrier.failure = Some(failure);
            }
            _ => {
                barrier.failed.insert(slot);
                barrier.failure = Some(Failure::Invalid);
            }
        }
    }

    /// A member is lost while it may or may not have done the operation; whether that is so.
    pub(super) fn control_lost(&mut self, slot: Slot) -> bool {
        let Some(barrier) = self.barrier.as_mut().filter(|barrier| barrier.left.has(slot)) else { return false };
        barrier.left.remove(slot);
        barrier.failed.insert(slot);
        barrier.failure.get_or_insert(Failure::Io);
        true
    }

    /// Members that could not do what others did leave the set before the operation is acknowledged.
    fn end_control(&mut self, cx: &mut Cx<'_>) {
        let Some(barrier) = &self.barrier else { return };
        if !barrier.left.is_empty() {
            return;
        }
        let (done, failed, failure) = (barrier.done, barrier.failed, barrier.failure.unwrap_or(Failure::Io));
        let settled = self.leaving.is_empty() && !self.unknown;
        if done.is_empty() || (done.and(self.required).is_empty() && settled) {
            // Nobody did it, or only members that are gone since.
            return self.control_ended(Err(IoError::Failed(failure)), cx);
        }
        for slot in failed.and(self.required).without(self.leaving).iter() {
            self.leave(slot, Leaving::Failed(failure), cx);
        }
        if done.holds(self.required) && self.leaving.is_empty() && !self.unknown {
            let answer = self.barrier.as_ref().map_or_else(Bytes::new, |barrier| barrier.answer.clone());
            self.control_ended(Ok(IoAnswer::Controlled(answer)), cx);
        }
    }

    fn control_ended(&mut self, result: Result<IoAnswer, IoError>, cx: &mut Cx<'_>) {
        let Some(barrier) = self.barrier.take() else { return };
        let Some(io) = self.ios[barrier.io as usize].take() else { return };
        self.free.push(barrier.io);
        if let (IoOp::Control(op), Ok(_)) = (&io.op, &result)
            && op.kind == ControlKind::Expand
        {
            self.config.geometry.size = op.size;
        }
        if let Some(id) = io.client {
            cx.fx.push(Effect::Complete { io: id, result });
        }
        self.begin_queued(cx);
    }

    /// Stops in order: what is under way ends, members flush and forget their logs, the record says so.
    pub(super) fn stop(&mut self, cx: &mut Cx<'_>) {
        match self.phase {
            Phase::Serving | Phase::Standby => self.stopping = true,
            Phase::Fenced | Phase::Failed | Phase::Stopped => {}
            _ => self.end(Phase::Stopped, IoError::Stopped, cx),
        }
    }

    pub(super) fn drive_stop(&mut self, cx: &mut Cx<'_>) {
        let busy = self.active > 0 || self.barrier.is_some() || !self.queue.is_empty();
        if self.stopping {
            self.drop_scrub(cx);
        }
        if !self.stopping || self.phase != Phase::Serving || busy || self.unknown {
            return;
        }
        if !self.activity.is_empty() {
            return self.flush_quietly(cx);
        }
        if self.join.as_ref().is_some_and(|join| !join.recording) {
            self.abort_join(Leaving::Asked, cx);
        }
        if self.may_ask(cx) && self.leaving.is_empty() {
            let change = crate::record::Change::Release { by: self.config.holder, at: self.record.generation };
            self.ask(change, super::cas::Purpose::Release, cx);
        }
    }

    /// Empties the activity log as far as it is quiet, if there is nothing more important to do.
    pub(super) fn tidy(&mut self, cx: &mut Cx<'_>) {
        let may = self.phase == Phase::Serving && self.barrier.is_none() && self.writes_may_go();
        if may && !self.activity.is_empty() {
            self.flush_quietly(cx);
        }
    }

    /// A flush of the engine's own, which empties the activity log.
    pub(super) fn flush_quietly(&mut self, cx: &mut Cx<'_>) {
        let index = self.put_io(None, IoOp::Flush);
        self.begin_io(index, cx);
    }
}
