//! What is under way: requests, the operations they wait for, and who must wait for whom.

use std::collections::VecDeque;

use crate::op::{Fault, FileId, FileOp, OpId, OpKind};
use crate::request::{Output, Request, RequestError, RequestId};

/// Places that are reused; a place's number is its key.
#[derive(Debug)]
pub(super) struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(super) fn insert(&mut self, value: T) -> u32 {
        if let Some(key) = self.free.pop() {
            self.places[key as usize] = Some(value);
            return key;
        }
        self.places.push(Some(value));
        self.places.len() as u32 - 1
    }

    pub(super) fn get_mut(&mut self, key: u32) -> &mut T {
        self.places[key as usize].as_mut().expect("a key must be in use")
    }

    pub(super) fn remove(&mut self, key: u32) -> T {
        let value = self.places[key as usize].take().expect("a key must be in use");
        self.free.push(key);
        value
    }

    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Who an operation belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// The request at this key, and which of its parts.
    Request(u32, u32),
    /// The commit of the state file.
    Commit,
}

#[derive(Debug)]
struct Out {
    owner: Owner,
    file: FileId,
}

/// A request that waits for operations.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) id: RequestId,
    /// Operations that are out.
    pub(super) out: u32,
    /// The first thing that went wrong.
    pub(super) fault: Option<Fault>,
    pub(super) work: super::Work,
}

#[derive(Debug, Default)]
pub(super) struct Flight {
    pub(super) requests: Slab<Active>,
    ops: Slab<Out>,
    /// Blocks that requests under way change.
    changing: Vec<(u32, u64, u64)>,
    /// Changes that wait for others to finish with their blocks, in order.
    waiting: VecDeque<(RequestId, Request, u64, u64)>,
    /// Operations out per file.
    busy: Vec<u32>,
    /// Files that nothing new uses, to be closed when their operations are back.
    pub(super) closing: Vec<FileId>,
}

impl Flight {
    /// Nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.requests.is_empty() && self.ops.is_empty() && self.waiting.is_empty()
    }

    pub(super) fn start(&mut self, id: RequestId, work: super::Work) -> u32 {
        self.requests.insert(Active { id, out: 0, fault: None, work })
    }

    /// Sends an operation out.
    pub(super) fn send(&mut self, owner: Owner, file: FileId, offset: u64, kind: OpKind, out: &mut Output) {
        if let Owner::Request(key, _) = owner {
            self.requests.get_mut(key).out += 1;
        }
        let place = file.0 as usize;
        if self.busy.len() <= place {
            self.busy.resize(place + 1, 0);
        }
        self.busy[place] += 1;
        let id = OpId(u64::from(self.ops.insert(Out { owner, file })));
        out.ops.push(FileOp { id, file, offset, kind });
    }

    /// Takes an operation back.
    pub(super) fn back(&mut self, op: OpId) -> Owner {
        let out = self.ops.remove(op.0 as u32);
        self.busy[out.file.0 as usize] -= 1;
        if let Owner::Request(key, _) = out.owner {
            self.requests.get_mut(key).out -= 1;
        }
        out.owner
    }

    /// Files that can be closed now.
    pub(super) fn closable(&mut self) -> Vec<FileId> {
        let busy = &self.busy;
        let is_busy = |file: &FileId| busy.get(file.0 as usize).is_some_and(|count| *count > 0);
        let (kept, free) = self.closing.drain(..).partition(is_busy);
        self.closing = kept;
        free
    }

    /// Whether a change of these blocks may start now; otherwise it is queued.
    pub(super) fn may_change(&mut self, id: RequestId, request: Request, first: u64, end: u64) -> Option<Request> {
        let overlaps = |from: u64, to: u64| from < end && first < to;
        let taken = self.changing.iter().any(|(_, from, to)| overlaps(*from, *to))
            || self.waiting.iter().any(|(_, _, from, to)| overlaps(*from, *to));
        if taken {
            self.waiting.push_back((id, request, first, end));
            return None;
        }
        Some(request)
    }

    pub(super) fn changes(&mut self, key: u32, first: u64, end: u64) {
        self.changing.push((key, first, end));
    }

    /// The change at `key` is over.
    pub(super) fn changed(&mut self, key: u32) {
        self.changing.retain(|(owner, ..)| *owner != key);
    }

    /// Changes that waited and can start now.
    pub(super) fn ready(&mut self) -> Vec<(RequestId, Request)> {
        let mut ready = Vec::new();
        if self.waiting.is_empty() {
            return ready;
        }
        let mut index = 0;
        let mut taken: Vec<(u64, u64)> = self.changing.iter().map(|(_, first, end)| (*first, *end)).collect();
        while index < self.waiting.len() {
            let (first, end) = (self.waiting[index].2, self.waiting[index].3);
            // What stays queued blocks what came after it, so that the order of one block's changes is kept.
            if taken.iter().any(|(from, to)| *from < end && first < *to) {
                index += 1;
            } else if let Some((id, request, ..)) = self.waiting.remove(index) {
                ready.push((id, request));
            }
            taken.push((first, end));
        }
        ready
    }

    /// Ends a request.
    pub(super) fn finish(&mut self, key: u32) -> Active {
        self.requests.remove(key)
    }
}

/// Whether a fault answers the request as it is.
pub(super) fn failure(fault: Option<Fault>) -> Result<(), RequestError> {
    fault.map_or(Ok(()), |fault| Err(fault.into()))
}
