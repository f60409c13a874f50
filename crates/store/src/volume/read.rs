//! Reading: which file holds which part, many reads into one buffer, and digests of ranges.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::flight::{Owner, failure};
use super::{Volume, Work};
use crate::buffer::{AlignedBuf, BLOCK, zeroes};
use crate::checksum::Hasher;
use crate::files::Files;
use crate::index::NOTHING;
use crate::meta::snapshot_image;
use crate::op::{FileId, OpKind};
use crate::request::{Output, Reply, RequestError, RequestId, View};

/// Read per step of a checksum, in bytes: long enough to stream, short enough to be fair to other requests.
const CHECKSUM_STEP: u64 = 256 << 10;

/// A part of a range, in blocks, and the file that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) start: u64,
    pub(super) end: u64,
    /// None: zeroes.
    pub(super) file: Option<FileId>,
}

/// A read: the parts of its buffer that are back.
#[derive(Debug)]
pub(super) struct Reading {
    parts: Vec<Option<AlignedBuf>>,
    /// Bytes of the first block that were not asked for.
    skip: usize,
    len: usize,
}

/// A checksum: what was read so far.
#[derive(Debug)]
pub(super) struct Hashing {
    view: View,
    hasher: Hasher,
    reading: Reading,
    at: u64,
    end: u64,
}

impl<F: Files> Volume<F> {
    pub(super) fn begin_read(
        &mut self,
        id: RequestId,
        view: &View,
        offset: u64,
        len: u64,
        out: &mut Output,
    ) -> Result<(), RequestError> {
        if len == 0 {
            out.done.push((id, Ok(Reply::Read(Bytes::new()))));
            return Ok(());
        }
        let (first, end) = (offset / BLOCK, (offset + len).div_ceil(BLOCK));
        if *view == View::Live {
            let run = self.index.run(first, end);
            if run.end == end && run.layer == NOTHING {
                out.done.push((id, Ok(Reply::Read(zeroes(len as usize)))));
                return Ok(());
            }
        }
        let parts = self.parts(view, first, end)?;
        let skip = (offset - first * BLOCK) as usize;
        let reading = Reading { parts: Vec::with_capacity(parts.len()), skip, len: len as usize };
        let key = self.flight.start(id, Work::Read(reading));
        self.send_reads(key, &parts, out);
        if self.flight.requests.get_mut(key).out == 0 {
            self.finish_read(key, out);
        }
        Ok(())
    }

    /// Who has each part of the blocks `first..end`, in order.
    pub(super) fn parts(&mut self, view: &View, first: u64, end: u64) -> Result<Vec<Part>, RequestError> {
        let name = match view {
            View::Live => {
                let owned = |layer| (layer != NOTHING).then(|| self.layers.file(layer));
                let parts = self.index.runs(first, end).map(|run| Part {
                    start: run.start,
                    end: run.end,
                    file: owned(run.layer),
                });
                return Ok(parts.collect());
            }
            View::Snapshot(name) => name,
        };
        let image = snapshot_image(name);
        match self.tree.disks.get(&image) {
            Some(disk) if !disk.removed => {}
            _ => return Err(RequestError::NoSnapshot(name.clone())),
        }
        let chain = self.tree.chain(&image).map_err(|error| RequestError::Metadata(error.to_string()))?;
        // Painted oldest first; the map holds starts of runs.
        let mut painted: BTreeMap<u64, Option<FileId>> = BTreeMap::from([(first, None)]);
        for image in chain.iter().rev() {
            let file = self.file_of(image)?;
            let mut found = Vec::new();
            self.files
                .extents(file, first * BLOCK, end * BLOCK, &mut |from, to, written| {
                    if written {
                        found.push((from / BLOCK, to.div_ceil(BLOCK).min(end)));
                    }
                })
                .map_err(|error| RequestError::Io((&error).into()))?;
            for (from, to) in found {
                paint(&mut painted, from, to, end, file);
            }
        }
        let ends = painted.keys().skip(1).copied().chain([end]);
        Ok(painted.iter().zip(ends).map(|((start, file), end)| Part { start: *start, end, file: *file }).collect())
    }

    /// The open file of an image, opened if need be.
    pub(super) fn file_of(&mut self, image: &str) -> Result<FileId, RequestError> {
        if let Some(layer) = self.layers.by_image(image) {
            return Ok(layer.file);
        }
        if let Some(file) = self.aside.get(image) {
            return Ok(*file);
        }
        let file = self.files.open(image).map_err(|error| RequestError::Metadata(format!("{image}: {error}")))?;
        self.aside.insert(image.to_owned(), file);
        Ok(file)
    }

    /// Sends the reads of a request's parts out, all into one buffer.
    fn send_reads(&mut self, key: u32, parts: &[Part], out: &mut Output) {
        let (first, end) = (parts[0].start, parts[parts.len() - 1].end);
        let mut rest = AlignedBuf::new(((end - first) * BLOCK) as usize);
        for (number, part) in parts.iter().enumerate() {
            let mut buffer = rest;
            rest = buffer.split_off(((part.end - part.start) * BLOCK) as usize);
            let kept = match part.file {
                None => {
                    buffer.fill(0);
                    Some(buffer)
                }
                Some(file) => {
                    let owner = Owner::Request(key, number as u32);
                    self.flight.send(owner, file, part.start * BLOCK, OpKind::Read { buffer }, out);
                    None
                }
            };
            self.reading(key).parts.push(kept);
        }
    }

    fn reading(&mut self, key: u32) -> &mut Reading {
        match &mut self.flight.requests.get_mut(key).work {
            Work::Read(reading) | Work::Checksum(Hashing { reading, .. }) => reading,
            _ => unreachable!("only reads and checksums must have parts to read"),
        }
    }

    pub(super) fn read_completed(&mut self, key: u32, part: u32, buffer: Option<AlignedBuf>, out: &mut Output) {
        self.reading(key).parts[part as usize] = buffer;
        if self.flight.requests.get_mut(key).out == 0 {
            self.finish_read(key, out);
        }
    }

    fn finish_read(&mut self, key: u32, out: &mut Output) {
        let active = self.flight.finish(key);
        let Work::Read(reading) = active.work else { unreachable!("a read must stay a read") };
        let answer = failure(active.fault).map(|()| {
            let bytes = joined(reading.parts).freeze();
            Reply::Read(bytes.slice(reading.skip..reading.skip + reading.len))
        });
        out.done.push((active.id, answer));
    }

    pub(super) fn begin_checksum(
        &mut self,
        id: RequestId,
        view: &View,
        offset: u64,
        len: u64,
        out: &mut Output,
    ) -> Result<(), RequestError> {
        if !offset.is_multiple_of(BLOCK) || !len.is_multiple_of(BLOCK) {
            return Err(RequestError::NotBlocks { offset, len });
        }
        // Fails early if there is no such snapshot.
        self.parts(view, offset / BLOCK, offset / BLOCK)?;
        let reading = Reading { parts: Vec::new(), skip: 0, len: 0 };
        let hashing = Hashing { view: view.clone(), hasher: Hasher::default(), reading, at: offset, end: offset + len };
        let key = self.flight.start(id, Work::Checksum(hashing));
        self.checksum_step(key, out);
        Ok(())
    }

    /// Passes over holes and sends the next reads, or answers.
    fn checksum_step(&mut self, key: u32, out: &mut Output) {
        loop {
            let (view, at, end) = {
                let hashing = self.hashing(key);
                (hashing.view.clone(), hashing.at, hashing.end)
            };
            if at == end {
                break;
            }
            let until = if view == View::Live && self.index.run(at / BLOCK, end / BLOCK).layer == NOTHING {
                // A hole, however long, is one step.
                self.index.run(at / BLOCK, end / BLOCK).end * BLOCK
            } else {
                end.min(at + CHECKSUM_STEP)
            };
            let parts = match self.parts(&view, at / BLOCK, until / BLOCK) {
                Ok(parts) => parts,
                Err(error) => {
                    let active = self.flight.finish(key);
                    out.done.push((active.id, Err(error)));
                    return;
                }
            };
            self.hashing(key).at = until;
            if parts.iter().all(|part| part.file.is_none()) {
                self.hashing(key).hasher.skip(until - at);
                continue;
            }
            self.send_reads(key, &parts, out);
            return;
        }
        let active = self.flight.finish(key);
        let Work::Checksum(hashing) = active.work else { unreachable!("a checksum must stay a checksum") };
        out.done.push((active.id, Ok(Reply::Checksum(hashing.hasher.finish()))));
    }

    fn hashing(&mut self, key: u32) -> &mut Hashing {
        match &mut self.flight.requests.get_mut(key).work {
            Work::Checksum(hashing) => hashing,
            _ => unreachable!("a checksum must stay a checksum"),
        }
    }

    pub(super) fn checksum_completed(&mut self, key: u32, part: u32, buffer: Option<AlignedBuf>, out: &mut Output) {
        self.reading(key).parts[part as usize] = buffer;
        let active = self.flight.requests.get_mut(key);
        if active.out > 0 {
            return;
        }
        if let Err(error) = failure(active.fault) {
            let active = self.flight.finish(key);
            out.done.push((active.id, Err(error)));
            return;
        }
        let hashing = self.hashing(key);
        let parts = std::mem::take(&mut hashing.reading.parts);
        hashing.hasher.update(&joined(parts));
        self.checksum_step(key, out);
    }
}

/// The parts as the buffer they were cut from.
fn joined(parts: Vec<Option<AlignedBuf>>) -> AlignedBuf {
    let mut parts = parts.into_iter().map(|part| part.expect("every part of a read must be back"));
    let mut whole = parts.next().expect("a read must have parts");
    parts.for_each(|part| whole.join(part));
    whole
}

/// Gives `from..to` of a map of run starts to `file`.
fn paint(painted: &mut BTreeMap<u64, Option<FileId>>, from: u64, to: u64, end: u64, file: FileId) {
    let after = painted.range(..=to).next_back().map(|(_, owner)| *owner).unwrap_or_default();
    let covered: Vec<u64> = painted.range(from..to).map(|(start, _)| *start).collect();
    for start in covered {
        painted.remove(&start);
    }
    painted.insert(from, Some(file));
    if to < end {
        painted.entry(to).or_insert(after);
    }
}
