//! Giving back what removed snapshots hold, a little at a time.
//!
//! A fold copies the data of the only child into the removed parent, where it overwrites only what the child
//! hides anyway; then the parent's file takes the child's name in one rename. A prune makes holes in the
//! snapshot below the head where the head hides it. Both can be interrupted anywhere and begun again.

use std::collections::VecDeque;

use super::flight::{Owner, failure};
use super::recover::replace_meta;
use super::{Volume, Work};
use crate::buffer::{AlignedBuf, BLOCK};
use crate::files::Files;
use crate::meta::{checksum_name, meta_name, render};
use crate::op::{FileId, OpKind};
use crate::request::{Output, Reclaimed, Reply, RequestError, RequestId};
use crate::tree::Reclaim;

/// Copied at a time, in bytes.
const STEP: u64 = 1 << 20;
/// How far ahead the extents of the child are looked up, in bytes.
const LOOKAHEAD: u64 = 1 << 30;
/// Holes made per sync of the head.
const PRUNE_RUNS: usize = 512;
/// Chunks of the index that are relabelled at a time: well below a millisecond.
const RELABEL_CHUNKS: usize = 1024;

/// How far the present piece of work got; lost at a restart, which then begins it again.
#[derive(Debug, Default)]
pub(super) struct Progress {
    busy: bool,
    fold: Option<Fold>,
    /// The snapshot being pruned, and the next block of the volume.
    prune: Option<(String, u64)>,
    /// Pruned since something was last removed.
    pruned: Option<String>,
}

impl Progress {
    /// Something was removed: look again.
    pub(super) fn wanted(&mut self) {
        self.pruned = None;
    }
}

#[derive(Debug)]
struct Fold {
    parent: String,
    child: String,
    /// Child's length in bytes.
    size: u64,
    /// Looked up as far as this.
    at: u64,
    extents: VecDeque<(u64, u64)>,
}

/// One request to reclaim.
#[derive(Debug)]
pub(super) struct Step {
    budget: u64,
    done: u64,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Next,
    /// A piece of the child is being read.
    Reading {
        offset: u64,
    },
    /// It is being written to the parent.
    Writing {
        len: u64,
    },
    /// The parent is complete and being synced.
    Syncing,
    /// The head is being synced, before these runs of blocks (and up to this block) are pruned.
    Pruning {
        image: FileId,
        runs: Vec<(u64, u64)>,
        until: u64,
    },
    Punching {
        until: u64,
    },
}

impl<F: Files> Volume<F> {
    pub(super) fn begin_reclaim(&mut self, id: RequestId, budget: u64, out: &mut Output) -> Result<(), RequestError> {
        if self.reclaim.busy {
            return Err(RequestError::Metadata("space is being reclaimed already".to_owned()));
        }
        self.reclaim.busy = true;
        let key = self.flight.start(id, Work::Reclaim(Step { budget, done: 0, stage: Stage::Next }));
        self.advance(key, out);
        Ok(())
    }

    fn step(&mut self, key: u32) -> &mut Step {
        match &mut self.flight.requests.get_mut(key).work {
            Work::Reclaim(step) => step,
            _ => unreachable!("reclaiming must stay reclaiming"),
        }
    }

    /// Goes on until an operation is out, or answers.
    fn advance(&mut self, key: u32, out: &mut Output) {
        let answer = loop {
            let (budget, done) = (self.step(key).budget, self.step(key).done);
            if self.relabel() {
                break Ok(Reclaimed { bytes: done, more: true });
            }
            if done >= budget {
                break Ok(Reclaimed { bytes: done, more: self.work_left() });
            }
            match self.next_piece(key, out) {
                Ok(true) if self.flight.requests.get_mut(key).out > 0 => return,
                Ok(true) => {}
                Ok(false) => break Ok(Reclaimed { bytes: done, more: false }),
                Err(error) => break Err(error),
            }
        };
        self.finish_reclaim(key, answer, out);
    }

    fn finish_reclaim(&mut self, key: u32, answer: Result<Reclaimed, RequestError>, out: &mut Output) {
        self.reclaim.busy = false;
        let active = self.flight.finish(key);
        out.done.push((active.id, answer.map(Reply::Reclaim)));
    }

    /// Replaces retired layer numbers in a part of the index. True if there was something to do.
    fn relabel(&mut self) -> bool {
        let chunks = self.index.chunks();
        let Some(retired) = self.layers.retired_mut() else { return false };
        let from = retired.done;
        retired.done = from + RELABEL_CHUNKS;
        self.index.relabel(from..from + RELABEL_CHUNKS, retired.old, retired.new);
        if retired.done >= chunks {
            self.layers.drop_retired();
        }
        true
    }

    fn work_left(&self) -> bool {
        match self.tree.reclaimable() {
            None => false,
            Some(Reclaim::Prune { image }) => self.reclaim.pruned.as_ref() != Some(&image),
            Some(_) => true,
        }
    }

    /// Does or begins one piece of work. False if there is none.
    fn next_piece(&mut self, key: u32, out: &mut Output) -> Result<bool, RequestError> {
        match self.tree.reclaimable() {
            None => return Ok(false),
            Some(Reclaim::Delete { image }) => {
                self.flight.closing.extend(self.aside.remove(&image));
                self.tree.disks.remove(&image);
                self.remove_files(&image).map_err(|error| RequestError::Metadata(error.to_string()))?;
            }
            Some(Reclaim::Fold { parent, child }) => self.fold_piece(key, parent, child, out)?,
            Some(Reclaim::Prune { image }) => {
                if self.reclaim.pruned.as_ref() == Some(&image) {
                    return Ok(false);
                }
                self.prune_piece(key, image, out)?;
            }
        }
        Ok(true)
    }

    fn fold_piece(&mut self, key: u32, parent: String, child: String, out: &mut Output) -> Result<(), RequestError> {
        let metadata = |error: std::io::Error| RequestError::Metadata(error.to_string());
        let (into, from) = (self.file_of(&parent)?, self.file_of(&child)?);
        let begun = self.reclaim.fold.as_ref().is_some_and(|fold| fold.parent == parent && fold.child == child);
        if !begun {
            let size = self.files.stat(&child).map_err(metadata)?.map_or(0, |stat| stat.size);
            let below = self.files.stat(&parent).map_err(metadata)?.map_or(0, |stat| stat.size);
            if below < size {
                self.files.resize(&parent, size).map_err(metadata)?;
            }
            self.reclaim.fold = Some(Fold { parent, child, size, at: 0, extents: VecDeque::new() });
        }
        let fold = self.reclaim.fold.as_mut().expect("the fold must have begun");
        while fold.extents.is_empty() && fold.at < fold.size {
            let until = fold.size.min(fold.at + LOOKAHEAD);
            let extents = &mut fold.extents;
            let found = &mut |from: u64, to: u64, written: bool| {
                if written {
                    extents.push_back((from / BLOCK * BLOCK, to.next_multiple_of(BLOCK)));
                }
            };
            self.files.extents(from, fold.at, until, found).map_err(metadata)?;
            fold.at = until;
        }
        let Some((start, end)) = fold.extents.pop_front() else {
            self.step(key).stage = Stage::Syncing;
            self.flight.send(Owner::Request(key, 0), into, 0, OpKind::Sync, out);
            return Ok(());
        };
        let len = (end - start).min(STEP);
        if start + len < end {
            fold.extents.push_front((start + len, end));
        }
        self.step(key).stage = Stage::Reading { offset: start };
        let kind = OpKind::Read { buffer: AlignedBuf::new(len as usize) };
        self.flight.send(Owner::Request(key, 0), from, start, kind, out);
        Ok(())
    }

    fn prune_piece(&mut self, key: u32, image: String, out: &mut Output) -> Result<(), RequestError> {
        let file = self.file_of(&image)?;
        let at = match &self.reclaim.prune {
            Some((pruning, at)) if *pruning == image => *at,
            _ => 0,
        };
        let head = self.layers.head();
        let (head_id, head_file) = (head.id, head.file);
        let blocks = self.layers.by_image(&image).map_or(0, |layer| layer.blocks);
        let mut until = blocks.max(at);
        let mut runs = Vec::new();
        for run in self.index.runs(at, blocks.max(at)) {
            if run.layer == head_id {
                runs.push((run.start, run.end));
            }
            if runs.len() == PRUNE_RUNS {
                until = run.end;
                break;
            }
        }
        if runs.is_empty() {
            self.reclaim.prune = None;
            self.reclaim.pruned = Some(image);
            return Ok(());
        }
        self.reclaim.prune = Some((image, at));
        // What the head hides is still needed if the head loses it: first make sure that it does not.
        self.step(key).stage = Stage::Pruning { image: file, runs, until };
        self.flight.send(Owner::Request(key, 0), head_file, 0, OpKind::Sync, out);
        Ok(())
    }

    pub(super) fn reclaim_completed(&mut self, key: u32, buffer: Option<AlignedBuf>, out: &mut Output) {
        let active = self.flight.requests.get_mut(key);
        if active.out > 0 {
            return;
        }
        let fault = active.fault;
        let stage = std::mem::replace(&mut self.step(key).stage, Stage::Next);
        let outcome = match stage {
            Stage::Syncing | Stage::Pruning { .. } => self.synced(fault),
            _ => failure(fault),
        };
        if let Err(error) = outcome {
            // Begin again the next time: what was done is not lost, what failed is not skipped.
            self.reclaim.fold = None;
            self.reclaim.prune = None;
            return self.finish_reclaim(key, Err(error), out);
        }
        match stage {
            Stage::Reading { offset } => {
                let data = buffer.expect("a read must give its buffer back");
                let into = self.reclaim.fold.as_ref().and_then(|fold| self.layers_or_aside(&fold.parent));
                let into = into.expect("the parent of a fold must be open");
                let len = data.len() as u64;
                self.step(key).stage = Stage::Writing { len };
                let kind = OpKind::Write { data: data.freeze(), dsync: false };
                return self.flight.send(Owner::Request(key, 0), into, offset, kind, out);
            }
            Stage::Writing { len } => self.step(key).done += len,
            Stage::Syncing => {
                if let Err(error) = self.finish_fold() {
                    self.reclaim.fold = None;
                    return self.finish_reclaim(key, Err(error), out);
                }
            }
            Stage::Pruning { image, runs, until } => {
                self.step(key).stage = Stage::Punching { until };
                for (from, to) in runs {
                    let kind = OpKind::Punch { len: (to - from) * BLOCK };
                    self.flight.send(Owner::Request(key, 0), image, from * BLOCK, kind, out);
                    self.step(key).done += (to - from) * BLOCK;
                }
                return;
            }
            Stage::Punching { until } => {
                if let Some((_, at)) = &mut self.reclaim.prune {
                    *at = until;
                }
            }
            Stage::Next => {}
        }
        self.advance(key, out);
    }

    fn layers_or_aside(&self, image: &str) -> Option<FileId> {
        self.layers.by_image(image).map(|layer| layer.file).or_else(|| self.aside.get(image).copied())
    }

    /// The parent holds everything: it takes the child's place.
    fn finish_fold(&mut self) -> Result<(), RequestError> {
        let Some(Fold { parent, child, size, .. }) = self.reclaim.fold.take() else { return Ok(()) };
        let metadata = |error: std::io::Error| RequestError::Metadata(error.to_string());
        self.files.remove(&checksum_name(&child)).map_err(metadata)?;
        self.files.rename(&parent, &child).map_err(metadata)?;
        self.files.sync_dir().map_err(metadata)?;
        let disk = crate::meta::DiskMeta {
            parent: self.tree.disks[&parent].parent.clone(),
            ..self.tree.disks[&child].clone()
        };
        let replaced = replace_meta(&mut self.files, &meta_name(&child), &render(&disk));
        // The rename cannot be taken back; memory follows it even if the rest is left to the next opening.
        self.tree.disks.insert(child.clone(), disk);
        self.tree.disks.remove(&parent);
        if let Some(unused) = self.layers.merge(&parent, &child, size / BLOCK) {
            self.flight.closing.push(unused);
        } else if let Some(file) = self.aside.remove(&parent) {
            self.flight.closing.extend(self.aside.insert(child, file));
        }
        replaced.map_err(metadata)?;
        self.remove_files(&parent).map_err(|error| RequestError::Metadata(error.to_string()))
    }
}
