//! File operations on the ring: bounded in number, short ones continued.
//!
//! `unsafe` because the kernel is given pointers to the buffers kept here until the operation completed.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;

use io_uring::{opcode, squeue, types};
use tether_store::{Fault, FileOp, OpId, OpKind, OpResult};

use super::queue::{Queue, Tag};

/// Operations given to the kernel at once. Deeper queues gain nothing on the disks this runs on, and each one
/// that cannot be started at once costs the kernel a worker thread.
const MAX_IN_FLIGHT: usize = 128;

struct Running {
    fd: RawFd,
    op: FileOp,
    done: usize,
}

#[derive(Default)]
pub(super) struct Files {
    running: Vec<Option<Running>>,
    free: Vec<usize>,
    waiting: VecDeque<(RawFd, FileOp)>,
}

impl Files {
    pub fn start(&mut self, fd: RawFd, op: FileOp, queue: &mut Queue) {
        if self.running.len() - self.free.len() >= MAX_IN_FLIGHT {
            self.waiting.push_back((fd, op));
            return;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.running.push(None);
            self.running.len() - 1
        });
        self.running[slot] = Some(Running { fd, op, done: 0 });
        self.submit(slot, queue);
    }

    fn submit(&mut self, slot: usize, queue: &mut Queue) {
        let running = self.running[slot].as_mut().expect("a slot that is submitted must be in use");
        let entry = running.entry();
        // SAFETY: the buffer or bytes are kept in the slot until the completion, and are on the heap.
        unsafe { queue.push(entry, Tag::File(slot as u64)) };
    }

    /// An operation came back: its id and result if it is finished, None if it goes on.
    pub fn completed(&mut self, slot: u64, outcome: io::Result<usize>, queue: &mut Queue) -> Option<(OpId, OpResult)> {
        let slot = slot as usize;
        let running = self.running[slot].as_mut().expect("a completion must be of an operation in flight");
        let finished = match outcome {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) => None,
            Err(error) => Some(Err(Fault::from(&error))),
            Ok(len) => running.advance(len),
        };
        let Some(finished) = finished else {
            self.submit(slot, queue);
            return None;
        };
        let running = self.running[slot].take().expect("checked above");
        self.free.push(slot);
        if let Some((fd, op)) = self.waiting.pop_front() {
            self.start(fd, op, queue);
        }
        let result = match (finished, running.op.kind) {
            (Err(fault), _) => OpResult::Failed(fault),
            (Ok(()), OpKind::Read { buffer }) => OpResult::Read(buffer),
            (Ok(()), _) => OpResult::Done,
        };
        Some((running.op.id, result))
    }
}

impl Running {
    fn entry(&mut self) -> squeue::Entry {
        let fd = types::Fd(self.fd);
        let offset = self.op.offset + self.done as u64;
        match &mut self.op.kind {
            OpKind::Read { buffer } => {
                let rest = &mut buffer[self.done..];
                opcode::Read::new(fd, rest.as_mut_ptr(), rest.len() as u32).offset(offset).build()
            }
            OpKind::Write { data, dsync } => {
                let rest = &data[self.done..];
                let flags = if *dsync { libc::RWF_DSYNC } else { 0 };
                opcode::Write::new(fd, rest.as_ptr(), rest.len() as u32).offset(offset).rw_flags(flags).build()
            }
            OpKind::Sync => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
            OpKind::Punch { len } => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                opcode::Fallocate::new(fd, *len).offset(offset).mode(mode).build()
            }
            OpKind::Zero { len } => {
                let mode = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
                opcode::Fallocate::new(fd, *len).offset(offset).mode(mode).build()
            }
        }
    }

    /// Counts progress. None: it goes on.
    fn advance(&mut self, len: usize) -> Option<Result<(), Fault>> {
        self.done += len;
        match &mut self.op.kind {
            OpKind::Read { buffer } => {
                if len == 0 {
                    // Past the end of the file there are zeroes.
                    buffer[self.done..].fill(0);
                    return Some(Ok(()));
                }
                (self.done == buffer.len()).then_some(Ok(()))
            }
            OpKind::Write { data, .. } => {
                if self.done == data.len() {
                    return Some(Ok(()));
                }
                (len == 0).then_some(Err(Fault::Io))
            }
            _ => Some(Ok(())),
        }
    }
}
