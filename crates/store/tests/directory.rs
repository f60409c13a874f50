//! A replica in a directory of the filesystem that tests run on.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use tether_store::diff::{Difference, diff, observe};
use tether_store::files::real::{Caching, DirectoryError, StdFiles};
use tether_store::host::{read, run};
use tether_store::volume::{Adopt, Create, Open, OpenError, Previous, Released};
use tether_store::{Change, Extent, Reply, Request, View, Volume};

const MIB: u64 = 1 << 20;
const BOOT: &str = "boot-1";

fn files(path: &Path, caching: Caching) -> StdFiles {
    StdFiles::open(path, caching, true).unwrap()
}

fn create(path: &Path, caching: Caching, size: u64) -> Volume<StdFiles> {
    let options = Create { volume: "v".into(), replica: "r".into(), size, boot_id: BOOT.into(), ..Create::default() };
    Volume::create(files(path, caching), &options).unwrap().0
}

fn open(path: &Path, caching: Caching, boot: &str) -> (Volume<StdFiles>, tether_store::volume::Opened) {
    let options = Open { volume: Some("v".into()), boot_id: boot.into() };
    Volume::open(files(path, caching), &options).unwrap()
}

fn write(volume: &mut Volume<StdFiles>, offset: u64, data: &[u8]) {
    let request = Request::Write { offset, data: Bytes::copy_from_slice(data), fua: false };
    assert_eq!(run(volume, request), Ok(Reply::Done));
}

fn contents(volume: &mut Volume<StdFiles>) -> Vec<u8> {
    let size = volume.size();
    read(volume, View::Live, 0, size).unwrap().to_vec()
}

#[test]
fn what_is_written_is_there_after_reopening() {
    for caching in [Caching::Direct, Caching::Buffered] {
        let dir = tempfile::tempdir().unwrap();
        let mut volume = create(dir.path(), caching, 4 * MIB);
        let mut expected = vec![0; 4 << 20];
        for (offset, len, value) in [(0, 4096, 1), (100, 5, 2), (8000, 10_000, 3), ((4 << 20) - 3, 3, 4)] {
            write(&mut volume, offset as u64, &vec![value; len]);
            expected[offset..offset + len].fill(value);
        }
        volume.create_snapshot("s1", true, "2026-01-01T00:00:00Z", BTreeMap::new()).unwrap();
        for (offset, len, value) in [(50, 100, 5), (1 << 20, 8192, 6)] {
            write(&mut volume, offset as u64, &vec![value; len]);
            expected[offset..offset + len].fill(value);
        }
        assert_eq!(
            run(&mut volume, Request::WriteZeroes { offset: 8100, len: 5000, fua: true, unmap: true }),
            Ok(Reply::Done)
        );
        expected[8100..13_100].fill(0);
        assert!(contents(&mut volume) == expected);
        volume.close().unwrap();
        let (mut volume, opened) = open(dir.path(), caching, BOOT);
        assert_eq!((opened.previous, &opened.foreign, opened.repairs.len()), (Previous::Clean, &None, 0));
        assert!(contents(&mut volume) == expected);
    }
}

#[test]
fn a_directory_has_one_user_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let _volume = create(dir.path(), Caching::Direct, MIB);
    assert!(matches!(StdFiles::open(dir.path(), Caching::Direct, false), Err(DirectoryError::InUse { .. })));
}

#[test]
fn unwritten_parts_are_holes() {
    let dir = tempfile::tempdir().unwrap();
    let mut volume = create(dir.path(), Caching::Direct, MIB);
    write(&mut volume, 8192, &[1; 4096]);
    let extents = [(0, 8192, false), (8192, 4096, true), (12288, MIB - 12288, false)];
    let expected = extents.map(|(offset, len, data)| Extent { offset, len, data });
    assert_eq!(run(&mut volume, Request::Status { offset: 0, len: MIB }), Ok(Reply::Status(expected.to_vec())));
}

#[test]
fn the_state_file_tells_a_kill_from_a_reboot() {
    let dir = tempfile::tempdir().unwrap();
    let mut volume = create(dir.path(), Caching::Direct, 64 * MIB);
    assert_eq!(run(&mut volume, Request::Save(vec![Change::LogAdd(vec![3])])), Ok(Reply::Done));
    drop(volume);
    let (volume, opened) = open(dir.path(), Caching::Direct, BOOT);
    assert_eq!((opened.previous, volume.state().header.doubt), (Previous::Killed, false));
    assert_eq!(volume.state().active_regions().collect::<Vec<_>>(), [3]);
    drop(volume);
    let (volume, opened) = open(dir.path(), Caching::Direct, "boot-2");
    assert_eq!((opened.previous, volume.state().header.doubt), (Previous::Rebooted, true));
    drop(volume);
    let (volume, opened) = open(dir.path(), Caching::Direct, "boot-2");
    assert_eq!((opened.previous, volume.state().header.doubt), (Previous::Killed, true));
}

#[test]
fn others_leave_traces() {
    let dir = tempfile::tempdir().unwrap();
    let volume = create(dir.path(), Caching::Direct, MIB);
    volume.close().unwrap();
    // Longhorn replaces volume.meta whenever it opens a replica.
    let meta = dir.path().join("volume.meta");
    let contents = std::fs::read(&meta).unwrap();
    std::fs::write(dir.path().join("x"), &contents).unwrap();
    std::fs::rename(dir.path().join("x"), &meta).unwrap();
    let (volume, opened) = open(dir.path(), Caching::Direct, BOOT);
    assert!(opened.foreign.is_some_and(|reason| reason.contains("volume.meta was replaced")));
    assert!(volume.state().header.out_of_sync.is_some());
    drop(volume);
    let (volume, opened) = open(dir.path(), Caching::Direct, BOOT);
    assert!(opened.foreign.is_none() && volume.state().header.out_of_sync.is_some(), "remembered until resynced");
}

#[test]
fn a_write_to_a_closed_head_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), Caching::Direct, MIB).close().unwrap();
    let head = std::fs::OpenOptions::new().write(true).open(dir.path().join("volume-head-000.img")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&head, b"x", 5000).unwrap();
    let (_, opened) = open(dir.path(), Caching::Direct, BOOT);
    assert!(opened.foreign.is_some_and(|reason| reason.contains("volume-head-000.img was changed")));
}

#[test]
fn a_released_directory_is_adopted_again_and_keeps_its_promise() {
    let dir = tempfile::tempdir().unwrap();
    let mut volume = create(dir.path(), Caching::Direct, MIB);
    let promise = tether_store::state::Promise { epoch: 7, holder: "e".into(), session: 2 };
    assert_eq!(run(&mut volume, Request::Save(vec![Change::Promise(promise.clone())])), Ok(Reply::Done));
    volume.release(&Released::Current).unwrap();
    let refused = Volume::open(files(dir.path(), Caching::Direct), &Open::default());
    assert!(matches!(refused, Err(OpenError::WasReleased)));
    let options = Adopt { volume: "v".into(), boot_id: BOOT.into(), ..Adopt::default() };
    let (volume, _) = Volume::adopt(files(dir.path(), Caching::Direct), &options).unwrap();
    assert_eq!(volume.state().header.promise, promise);
}

/// Names and contents of all files, to see that nothing changed.
fn everything(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(path).unwrap().map(Result::unwrap);
    entries.map(|e| (e.file_name().into_string().unwrap(), std::fs::read(e.path()).unwrap())).collect()
}

#[test]
fn differences_are_found_without_touching_anything() {
    let (left, right) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut volumes = [left.path(), right.path()].map(|path| create(path, Caching::Direct, 8 * MIB));
    for volume in &mut volumes {
        write(volume, 0, &vec![1; 20_000]);
        volume.create_snapshot("s", true, "now", BTreeMap::new()).unwrap();
        write(volume, 3 * MIB, &[2; 4096]);
    }
    // Written zeroes equal a hole.
    write(&mut volumes[1], 7 * MIB, &[0; 8192]);
    let before = everything(left.path());
    let compare = || {
        let mut found = Vec::new();
        let mut volumes = [left.path(), right.path()].map(|path| observe(path).unwrap());
        let [one, two] = &mut volumes;
        diff(one, two, &mut |difference| found.push(difference)).unwrap();
        found
    };
    assert_eq!(compare(), [], "while both are open elsewhere");
    assert!(before == everything(left.path()));
    write(&mut volumes[1], 4095, &[9; 2]);
    write(&mut volumes[1], 5 * MIB, &[9; 100]);
    let found = compare();
    assert_eq!(found, [Difference { offset: 0, len: 8192 }, Difference { offset: 5 * MIB, len: 4096 }]);
}

#[test]
fn snapshots_fold_and_prune_and_give_space_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut volume = create(dir.path(), Caching::Direct, 8 * MIB);
    let space = |volume: &mut Volume<StdFiles>| volume.snapshots().unwrap().iter().map(|info| info.size).sum::<u64>();
    for (name, value) in [("a", 1), ("b", 2), ("c", 3)] {
        write(&mut volume, 0, &vec![value; 2 << 20]);
        write(&mut volume, MIB * u64::from(value + 2), &[value; 4096]);
        volume.create_snapshot(name, true, "now", BTreeMap::new()).unwrap();
    }
    write(&mut volume, 0, &vec![4; 1 << 20]);
    let expected = contents(&mut volume);
    let frozen = read(&mut volume, View::Snapshot("c".into()), 0, 8 * MIB).unwrap();
    assert!(space(&mut volume) >= 7 * MIB);
    for name in ["a", "b"] {
        volume.remove_snapshot(name).unwrap();
    }
    while run(&mut volume, Request::Reclaim { budget: 100_000 }).unwrap()
        != Reply::Reclaim(tether_store::request::Reclaimed { bytes: 0, more: false })
    {}
    assert!(contents(&mut volume) == expected);
    assert!(read(&mut volume, View::Snapshot("c".into()), 0, 8 * MIB).unwrap() == frozen);
    assert!(space(&mut volume) < 4 * MIB, "{}", space(&mut volume));
    volume.remove_snapshot("c").unwrap();
    while run(&mut volume, Request::Reclaim { budget: 100_000 }).unwrap()
        != Reply::Reclaim(tether_store::request::Reclaimed { bytes: 0, more: false })
    {}
    assert!(contents(&mut volume) == expected);
    assert!(space(&mut volume) <= 2 * MIB + (64 << 10), "{}", space(&mut volume));
    let names = volume.snapshots().unwrap().into_iter().map(|info| info.name).collect::<Vec<_>>();
    assert_eq!(names, ["volume-head", "c"], "the one below the head stays until there is another");
    volume.close().unwrap();
    let (mut volume, opened) = open(dir.path(), Caching::Direct, BOOT);
    assert_eq!(opened.repairs, Vec::<String>::new());
    assert!(contents(&mut volume) == expected);
}

#[test]
fn discard_gives_space_back_down_to_the_first_kept_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let mut volume = create(dir.path(), Caching::Direct, 4 * MIB);
    write(&mut volume, 0, &vec![1; 1 << 20]);
    volume.create_snapshot("kept", true, "now", BTreeMap::new()).unwrap();
    write(&mut volume, 0, &vec![2; 1 << 20]);
    volume.create_snapshot("gone", true, "now", BTreeMap::new()).unwrap();
    volume.remove_snapshot("gone").unwrap();
    write(&mut volume, 0, &vec![3; 1 << 20]);
    let request = Request::Discard { offset: 100, len: MIB - 200 };
    assert_eq!(run(&mut volume, request), Ok(Reply::Done));
    let live = contents(&mut volume);
    let edge = 4096;
    assert!(live[..edge].iter().all(|byte| *byte == 3), "a part of a block stays");
    assert!(live[edge..(1 << 20) - edge].iter().all(|byte| *byte == 1), "what the kept snapshot holds");
    let sizes: BTreeMap<_, _> = volume.snapshots().unwrap().into_iter().map(|info| (info.name, info.size)).collect();
    assert!(sizes["kept"] >= MIB && sizes["gone"] < 64 << 10 && sizes["volume-head"] < 64 << 10, "{sizes:?}");
    drop(volume);
    let (mut volume, _) = open(dir.path(), Caching::Direct, BOOT);
    assert!(contents(&mut volume) == live);
}

/// A rebuilt replica: the chain is taken on, then filled view by view, while its head has other data.
#[test]
fn a_replica_is_rebuilt_from_another() {
    let (left, right) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut source = create(left.path(), Caching::Direct, 4 * MIB);
    for (name, value) in [("a", 1), ("b", 2)] {
        write(&mut source, u64::from(value) * 10_000, &vec![value; 300_000]);
        source.create_snapshot(name, value == 1, "then", BTreeMap::from([("k".into(), "v".into())])).unwrap();
    }
    source.revert("a", "later").unwrap();
    write(&mut source, 2 * MIB, &[5; 10_000]);
    let mut target = create(right.path(), Caching::Direct, 2 * MIB);
    write(&mut target, 0, &vec![9; 50_000]);
    target.create_snapshot("b", true, "other", BTreeMap::new()).unwrap();
    let chain = tether_store::volume::Chain::parse(&source.chain().render()).unwrap();
    assert_ne!(chain.identity(), target.chain().identity());
    target.set_chain(&chain).unwrap();
    assert_eq!(target.chain().identity(), chain.identity());
    let views = chain.snapshots.iter().map(|snapshot| View::Snapshot(snapshot.name.clone())).chain([View::Live]);
    for view in views.clone() {
        for offset in (0..4 * MIB).step_by(1 << 18) {
            let sum = |volume: &mut Volume<StdFiles>| {
                run(volume, Request::Checksum { view: view.clone(), offset, len: 1 << 18 }).unwrap()
            };
            if sum(&mut source) != sum(&mut target) {
                let data = read(&mut source, view.clone(), offset, 1 << 18).unwrap();
                assert_eq!(run(&mut target, Request::Copy { view: view.clone(), offset, data }), Ok(Reply::Done));
                assert_eq!(sum(&mut source), sum(&mut target));
            }
        }
    }
    drop(target);
    let (mut target, _) = open(right.path(), Caching::Direct, BOOT);
    for view in views {
        let whole = |volume: &mut Volume<StdFiles>| read(volume, view.clone(), 0, 4 * MIB).unwrap();
        assert!(whole(&mut source) == whole(&mut target), "{view:?}");
    }
}

/// What a power loss leaves: space that was allocated for a write whose data never came.
fn allocate_in_head(path: &Path, head: &str, offset: u64, len: u64) {
    let head = std::fs::OpenOptions::new().write(true).open(path.join(head)).unwrap();
    rustix::fs::fallocate(&head, rustix::fs::FallocateFlags::empty(), offset, len).unwrap();
}

#[test]
fn space_that_was_allocated_but_never_written_hides_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut volume = create(dir.path(), Caching::Direct, 4 * MIB);
    write(&mut volume, 0, &vec![1; 1 << 20]);
    volume.create_snapshot("s", true, "now", BTreeMap::new()).unwrap();
    write(&mut volume, 0, &[2; 4096]);
    let expected = contents(&mut volume);
    let head = volume.volume_meta().head.clone();
    drop(volume);
    allocate_in_head(dir.path(), &head, 8192, 65536);
    for boot in [BOOT, "boot-2", "boot-2"] {
        let (mut volume, _) = open(dir.path(), Caching::Direct, boot);
        assert!(contents(&mut volume) == expected, "{boot}");
    }
    // After the reboot it is a hole, for Longhorn too; until then only for us.
    let allocated = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(dir.path().join(&head)).unwrap()) * 512;
    assert!(allocated < 65536, "{allocated}");

    // Longhorn shows zeroes there, so in what it wrote they stay zeroes.
    let (volume, _) = open(dir.path(), Caching::Direct, "boot-2");
    volume.release(&Released::Current).unwrap();
    allocate_in_head(dir.path(), &head, 8192, 65536);
    let options = Adopt { volume: "v".into(), boot_id: BOOT.into(), ..Adopt::default() };
    let (mut volume, _) = Volume::adopt(files(dir.path(), Caching::Direct), &options).unwrap();
    let live = contents(&mut volume);
    assert!(live[8192..8192 + 65536].iter().all(|byte| *byte == 0));
    assert!(live[..8192] == expected[..8192] && live[8192 + 65536..] == expected[8192 + 65536..]);
}

#[test]
fn the_pieces_of_a_snapshots_image_are_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut volume = create(dir.path(), Caching::Direct, 300 * MIB);
    write(&mut volume, 5 * 4096, &[1; 4096]);
    write(&mut volume, 200 * MIB - 8192, &vec![2; 3 << 20]);
    volume.create_snapshot("older", true, "2026-01-01T00:00:00Z", BTreeMap::new()).unwrap();
    write(&mut volume, 5 * 4096, &[3; 8192]);
    volume.create_snapshot("newer", true, "2026-01-01T00:00:01Z", BTreeMap::new()).unwrap();
    for name in ["older", "newer"] {
        let (mut whole, mut crc) = (Vec::new(), tether_store::crc64::Crc64::default());
        loop {
            let request = Request::ImagePiece { snapshot: name.to_owned(), at: whole.len() as u64 };
            let Ok(Reply::ImagePiece(piece)) = run(&mut volume, request) else { panic!("no piece") };
            whole.resize(whole.len() + piece.zeroes as usize, 0);
            whole.extend_from_slice(&piece.data);
            crc.zeroes(piece.zeroes);
            crc.update(&piece.data);
            if piece.data.is_empty() {
                break;
            }
        }
        let file = std::fs::read(dir.path().join(format!("volume-snap-{name}.img"))).unwrap();
        assert!(whole == file, "{name}");
        let mut plain = tether_store::crc64::Crc64::default();
        plain.update(&file);
        assert_eq!(crc, plain, "{name}");
    }
    let piece = run(&mut volume, Request::ImagePiece { snapshot: "none".to_owned(), at: 0 });
    assert!(matches!(piece, Err(tether_store::RequestError::NoSnapshot(_))), "{piece:?}");
}
