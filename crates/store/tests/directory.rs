//! A replica in a directory of the filesystem that tests run on.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
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
