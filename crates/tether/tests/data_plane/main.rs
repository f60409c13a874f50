//! Engines and replicas as real processes, under verified load: what is killed, stopped or cut off costs time, never
//! data. Long versions: `cargo xtask campaign run data-plane` and `… run replica-losses`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stderr, reason = "figures for whoever reads the test's output")]

mod lab;
mod line;
mod losses;
mod migration;

use std::fs::File;
use std::time::Duration;

use lab::{Lab, SIZE, in_sync};
use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;
use serde_json::Value;
use tether_testkit::load::{Ledger, Load, Report};

const WORKERS: usize = 4;
const BLOCKS: u64 = 256;
/// Requests of a load that show that it goes on.
const SOME: u64 = 200;
/// Nothing that goes on takes longer, also on a busy machine. How long it really took is printed.
const LIMIT: Duration = Duration::from_secs(30);
/// What an NBD client is told by an engine that was fenced.
const ESHUTDOWN: u32 = 108;

fn assert_clean(report: &Report) {
    assert!(report.violations.is_empty(), "{:?}", report.violations);
    assert!(report.broken.is_empty(), "{:?}", report.broken);
    assert!(report.refused.is_empty(), "{:?}", report.refused);
}

fn kill_engine(times: usize) {
    let mut lab = Lab::new(3);
    let ledger = Ledger::new(BLOCKS, SIZE);
    for round in 1..=times {
        let engine = lab.start_engine("e1");
        let violations = ledger.verify(&lab.socket("e1"));
        assert!(violations.is_empty(), "before kill {round}: {violations:?}");
        let load = Load::start(&ledger, &lab.socket("e1"), WORKERS, round as u64);
        assert!(load.goes_on(SOME / 4 + round as u64 % 7 * 20, LIMIT), "the load of round {round} begins");
        engine.kill();
        let report = load.finish();
        assert!(report.violations.is_empty(), "round {round}: {:?}", report.violations);
    }
    let engine = lab.start_engine("e1");
    assert_eq!(ledger.verify(&lab.socket("e1")), Vec::<String>::new());
    lab.wait_in_sync("e1", 3);
    eprintln!("{times} kills, {} versions acknowledged", ledger.acknowledged());
    engine.terminate();
    lab.assert_equal();
}

#[test]
fn a_killed_engine_loses_nothing_that_it_acknowledged() {
    kill_engine(3);
}

#[test]
#[ignore = "a campaign: a seed is a kill"]
fn kills_of_an_engine_in_a_long_campaign() {
    let seeds = std::env::var("TETHER_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    kill_engine(seeds.unwrap_or(100));
}

#[test]
fn an_engine_that_slept_through_its_succession_is_fenced() {
    let mut lab = Lab::new(3);
    let old = lab.start_engine("e1");
    let ledger = Ledger::new(BLOCKS, SIZE);
    let load = Load::start(&ledger, &lab.socket("e1"), WORKERS, 1);
    assert!(load.goes_on(SOME, LIMIT), "the load begins");
    old.signal(Signal::STOP);
    let new = lab.start_engine("e2");
    assert_eq!(ledger.verify(&lab.socket("e2")), Vec::<String>::new(), "everything acknowledged is there");
    let before = load.acknowledged();
    old.signal(Signal::CONT);
    lab.wait("e1", "fencing", |info| info["phase"] == "Fenced");
    let report = load.finish();
    assert!(report.violations.is_empty(), "{:?}", report.violations);
    // What every replica had stored before it promised the new epoch may still be acknowledged: the successor has it.
    let late = report.acknowledged - before;
    assert!(late <= WORKERS as u64, "{late} requests were acknowledged after the succession");
    assert!(!report.refused.is_empty() && report.refused.iter().all(|error| *error == ESHUTDOWN), "{report:?}");
    // Nothing of the old engine appears: what was read above stays, version by version.
    assert_eq!(ledger.verify(&lab.socket("e2")), Vec::<String>::new());
    let record: Value = serde_json::from_slice(&std::fs::read(lab.record()).unwrap()).unwrap();
    assert_eq!(record["epoch"], 2);
    drop(old);
    new.terminate();
    lab.assert_equal();
}

#[test]
fn without_the_record_io_waits_only_if_a_replica_is_lost() {
    let mut lab = Lab::new(2);
    let engine = lab.start_engine("e1");
    let ledger = Ledger::new(BLOCKS, SIZE);
    let load = Load::start(&ledger, &lab.socket("e1"), WORKERS, 1);
    assert!(load.goes_on(SOME, LIMIT), "the load begins");
    // Whoever holds the lock and does nothing makes the record unreachable.
    let lock = File::open(lab.path("v1.record.lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    assert!(load.goes_on(SOME, LIMIT), "without the record, all replicas well: it goes on");
    lab.kill_replica(1);
    lab.wait("e1", "the loss", |info| info["replicas"][1]["connected"] == false);
    lab.wait("e1", "the suspension", |info| info["suspended"].as_str().is_some_and(|why| why.contains("record")));
    // What was in flight with both replicas may still be acknowledged; then nothing is.
    while load.goes_on(1, Duration::from_secs(2)) {}
    assert_eq!(in_sync(&lab.info("e1")), 2, "the record cannot have changed");
    flock(&lock, FlockOperation::Unlock).unwrap();
    assert!(load.goes_on(SOME, LIMIT), "with the record it goes on, on one replica");
    assert_eq!(in_sync(&lab.info("e1")), 1);
    lab.start_replica(1);
    lab.wait_in_sync("e1", 2);
    assert_clean(&load.finish());
    assert_eq!(ledger.verify(&lab.socket("e1")), Vec::<String>::new());
    engine.terminate();
    lab.assert_equal();
}

#[test]
fn snapshots_and_size_change_while_the_volume_is_used() {
    let mut lab = Lab::new(2);
    let engine = lab.start_engine("e1");
    let mut client = tether_testkit::nbd::Client::connect(&lab.socket("e1")).unwrap();
    client.write(0, &[1; 4096]).unwrap();
    lab.ask("e1", &["snapshot", "create", "v1", "one"]).unwrap();
    client.write(0, &[2; 4096]).unwrap();
    let list = lab.ask("e1", &["snapshot", "list", "v1"]).unwrap();
    assert!(list.as_array().unwrap().iter().any(|one| one["name"] == "one"), "{list:#}");
    let again = lab.ask("e1", &["snapshot", "create", "v1", "one"]).unwrap_err();
    assert!(again.contains("exists already"), "{again}");
    lab.ask("e1", &["snapshot", "revert", "v1", "one"]).unwrap();
    assert_eq!(client.read(0, 4096).unwrap(), [1; 4096]);
    lab.ask("e1", &["expand", "v1", "256MiB"]).unwrap();
    client.write(SIZE, &[3; 4096]).unwrap();
    assert_eq!(client.read(SIZE, 4096).unwrap(), [3; 4096]);
    lab.ask("e1", &["snapshot", "delete", "v1", "one"]).unwrap();
    lab.ask("e1", &["flush", "v1"]).unwrap();
    engine.terminate();
    lab.assert_equal();
}

#[test]
fn a_snapshot_that_changes_by_itself_is_found_by_its_sum() {
    use std::os::unix::fs::FileExt as _;
    use std::os::unix::fs::MetadataExt as _;
    let lab = Lab::new(1);
    let engine = lab.start_engine("e1");
    let mut client = tether_testkit::nbd::Client::connect(&lab.socket("e1")).unwrap();
    client.write(8192, &[1; 4096]).unwrap();
    lab.ask("e1", &["snapshot", "create", "v1", "one"]).unwrap();
    let first = lab.hash(0, "one", false);
    assert_eq!((&first["method"], &first["silentlyCorrupted"]), (&"crc64".into(), &false.into()), "{first:#}");
    let image = lab.path("r0").join("volume-snap-one.img");
    let kept: Value =
        serde_json::from_slice(&std::fs::read(lab.path("r0").join("volume-snap-one.img.checksum")).unwrap()).unwrap();
    assert_eq!((&kept["checksum"], &kept["change_time"]), (&first["checksum"], &first["changeTime"]));
    assert_eq!(lab.hash(0, "one", true)["checksum"], first["checksum"]);
    // A byte changes, and the file's times are what they were: nobody can set the time of change, so the note is changed.
    let file = File::options().write(true).open(&image).unwrap();
    file.write_all_at(&[7], 8192).unwrap();
    file.sync_all().unwrap();
    let changed = file.metadata().unwrap();
    assert_ne!(lab.hash(0, "one", false)["checksum"], first["checksum"], "a changed file is read again");
    let again = lab.hash(0, "one", false);
    let forged = serde_json::json!({
        "method": "crc64", "checksum": first["checksum"], "change_time": again["changeTime"],
        "last_hashed_at": again["lastHashedAt"], "silently_corrupted": false,
    });
    std::fs::write(lab.path("r0").join("volume-snap-one.img.checksum"), forged.to_string()).unwrap();
    assert_eq!(changed.ctime_nsec(), file.metadata().unwrap().ctime_nsec());
    let found = lab.hash(0, "one", true);
    assert_eq!((&found["silentlyCorrupted"], &found["checksum"]), (&true.into(), &first["checksum"]), "{found:#}");
    assert_eq!(lab.hash(0, "one", false)["silentlyCorrupted"], true, "it stays so");
    engine.terminate();
}

#[test]
fn replicas_that_differ_are_found_while_the_volume_is_used() {
    use std::os::unix::fs::FileExt as _;
    const AT: u64 = 8 << 20;
    let lab = Lab::new(3);
    let engine = lab.start_engine("e1");
    let ledger = Ledger::new(BLOCKS, SIZE);
    let load = Load::start(&ledger, &lab.socket("e1"), WORKERS, 1);
    let mut client = tether_testkit::nbd::Client::connect(&lab.socket("e1")).unwrap();
    client.write(AT + 4096, &[1; 4096]).unwrap();
    let compared = |info: &Value| info["scrub"]["done"] == SIZE && info["scrub"]["total"] == SIZE;
    lab.ask("e1", &["scrub", "v1", "--rate", "1GiB"]).unwrap();
    let info = lab.wait("e1", "a comparison under load", compared);
    assert_eq!(info["scrub"]["different"], 0, "{info:#}");
    // A bit that a disk turned, which no checksum of a file system would have caught.
    let head = File::options().write(true).open(lab.path("r1").join("volume-head-000.img")).unwrap();
    head.write_all_at(&[3; 1], AT + 4096).unwrap();
    head.sync_all().unwrap();
    lab.ask("e1", &["scrub", "v1", "--rate", "1GiB"]).unwrap();
    let info = lab.wait("e1", "the difference", |info| compared(info) && info["scrub"]["different"] != 0);
    let events = info["events"].as_array().unwrap();
    let told =
        |event: &&Value| event.as_str().is_some_and(|text| text.contains("replicas differ in") && text.contains("r1"));
    assert_eq!(events.iter().filter(told).count(), 1, "{events:#?}");
    assert_eq!(in_sync(&info), 3, "which one is right is for people to say");
    assert!(load.goes_on(SOME, LIMIT), "the load goes on");
    assert_clean(&load.finish());
    engine.terminate();
}
