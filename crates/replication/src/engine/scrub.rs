//! Comparing what members hold while the volume is used: one piece at a time, at a limited rate.
//!
//! Writes to a piece wait while its checksums are taken, so that all members are asked about the same moment. What
//! differs is told and left alone: which of two copies is the right one, no replica can know.

use super::copy::PIECE_OWNER;
use super::locks::{Owner, Use};
use super::members::Token;
use super::{Cx, Engine, Notice, Phase};
use crate::ids::{MemberId, Slot, Slots, Time};
use crate::wire::{Layer, ReplyBody, RequestBody};

/// The claim of the one piece that is compared; pieces of copies count from zero.
pub(super) const SCRUB_OWNER: Owner = PIECE_OWNER | (PIECE_OWNER - 1);

/// A comparison that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Scrub {
    /// Answers to an earlier one do not count.
    number: u32,
    bytes_per_second: u64,
    next: u64,
    end: u64,
    not_before: Time,
    piece: Option<Piece>,
    different: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Piece {
    offset: u64,
    len: u32,
    /// Asked, and not answered.
    left: Slots,
    sums: Vec<(Slot, u128)>,
}

impl Scrub {
    /// When the next piece may begin, if that is what is waited for.
    pub(super) fn due(&self, now: Time) -> Option<Time> {
        (self.piece.is_none() && self.not_before > now).then_some(self.not_before)
    }
}

impl Engine {
    /// Begins from the start of the volume, or stops.
    pub(super) fn scrub(&mut self, bytes_per_second: u64, cx: &mut Cx<'_>) {
        self.drop_scrub(cx);
        if self.phase == Phase::Serving && bytes_per_second > 0 {
            self.copies += 1;
            self.scrub = Some(Scrub {
                number: self.copies,
                bytes_per_second,
                next: 0,
                end: self.config.geometry.size,
                not_before: cx.now,
                piece: None,
                different: 0,
            });
        }
    }

    pub(super) fn drop_scrub(&mut self, cx: &mut Cx<'_>) {
        if self.scrub.take().is_some_and(|scrub| scrub.piece.is_some()) {
            self.release(SCRUB_OWNER, cx);
        }
    }

    /// Whether members are being asked: operations on the whole volume wait for that.
    pub(super) fn is_comparing(&self) -> bool {
        self.scrub.as_ref().is_some_and(|scrub| scrub.piece.is_some())
    }

    /// Who can be compared: members that hold everything that was acknowledged.
    fn comparable(&self) -> Slots {
        self.recorded.and(self.required).and(self.open_slots()).without(self.leaving)
    }

    pub(super) fn drive_scrub(&mut self, cx: &mut Cx<'_>) {
        let chunk = self.config.limits.resync_chunk;
        let settled = self.barrier.is_none() && self.leaving.is_empty() && !self.unknown && !self.stopping;
        let enough = self.comparable().len() > 1;
        let Some(scrub) = self.scrub.as_mut().filter(|scrub| scrub.piece.is_none()) else { return };
        if scrub.next >= scrub.end {
            let (bytes, different) = (scrub.end, scrub.different);
            self.scrub = None;
            return cx.notice(Notice::Scrubbed { bytes, different });
        }
        if !settled || !enough || cx.now < scrub.not_before {
            return;
        }
        let offset = scrub.next;
        let len = u64::from(chunk).min(scrub.end - offset) as u32;
        scrub.next += u64::from(len);
        scrub.not_before = Time(cx.now.0 + u64::from(len) * 1_000_000 / scrub.bytes_per_second);
        scrub.piece = Some(Piece { offset, len, left: Slots::NONE, sums: Vec::new() });
        if self.locks.claim(SCRUB_OWNER, offset, offset + u64::from(len), Use::Copy) {
            self.scrub_granted(cx);
        }
    }

    /// No write to the piece is under way.
    pub(super) fn scrub_granted(&mut self, cx: &mut Cx<'_>) {
        let members = self.comparable();
        let Some(scrub) = self.scrub.as_mut() else { return };
        let number = scrub.number;
        let Some(piece) = scrub.piece.as_mut() else { return };
        piece.left = members;
        let (offset, len) = (piece.offset, piece.len);
        for slot in members.iter() {
            self.send(slot, RequestBody::Checksum { layer: Layer::LIVE, offset, len }, Token::Scrub(number), cx);
        }
        self.look_at_scrub(cx);
    }

    /// A member answered; anything but a sum says nothing about its data.
    pub(super) fn scrub_answered(&mut self, slot: Slot, number: u32, body: &ReplyBody, cx: &mut Cx<'_>) {
        let Some(scrub) = self.scrub.as_mut().filter(|scrub| scrub.number == number) else { return };
        let Some(piece) = scrub.piece.as_mut().filter(|piece| piece.left.has(slot)) else { return };
        piece.left.remove(slot);
        if let ReplyBody::Sum(sum) = body {
            piece.sums.push((slot, *sum));
        }
        self.look_at_scrub(cx);
    }

    fn look_at_scrub(&mut self, cx: &mut Cx<'_>) {
        // Who is on its way out may have missed what the others have.
        let members = self.comparable();
        let Some(scrub) = self.scrub.as_mut() else { return };
        let Some(piece) = scrub.piece.take_if(|piece| piece.left.is_empty()) else { return };
        let sums: Vec<_> = piece.sums.iter().filter(|(slot, _)| members.has(*slot)).copied().collect();
        let odd = odd_ones(&sums);
        if !odd.is_empty() {
            scrub.different += u64::from(piece.len);
        }
        let (done, total, different) = (scrub.next, scrub.end, scrub.different);
        let before = (done - u64::from(piece.len)) * 100 / total.max(1);
        if !odd.is_empty() {
            let members: Vec<MemberId> = odd.into_iter().map(|slot| self.name(slot)).collect();
            cx.notice(Notice::Different { offset: piece.offset, len: piece.len, members });
        }
        if done * 100 / total.max(1) > before {
            cx.notice(Notice::Scrubbing { done, total, different });
        }
        self.release(SCRUB_OWNER, cx);
    }
}

/// Members whose sum is not the one that most have; all of them if no sum is.
fn odd_ones(sums: &[(Slot, u128)]) -> Vec<Slot> {
    let votes = |sum: u128| sums.iter().filter(|(_, other)| *other == sum).count();
    let most = sums.iter().map(|(_, sum)| votes(*sum)).max().unwrap_or(0);
    let agreed = most * 2 > sums.len();
    sums.iter().filter(|(_, sum)| !agreed || votes(*sum) < most).map(|(slot, _)| *slot).collect()
}
