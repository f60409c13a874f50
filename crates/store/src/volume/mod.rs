//! An open replica: requests in, file operations and answers out.
//!
//! ```text
//!            submit                        completed
//!   Request ───────► parts ──► FileOp … ──────────────► more FileOps, or the answer
//!                      │
//!                      └── another change of the same blocks is under way: wait for it
//! ```
//!
//! Reads follow the index to the layer that owns each block; blocks that nobody owns are zeroes without any
//! I/O. Changes go to the head. Changes of the same block are serialised (a block is the smallest thing that is
//! written); reads are not, their order with changes is the caller's business.

mod chain;
mod change;
mod commit;
mod flight;
mod image;
mod layers;
mod lifecycle;
mod read;
mod reclaim;
mod recover;
mod snapshot;
mod unwritten;

use std::collections::{BTreeMap, BTreeSet};

use crate::buffer::BLOCK;
use crate::files::{Abilities, Files};
use crate::index::Index;
use crate::meta::VolumeMeta;
use crate::op::{Fault, FileId, OpId, OpKind, OpResult};
use crate::request::{Extent, Output, Reply, Request, RequestError, RequestId};
use crate::state::State;
use crate::tree::Tree;

pub use chain::{Chain, ChainError, ChainSnapshot};
use flight::{Flight, Owner};
pub use image::{HASH_METHOD, ImageHash};
use layers::Layers;
pub(crate) use lifecycle::REVISION_COUNTER;
pub use lifecycle::{Adopt, Create, Open, OpenError, Opened, Previous, Released};
pub use snapshot::{SnapshotError, SnapshotInfo};

/// An open replica.
#[derive(Debug)]
pub struct Volume<F: Files> {
    files: F,
    abilities: Abilities,
    meta: VolumeMeta,
    tree: Tree,
    layers: Layers,
    /// Images that are open but not part of the live chain.
    aside: BTreeMap<String, FileId>,
    index: Index,
    state: State,
    state_file: FileId,
    commit: commit::Commit,
    flight: Flight,
    reclaim: reclaim::Progress,
    /// Older layers that were changed since the last flush.
    unsynced: BTreeSet<FileId>,
    /// A sync failed: nobody can tell what is durable.
    broken: Option<Fault>,
}

/// What a request under way is about.
#[derive(Debug)]
enum Work {
    Read(read::Reading),
    Checksum(read::Hashing),
    Change(change::Changing),
    Flush,
    Reclaim(reclaim::Step),
    /// Zeroes before the data that is read.
    Image(u64),
}

impl<F: Files> Volume<F> {
    /// Size of the volume in bytes.
    pub fn size(&self) -> u64 {
        self.meta.size as u64
    }

    /// The state file's contents, including changes that are not durable yet.
    pub fn state(&self) -> &State {
        &self.state
    }

    pub fn volume_meta(&self) -> &VolumeMeta {
        &self.meta
    }

    pub fn files(&self) -> &F {
        &self.files
    }

    /// Nothing was ever written, or all of it was given back.
    pub fn is_empty(&self) -> bool {
        let run = self.index.run(0, self.index.blocks());
        run.layer == crate::index::NOTHING && run.end == self.index.blocks()
    }

    /// Memory that the index takes, in bytes.
    pub fn index_bytes(&self) -> usize {
        self.index.bytes()
    }

    /// How many requests are under way.
    pub fn in_hand(&self) -> usize {
        self.flight.requests.len()
    }

    /// Nothing is under way: snapshots, reverts, expansion and closing are possible.
    pub fn is_idle(&self) -> bool {
        self.flight.is_idle() && self.commit.is_idle()
    }

    /// Starts a request.
    pub fn submit(&mut self, id: RequestId, request: Request, out: &mut Output) {
        if let Err(error) = self.begin(id, request, out) {
            out.done.push((id, Err(error)));
        }
    }

    fn begin(&mut self, id: RequestId, request: Request, out: &mut Output) -> Result<(), RequestError> {
        match request {
            Request::Read { view, offset, len } => {
                self.in_range(offset, len)?;
                self.begin_read(id, &view, offset, len, out)
            }
            Request::Checksum { view, offset, len } => {
                self.in_range(offset, len)?;
                self.begin_checksum(id, &view, offset, len, out)
            }
            Request::Status { offset, len } => {
                self.in_range(offset, len)?;
                out.done.push((id, Ok(Reply::Status(self.status(offset, len)))));
                Ok(())
            }
            Request::Flush => {
                self.sound()?;
                let key = self.flight.start(id, Work::Flush);
                let older = std::mem::take(&mut self.unsynced);
                for file in older.into_iter().chain([self.layers.head().file]) {
                    self.flight.send(Owner::Request(key, 0), file, 0, OpKind::Sync, out);
                }
                Ok(())
            }
            Request::ImagePiece { snapshot, at } => self.begin_image_piece(id, &snapshot, at, out),
            Request::Save(changes) => {
                self.sound()?;
                self.begin_save(id, changes, out)
            }
            Request::Reclaim { budget } => {
                self.sound()?;
                self.begin_reclaim(id, budget, out)
            }
            Request::Write { offset, ref data, .. } | Request::Copy { offset, ref data, .. } => {
                self.begin_change(id, offset, data.len() as u64, request, out)
            }
            Request::WriteZeroes { offset, len, .. } | Request::Discard { offset, len } => {
                self.begin_change(id, offset, len, request, out)
            }
        }
    }

    /// Takes the result of an operation.
    pub fn completed(&mut self, op: OpId, result: OpResult, out: &mut Output) {
        match self.flight.back(op) {
            Owner::Commit => self.commit_completed(result, out),
            Owner::Request(key, part) => {
                let mut buffer = None;
                match result {
                    OpResult::Read(filled) => buffer = Some(filled),
                    OpResult::Done => {}
                    OpResult::Failed(fault) => {
                        self.flight.requests.get_mut(key).fault.get_or_insert(fault);
                    }
                }
                match self.flight.requests.get_mut(key).work {
                    Work::Read(_) => self.read_completed(key, part, buffer, out),
                    Work::Checksum(_) => self.checksum_completed(key, part, buffer, out),
                    Work::Change(_) => self.change_completed(key, part, buffer, out),
                    Work::Flush => self.flush_completed(key, out),
                    Work::Reclaim(_) => self.reclaim_completed(key, buffer, out),
                    Work::Image(_) => self.image_completed(key, buffer, out),
                }
            }
        }
        if !self.flight.closing.is_empty() {
            for file in self.flight.closable() {
                self.unsynced.remove(&file);
                self.files.close(file);
            }
        }
    }

    fn flush_completed(&mut self, key: u32, out: &mut Output) {
        if self.flight.requests.get_mut(key).out > 0 {
            return;
        }
        let active = self.flight.finish(key);
        let answer = self.synced(active.fault).map(|()| Reply::Done);
        out.done.push((active.id, answer));
    }

    /// Judges a sync: one that failed makes every later one meaningless, since the kernel forgets what it could
    /// not write.
    fn synced(&mut self, fault: Option<Fault>) -> Result<(), RequestError> {
        match fault {
            None => Ok(()),
            Some(fault) => {
                self.broken.get_or_insert(fault);
                Err(RequestError::SyncFailed(fault))
            }
        }
    }

    fn sound(&self) -> Result<(), RequestError> {
        self.broken.map_or(Ok(()), |fault| Err(RequestError::SyncFailed(fault)))
    }

    fn in_range(&self, offset: u64, len: u64) -> Result<(), RequestError> {
        let size = self.size();
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => Err(RequestError::OutOfRange { offset, len, size }),
        }
    }

    /// Parts of the range that hold data, and holes.
    pub fn status(&self, offset: u64, len: u64) -> Vec<Extent> {
        let end = offset + len;
        let mut extents: Vec<Extent> = Vec::new();
        for run in self.index.runs(offset / BLOCK, end.div_ceil(BLOCK)) {
            let (from, to) = ((run.start * BLOCK).max(offset), (run.end * BLOCK).min(end));
            let data = run.layer != crate::index::NOTHING;
            match extents.last_mut() {
                Some(last) if last.data == data => last.len += to - from,
                _ => extents.push(Extent { offset: from, len: to - from, data }),
            }
        }
        extents
    }

    /// Learns from the filesystem who owns these blocks.
    fn reindex(&mut self, first: u64, end: u64) -> std::io::Result<()> {
        self.index.set(first, end, crate::index::NOTHING);
        for layer in self.layers.iter() {
            let (id, to) = (layer.id, end.min(layer.blocks));
            if first < to {
                let index = &mut self.index;
                self.files.extents(layer.file, first * BLOCK, to * BLOCK, &mut |from, until, written| {
                    if written {
                        index.set(from / BLOCK, until.div_ceil(BLOCK).min(to), id);
                    }
                })?;
            }
        }
        Ok(())
    }
}
