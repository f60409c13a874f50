//! The target of a migration: named in the record, without an epoch, reading through the source.

use super::{Cx, Effect, Engine, Io, IoError, IoId, IoOp, IoResult, Notice, Phase};
use crate::ids::{Epoch, Generation, Holder};

fn pass_on(io: &mut Io, cx: &mut Cx<'_>) {
    io.passed_on = true;
    if let Some(id) = io.client {
        cx.fx.push(Effect::AskSource { io: id, op: io.op.clone() });
    }
}

impl Engine {
    pub(super) fn stand_by(&mut self, at: Generation, cx: &mut Cx<'_>) {
        if self.phase == Phase::Idle {
            self.record.generation = at;
            self.set_phase(Phase::Standby, cx);
        }
    }

    /// A request at the standby: what changes nothing is passed on to the source, the first write takes over.
    pub(super) fn standby_io(&mut self, index: u32, cx: &mut Cx<'_>) {
        self.queue.push_back(index);
        let Some(io) = self.ios[index as usize].as_mut() else { return };
        if io.is_write() || matches!(io.op, IoOp::Control(_)) {
            return self.promote(cx);
        }
        pass_on(io, cx);
    }

    /// What waits is asked of the source, however often that went wrong before: it changes nothing.
    pub(super) fn source_there(&mut self, cx: &mut Cx<'_>) {
        if self.phase == Phase::Standby && !self.stopping {
            for io in self.ios.iter_mut().flatten().filter(|io| !io.passed_on) {
                pass_on(io, cx);
            }
        }
    }

    pub(super) fn source_answered(&mut self, id: IoId, result: IoResult, cx: &mut Cx<'_>) {
        let passed_on = |io: &Io| io.client == Some(id) && io.passed_on;
        let Some(index) = self.ios.iter().position(|io| io.as_ref().is_some_and(passed_on)) else { return };
        if let Err(IoError::Fenced { .. } | IoError::Stopped | IoError::LastMemberLost) = result {
            // It is answered by the next source, after promotion, or fails with this engine.
            return self.source_gone();
        }
        self.ios[index] = None;
        self.free.push(index as u32);
        self.queue.retain(|queued| *queued != index as u32);
        cx.fx.push(Effect::Complete { io: id, result });
    }

    /// What was passed on waits for the source to come back, or for promotion; an answer that still comes is not used.
    pub(super) fn source_gone(&mut self) {
        for io in self.ios.iter_mut().flatten() {
            io.passed_on = false;
        }
    }

    /// An engine that served had waited for everybody before it. But whoever took the volume from it may live.
    pub(super) fn source_stopped(&mut self, source: Holder) {
        if source == self.record.previous || !self.config.rules.source_is_previous() {
            self.start.older_stopped = true;
        }
    }

    /// A successor says that it has taken the volume. Whoever can say so holds the volume's key and read the epoch from
    /// the record; believing it costs no more than being killed.
    pub(super) fn superseded(&mut self, by: Holder, epoch: Epoch, cx: &mut Cx<'_>) {
        let over = matches!(self.phase, Phase::Fenced | Phase::Failed | Phase::Stopped);
        if !over && epoch > self.record.epoch {
            cx.notice(Notice::Fenced { by, epoch });
            self.end(Phase::Fenced, IoError::Fenced { sent: true }, cx);
        }
    }

    /// Takes the volume over: the start of an engine, legal only while the record names this one.
    pub(super) fn promote(&mut self, cx: &mut Cx<'_>) {
        if self.phase != Phase::Standby || self.stopping {
            return;
        }
        self.source_gone();
        // What the record says now is what the promotion returns, whatever an earlier wish still brings.
        self.asked = None;
        self.record_retry = None;
        self.start.promoting = true;
        self.set_phase(Phase::Starting, cx);
    }
}
