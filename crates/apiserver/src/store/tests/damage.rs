//! Files that are not as they were left: each is refused with words that help, and none opens with something missing.

use redb::{Database, TableDefinition};

use super::super::disk::Disk;
use super::life::{self, Life, Planned, expected};
use super::oracle::Oracle;
use super::power::{PowerDisk, Rng, SECTOR};
use super::*;

const OBJECTS: TableDefinition<'_, (&str, &str, &str), &[u8]> = TableDefinition::new("tether/objects");
const HISTORY: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("tether/history");
const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("tether/meta");

const RESOURCES: [&str; 1] = ["pods"];
const NAMESPACES: [&str; 1] = ["a"];

async fn fill(store: &Store, oracle: &mut Oracle, writes: usize) {
    for i in 0..writes {
        let key = pod("a", &format!("p{}", i % 17));
        let value = format!("{i} {}", "v".repeat(i * 37 % 900));
        let expected = match oracle.write(&key, Expect::Absent, false, render(&value)) {
            Ok(entry) => (Expect::Absent, entry),
            Err(_) => (Expect::Any, oracle.write(&key, Expect::Any, false, render(&value)).unwrap()),
        };
        let written = store.write(key, expected.0, put(&value)).await.unwrap();
        assert_eq!(written, expected.1);
    }
}

/// The image of a store that was closed properly, and what it holds.
async fn image() -> (Vec<u8>, Oracle) {
    let disk = PowerDisk::default();
    let mut oracle = Oracle::default();
    let store = Store::open_with(disk.clone(), Options::default()).unwrap();
    fill(&store, &mut oracle, 60).await;
    drop(store);
    (disk.image(), oracle)
}

fn refusal(image: Vec<u8>) -> String {
    match Store::open_with(PowerDisk::with_image(image), Options::default()) {
        Ok(_) => panic!("a damaged image must not open"),
        Err(error) => error.to_string(),
    }
}

/// Lets `change` edit the tables behind the store's back.
async fn edited(change: impl FnOnce(&redb::WriteTransaction)) -> String {
    let disk = PowerDisk::with_image(image().await.0);
    let db = Database::builder().create_with_backend(disk.clone()).unwrap();
    let txn = db.begin_write().unwrap();
    change(&txn);
    txn.commit().unwrap();
    drop(db);
    refusal(disk.image())
}

#[tokio::test]
async fn rows_that_vanished_or_changed_are_noticed() {
    let object_gone = edited(|txn| {
        txn.open_table(OBJECTS).unwrap().remove(("pods", "a", "p3")).unwrap().unwrap();
    });
    assert_eq!(object_gone.await.split(" (").next(), Some("power-loss disk: damaged: 16 objects"));

    let objects_swapped = edited(|txn| {
        let mut objects = txn.open_table(OBJECTS).unwrap();
        let row = objects.remove(("pods", "a", "p3")).unwrap().unwrap().value().to_vec();
        objects.insert(("pods", "a", "p4"), row.as_slice()).unwrap();
    });
    assert!(objects_swapped.await.contains("object pods a/p4: checksum mismatch"));

    let object_stale = edited(|txn| {
        let key = Arc::new(pod("a", "p3"));
        let stale = Entry { key, revision: 4, value: Bytes::from_static(b"old") };
        let row = super::super::codec::object_row(&stale);
        txn.open_table(OBJECTS).unwrap().insert(("pods", "a", "p3"), row.as_slice()).unwrap();
    });
    assert!(object_stale.await.contains("17 objects (digest "));

    let newest_gone = edited(|txn| {
        txn.open_table(HISTORY).unwrap().remove(60).unwrap().unwrap();
    });
    assert!(newest_gone.await.contains("history row 59 where 60 was stored"));

    let oldest_gone = edited(|txn| {
        txn.open_table(HISTORY).unwrap().remove(1).unwrap().unwrap();
    });
    assert!(oldest_gone.await.contains("history begins at 2, not at 1"));

    let totals_gone = edited(|txn| {
        txn.open_table(META).unwrap().remove("totals").unwrap().unwrap();
    });
    assert!(totals_gone.await.contains("its totals row is missing"));

    let table_gone = edited(|txn| {
        txn.delete_table(OBJECTS).unwrap();
    });
    assert!(table_gone.await.contains("tether/objects"));
}

#[tokio::test]
async fn newer_formats_are_refused() {
    let newer = edited(|txn| {
        txn.open_table(META).unwrap().insert("format", &7_u64.to_le_bytes()[..]).unwrap();
    });
    let expected = "power-loss disk: written by a newer Tether (format 7, this one reads up to 1); \
                    use that version, or newer";
    assert_eq!(newer.await, expected);
}

#[tokio::test]
async fn foreign_files_are_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("objects.redb");
    let name = path.display();
    let cases: [(&[u8], String); 4] = [
        (b"", format!("{name}: the file is empty, but a store is never empty")),
        (b"hello", format!("{name}: not a Tether object store (it begins with \"hello\")")),
        (b"SQLite format 3\0", format!("{name}: not a Tether object store (it begins with \"SQLite fo\")")),
        (&[0; 5000], format!("{name}: damaged: its beginning is blank")),
    ];
    for (content, expected) in cases {
        std::fs::write(&path, content).unwrap();
        let error = Store::open(&path, Options::default()).err().unwrap().to_string();
        assert!(error.starts_with(&expected), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), content, "the file must not be touched");
    }

    std::fs::remove_file(&path).unwrap();
    let other = Database::create(&path).unwrap();
    drop(other);
    let error = Store::open(&path, Options::default()).err().unwrap().to_string();
    assert!(error.contains("not a Tether object store (a redb file of another program)"), "{error}");

    let missing = Store::open(dir.path().join("no/such/dir.redb"), Options::default()).err().unwrap().to_string();
    assert!(missing.contains("no/such/dir.redb: cannot create it: No such file or directory"), "{missing}");
}

#[tokio::test]
async fn a_store_is_open_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let second = Store::open(dir.path().join("objects.redb"), Options::default()).err().unwrap().to_string();
    assert!(second.contains("objects.redb: already open in another process; stop that one first"), "{second}");
    store.write(pod("a", "x"), Expect::Absent, put("one")).await.unwrap();
    drop(store);
    assert_eq!(open(&dir).revision(), 1);
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["objects.redb"], "nothing else is left in the directory");
}

#[tokio::test]
async fn the_file_is_its_owners_and_left_overs_are_swept() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let left_over = dir.path().join("objects.redb.0123456789abcdef0123456789abcdef.new");
    let others = dir.path().join("objects.redb.notes.new");
    std::fs::write(&left_over, "half a store").unwrap();
    std::fs::write(&others, "not ours").unwrap();
    drop(open(&dir));
    let mode = std::fs::metadata(dir.path().join("objects.redb")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "it holds Secrets");
    drop(open(&dir));
    assert!(!left_over.exists());
    assert!(others.exists());
}

#[tokio::test]
async fn truncated_files_are_refused() {
    let (image, _) = image().await;
    for length in [9, 100, 512, 4096, 4097, image.len() / 2, image.len() - 4096, image.len() - 1] {
        let error = refusal(image[..length].to_vec());
        assert!(error.starts_with("power-loss disk: damaged: "), "{length}: {error}");
    }
}

/// A sector that holds something, with one bit of it turned.
fn turn_a_bit(image: &mut [u8], rng: &mut Rng) -> usize {
    loop {
        let at = rng.below(image.len());
        let sector = at / SECTOR * SECTOR;
        if image[sector..sector + SECTOR].iter().any(|byte| *byte != 0) {
            image[at] ^= 1 << rng.below(8);
            return at;
        }
    }
}

/// The image of a store whose process was killed, what it holds and what it held one commit earlier.
fn killed_image(sealed: bool) -> (Vec<u8>, Oracle, Oracle) {
    let (disk, mut rng) = (PowerDisk::default(), Rng::new(1));
    let (mut oracle, mut earlier) = (Oracle::default(), Oracle::default());
    let mut store = Life::start(&disk);
    for _ in 0..20 {
        let writes: Vec<_> = (0..5).map(|_| Planned::random(&mut rng, &oracle)).collect();
        earlier = oracle.clone();
        (oracle, _) = expected(&oracle, &writes);
        store.commit(&writes);
    }
    if sealed {
        store.committer.seal();
    }
    disk.kill_process();
    drop(store);
    disk.restart_process();
    (disk.image(), oracle, earlier)
}

#[test]
fn a_turned_bit_after_a_crash_costs_at_most_a_commit_that_was_not_sealed() {
    const BITS: u64 = 300;
    for sealed in [false, true] {
        let (image, oracle, earlier) = killed_image(sealed);
        assert_ne!(oracle.revision(), earlier.revision());
        for seed in 0..BITS {
            let mut damaged = image.clone();
            let at = turn_a_bit(&mut damaged, &mut Rng::new(seed));
            let disk = PowerDisk::with_image(damaged);
            let Ok((_, state)) = Disk::open(Arc::new(disk), life::OPTIONS) else { continue };
            let shared = Arc::new(Shared::new(state));
            let held = shared.state.read().revision();
            let oracle = if !sealed && held == earlier.revision() { &earlier } else { &oracle };
            assert_eq!(held, oracle.revision(), "sealed: {sealed}, bit at {at} (seed {seed})");
            oracle.check(&shared, &life::RESOURCES, &life::NAMESPACES);
        }
    }
}

#[tokio::test]
async fn a_turned_bit_is_refused_or_harmless() {
    const BITS: u64 = 300;
    let (image, oracle) = image().await;
    let mut refused = 0;
    for seed in 0..BITS {
        let mut damaged = image.clone();
        let at = turn_a_bit(&mut damaged, &mut Rng::new(seed));
        let disk = PowerDisk::with_image(damaged.clone());
        let Ok(store) = Store::open_with(disk.clone(), Options::default()) else {
            refused += 1;
            assert!(disk.image() == damaged, "a refused file must be left as it was");
            continue;
        };
        // Harmless now must be harmless later: it is written to, closed and opened again.
        let mut oracle = oracle.clone();
        oracle.check(&store.shared, &RESOURCES, &NAMESPACES);
        fill(&store, &mut oracle, 40).await;
        drop(store);
        let store = Store::open_with(disk, Options::default())
            .unwrap_or_else(|error| panic!("bit at {at} (seed {seed}): damage spread: {error}"));
        oracle.check(&store.shared, &RESOURCES, &NAMESPACES);
    }
    assert!(refused > BITS / 10, "only {refused} of {BITS} were refused: the test hits too little that matters");
}
