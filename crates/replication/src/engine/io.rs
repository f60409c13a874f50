//! Requests of frontends: claimed, sent, answered, in an order that looks like one replica.
//!
//! A read goes to one recorded member; a write goes to all required members and is acknowledged when all stored
//! it. Overlapping ones wait for each other ([`super::locks`]). A read's answer counts only if, for every required
//! member, some request sent less than a lease before the read was answered: then no successor served yet when the
//! read was sent.

use super::copy::PIECE_OWNER;
use super::locks::{Owner, Use};
use super::members::Token;
use super::scrub::SCRUB_OWNER;
use super::{Cx, Effect, Engine, IoAnswer, IoError, IoId, IoOp, IoResult, Leaving, Phase, Suspended};
use crate::ids::{Slot, Slots, Span, Time};
use crate::wire::{Failure, MAX_PAYLOAD_BYTES, ReplyBody, RequestBody};

/// A request of a frontend, or a flush of the engine's own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Io {
    /// Nobody: the engine itself.
    pub(super) client: Option<IoId>,
    pub(super) op: IoOp,
    /// It is on its way to members.
    pub(super) dispatched: bool,
    /// It was at some time.
    pub(super) ever_sent: bool,
    pub(super) sent: Slots,
    pub(super) stored: Slots,
    /// Members that had no space for it.
    pub(super) full: Slots,
    /// Members that failed to store it, and how the last one did.
    pub(super) broken: Slots,
    failure: Option<Failure>,
    /// Members that could not read it.
    tried: Slots,
    sent_at: Time,
    answer: Option<IoAnswer>,
    /// When a flush was sent, on the clock of the activity log.
    mark: u64,
    /// A standby passed it on to the source.
    pub(super) passed_on: bool,
}

impl Io {
    pub(super) fn is_write(&self) -> bool {
        matches!(self.op, IoOp::Write { .. } | IoOp::Zero { .. } | IoOp::Trim { .. })
    }

    pub(super) fn is_read(&self) -> bool {
        matches!(self.op, IoOp::Read { .. } | IoOp::Status { .. })
    }

    /// First byte and length, of what has them.
    fn range(&self) -> (u64, u64) {
        match &self.op {
            IoOp::Write { offset, data, .. } => (*offset, data.len() as u64),
            IoOp::Read { offset, len }
            | IoOp::Status { offset, len }
            | IoOp::Trim { offset, len }
            | IoOp::Zero { offset, len, .. } => (*offset, u64::from(*len)),
            IoOp::Flush | IoOp::Control(_) => (0, 0),
        }
    }

    fn body(&self) -> RequestBody {
        match &self.op {
            IoOp::Read { offset, len } => RequestBody::Read { offset: *offset, len: *len },
            IoOp::Write { offset, data, fua } => RequestBody::Write { offset: *offset, data: data.clone(), fua: *fua },
            IoOp::Zero { offset, len, fua, unmap } => {
                RequestBody::Zero { offset: *offset, len: *len, fua: *fua, unmap: *unmap }
            }
            IoOp::Trim { offset, len } => RequestBody::Discard { offset: *offset, len: *len },
            IoOp::Flush => RequestBody::Flush,
            IoOp::Status { offset, len } => RequestBody::Status { offset: *offset, len: *len },
            IoOp::Control(op) => RequestBody::Control(op.clone()),
        }
    }
}

impl Engine {
    pub(super) fn submit(&mut self, id: IoId, op: IoOp, cx: &mut Cx<'_>) {
        let refusal = match self.phase {
            Phase::Fenced => Some(IoError::Fenced { sent: false }),
            Phase::Failed => Some(IoError::LastMemberLost),
            Phase::Stopped => Some(IoError::Stopped),
            _ if self.stopping => Some(IoError::Stopped),
            _ if !self.fits(&op) => Some(IoError::Invalid),
            _ => None,
        };
        if let Some(error) = refusal {
            return cx.fx.push(Effect::Complete { io: id, result: Err(error) });
        }
        let index = self.put_io(Some(id), op);
        match self.phase {
            Phase::Standby => self.standby_io(index, cx),
            Phase::Serving if self.barrier.is_none() && self.queue.is_empty() => self.begin_io(index, cx),
            _ => self.queue.push_back(index),
        }
    }

    fn fits(&self, op: &IoOp) -> bool {
        // Before the first member was opened the size is what the engine was told.
        let geometry = self.config.geometry;
        match op {
            IoOp::Read { offset, len } => {
                *len > 0 && *len <= MAX_PAYLOAD_BYTES && geometry.holds(*offset, u64::from(*len))
            }
            IoOp::Write { offset, data, .. } => {
                let len = data.len() as u64;
                len > 0 && len <= u64::from(MAX_PAYLOAD_BYTES) && geometry.holds(*offset, len)
            }
            IoOp::Zero { offset, len, .. } | IoOp::Trim { offset, len } | IoOp::Status { offset, len } => {
                *len > 0 && geometry.holds(*offset, u64::from(*len))
            }
            IoOp::Flush | IoOp::Control(_) => true,
        }
    }

    pub(super) fn put_io(&mut self, client: Option<IoId>, op: IoOp) -> u32 {
        let io = Io {
            client,
            op,
            dispatched: false,
            ever_sent: false,
            sent: Slots::NONE,
            stored: Slots::NONE,
            full: Slots::NONE,
            broken: Slots::NONE,
            failure: None,
            tried: Slots::NONE,
            sent_at: Time(0),
            answer: None,
            mark: 0,
            passed_on: false,
        };
        if let Some(index) = self.free.pop() {
            self.ios[index as usize] = Some(io);
            return index;
        }
        self.ios.push(Some(io));
        self.ios.len() as u32 - 1
    }

    fn io(&mut self, index: u32) -> Option<&mut Io> {
        self.ios.get_mut(index as usize).and_then(Option::as_mut)
    }

    /// Begins what waited for the engine to serve, up to the next control operation.
    pub(super) fn begin_queued(&mut self, cx: &mut Cx<'_>) {
        while self.phase == Phase::Serving && self.barrier.is_none() {
            let Some(index) = self.queue.pop_front() else { return };
            self.begin_io(index, cx);
        }
    }

    pub(super) fn begin_io(&mut self, index: u32, cx: &mut Cx<'_>) {
        let Some(io) = self.io(index) else { return };
        let (offset, len) = io.range();
        let wants = if io.is_write() { Use::Write } else { Use::Read };
        if matches!(io.op, IoOp::Control(_)) {
            self.begin_control(index);
            // It may have been the last of a queue: nothing else would start it.
            return self.drive_barrier(cx);
        }
        let granted = matches!(io.op, IoOp::Flush) || self.locks.claim(index, offset, offset + len, wants);
        self.active += 1;
        if granted {
            self.ready(index, cx);
        }
    }

    /// Nothing that overlaps is before it.
    fn ready(&mut self, index: u32, cx: &mut Cx<'_>) {
        let Some(io) = self.io(index) else { return };
        if io.is_read() {
            self.dispatch_read(index, cx);
        } else if self.held.is_empty() && self.writes_may_go() {
            self.dispatch_write(index, cx);
        } else {
            self.held.push_back(index);
        }
    }

    /// Whether writes and flushes may be sent and acknowledged.
    pub(super) fn writes_may_go(&self) -> bool {
        let rules = self.config.rules;
        let sent_to = if rules.quiesce() { self.required } else { self.required.without(self.leaving) };
        self.phase == Phase::Serving
            && !self.unknown
            && (self.leaving.is_empty() || !rules.quiesce())
            && self.full_retry.is_none()
            && (self.open_slots().holds(sent_to) || !rules.shrink_first())
    }

    pub(super) fn drive_held(&mut self, cx: &mut Cx<'_>) {
        while !self.held.is_empty() && self.writes_may_go() {
            let index = self.held.pop_front().expect("a queue that is not empty must have a front");
            self.dispatch_write(index, cx);
        }
    }

    /// Sends a write or a flush to everyone who must store it, and to a replica that is being brought in.
    fn dispatch_write(&mut self, index: u32, cx: &mut Cx<'_>) {
        let geometry = self.config.geometry;
        let mark =
            self.activity.mark_if(matches!(self.ios[index as usize].as_ref().map(|io| &io.op), Some(IoOp::Flush)));
        let joiner = self.join.as_ref().filter(|join| join.receives).map_or(Slots::NONE, |join| Slots::one(join.slot));
        let targets = self.required.and(self.open_slots());
        let Some(io) = self.io(index) else { return };
        let is_write = io.is_write();
        let targets = if is_write { targets.with(joiner) } else { targets };
        (io.dispatched, io.ever_sent, io.sent, io.mark) = (true, true, targets, mark);
        let (offset, len) = io.range();
        let body = io.body();
        if is_write {
            self.activity.begin(geometry.touched(offset, len));
            self.last_write = Some(cx.now);
        }
        for slot in targets.iter() {
            self.send(slot, body.clone(), Token::Io(index), cx);
        }
    }

    /// A required member is back in a new session: what it had not answered is sent again.
    pub(super) fn send_again(&mut self, slot: Slot, index: u32, cx: &mut Cx<'_>) {
        let Some(io) = self.io(index) else { return };
        if io.dispatched && !io.is_read() && !io.stored.has(slot) && !matches!(io.op, IoOp::Control(_)) {
            io.sent.insert(slot);
            io.broken.remove(slot);
            io.full.remove(slot);
            let body = io.body();
            self.send(slot, body, Token::Io(index), cx);
        }
    }

    /// The session in which a request was sent is gone.
    pub(super) fn unanswered(&mut self, slot: Slot, index: u32, _cx: &mut Cx<'_>) {
        let Some(io) = self.io(index) else { return };
        if io.is_read() && io.sent.has(slot) && io.answer.is_none() {
            io.dispatched = false;
            self.reads.push(index);
        }
    }

    /// Members that a read may be sent to.
    pub(super) fn readable(&self) -> Slots {
        let joiner = match &self.join {
            Some(join) if join.required && !self.config.rules.joiner_not_read() => Slots::one(join.slot),
            _ => Slots::NONE,
        };
        self.recorded.and(self.required).with(joiner).and(self.open_slots()).without(self.leaving)
    }

    /// Reads go to the member with the least on its way.
    fn dispatch_read(&mut self, index: u32, cx: &mut Cx<'_>) {
        let readable = self.readable();
        let Some(io) = self.io(index) else { return };
        let (tried, client) = (io.tried, io.client.map_or(0, |id| id.0));
        let candidates = readable.without(tried);
        if candidates.is_empty() && !readable.is_empty() {
            return self.complete(index, Err(IoError::Failed(Failure::Io)), cx);
        }
        // Equally loaded members take turns, so that an idle volume's reads wear all disks alike.
        let turn = |slot: &Slot| (u64::from(slot.0) + client) % crate::ids::MAX_MEMBERS as u64;
        let target = candidates.iter().min_by_key(|slot| (self.member(*slot).pending.len(), turn(slot)));
        let Some(target) = target else { return self.reads.push(index) };
        let Some(io) = self.io(index) else { return };
        (io.dispatched, io.ever_sent, io.sent, io.sent_at) = (true, true, Slots::one(target), cx.now);
        let body = io.body();
        self.send(target, body, Token::Io(index), cx);
        self.renew(Span(self.config.limits.lease.0 / 2), cx);
    }

    /// Asks for a sign of life from members whose last one is older than `age`.
    fn renew(&mut self, age: Span, cx: &mut Cx<'_>) {
        for slot in self.required.and(self.open_slots()).iter() {
            let member = self.member(slot);
            let old = member.heard.is_none_or(|heard| cx.now.since(heard) >= age);
            if old && !member.pinged {
                self.ping(slot, cx);
            }
        }
    }

    pub(super) fn ping(&mut self, slot: Slot, cx: &mut Cx<'_>) {
        self.member_mut(slot).pinged = true;
        self.send(slot, RequestBody::Ping, Token::Ping, cx);
    }

    /// Whether no successor can have served when something was sent at `sent_at`.
    pub(super) fn lease_holds(&self, sent_at: Time) -> bool {
        let lease = self.config.limits.lease;
        !self.config.rules.lease()
            || self
                .required
                .iter()
                .all(|slot| self.member(slot).heard.is_some_and(|heard| heard.after(lease) > sent_at))
    }

    pub(super) fn io_answered(&mut self, slot: Slot, index: u32, body: ReplyBody, cx: &mut Cx<'_>) {
        let Some(io) = self.io(index) else { return };
        if io.is_read() {
            return self.read_answered(slot, index, body, cx);
        }
        match body {
            ReplyBody::Done => {
                io.stored.insert(slot);
                self.look_at(index, cx);
            }
            ReplyBody::Failed(Failure::NoSpace) if self.required.has(slot) => {
                if let Some(io) = self.io(index) {
                    io.full.insert(slot);
                }
                self.look_at_full(index, cx);
            }
            ReplyBody::Failed(failure) => self.not_stored(slot, index, failure, cx),
            _ => self.not_stored(slot, index, Failure::Invalid, cx),
        }
    }

    fn read_answered(&mut self, slot: Slot, index: u32, body: ReplyBody, cx: &mut Cx<'_>) {
        let Some(io) = self.io(index) else { return };
        let answer = match (body, &io.op) {
            (ReplyBody::Data(data), IoOp::Read { len, .. }) if data.len() == *len as usize => IoAnswer::Data(data),
            (ReplyBody::Extents(extents), IoOp::Status { .. }) => IoAnswer::Extents(extents),
            _ => {
                io.tried.insert(slot);
                return self.dispatch_read(index, cx);
            }
        };
        let sent_at = io.sent_at;
        if self.lease_holds(sent_at) {
            return self.complete(index, Ok(answer), cx);
        }
        if let Some(io) = self.io(index) {
            io.answer = Some(answer);
        }
        self.reads.push(index);
        self.renew(Span(self.config.limits.lease.0 / 2), cx);
    }

    /// Reads that waited for a member or for the lease.
    pub(super) fn look_at_reads(&mut self, cx: &mut Cx<'_>) {
        if self.phase != Phase::Serving {
            return;
        }
        for index in std::mem::take(&mut self.reads) {
            let Some(io) = self.ios.get_mut(index as usize).and_then(Option::as_mut) else { continue };
            let sent_at = io.sent_at;
            match io.answer.take() {
                Some(answer) if self.lease_holds(sent_at) => self.complete(index, Ok(answer), cx),
                Some(answer) => {
                    if let Some(io) = self.io(index) {
                        io.answer = Some(answer);
                    }
                    self.reads.push(index);
                }
                None => self.dispatch_read(index, cx),
            }
        }
    }

    /// A write that some members could not do. They leave; but the last one stays, and then the request fails.
    ///
    /// It must not fail while somebody else may hold the data and still be, or come to be, in the set: reads would
    /// find different data. So a join is given up first, and members on their way out are waited for.
    fn look_at_broken(&mut self, index: u32, cx: &mut Cx<'_>) {
        let Some(io) = self.io(index) else { return };
        let (broken, Some(failure)) = (io.broken, io.failure) else { return };
        for slot in broken.and(self.required).iter() {
            self.leave(slot, Leaving::Failed(failure), cx);
        }
        if self.leaving.is_empty() && self.join.as_ref().is_some_and(|join| !join.recording) {
            self.abort_join(Leaving::MissedWrite, cx);
        }
        if self.required.len() == 1 && broken.holds(self.required) && self.leaving.is_empty() && !self.unknown {
            self.complete(index, Err(IoError::Failed(failure)), cx);
        }
    }

    /// A write or flush that one member could not do.
    fn not_stored(&mut self, slot: Slot, index: u32, failure: Failure, cx: &mut Cx<'_>) {
        if self.required.has(slot) {
            if let Some(io) = self.io(index) {
                io.broken.insert(slot);
                io.failure = Some(failure);
            }
            self.look_at_broken(index, cx);
        } else if self.config.rules.joiner_missed_write() {
            self.abort_join(Leaving::MissedWrite, cx);
        } else if let Some(io) = self.io(index) {
            io.sent.remove(slot);
            self.look_at(index, cx);
        }
    }

    /// Members that had no room for a write, once everyone who is to stay said something about it. If others had room,
    /// they leave; if nobody had, writes wait for room.
    fn look_at_full(&mut self, index: u32, cx: &mut Cx<'_>) {
        let staying = self.required.without(self.leaving);
        let waiting = self.full_retry.is_some();
        let Some(io) = self.io(index) else { return };
        let (full, stored) = (io.full.and(staying), io.stored.and(staying));
        if waiting || full.is_empty() || !full.with(stored).holds(staying) {
            return;
        }
        if stored.is_empty() {
            let retry = self.config.limits.rejoin;
            self.full_retry = Some(cx.now.after(retry));
            return self.suspend(Suspended::NoSpace, cx);
        }
        for slot in full.iter() {
            self.leave(slot, Leaving::Failed(Failure::NoSpace), cx);
        }
    }

    /// Whoever leaves may have been the last one that others waited for.
    pub(super) fn drive_full(&mut self, cx: &mut Cx<'_>) {
        for index in 0..self.ios.len() as u32 {
            self.look_at_full(index, cx);
        }
    }

    /// There may be room again.
    pub(super) fn retry_full(&mut self, cx: &mut Cx<'_>) {
        self.full_retry = None;
        for index in 0..self.ios.len() as u32 {
            let Some(io) = self.io(index) else { continue };
            let again = std::mem::take(&mut io.full).and(io.sent);
            for slot in again.and(self.required).and(self.open_slots()).iter() {
                self.send_again(slot, index, cx);
            }
        }
        self.resume(cx);
    }

    /// A member's disk failed at something that no frontend waits for.
    pub(super) fn member_failed(&mut self, slot: Slot, failure: Failure, cx: &mut Cx<'_>) {
        if self.required.has(slot) {
            self.leave(slot, Leaving::Failed(failure), cx);
        } else if self.join.as_ref().is_some_and(|join| join.slot == slot) {
            self.abort_join(Leaving::Failed(failure), cx);
        }
    }

    /// Acknowledges a write or a flush if everyone who must store it did.
    pub(super) fn look_at(&mut self, index: u32, cx: &mut Cx<'_>) {
        let rules = self.config.rules;
        let open = self.open_slots();
        let (required, held_back) = (self.required, !self.leaving.is_empty() && rules.flush_before_shrink());
        let Some(io) = self.io(index) else { return };
        if !io.dispatched || io.is_read() || matches!(io.op, IoOp::Control(_)) {
            return;
        }
        let needed = if rules.shrink_first() { required } else { required.and(open) };
        // A replica that is being brought in holds the claim until it answered: later writes must not overtake.
        let waits = rules.joiner_missed_write() && rules.flush_after_required();
        let needed = if waits { needed.with(io.sent.without(required)) } else { needed };
        let stored = io.stored.holds(needed) || (!rules.all_store() && !io.stored.and(required).is_empty());
        let (broken, full) = (!io.broken.is_empty(), !io.full.is_empty());
        if stored && !held_back && !self.unknown {
            return self.complete(index, Ok(IoAnswer::Done), cx);
        }
        if broken {
            self.look_at_broken(index, cx);
        }
        if full {
            self.look_at_full(index, cx);
        }
    }

    pub(super) fn look_at_all(&mut self, cx: &mut Cx<'_>) {
        for index in 0..self.ios.len() as u32 {
            self.look_at(index, cx);
        }
        self.look_at_reads(cx);
    }

    /// Ends a request and lets those go that waited for it.
    pub(super) fn complete(&mut self, index: u32, result: IoResult, cx: &mut Cx<'_>) {
        let Some(io) = self.ios.get_mut(index as usize).and_then(Option::take) else { return };
        self.free.push(index);
        self.active -= 1;
        if io.dispatched && io.is_write() {
            let (offset, len) = io.range();
            self.activity.end(self.config.geometry.touched(offset, len));
        }
        if matches!(io.op, IoOp::Flush) && result.is_ok() {
            self.flushed(&io, cx);
        }
        if let Some(id) = io.client {
            cx.fx.push(Effect::Complete { io: id, result });
        }
        if !matches!(io.op, IoOp::Flush) {
            self.release(index, cx);
        }
    }

    /// Gives a claim up, and begins what waited for it.
    pub(super) fn release(&mut self, owner: Owner, cx: &mut Cx<'_>) {
        let mut granted = Vec::new();
        self.locks.release(owner, &mut granted);
        for owner in granted {
            if owner == SCRUB_OWNER {
                self.scrub_granted(cx);
            } else if owner & PIECE_OWNER != 0 {
                self.begin_piece(owner & !PIECE_OWNER, cx);
            } else {
                self.ready(owner, cx);
            }
        }
    }

    /// All members completed a flush: quiet regions leave the activity log.
    fn flushed(&mut self, flush: &Io, cx: &mut Cx<'_>) {
        let members = self.recorded.with(self.required);
        if !flush.stored.holds(members) || !self.open_slots().holds(members) {
            return;
        }
        let limit = if flush.client.is_some() { self.config.limits.log_regions } else { 0 };
        let cleared = self.activity.clear(flush.mark, limit, self.config.rules.clear_only_quiet());
        if self.activity.is_empty() {
            self.last_write = None;
        }
        if cleared.is_empty() {
            return;
        }
        for slot in self.recorded.iter() {
            let body = RequestBody::LogClear { log: self.member(slot).log, regions: cleared.clone() };
            self.send(slot, body, Token::Aside, cx);
        }
    }
}
