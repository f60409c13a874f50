//! Copies from one replica to others, piece by piece: after a crash to make members equal, and to bring a replica in.

use super::locks::{Owner, Use};
use super::members::Token;
use super::{Cx, Engine, Leaving, Notice, Phase};
use crate::ids::{Slot, Slots, Time};
use crate::region::{Geometry, Region, RegionSet};
use crate::wire::{Layer, ReplyBody, RequestBody};

/// Claims of pieces are numbered apart from those of requests.
pub(super) const PIECE_OWNER: Owner = 1 << 31;

/// Members are compared before they are made equal if more than this may differ, in bytes: after a crash nearly all of what
/// the logs name is equal, and reading is cheaper than writing it anew. Less is copied at once, without asking.
const COMPARE_BYTES: u64 = 1 << 20;

/// A copy of some regions of a layer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct CopyJob {
    /// Answers to pieces of an earlier copy do not count.
    pub(super) number: u32,
    pub(super) from: Slot,
    to: Slots,
    pub(super) layer: Layer,
    /// Ask for checksums first and copy only what differs.
    compare: bool,
    /// Writes to a piece wait while it is copied.
    locked: bool,
    geometry: Geometry,
    todo: RegionSet,
    /// Next byte to copy, in a region of `todo`.
    next: Option<u64>,
    pieces: Vec<Option<Piece>>,
    /// Not before this: the limit of bandwidth.
    pub(super) not_before: Time,
    pub(super) total: u64,
    pub(super) done: u64,
    pub(super) copied: u64,
    /// Regions of which something was copied.
    pub(super) touched: RegionSet,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Piece {
    offset: u64,
    len: u32,
    step: Step,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Step {
    Claiming,
    /// What was answered so far.
    Summing {
        sums: Vec<(Slot, u128)>,
    },
    /// For these.
    Reading {
        to: Slots,
    },
    Writing {
        left: Slots,
    },
}

impl CopyJob {
    /// Members are made equal before anything is served.
    pub(super) fn equalise(from: Slot, to: Slots, todo: RegionSet, geometry: Geometry) -> Self {
        let mut job = Self::new(from, to, Engine::START_LAYER, todo, geometry, false, false);
        job.compare = job.total > COMPARE_BYTES;
        job
    }

    /// A replica is brought in while the volume is used.
    pub(super) fn resync(
        from: Slot,
        to: Slot,
        layer: Layer,
        todo: RegionSet,
        geometry: Geometry,
        compare: bool,
    ) -> Self {
        Self::new(from, Slots::one(to), layer, todo, geometry, compare, layer == Layer::LIVE)
    }

    fn new(
        from: Slot,
        to: Slots,
        layer: Layer,
        todo: RegionSet,
        geometry: Geometry,
        compare: bool,
        locked: bool,
    ) -> Self {
        let total = todo.iter().map(|region| geometry.bytes(region)).map(|bytes| bytes.end - bytes.start).sum();
        let next = todo.next_from(0).map(|region| geometry.bytes(region).start);
        Self {
            number: 0,
            from,
            to,
            layer,
            compare,
            locked,
            geometry,
            todo,
            next,
            pieces: Vec::new(),
            not_before: Time(0),
            total,
            done: 0,
            copied: 0,
            touched: RegionSet::new(),
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.next.is_none() && self.pieces.iter().all(Option::is_none)
    }

    /// Whether a piece could be begun, were it not for the limit of bandwidth.
    pub(super) fn wants_more(&self, depth: usize) -> bool {
        self.next.is_some() && self.pieces.iter().flatten().count() < depth
    }

    /// Cuts off the next piece.
    fn cut(&mut self, chunk: u32) -> Option<Piece> {
        let offset = self.next?;
        let region = (offset >> self.geometry.shift) as Region;
        let end = self.geometry.bytes(region).end;
        let len = u64::from(chunk).min(end.saturating_sub(offset)) as u32;
        let after = offset + u64::from(len);
        self.next = if after < end {
            Some(after)
        } else {
            self.todo.next_from(region + 1).map(|region| self.geometry.bytes(region).start)
        };
        (len > 0).then_some(Piece { offset, len, step: Step::Claiming })
    }

    fn put(&mut self, piece: Piece) -> u32 {
        if let Some(at) = self.pieces.iter().position(Option::is_none) {
            self.pieces[at] = Some(piece);
            return at as u32;
        }
        self.pieces.push(Some(piece));
        self.pieces.len() as u32 - 1
    }
}

impl Engine {
    /// Begins as many pieces as may be on their way.
    pub(super) fn pump_copy(&mut self, cx: &mut Cx<'_>) {
        let limits = self.config.limits;
        loop {
            let Some(job) = self.copy.as_mut() else { return };
            if !job.wants_more(limits.resync_depth) || cx.now < job.not_before {
                return;
            }
            let Some(piece) = job.cut(limits.resync_chunk) else { continue };
            if limits.resync_bytes_per_second > 0 && job.locked {
                let micros = u64::from(piece.len) * 1_000_000 / limits.resync_bytes_per_second;
                job.not_before = Time(job.not_before.max(cx.now).0 + micros);
            }
            let (start, end) = (piece.offset, piece.offset + u64::from(piece.len));
            let (at, locked) = (job.put(piece), job.locked);
            if !locked || self.locks.claim(PIECE_OWNER | at, start, end, Use::Copy) {
                self.begin_piece(at, cx);
            }
        }
    }

    /// A piece may be copied now.
    pub(super) fn begin_piece(&mut self, at: u32, cx: &mut Cx<'_>) {
        let Some(job) = self.copy.as_mut() else { return };
        let (number, from, to, layer, compare) = (job.number, job.from, job.to, job.layer, job.compare);
        let Some(piece) = job.pieces.get_mut(at as usize).and_then(Option::as_mut) else { return };
        let (offset, len) = (piece.offset, piece.len);
        if compare {
            piece.step = Step::Summing { sums: Vec::new() };
            for slot in to.with(Slots::one(from)).iter() {
                self.send(slot, RequestBody::Checksum { layer, offset, len }, Token::Copy(number, at), cx);
            }
        } else {
            piece.step = Step::Reading { to };
            self.send(from, RequestBody::CopyRead { layer, offset, len }, Token::Copy(number, at), cx);
        }
    }

    pub(super) fn copy_answered(&mut self, slot: Slot, number: u32, at: u32, body: ReplyBody, cx: &mut Cx<'_>) {
        let Some(job) = self.copy.as_mut().filter(|job| job.number == number) else { return };
        let (from, to, layer) = (job.from, job.to, job.layer);
        let Some(piece) = job.pieces.get_mut(at as usize).and_then(Option::as_mut) else { return };
        let (offset, len) = (piece.offset, piece.len);
        match (&mut piece.step, body) {
            (Step::Summing { sums }, ReplyBody::Sum(sum)) => {
                sums.push((slot, sum));
                let sum_of = |slot: Slot| sums.iter().find(|(other, _)| *other == slot).map(|(_, sum)| *sum);
                if to.with(Slots::one(from)).iter().any(|slot| sum_of(slot).is_none()) {
                    return;
                }
                let different: Slots = to.iter().filter(|slot| sum_of(*slot) != sum_of(from)).collect();
                if different.is_empty() {
                    self.piece_done(at, 0, cx);
                } else {
                    piece.step = Step::Reading { to: different };
                    self.send(from, RequestBody::CopyRead { layer, offset, len }, Token::Copy(number, at), cx);
                }
            }
            (Step::Reading { to }, ReplyBody::Data(data)) if data.len() == len as usize => {
                let to = *to;
                piece.step = Step::Writing { left: to };
                for target in to.iter() {
                    let data = data.clone();
                    self.send(target, RequestBody::CopyWrite { layer, offset, data }, Token::Copy(number, at), cx);
                }
            }
            (Step::Writing { left }, ReplyBody::Done) => {
                left.remove(slot);
                if left.is_empty() {
                    self.piece_done(at, u64::from(len), cx);
                }
            }
            _ => self.copy_failed(slot, cx),
        }
    }

    fn piece_done(&mut self, at: u32, copied: u64, cx: &mut Cx<'_>) {
        let Some(job) = self.copy.as_mut() else { return };
        let Some(piece) = job.pieces.get_mut(at as usize).and_then(Option::take) else { return };
        while matches!(job.pieces.last(), Some(None)) {
            job.pieces.pop();
        }
        let before = job.done * 100 / job.total.max(1);
        job.done += u64::from(piece.len);
        job.copied += copied;
        if copied > 0 {
            job.touched.insert((piece.offset >> job.geometry.shift) as Region);
        }
        let (done, total, copied) = (job.done, job.total, job.copied);
        let locked = job.locked;
        if let Some(join) = self.join.as_ref().filter(|_| done * 100 / total.max(1) > before) {
            let member = self.name(join.slot);
            cx.notice(Notice::Progress { member, done, total, copied });
        }
        if locked {
            self.release(PIECE_OWNER | at, cx);
        }
    }

    fn copy_failed(&mut self, slot: Slot, cx: &mut Cx<'_>) {
        match self.phase {
            Phase::Equalising => self.exclude(slot, cx),
            _ => self.abort_join(Leaving::Failed(crate::wire::Failure::Io), cx),
        }
    }

    /// Gives a copy up; writes that waited for its pieces go on.
    pub(super) fn drop_copy(&mut self, cx: &mut Cx<'_>) {
        let Some(job) = self.copy.take() else { return };
        for (at, piece) in job.pieces.iter().enumerate() {
            if piece.is_some() && job.locked {
                self.release(PIECE_OWNER | at as u32, cx);
            }
        }
    }
}
