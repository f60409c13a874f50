//! Directories as Longhorn leaves them: quirks of its metadata, its interrupted operations, and what is refused.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;

use bytes::Bytes;
use tether_store::files::fake::{FakeDisk, FakeFiles};
use tether_store::host::{read, run};
use tether_store::meta::{DiskMeta, VolumeMeta};
use tether_store::volume::{Adopt, Open, OpenError, Opened, Released};
use tether_store::{BLOCK, Change, Files, Reply, Request, View, Volume};

const SIZE: u64 = 8 * BLOCK;

/// A sparse image with one value per block; 0 is a hole.
fn image(disk: &FakeDisk, name: &str, blocks: [u8; 8]) {
    let mut files = disk.files();
    files.create_sparse(name, SIZE).unwrap();
    let file = files.open(name).unwrap();
    for (index, value) in blocks.iter().enumerate().filter(|(_, value)| **value != 0) {
        let mut buffer = tether_store::AlignedBuf::new(BLOCK as usize);
        buffer.fill(*value);
        files.write_at(file, index as u64 * BLOCK, &buffer).unwrap();
    }
    files.sync(file).unwrap();
    files.close(file);
    files.sync_dir().unwrap();
}

fn volume_meta(head: &str, parent: &str) -> String {
    // As Go writes it.
    format!(
        "{{\"Size\":{SIZE},\"Head\":\"{head}\",\"Dirty\":true,\"Rebuilding\":false,\"Error\":\"\",\"Parent\":\"{parent}\",\
         \"SectorSize\":512,\"BackingFilePath\":\"\",\"Encrypted\":false}}\n"
    )
}

/// head-009 ← snap-b ← snap-a, with the metadata that Longhorn really writes: the snapshot carries the name of
/// the head that it was, and the one that came from a restore says nothing but its parent.
fn longhorn() -> FakeDisk {
    let disk = FakeDisk::new(0);
    image(&disk, "volume-snap-a.img", [1, 1, 1, 1, 0, 0, 0, 0]);
    image(&disk, "volume-snap-b.img", [0, 2, 2, 0, 2, 0, 0, 0]);
    image(&disk, "volume-head-009.img", [0, 0, 3, 0, 0, 0, 0, 3]);
    disk.put("volume-snap-a.img.meta", b"{\"Parent\":\"\"}");
    disk.put(
        "volume-snap-b.img.meta",
        b"{\"Name\":\"volume-head-008.img\",\"Parent\":\"volume-snap-a.img\",\"Removed\":false,\"UserCreated\":true,\
          \"Created\":\"2026-01-01T00:00:00Z\",\"Labels\":{\"k\":\"v\"}}\n",
    );
    disk.put(
        "volume-head-009.img.meta",
        b"{\"Name\":\"volume-head-009.img\",\"Parent\":\"volume-snap-b.img\",\"Removed\":false,\"UserCreated\":false,\
          \"Created\":\"2026-01-02T00:00:00Z\",\"Labels\":null}\n",
    );
    disk.put("volume.meta", volume_meta("volume-head-009.img", "volume-snap-b.img").as_bytes());
    disk
}

const LIVE: [u8; 8] = [1, 2, 3, 1, 2, 0, 0, 3];

fn adopt(disk: &FakeDisk) -> Result<(Volume<FakeFiles>, Opened), OpenError> {
    Volume::adopt(disk.files(), &Adopt { volume: "v".into(), boot_id: "b".into(), ..Adopt::default() })
}

fn open(disk: &FakeDisk) -> (Volume<FakeFiles>, Opened) {
    Volume::open(disk.files(), &Open { volume: Some("v".into()), boot_id: "b".into() }).unwrap()
}

/// The value of each block.
fn values(volume: &mut Volume<FakeFiles>, view: View) -> Vec<u8> {
    let bytes = read(volume, view, 0, SIZE).unwrap();
    bytes
        .chunks(BLOCK as usize)
        .map(|block| {
            assert!(block.iter().all(|byte| *byte == block[0]));
            block[0]
        })
        .collect()
}

fn snapshot(name: &str) -> View {
    View::Snapshot(name.to_owned())
}

#[test]
fn a_directory_is_adopted_as_it_is() {
    let disk = longhorn();
    let (mut volume, opened) = adopt(&disk).unwrap();
    assert_eq!(opened.repairs, Vec::<String>::new());
    assert_eq!(values(&mut volume, View::Live), LIVE);
    assert_eq!(values(&mut volume, snapshot("b")), [1, 2, 2, 1, 2, 0, 0, 0]);
    assert_eq!(values(&mut volume, snapshot("a")), [1, 1, 1, 1, 0, 0, 0, 0]);
    let infos = volume.snapshots().unwrap();
    let b = infos.iter().find(|info| info.name == "b").unwrap();
    assert_eq!((b.parent.as_str(), b.user_created, b.labels["k"].as_str()), ("a", true, "v"));
    assert_eq!(b.children, ["volume-head"]);
}

#[test]
fn the_head_after_009_is_010_and_longhorn_counts_on_from_its_last_digit() {
    let disk = longhorn();
    let (mut volume, _) = adopt(&disk).unwrap();
    volume.create_snapshot("c", true, "now", BTreeMap::new()).unwrap();
    assert_eq!(volume.volume_meta().head, "volume-head-010.img");
    // A name that is taken is skipped.
    disk.put("volume-head-011.img", b"");
    volume.create_snapshot("d", true, "now", BTreeMap::new()).unwrap();
    assert_eq!(volume.volume_meta().head, "volume-head-012.img");
    assert_eq!(values(&mut volume, View::Live), LIVE);
}

#[test]
fn what_is_written_back_has_longhorns_fields() {
    let disk = longhorn();
    let contents = String::from_utf8(disk.contents("volume.meta").unwrap()).unwrap();
    disk.put("volume.meta", contents.replace("{\"Size\"", "{\"Future\":[1],\"Size\"").as_bytes());
    let (volume, _) = adopt(&disk).unwrap();
    volume.release(&Released::Current).unwrap();
    let written = String::from_utf8(disk.contents("volume.meta").unwrap()).unwrap();
    let expected = volume_meta("volume-head-009.img", "volume-snap-b.img").replace("\"Dirty\":true", "\"Dirty\":false");
    assert_eq!(written, expected.replace("false}\n", "false,\"Future\":[1]}\n"), "fields of newer versions are kept");
}

#[test]
fn longhorns_interrupted_operations_are_put_in_order() {
    // A snapshot before its commit: new head made, old head linked to the snapshot's name.
    let disk = longhorn();
    image(&disk, "volume-head-010.img", [0; 8]);
    disk.put("volume-head-010.img.meta", b"{\"Name\":\"volume-head-010.img\",\"Parent\":\"volume-snap-c.img\"}");
    disk.files().link("volume-head-009.img", "volume-snap-c.img").unwrap();
    disk.files().link("volume-head-009.img.meta", "volume-snap-c.img.meta").unwrap();
    let (mut volume, opened) = adopt(&disk).unwrap();
    assert_eq!(opened.repairs.len(), 2, "{:?}", opened.repairs);
    assert_eq!(values(&mut volume, View::Live), LIVE);
    assert_eq!(volume.snapshots().unwrap().len(), 3);

    // After its commit: the old head is still there.
    let disk = longhorn();
    image(&disk, "volume-head-001.img", [0; 8]);
    disk.put("volume-head-001.img.meta", b"{\"Parent\":\"volume-snap-c.img\"}");
    disk.files().link("volume-head-009.img", "volume-snap-c.img").unwrap();
    disk.put("volume-snap-c.img.meta", b"{\"Parent\":\"volume-snap-b.img\"}");
    disk.put("volume.meta", volume_meta("volume-head-001.img", "volume-snap-c.img").as_bytes());
    let (mut volume, opened) = adopt(&disk).unwrap();
    assert_eq!(opened.repairs.len(), 1, "{:?}", opened.repairs);
    assert_eq!(values(&mut volume, View::Live), LIVE);
    assert!(!disk.names().contains(&"volume-head-009.img".to_owned()));

    // A second head with data of its own is not ours to remove.
    let disk = longhorn();
    image(&disk, "volume-head-002.img", [7; 8]);
    let (mut volume, opened) = adopt(&disk).unwrap();
    assert!(opened.repairs[0].contains("left alone"), "{:?}", opened.repairs);
    assert_eq!(values(&mut volume, View::Live), LIVE);
    assert!(disk.names().contains(&"volume-head-002.img".to_owned()));

    // A fold whose file was renamed already.
    let disk = longhorn();
    let (mut volume, _) = adopt(&disk).unwrap();
    volume.remove_snapshot("a").unwrap();
    drop(volume);
    disk.kill();
    let mut files = disk.files();
    image(&disk, "folded", [1, 2, 2, 1, 2, 0, 0, 0]);
    files.rename("folded", "volume-snap-b.img").unwrap();
    files.remove("volume-snap-a.img").unwrap();
    let (mut volume, opened) = open(&disk);
    assert!(opened.repairs[0].contains("finished"), "{:?}", opened.repairs);
    assert_eq!(values(&mut volume, View::Live), LIVE);
    assert_eq!(volume.snapshots().unwrap().len(), 2);
}

#[test]
fn a_lost_volume_meta_is_made_from_the_only_head() {
    for contents in [None, Some(&b""[..])] {
        let disk = longhorn();
        match contents {
            None => disk.files().remove("volume.meta").unwrap(),
            Some(contents) => disk.put("volume.meta", contents),
        }
        let (mut volume, opened) = adopt(&disk).unwrap();
        assert!(opened.repairs[0].contains("missing or empty"));
        assert_eq!(values(&mut volume, View::Live), LIVE);
    }
}

/// In Longhorn's eyes an allocated range that was never written is zeroes; adopting does not change that.
#[test]
fn unwritten_ranges_stay_zeroes() {
    let disk = longhorn();
    {
        let mut files = disk.files();
        let file = files.open("volume-head-009.img").unwrap();
        let kind = tether_store::OpKind::Zero { len: BLOCK };
        disk.run(tether_store::FileOp { id: tether_store::OpId(0), file, offset: BLOCK, kind });
    }
    let (mut volume, _) = adopt(&disk).unwrap();
    assert_eq!(values(&mut volume, View::Live), [1, 0, 3, 1, 2, 0, 0, 3]);
}

#[test]
fn the_revision_counter_of_a_current_copy_rises_when_it_is_released() {
    let counter = |disk: &FakeDisk| {
        let contents = disk.contents("revision.counter").unwrap();
        assert_eq!(contents.len() as u64, BLOCK);
        String::from_utf8(contents).unwrap().trim_end_matches('\0').to_owned()
    };
    for (how, expected) in [(Released::Current, "42"), (Released::Stale, "41")] {
        let disk = longhorn();
        let mut block = b"41".to_vec();
        block.resize(BLOCK as usize, 0);
        disk.put("revision.counter", &block);
        adopt(&disk).unwrap().0.release(&how).unwrap();
        assert_eq!(counter(&disk), expected);
        let meta = VolumeMeta::parse("volume.meta", &disk.contents("volume.meta").unwrap()).unwrap();
        assert_eq!((meta.dirty, meta.rebuilding), (false, how == Released::Stale));
    }
}

#[test]
fn a_copy_that_may_be_stale_is_not_released_as_current() {
    let changes = [
        Change::OutOfSync(Some("it was away".into())),
        Change::Doubt(true),
        Change::LogAdd(vec![0]),
        Change::Rebuilding(true),
    ];
    for change in changes {
        let disk = longhorn();
        let (mut volume, _) = adopt(&disk).unwrap();
        assert_eq!(run(&mut volume, Request::Save(vec![change.clone()])), Ok(Reply::Done));
        assert!(matches!(volume.release(&Released::Current), Err(OpenError::NotInSync(_))), "{change:?}");
    }
}

#[test]
fn what_cannot_be_used_names_file_field_value_and_fix() {
    let good = volume_meta("volume-head-009.img", "volume-snap-b.img");
    let cases: [(&str, String, &[&str]); 9] = [
        ("volume.meta", good.replace("32768", "\"big\""), &["volume.meta", "Size", "\"big\"", "rebuild"]),
        ("volume.meta", good.replace("32768", "32769"), &["volume.meta", "Size", "32769", "4096"]),
        ("volume.meta", good.replace("32768", "-1"), &["volume.meta", "Size", "-1"]),
        ("volume.meta", good.replace("volume-head-009.img", "x"), &["volume.meta", "Head", "\"x\"", "volume-head-NNN"]),
        ("volume.meta", good.replace("Path\":\"", "Path\":\"/base.img"), &["BackingFilePath", "/base.img"]),
        ("volume.meta", "{".into(), &["volume.meta", "not JSON"]),
        ("volume-snap-b.img.meta", "[]".into(), &["volume-snap-b.img.meta", "not an object"]),
        ("volume-snap-b.img.meta", "{\"Parent\":\"volume-snap-x.img\"}".into(), &["volume-snap-b.img.meta", "Parent"]),
        ("volume-snap-a.img.meta", "{\"Parent\":\"volume-snap-b.img\"}".into(), &["leads back to itself"]),
    ];
    for (file, contents, expected) in cases {
        let disk = longhorn();
        disk.put(file, contents.as_bytes());
        let text = adopt(&disk).unwrap_err().to_string();
        for part in expected {
            assert!(text.contains(part), "{text:?} does not say {part:?}");
        }
    }
    let disk = longhorn();
    disk.files().remove("volume-snap-a.img").unwrap();
    assert!(adopt(&disk).unwrap_err().to_string().contains("volume-snap-a.img is missing"));
}

#[test]
fn metadata_is_read_as_go_reads_it() {
    let cases: [(&str, DiskMeta); 4] = [
        ("{}", DiskMeta::default()),
        ("{\"parent\":\"p\",\"REMOVED\":true}", DiskMeta { parent: "p".into(), removed: true, ..DiskMeta::default() }),
        ("{\"Parent\":null,\"Labels\":null,\"Removed\":null} garbage", DiskMeta::default()),
        (" {\"Created\":\"c\"}\n{\"Created\":\"d\"}", DiskMeta { created: "c".into(), ..DiskMeta::default() }),
    ];
    for (text, expected) in cases {
        assert_eq!(DiskMeta::parse("x", text.as_bytes()).unwrap(), expected, "{text}");
    }
}

#[test]
fn files_that_belong_to_others_are_left_alone() {
    let disk = longhorn();
    for name in ["volume-delta-backup.img", "volume-snap-b.img.snap_tmp", "notes.txt"] {
        disk.put(name, b"x");
    }
    disk.put("volume-delta-backup.img.meta", b"{\"Parent\":\"volume-snap-none.img\"}");
    let before = disk.names();
    let (mut volume, _) = adopt(&disk).unwrap();
    assert_eq!(run(&mut volume, Request::Write { offset: 0, data: Bytes::from(vec![1]), fua: true }), Ok(Reply::Done));
    volume.close().unwrap();
    assert!(before.iter().all(|name| disk.names().contains(name)));
}
