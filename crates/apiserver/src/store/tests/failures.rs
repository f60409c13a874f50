//! Disks that fail: writers are told, nobody sees what was not stored, reads go on, and the store recovers.

use std::io;

use super::power::{Fault, PowerDisk};
use super::*;

async fn opened() -> (PowerDisk, Arc<Store>) {
    let disk = PowerDisk::default();
    let store = Store::open_with(disk.clone(), Options::default()).unwrap();
    store.write(pod("a", "x"), Expect::Absent, put("one")).await.unwrap();
    (disk, store)
}

#[tokio::test]
async fn a_full_disk_makes_the_store_read_only_until_there_is_room() {
    let (disk, store) = opened().await;
    let mut watch = store.watch(WatchQuery { resource: "pods".into(), namespace: None, from: 1 }).unwrap();
    let mut read_only = store.read_only();
    assert_eq!(*read_only.borrow_and_update(), None);

    disk.arm(Some(Fault::Write { nth: 1, kind: io::ErrorKind::StorageFull }));
    let failed = store.write(pod("a", "y"), Expect::Absent, put("one")).await.unwrap_err();
    assert_eq!(failed.to_string(), "the write could not be made durable: I/O error: no storage space");
    assert!(matches!(failed, WriteError::Storage { .. }));
    let refused = store.write(pod("a", "z"), Expect::Absent, put("one")).await.unwrap_err();
    assert!(matches!(refused, WriteError::ReadOnly { .. }), "{refused}");
    read_only.changed().await.unwrap();
    assert_eq!(read_only.borrow_and_update().as_deref(), Some("I/O error: no storage space"));

    assert_eq!(store.revision(), 1);
    assert_eq!(store.get(&pod("a", "y")), None);
    assert!(store.get(&pod("a", "x")).is_some(), "reads go on");
    assert_eq!(watch.try_next(), Ok(None), "nothing was published");

    disk.arm(None);
    while read_only.borrow_and_update().is_some() {
        read_only.changed().await.unwrap();
    }
    let key = pod("a", "z");
    let written = store.write(key.clone(), Expect::Absent, put("two")).await.unwrap();
    assert_eq!(store.get(&key), Some(written));
    drop(store);
    let store = Store::open_with(disk, Options::default()).unwrap();
    assert_eq!(store.get(&key).map(|entry| text(&entry)).as_deref(), Some("a/z=two@2"));
}

#[tokio::test]
async fn a_failing_disk_is_named_in_every_refusal() {
    let (disk, store) = opened().await;
    disk.arm(Some(Fault::Sync { nth: 1, seed: 1 }));
    let failed = store.write(pod("a", "y"), Expect::Absent, put("one")).await.unwrap_err();
    assert_eq!(failed.to_string(), "the write could not be made durable: I/O error: fsync failed");
    let refused = store.write(pod("a", "y"), Expect::Absent, put("one")).await.unwrap_err();
    assert_eq!(refused.to_string(), "the store is read-only: I/O error: fsync failed");
    assert_eq!(store.metrics().commit_failures.get(), 1);
}

#[tokio::test]
async fn a_disk_that_stays_broken_keeps_the_store_read_only() {
    let (disk, store) = opened().await;
    let mut read_only = store.read_only();
    disk.kill_process();
    store.write(pod("a", "y"), Expect::Absent, put("one")).await.unwrap_err();
    let reason = loop {
        read_only.changed().await.unwrap();
        let reason = read_only.borrow_and_update().clone().unwrap();
        if reason.contains("recovery failed") {
            break reason;
        }
    };
    assert_eq!(&*reason, "I/O error: no power; recovery failed: power-loss disk: cannot open it: no power");
    assert_eq!(store.revision(), 1);
    drop(store);
}
