//! Changing blocks: writes, zeroes, discards, and copies into older layers.

use bytes::Bytes;

use super::flight::{Owner, failure};
use super::{Volume, Work};
use crate::buffer::{AlignedBuf, BLOCK, SHARED_ZEROES_MAX, zeroes};
use crate::files::Files;
use crate::index::NOTHING;
use crate::meta::snapshot_image;
use crate::op::{Fault, FileId, OpKind};
use crate::request::{Output, Reply, Request, RequestError, RequestId, View};

/// Zeroes written at a time where the filesystem has no cheaper way, in bytes: bounds the operations out.
const ZERO_WINDOW: u64 = 16 << 20;

/// Longest hole or range of zeroes made at once, in blocks (64 MiB): shorter ones that lie close together become
/// one, so that a fragmented range does not take an operation for each of its pieces.
const SPAN_BLOCKS: u64 = (64 << 20) / BLOCK;

/// Parts of a change that are reads of its first and last block.
const FIRST_EDGE: u32 = 0;
const LAST_EDGE: u32 = 1;
/// Any other part.
const BODY: u32 = 2;

#[derive(Debug)]
enum Content {
    Data(Bytes),
    Zeroes,
    Discard,
    /// For an older layer.
    Copy {
        file: FileId,
        data: Bytes,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Reading the blocks that are changed in part.
    Edges,
    Apply,
    Sync,
}

/// A change under way.
#[derive(Debug)]
pub(super) struct Changing {
    content: Content,
    /// In bytes, as asked for.
    start: u64,
    end: u64,
    fua: bool,
    /// Holes will do for zeroes.
    unmap: bool,
    stage: Stage,
    edges: [Option<AlignedBuf>; 2],
    /// How far zeroes got, in blocks.
    at: u64,
    /// The filesystem refused to make zeroes or holes: write them.
    by_hand: bool,
}

impl Changing {
    /// Blocks that are touched.
    fn blocks(&self) -> (u64, u64) {
        (self.start / BLOCK, self.end.div_ceil(BLOCK))
    }

    /// Whole blocks inside.
    fn body(&self) -> (u64, u64) {
        whole_blocks(self.start, self.end)
    }
}

fn whole_blocks(start: u64, end: u64) -> (u64, u64) {
    let first = start.div_ceil(BLOCK);
    (first, (end / BLOCK).max(first))
}

impl<F: Files> Volume<F> {
    pub(super) fn begin_change(
        &mut self,
        id: RequestId,
        offset: u64,
        len: u64,
        request: Request,
        out: &mut Output,
    ) -> Result<(), RequestError> {
        self.in_range(offset, len)?;
        self.sound()?;
        let (mut first, mut end) = (offset / BLOCK, (offset + len).div_ceil(BLOCK));
        if let Request::Discard { .. } = request {
            (first, end) = whole_blocks(offset, offset + len);
        }
        if len == 0 || first == end {
            out.done.push((id, Ok(Reply::Done)));
            return Ok(());
        }
        let Some(request) = self.flight.may_change(id, request, first, end) else { return Ok(()) };
        self.start_change(id, request, out)
    }

    fn start_change(&mut self, id: RequestId, request: Request, out: &mut Output) -> Result<(), RequestError> {
        let (offset, len, content, fua, unmap) = match request {
            Request::Write { offset, data, fua } => (offset, data.len() as u64, Content::Data(data), fua, false),
            Request::WriteZeroes { offset, len, fua, unmap } => (offset, len, Content::Zeroes, fua, unmap),
            Request::Discard { offset, len } => (offset, len, Content::Discard, false, true),
            Request::Copy { view, offset, data } => {
                let len = data.len() as u64;
                let Some(content) = self.copy_into(&view, offset, data)? else {
                    out.done.push((id, Ok(Reply::Done)));
                    return Ok(());
                };
                (offset, len, content, false, true)
            }
            _ => unreachable!("only changes must be queued"),
        };
        let end = offset + len;
        let changing = Changing {
            content,
            start: offset,
            end,
            fua,
            unmap,
            stage: Stage::Edges,
            edges: [None, None],
            at: offset.div_ceil(BLOCK),
            by_hand: false,
        };
        let (first, last) = changing.blocks();
        let key = self.flight.start(id, Work::Change(changing));
        self.flight.changes(key, first, last);
        if !matches!(self.changing(key).content, Content::Discard) {
            if !offset.is_multiple_of(BLOCK) {
                self.read_edge(key, FIRST_EDGE, first, out);
            }
            if !end.is_multiple_of(BLOCK) && (last - 1 != first || offset.is_multiple_of(BLOCK)) {
                self.read_edge(key, LAST_EDGE, last - 1, out);
            }
        }
        if self.flight.requests.get_mut(key).out == 0 {
            self.apply(key, out);
        }
        Ok(())
    }

    /// What a copy has to do; None if the blocks read as zeroes already, and should.
    fn copy_into(&mut self, view: &View, offset: u64, data: Bytes) -> Result<Option<Content>, RequestError> {
        let len = data.len() as u64;
        if !offset.is_multiple_of(BLOCK) || !len.is_multiple_of(BLOCK) {
            return Err(RequestError::NotBlocks { offset, len });
        }
        let zeroes = data.iter().all(|byte| *byte == 0);
        let parts = self.parts(view, offset / BLOCK, (offset + len) / BLOCK)?;
        if zeroes && parts.iter().all(|part| part.file.is_none()) {
            return Ok(None);
        }
        Ok(Some(match view {
            View::Live if zeroes => Content::Zeroes,
            View::Live => Content::Data(data),
            View::Snapshot(name) => Content::Copy { file: self.file_of(&snapshot_image(name))?, data },
        }))
    }

    fn changing(&mut self, key: u32) -> &mut Changing {
        match &mut self.flight.requests.get_mut(key).work {
            Work::Change(changing) => changing,
            _ => unreachable!("a change must stay a change"),
        }
    }

    fn read_edge(&mut self, key: u32, edge: u32, block: u64, out: &mut Output) {
        match self.index.get(block) {
            NOTHING => self.changing(key).edges[edge as usize] = Some(AlignedBuf::zeroed(BLOCK as usize)),
            layer => {
                let kind = OpKind::Read { buffer: AlignedBuf::new(BLOCK as usize) };
                self.flight.send(Owner::Request(key, edge), self.layers.file(layer), block * BLOCK, kind, out);
            }
        }
    }

    /// Sends the operations that make the change.
    fn apply(&mut self, key: u32, out: &mut Output) {
        let head = self.layers.head().file;
        let direct_align = if self.abilities.direct { self.abilities.memory_align } else { 1 };
        let changing = self.changing(key);
        changing.stage = Stage::Apply;
        let offset = changing.start / BLOCK * BLOCK;
        let (file, data) = match &changing.content {
            Content::Data(data) if changing.edges.iter().all(Option::is_none) => (head, data.clone()),
            Content::Data(data) => (head, with_edges(data, changing.start, changing.end, &changing.edges)),
            Content::Copy { file, data } => {
                let (file, data) = (*file, data.clone());
                self.unsynced.insert(file);
                (file, data)
            }
            Content::Zeroes => return self.apply_zeroes(key, out),
            Content::Discard => return self.apply_discard(key, out),
        };
        let data = if (data.as_ptr() as usize).is_multiple_of(direct_align) {
            data
        } else {
            let mut aligned = AlignedBuf::new(data.len());
            aligned.copy_from_slice(&data);
            aligned.freeze()
        };
        let dsync = self.changing(key).fua;
        self.flight.send(Owner::Request(key, BODY), file, offset, OpKind::Write { data, dsync }, out);
    }

    fn apply_zeroes(&mut self, key: u32, out: &mut Output) {
        let head = self.layers.head().file;
        let older = self.layers.len() > 1;
        let changing = self.changing(key);
        let (start, end) = (changing.start, changing.end);
        let (at, last) = (changing.at, changing.body().1);
        // A hole would show what older layers hold, and so would an unwritten range: only data hides them.
        let by_hand = changing.by_hand || older;
        let window = if by_hand { last.min(at + ZERO_WINDOW / BLOCK) } else { last }.max(at);
        changing.at = window;
        for edge in [FIRST_EDGE, LAST_EDGE] {
            if let Some(mut buffer) = self.changing(key).edges[edge as usize].take() {
                let block = if edge == FIRST_EDGE { start / BLOCK } else { end / BLOCK };
                let from = start.saturating_sub(block * BLOCK).min(BLOCK) as usize;
                let to = (end - block * BLOCK).min(BLOCK) as usize;
                buffer[from..to].fill(0);
                let kind = OpKind::Write { data: buffer.freeze(), dsync: false };
                self.flight.send(Owner::Request(key, BODY), head, block * BLOCK, kind, out);
            }
        }
        let unmap = self.changing(key).unmap;
        // Written zeroes take space, so exactly where they are needed.
        let span = if by_hand { 0 } else { SPAN_BLOCKS };
        for (start, end) in self.spans(at, window, !unmap, span) {
            let (from, len) = (start * BLOCK, (end - start) * BLOCK);
            let mut send = |at, kind| self.flight.send(Owner::Request(key, BODY), head, at, kind, out);
            if by_hand {
                for piece in (0..len).step_by(SHARED_ZEROES_MAX) {
                    let data = zeroes((len - piece).min(SHARED_ZEROES_MAX as u64) as usize);
                    send(from + piece, OpKind::Write { data, dsync: false });
                }
            } else if unmap {
                send(from, OpKind::Punch { len });
            } else {
                send(from, OpKind::Zero { len });
            }
        }
        if self.flight.requests.get_mut(key).out == 0 {
            self.applied(key, out);
        }
    }

    /// The blocks of a range that somebody owns (or all), in pieces of bounded length; those within `joined` blocks
    /// are one piece, with what lies between them.
    fn spans(&self, first: u64, end: u64, all: bool, joined: u64) -> Vec<(u64, u64)> {
        let mut spans: Vec<(u64, u64)> = Vec::new();
        for run in self.index.runs(first, end).filter(|run| all || run.layer != NOTHING) {
            match spans.last_mut() {
                Some(last) if run.end - last.0 <= joined => last.1 = run.end,
                _ => {
                    let starts = (run.start..run.end).step_by(SPAN_BLOCKS as usize);
                    spans.extend(starts.map(|start| (start, run.end.min(start + SPAN_BLOCKS))));
                }
            }
        }
        spans
    }

    /// Holes in the head, and in the removed snapshots right below it that nothing else stands on.
    fn apply_discard(&mut self, key: u32, out: &mut Output) {
        let (first, end) = self.changing(key).body();
        let head = self.layers.head().id;
        let mut files = Vec::new();
        for layer in self.layers.iter().rev() {
            let disk = &self.tree.disks[&layer.image];
            if layer.id != head && (!disk.removed || self.tree.children(&layer.image).nth(1).is_some()) {
                break;
            }
            files.push((layer.file, end.min(layer.blocks)));
        }
        self.unsynced.extend(files.iter().skip(1).map(|(file, _)| *file));
        let spans = self.spans(first, end, false, SPAN_BLOCKS);
        for (file, blocks) in files {
            for (start, end) in &spans {
                let to = (*end).min(blocks);
                if *start < to {
                    let kind = OpKind::Punch { len: (to - start) * BLOCK };
                    self.flight.send(Owner::Request(key, BODY), file, start * BLOCK, kind, out);
                }
            }
        }
        if self.flight.requests.get_mut(key).out == 0 {
            self.applied(key, out);
        }
    }

    pub(super) fn change_completed(&mut self, key: u32, part: u32, buffer: Option<AlignedBuf>, out: &mut Output) {
        if part != BODY {
            self.changing(key).edges[part as usize] = buffer;
        }
        let active = self.flight.requests.get_mut(key);
        if active.out > 0 {
            return;
        }
        let stage = self.changing(key).stage;
        if self.flight.requests.get_mut(key).fault == Some(Fault::Unsupported) && stage == Stage::Apply {
            let changing = self.changing(key);
            match changing.content {
                Content::Discard => self.flight.requests.get_mut(key).fault = None,
                Content::Zeroes if !changing.by_hand => {
                    changing.by_hand = true;
                    changing.at = changing.body().0;
                    self.flight.requests.get_mut(key).fault = None;
                    return self.apply(key, out);
                }
                _ => {}
            }
        }
        let failed = self.flight.requests.get_mut(key).fault.is_some();
        match stage {
            Stage::Edges if !failed => self.apply(key, out),
            Stage::Apply if !failed => self.applied(key, out),
            _ => self.finish_change(key, out),
        }
    }

    /// One round of operations is back: go on, make it durable, or answer.
    fn applied(&mut self, key: u32, out: &mut Output) {
        let head = self.layers.head().file;
        let changing = self.changing(key);
        if matches!(changing.content, Content::Zeroes) {
            if changing.at < changing.body().1 {
                return self.apply(key, out);
            }
            if changing.fua {
                changing.stage = Stage::Sync;
                return self.flight.send(Owner::Request(key, BODY), head, 0, OpKind::Sync, out);
            }
        }
        self.finish_change(key, out);
    }

    fn finish_change(&mut self, key: u32, out: &mut Output) {
        let active = self.flight.finish(key);
        let Work::Change(changing) = active.work else { unreachable!("a change must stay a change") };
        let (first, end) = changing.blocks();
        let mut answer = failure(active.fault);
        if changing.stage == Stage::Sync {
            answer = self.synced(active.fault);
        }
        if matches!(changing.content, Content::Data(_)) && answer.is_ok() {
            self.index.set(first, end, self.layers.head().id);
        } else if changing.stage != Stage::Edges {
            // Zeroes, holes, older layers, and whatever a failed write left: the filesystem knows.
            if let Err(error) = self.reindex(first, end) {
                self.broken.get_or_insert((&error).into());
                answer = answer.and(Err(RequestError::Io((&error).into())));
            }
        }
        out.done.push((active.id, answer.map(|()| Reply::Done)));
        self.flight.changed(key);
        // One that was over at once has nobody else to wake those behind it.
        loop {
            let ready = self.flight.ready();
            if ready.is_empty() {
                break;
            }
            for (id, request) in ready {
                if let Err(error) = self.start_change(id, request, out) {
                    out.done.push((id, Err(error)));
                }
            }
        }
    }
}

/// Whole blocks: `data` in the middle, what the edges held around it.
fn with_edges(data: &[u8], start: u64, end: u64, edges: &[Option<AlignedBuf>; 2]) -> Bytes {
    let first = start / BLOCK * BLOCK;
    let mut cover = AlignedBuf::new((end.next_multiple_of(BLOCK) - first) as usize);
    let block = BLOCK as usize;
    if let Some(edge) = &edges[FIRST_EDGE as usize] {
        cover[..block].copy_from_slice(edge);
    }
    if let Some(edge) = &edges[LAST_EDGE as usize] {
        let last = cover.len() - block;
        cover[last..].copy_from_slice(edge);
    }
    let skip = (start - first) as usize;
    cover[skip..skip + data.len()].copy_from_slice(data);
    cover.freeze()
}
