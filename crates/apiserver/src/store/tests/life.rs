//! One life of a store without its thread: batches go straight to the committer, so that every run is the same.

use std::sync::{Arc, mpsc};

use bytes::Bytes;
use tokio::sync::oneshot;

use super::super::commit::{Committer, Message, Request};
use super::super::disk::Disk;
use super::super::{Change, Entry, Expect, Key, Options, Shared, WriteError};
use super::oracle::Oracle;
use super::power::{PowerDisk, Rng};

pub(super) const RESOURCES: [&str; 2] = ["pods", "nodes"];
pub(super) const NAMESPACES: [&str; 3] = ["", "a", "b"];
const NAMES: [&str; 4] = ["w", "x", "y", "z"];
/// Small bounds, so that trimming happens in every run; a small cache, so that pages are written before the commit.
pub(super) const OPTIONS: Options = Options {
    history_events: 40,
    history_bytes: 64 << 10,
    cache_bytes: 64 << 10,
    queued_writes: 1,
    value_bytes: 64 << 10,
};

/// One run of the store, without its thread.
pub(super) struct Life {
    pub(super) shared: Arc<Shared>,
    pub(super) committer: Committer,
}

impl Life {
    pub(super) fn start(disk: &PowerDisk) -> Self {
        let (disk, state) = Disk::open(Arc::new(disk.clone()), OPTIONS).unwrap();
        let shared = Arc::new(Shared::new(state));
        let committer = Committer::new(shared.clone(), disk, OPTIONS);
        Self { shared, committer }
    }

    pub(super) fn commit(&mut self, writes: &[Planned]) -> Vec<Result<Entry, WriteError>> {
        let (queue, requests) = mpsc::channel();
        let mut answers = Vec::new();
        for write in writes {
            let (reply, answer) = oneshot::channel();
            answers.push(answer);
            let (key, expect, change) = (Arc::new(write.key.clone()), write.expect, write.change());
            queue.send(Message::Write(Request { key, expect, change, reply, _place: None })).unwrap();
        }
        let first = requests.recv().unwrap();
        self.committer.serve(first, &requests);
        answers.into_iter().map(|mut answer| answer.try_recv().unwrap()).collect()
    }
}

/// A write that both the store and the oracle are given.
pub(super) struct Planned {
    key: Key,
    expect: Expect,
    deletes: bool,
    filler: Vec<u8>,
}

impl Planned {
    pub(super) fn random(rng: &mut Rng, oracle: &Oracle) -> Self {
        let key = Key::new(*rng.pick(&RESOURCES), *rng.pick(&NAMESPACES), *rng.pick(&NAMES));
        let expect = match (rng.below(4), oracle.get(&key)) {
            (0, _) | (3, None) => Expect::Absent,
            (1, _) => Expect::Any,
            (2, _) => Expect::Revision(rng.next() % (oracle.revision() + 2)),
            (_, current) => Expect::Revision(current.map_or(0, |entry| entry.revision)),
        };
        // Mostly less than a page, sometimes several.
        let size = if rng.chance(90) { rng.below(600) } else { rng.below(20_000) };
        let byte = b'a' + rng.below(26) as u8;
        Self { key, expect, deletes: rng.chance(25), filler: vec![byte; size] }
    }

    fn value(&self) -> impl FnOnce(u64) -> Bytes + Send + 'static {
        let filler = self.filler.clone();
        move |revision| Bytes::from([filler.as_slice(), revision.to_string().as_bytes()].concat())
    }

    fn change(&self) -> Change {
        if self.deletes { Change::delete(self.value()) } else { Change::put(self.value()) }
    }
}

/// What a batch should do, according to the oracle, on a copy of it.
pub(super) fn expected(oracle: &Oracle, writes: &[Planned]) -> (Oracle, Vec<Result<Entry, Option<Entry>>>) {
    let mut after = oracle.clone();
    let answers = writes.iter().map(|write| after.write(&write.key, write.expect, write.deletes, write.value()));
    let answers = answers.collect();
    (after, answers)
}

pub(super) fn assert_answers(answers: Vec<Result<Entry, WriteError>>, expected: &[Result<Entry, Option<Entry>>]) {
    let answers: Vec<_> = answers
        .into_iter()
        .map(|answer| {
            answer.map_err(|error| match error {
                WriteError::Conflict { current } => current,
                other => panic!("unexpected {other:?}"),
            })
        })
        .collect();
    assert_eq!(answers, expected);
}
