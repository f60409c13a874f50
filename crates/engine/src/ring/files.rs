//! File operations on the ring: bounded in number, short ones continued.
//!
//! `unsafe` because the kernel is given pointers to the buffers kept here until the operation completed.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;

use bytes::Bytes;
use io_uring::{opcode, squeue, types};

use super::queue::{Queue, Tag};
use crate::host::{Buffer, FileId, FileOp, OpResult, Pool};

/// Operations given to the kernel at once. Deeper queues gain nothing on the disks this runs on, and each one
/// that cannot be started at once costs the kernel a worker thread.
const MAX_IN_FLIGHT: usize = 128;

/// Finds the descriptor behind a file id.
pub trait Descriptors {
    fn descriptor(&self, file: FileId) -> Option<RawFd>;
}

struct Running {
    ticket: u64,
    op: FileOp,
    buffer: Option<Buffer>,
    done: usize,
}

pub(super) struct Files {
    running: Vec<Option<Running>>,
    free: Vec<usize>,
    waiting: VecDeque<(u64, FileOp)>,
    pool: Pool,
}

impl Files {
    pub fn new(pool: Pool) -> Self {
        Self { running: Vec::new(), free: Vec::new(), waiting: VecDeque::new(), pool }
    }

    pub fn start(&mut self, ticket: u64, op: FileOp, descriptors: &dyn Descriptors, queue: &mut Queue) {
        if self.running.len() - self.free.len() >= MAX_IN_FLIGHT {
            self.waiting.push_back((ticket, op));
            return;
        }
        let buffer = match &op {
            FileOp::Read { len, .. } => Some(self.pool.take(*len)),
            _ => None,
        };
        let slot = self.free.pop().unwrap_or_else(|| {
            self.running.push(None);
            self.running.len() - 1
        });
        self.running[slot] = Some(Running { ticket, op, buffer, done: 0 });
        self.submit(slot, descriptors, queue);
    }

    fn submit(&mut self, slot: usize, descriptors: &dyn Descriptors, queue: &mut Queue) {
        let running = self.running[slot].as_mut().expect("a slot that is submitted must be in use");
        let entry = running.entry(descriptors);
        // SAFETY: the buffer or bytes are kept in the slot until the completion, and are on the heap.
        unsafe { queue.push(entry, Tag::File(slot as u64)) };
    }

    /// An operation came back: its ticket and result if it is finished, None if it goes on.
    pub fn completed(
        &mut self,
        slot: u64,
        outcome: io::Result<usize>,
        descriptors: &dyn Descriptors,
        queue: &mut Queue,
    ) -> Option<(u64, OpResult)> {
        let slot = slot as usize;
        let running = self.running[slot].as_mut().expect("a completion must be of an operation in flight");
        let result = match outcome {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => None,
            Err(error) => Some(Err(error.kind())),
            Ok(len) => running.advance(len),
        };
        let Some(result) = result else {
            self.submit(slot, descriptors, queue);
            return None;
        };
        let running = self.running[slot].take().expect("checked above");
        self.free.push(slot);
        if let Some((ticket, op)) = self.waiting.pop_front() {
            self.start(ticket, op, descriptors, queue);
        }
        let result = result.map(|()| running.buffer.map(Buffer::freeze));
        Some((running.ticket, result))
    }
}

impl Running {
    fn entry(&mut self, descriptors: &dyn Descriptors) -> squeue::Entry {
        let fd = |file: &FileId| types::Fd(descriptors.descriptor(*file).unwrap_or(-1));
        match &self.op {
            FileOp::Read { file, offset, .. } => {
                let rest = &mut self.buffer.as_mut().expect("a read must have a buffer")[self.done..];
                opcode::Read::new(fd(file), rest.as_mut_ptr(), rest.len() as u32)
                    .offset(offset + self.done as u64)
                    .build()
            }
            FileOp::Write { file, offset, data } => {
                let rest: &[u8] = &Bytes::as_ref(data)[self.done..];
                opcode::Write::new(fd(file), rest.as_ptr(), rest.len() as u32).offset(offset + self.done as u64).build()
            }
            FileOp::Sync { file } => opcode::Fsync::new(fd(file)).flags(types::FsyncFlags::DATASYNC).build(),
            FileOp::Punch { file, offset, len } => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                opcode::Fallocate::new(fd(file), *len).offset(*offset).mode(mode).build()
            }
            FileOp::Zero { file, offset, len } => {
                let mode = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
                opcode::Fallocate::new(fd(file), *len).offset(*offset).mode(mode).build()
            }
        }
    }

    /// Counts progress; a result if this was the end.
    fn advance(&mut self, len: usize) -> Option<Result<(), io::ErrorKind>> {
        match &self.op {
            FileOp::Read { len: wanted, .. } => {
                self.done += len;
                if len == 0 {
                    let buffer = self.buffer.as_mut().expect("a read must have a buffer");
                    buffer[self.done..].fill(0);
                    return Some(Ok(()));
                }
                (self.done == *wanted).then_some(Ok(()))
            }
            FileOp::Write { data, .. } => {
                self.done += len;
                if len == 0 && self.done < data.len() {
                    return Some(Err(io::ErrorKind::WriteZero));
                }
                (self.done == data.len()).then_some(Ok(()))
            }
            _ => Some(Ok(())),
        }
    }
}
