//! Instance managers as real processes, killed under a mounted file system: a stall for whoever uses it, nothing else.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stderr, reason = "figures for whoever reads the test's output")]

mod lab;

use std::fs::File;
use std::time::{Duration, Instant};

use lab::{Lab, run};
use tether_testkit::disk::Place;
use tether_testkit::load::{Ledger, Load};

const WORKERS: usize = 4;
const BLOCKS: u64 = 128;
/// Bytes of the file that the load writes to.
const FILE_BYTES: u64 = 32 << 20;
/// Requests that show that the load goes on.
const SOME: u64 = 40;
/// Nothing that goes on takes longer, also on a busy machine. How long it really took is printed.
const LIMIT: Duration = Duration::from_secs(60);
/// Kills in the short version of the campaign.
const KILLS: u64 = 3;

fn devices_are_possible() -> bool {
    match tether_engine::device::available() {
        Ok(()) => true,
        Err(why) => {
            eprintln!("skipped: {why}");
            false
        }
    }
}

/// A file of the load's size, all of it allocated, so that later writes change data and not the file system.
fn make_file(path: &std::path::Path) {
    use std::os::unix::fs::FileExt as _;
    let file = File::create(path).unwrap();
    for at in (0..FILE_BYTES).step_by(1 << 20) {
        file.write_all_at(&vec![0; 1 << 20], at).unwrap();
    }
    file.sync_all().unwrap();
}

/// Kills the manager of engine and device, and one replica with it, under a file system that is written to and synced.
fn kill_managers(volume: &str, kills: std::ops::Range<u64>) {
    let mut lab = Lab::new(volume);
    lab.start_engine(true);
    let device = lab.device();
    run("mkfs.ext4", &["-q", "-F", device.to_str().unwrap()]);
    let mount = lab.mount(&device);
    let file = mount.join("data");
    make_file(&file);
    let ledger = Ledger::new(BLOCKS, FILE_BYTES);
    let load = Load::start(&ledger, Place::File(file.clone()), WORKERS, kills.start);
    let mut stalls = Vec::new();
    for kill in kills.clone() {
        assert!(load.goes_on(SOME + kill % 7 * 20, LIMIT), "the load of kill {kill} begins");
        lab.kill(0);
        let (since, answered) = (Instant::now(), load.acknowledged());
        lab.start(0);
        // Nobody says that older engines are stopped: that this node's are dead, the manager knows.
        lab.start_engine(false);
        // What was on its way to a worker when the manager died is not from after the kill.
        assert!(load.reaches(answered + WORKERS as u64 + 1, LIMIT), "kill {kill}");
        stalls.push(since.elapsed());
        eprintln!("kill {kill}: {} ms", since.elapsed().as_millis());
    }
    assert!(load.goes_on(SOME, LIMIT), "the load goes on after the last kill");
    let report = load.finish();
    assert!(report.violations.is_empty(), "{:?}", report.violations);
    assert!(report.refused.is_empty() && report.broken.is_empty(), "no I/O error: {report:?}");
    assert_eq!(ledger.verify(Place::File(file.clone())), Vec::<String>::new());
    lab.unmount();
    run("fsck.ext4", &["-f", "-n", device.to_str().unwrap()]);
    let mount = lab.mount(&device);
    assert_eq!(ledger.verify(Place::File(mount.join("data"))), Vec::<String>::new());
    lab.unmount();
    lab.wait("all replicas in sync", |info| info.in_sync.len() == 3);
    lab.close_engine();
    assert!(!device.exists(), "the device goes with the engine that is closed");
    lab.assert_equal();
    stalls.sort();
    eprintln!(
        "{} kills, {} requests, no I/O error; stall median {:?}, longest {:?}",
        stalls.len(),
        report.acknowledged,
        stalls[stalls.len() / 2],
        stalls[stalls.len() - 1]
    );
}

#[test]
fn a_device_outlives_its_instance_manager() {
    if devices_are_possible() {
        kill_managers("short", 0..KILLS);
    }
}

#[test]
#[ignore = "a campaign: cargo xtask campaign run device-kill"]
fn kills_of_an_instance_manager_in_a_long_campaign() {
    let number =
        |name: &str, otherwise| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise);
    let first = number("TETHER_FIRST_SEED", 0);
    kill_managers("long", first..first + number("TETHER_SEEDS", 50));
}
