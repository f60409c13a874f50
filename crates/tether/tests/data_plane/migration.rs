//! A volume that moves: the target reads through the source, its first write takes over, and nothing is lost or stale.

use std::thread;
use std::time::Duration;

use serde_json::Value;
use tether_testkit::load::{Ledger, Load};
use tether_testkit::nbd::{Client, Failure};

use crate::lab::Lab;
use crate::{BLOCKS, ESHUTDOWN, LIMIT, SIZE, SOME, WORKERS};

const BYTES: usize = 4096;

fn record(lab: &Lab) -> Value {
    serde_json::from_slice(&std::fs::read(lab.record()).unwrap()).unwrap()
}

#[test]
fn a_standby_reads_fresh_data_and_its_first_write_takes_over() {
    let mut lab = Lab::new(3);
    let source = lab.start_engine("e1");
    let mut writer = Client::connect(&lab.socket("e1")).unwrap();
    writer.write(0, &[1; BYTES]).unwrap();
    let target = lab.start_standby("e2", "e1");
    let mut reader = Client::connect(&lab.socket("e2")).unwrap();
    for version in 1..=50u8 {
        writer.write(0, &[version; BYTES]).unwrap();
        assert_eq!(reader.read(0, BYTES as u32).unwrap(), [version; BYTES], "the standby reads what was written last");
    }
    let snapshot = lab.ask("e2", &["snapshot", "create", "v1", "no"]).unwrap_err();
    assert!(snapshot.contains("standby"), "{snapshot}");
    assert_eq!(record(&lab)["epoch"], 1, "reading takes nothing over");

    reader.write(0, &[99; BYTES]).unwrap();
    assert_eq!(reader.read(0, BYTES as u32).unwrap(), [99; BYTES]);
    assert_eq!((&record(&lab)["epoch"], &record(&lab)["standby"]), (&2.into(), &Value::Null));
    let told = lab.info("e2")["events"].to_string();
    assert!(!told.contains("had to be copied"), "the source left nothing to compare: {told}");
    lab.wait("e1", "fencing", |info| info["phase"] == "Fenced");
    let mut other = Client::connect(&lab.socket("e1")).unwrap();
    let held = [
        thread::spawn(move || writer.write(0, &[7; BYTES])),
        thread::spawn(move || other.read(0, BYTES as u32).map(drop)),
    ];
    thread::sleep(Duration::from_millis(300));
    assert!(
        held.iter().all(|request| !request.is_finished()),
        "until the migration is decided the source's clients wait"
    );
    source.terminate();
    for request in held {
        assert!(matches!(request.join().unwrap(), Err(Failure::Broken(_))), "what was held is never acknowledged");
    }
    assert_eq!(reader.read(0, BYTES as u32).unwrap(), [99; BYTES], "none of its bytes appears");
    target.terminate();
    lab.assert_equal();
}

#[test]
fn a_promotion_under_load_loses_nothing() {
    let mut lab = Lab::new(3);
    let source = lab.start_engine("e1");
    let ledger = Ledger::new(BLOCKS, SIZE);
    let load = Load::start(&ledger, &lab.socket("e1"), WORKERS, 1);
    assert!(load.goes_on(SOME, LIMIT), "the load begins");
    let target = lab.start_standby("e2", "e1");
    assert!(load.goes_on(SOME, LIMIT), "the load goes on beside a standby");
    lab.ask("e2", &["promote", "v1"]).unwrap();
    lab.wait("e1", "fencing", |info| info["phase"] == "Fenced");
    // What it had not sent waits for its end; what it had sent may have failed.
    source.terminate();
    let report = load.finish();
    assert!(report.violations.is_empty(), "{:?}", report.violations);
    assert!(report.refused.iter().all(|error| *error == ESHUTDOWN), "{report:?}");
    assert_eq!(ledger.verify(&lab.socket("e2")), Vec::<String>::new());
    let load = Load::start(&ledger, &lab.socket("e2"), WORKERS, 2);
    assert!(load.goes_on(SOME, LIMIT), "the load goes on at the target");
    crate::assert_clean(&load.finish());
    target.terminate();
    lab.assert_equal();
}

#[test]
fn a_migration_that_is_rolled_back_leaves_the_source_as_it_was() {
    let mut lab = Lab::new(2);
    let source = lab.start_engine("e1");
    let ledger = Ledger::new(BLOCKS, SIZE);
    let load = Load::start(&ledger, &lab.socket("e1"), WORKERS, 1);
    assert!(load.goes_on(SOME, LIMIT), "the load begins");
    // Asked of the source: the target may be out of reach.
    let target = lab.start_standby("e2", "e1");
    let mut stray = Client::connect(&lab.socket("e2")).unwrap();
    lab.ask("e1", &["rollback", "v1"]).unwrap();
    assert!(stray.write(0, &[9; BYTES]).is_err(), "a stray write of the target does not take over");
    drop(target);
    // Asked of the target: it ends.
    let target = lab.start_standby("e3", "e1");
    lab.ask("e3", &["rollback", "v1"]).unwrap();
    target.ends();
    assert_eq!((&record(&lab)["epoch"], &record(&lab)["standby"]), (&1.into(), &Value::Null));
    assert!(load.goes_on(SOME, LIMIT), "the load goes on");
    crate::assert_clean(&load.finish());
    assert_eq!(ledger.verify(&lab.socket("e1")), Vec::<String>::new());
    source.terminate();
    lab.assert_equal();
}
