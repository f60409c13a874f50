//! Many requests under way at once, their operations done in any order: the end is as if each had been done alone.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;
use tether_store::files::fake::{FakeDisk, FakeFiles, Random, Target};
use tether_store::host::{read, run};
use tether_store::volume::{Create, Open, SnapshotError};
use tether_store::{AlignedBuf, BLOCK, Fault, FileOp, Output, Reply, Request, RequestError, View, Volume};

const SIZE: u64 = 16 * BLOCK;

fn create(disk: &FakeDisk) -> Volume<FakeFiles> {
    let options = Create { volume: "v".into(), size: SIZE, boot_id: "b".into(), ..Create::default() };
    Volume::create(disk.files(), &options).unwrap().0
}

/// A change of a part of the volume.
#[derive(Debug, Clone)]
enum Step {
    Write(u64, u64, u8, bool),
    Zero(u64, u64, bool),
    Read(u64, u64),
    Flush,
    Reclaim,
    Checksum,
}

fn step() -> impl Strategy<Value = Step> {
    let range = (0..SIZE, 1..3 * BLOCK).prop_map(|(offset, len)| (offset, len.min(SIZE - offset)));
    let aligned = (0..16u64, 1..4u64).prop_map(|(at, n)| (at * BLOCK, n.min(16 - at) * BLOCK));
    let range = prop_oneof![range, aligned];
    prop_oneof![
        6 => (range.clone(), any::<u8>(), any::<bool>()).prop_map(|((o, l), v, fua)| Step::Write(o, l, v, fua)),
        2 => (range.clone(), any::<bool>()).prop_map(|((o, l), unmap)| Step::Zero(o, l, unmap)),
        2 => range.prop_map(|(o, l)| Step::Read(o, l)),
        1 => Just(Step::Flush),
        1 => Just(Step::Reclaim),
        1 => Just(Step::Checksum),
    ]
}

/// Runs operations in an order of the dice until none is left, or only some of them.
struct Host {
    random: Random,
    out: Output,
    ops: Vec<FileOp>,
}

impl Host {
    fn new(seed: u64) -> Self {
        Self { random: Random::new(seed), out: Output::default(), ops: Vec::new() }
    }

    fn turn(&mut self, volume: &mut Volume<FakeFiles>, all: bool) {
        loop {
            self.ops.append(&mut self.out.ops);
            if self.ops.is_empty() || (!all && self.random.below(3) == 0) {
                break;
            }
            let pick = self.random.below(self.ops.len() as u64) as usize;
            let op = self.ops.swap_remove(pick);
            let disk = volume.files().disk();
            let (id, result) = disk.run(op);
            volume.completed(id, result, &mut self.out);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Changes that overlap are made in the order they came in, whatever the order of their operations.
    #[test]
    fn overlapping_changes_keep_their_order(
        steps in prop::collection::vec(step(), 1..40),
        snapshots in prop::collection::vec(0..40usize, 0..3),
        seed in any::<u64>(),
    ) {
        let disk = FakeDisk::new(seed);
        let mut volume = create(&disk);
        let mut host = Host::new(seed);
        let mut oracle = vec![0u8; SIZE as usize];
        let mut frozen: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for (number, step) in steps.iter().enumerate() {
            if snapshots.contains(&number) {
                host.turn(&mut volume, true);
                let name = format!("s{number}");
                volume.create_snapshot(&name, true, "now", BTreeMap::new()).unwrap();
                if let Some((older, _)) = frozen.last_key_value() {
                    volume.remove_snapshot(older).unwrap();
                }
                frozen = BTreeMap::from([(name, oracle.clone())]);
            }
            let id = number as u64;
            let request = match step.clone() {
                Step::Write(offset, len, value, fua) => {
                    oracle[offset as usize..(offset + len) as usize].fill(value);
                    Request::Write { offset, data: Bytes::from(vec![value; len as usize]), fua }
                }
                Step::Zero(offset, len, unmap) => {
                    oracle[offset as usize..(offset + len) as usize].fill(0);
                    Request::WriteZeroes { offset, len, fua: false, unmap }
                }
                Step::Read(offset, len) => Request::Read { view: View::Live, offset, len },
                Step::Flush => Request::Flush,
                Step::Reclaim => Request::Reclaim { budget: BLOCK },
                Step::Checksum => Request::Checksum { view: View::Live, offset: 0, len: SIZE },
            };
            volume.submit(id, request, &mut host.out);
            host.turn(&mut volume, false);
        }
        host.turn(&mut volume, true);
        let mut answered: Vec<u64> = host.out.done.iter().map(|(id, _)| *id).collect();
        answered.sort_unstable();
        prop_assert_eq!(answered, (0..steps.len() as u64).collect::<Vec<_>>(), "each request is answered once");
        for (id, answer) in &host.out.done {
            let twice = matches!((answer, &steps[*id as usize]), (Err(RequestError::Metadata(_)), Step::Reclaim));
            prop_assert!(answer.is_ok() || twice, "{answer:?}");
        }
        prop_assert!(volume.is_idle());
        let live = read(&mut volume, View::Live, 0, SIZE).unwrap();
        prop_assert!(live[..] == oracle[..]);
        for (name, contents) in frozen {
            prop_assert!(read(&mut volume, View::Snapshot(name), 0, SIZE).unwrap()[..] == contents[..]);
        }
        // And the same again from what is on disk.
        drop(volume);
        disk.kill();
        let options = Open { boot_id: "b".into(), ..Open::default() };
        let (mut volume, _) = Volume::open(disk.files(), &options).unwrap();
        prop_assert!(read(&mut volume, View::Live, 0, SIZE).unwrap()[..] == oracle[..]);
    }
}

fn block(value: u8) -> Bytes {
    Bytes::from(vec![value; BLOCK as usize])
}

#[test]
fn an_aligned_write_is_one_operation_with_the_buffer_it_was_given() {
    let mut volume = create(&FakeDisk::new(0));
    let mut out = Output::default();
    let mut buffer = AlignedBuf::new(BLOCK as usize);
    buffer.fill(1);
    let data = buffer.freeze();
    let at = data.as_ptr();
    volume.submit(1, Request::Write { offset: BLOCK, data, fua: true }, &mut out);
    let [op] = &out.ops[..] else { panic!("{:?}", out.ops) };
    let tether_store::OpKind::Write { data, dsync: true } = &op.kind else { panic!("{op:?}") };
    assert_eq!((data.as_ptr(), op.offset), (at, BLOCK));
}

#[test]
fn zeroes_that_nobody_wrote_cost_no_operation() {
    let mut volume = create(&FakeDisk::new(0));
    let mut out = Output::default();
    volume.submit(1, Request::Read { view: View::Live, offset: 100, len: 9000 }, &mut out);
    volume.submit(2, Request::WriteZeroes { offset: 0, len: SIZE, fua: false, unmap: true }, &mut out);
    volume.submit(3, Request::Checksum { view: View::Live, offset: 0, len: SIZE }, &mut out);
    assert!(out.ops.is_empty());
    assert_eq!(out.done[0], (1, Ok(Reply::Read(Bytes::from(vec![0; 9000])))));
    assert_eq!(out.done.len(), 3);
}

#[test]
fn lack_of_space_is_told_apart_and_passes() {
    let disk = FakeDisk::new(0);
    let mut volume = create(&disk);
    let used: usize = disk.names().iter().map(|name| disk.contents(name).map_or(0, |c| c.len().div_ceil(4096))).sum();
    disk.set_space(Some((used as u64 - 16 + 1) * BLOCK));
    assert_eq!(run(&mut volume, Request::Write { offset: 0, data: block(1), fua: false }), Ok(Reply::Done));
    let full = Request::Write { offset: BLOCK, data: block(2), fua: false };
    assert_eq!(run(&mut volume, full.clone()), Err(RequestError::NoSpace));
    assert_eq!(read(&mut volume, View::Live, BLOCK, BLOCK).unwrap(), Bytes::from(vec![0; BLOCK as usize]));
    disk.set_space(None);
    assert_eq!(run(&mut volume, full), Ok(Reply::Done));
    assert_eq!(read(&mut volume, View::Live, BLOCK, BLOCK).unwrap(), block(2));
}

#[test]
fn a_failed_write_fails_alone_and_a_failed_sync_for_good() {
    let disk = FakeDisk::new(0);
    let mut volume = create(&disk);
    let write = || Request::Write { offset: 0, data: block(1), fua: false };
    disk.inject(Target::Write, 0, Fault::Io);
    assert_eq!(run(&mut volume, write()), Err(RequestError::Io(Fault::Io)));
    assert_eq!(run(&mut volume, write()), Ok(Reply::Done));
    disk.inject(Target::Read, 0, Fault::Io);
    assert_eq!(read(&mut volume, View::Live, 0, BLOCK), Err(RequestError::Io(Fault::Io)));
    disk.inject(Target::Sync, 0, Fault::Io);
    for request in [Request::Flush, Request::Flush, write()] {
        assert_eq!(run(&mut volume, request), Err(RequestError::SyncFailed(Fault::Io)));
    }
    assert_eq!(read(&mut volume, View::Live, 0, BLOCK).unwrap(), block(1), "what is there can still be read");
}

#[test]
fn requests_outside_the_volume_are_refused() {
    let mut volume = create(&FakeDisk::new(0));
    for (offset, len) in [(SIZE, 1), (SIZE - 1, 2), (u64::MAX, 2), (0, SIZE + 1)] {
        let refused = run(&mut volume, Request::Read { view: View::Live, offset, len });
        assert_eq!(refused, Err(RequestError::OutOfRange { offset, len, size: SIZE }));
    }
}

/// Every operation on metadata fails once: the snapshot is there, or it is not and can be made, or the replica
/// says that it has to be opened again, and then one of these.
#[test]
fn a_snapshot_that_fails_leaves_nothing_behind() {
    let mut finished = 0;
    for after in 0..60 {
        let disk = FakeDisk::new(after);
        let mut volume = create(&disk);
        run(&mut volume, Request::Write { offset: 0, data: block(1), fua: false }).unwrap();
        disk.inject(Target::Metadata, after, Fault::NoSpace);
        if volume.create_snapshot("s", true, "now", BTreeMap::new()).is_ok() {
            finished += 1;
        }
        disk.heal();
        let write = || Request::Write { offset: 0, data: block(2), fua: false };
        if let Err(RequestError::SyncFailed(_)) = run(&mut volume, Request::Flush) {
            drop(volume);
            disk.kill();
            volume = Volume::open(disk.files(), &Open { boot_id: "b".into(), ..Open::default() }).unwrap().0;
        }
        match volume.create_snapshot("s", true, "now", BTreeMap::new()) {
            Ok(()) | Err(SnapshotError::Exists(_)) => {}
            Err(error) => panic!("after {after}: {error}"),
        }
        assert_eq!(run(&mut volume, write()), Ok(Reply::Done));
        assert_eq!(read(&mut volume, View::Snapshot("s".into()), 0, BLOCK).unwrap(), block(1), "{after}");
        assert_eq!(read(&mut volume, View::Live, 0, BLOCK).unwrap(), block(2));
    }
    assert!(finished > 0, "some fail after the last step");
}
