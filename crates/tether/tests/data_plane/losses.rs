//! Replicas that are killed, stopped or cut off under verified load, one or two of three: a stall, and nothing else.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use tether_testkit::load::{Ledger, Load};

use crate::lab::{Lab, SIZE, copied, copied_bytes, in_sync};
use crate::{BLOCKS, LIMIT, SOME, WORKERS, assert_clean};

/// The part of the volume that is written to, so that what is not can be seen not to be copied.
const USED: u64 = SIZE / 4;

/// How a replica is lost.
#[derive(Clone, Copy, Debug)]
enum How {
    Killed,
    Stopped,
    /// Nothing gets through, and nobody is told.
    CutOff,
}

const ALL: [How; 3] = [How::Killed, How::Stopped, How::CutOff];

impl How {
    fn lose(self, lab: &mut Lab, at: usize) {
        match self {
            Self::Killed => lab.kill_replica(at),
            Self::Stopped => lab.replica(at).signal(Signal::STOP),
            Self::CutOff => lab.ways[at].cut(),
        }
    }

    fn regain(self, lab: &mut Lab, at: usize) {
        match self {
            Self::Killed => lab.start_replica(at),
            Self::Stopped => lab.replica(at).signal(Signal::CONT),
            Self::CutOff => lab.ways[at].heal(),
        }
    }
}

/// Loses replicas and gets them back, again and again; returns how long requests stood still each time.
fn lose(losses: &[(How, Vec<usize>)]) -> Vec<Duration> {
    let mut lab = Lab::behind_proxies(3);
    let engine = lab.start_engine("e1");
    let ledger = Ledger::new(BLOCKS, USED);
    let load = Load::start(&ledger, &lab.socket("e1"), WORKERS, 1);
    let mut stalls = Vec::new();
    for (how, replicas) in losses {
        assert!(load.goes_on(SOME, LIMIT), "the load goes on before {replicas:?} are {how:?}");
        for at in replicas {
            how.lose(&mut lab, *at);
        }
        let (since, answered) = (Instant::now(), load.acknowledged());
        // What was stored everywhere already may still be acknowledged.
        assert!(
            load.reaches(answered + WORKERS as u64 + 1, LIMIT),
            "the load stands still when {replicas:?} are {how:?}"
        );
        let stall = since.elapsed();
        assert!(load.goes_on(SOME, LIMIT), "the load goes on without {replicas:?}");
        // Nothing was acknowledged without them before the record said so; now it does.
        assert_eq!(in_sync(&lab.info("e1")), 3 - replicas.len());
        for at in replicas {
            how.regain(&mut lab, *at);
        }
        let info = lab.wait_in_sync("e1", 3);
        assert!(copied_bytes(&info) <= USED, "only changed regions are copied: {}", copied(&info));
        eprintln!("{replicas:?} {how:?}: stall {} ms; {}", stall.as_millis(), copied(&info));
        stalls.push(stall);
    }
    assert!(load.goes_on(SOME, LIMIT), "the load goes on with all replicas");
    let report = load.finish();
    assert_clean(&report);
    assert_eq!(ledger.verify(&lab.socket("e1")), Vec::<String>::new());
    engine.terminate();
    lab.assert_equal();
    stalls
}

#[test]
fn a_lost_replica_costs_no_data_and_comes_back() {
    lose(&[(How::Killed, vec![1]), (How::Stopped, vec![2]), (How::CutOff, vec![0])]);
}

#[test]
fn two_lost_replicas_of_three_cost_no_data_and_come_back() {
    lose(&[(How::Killed, vec![0, 2]), (How::Stopped, vec![0, 1]), (How::CutOff, vec![1, 2])]);
}

#[test]
#[ignore = "a campaign: cargo xtask campaign run replica-losses"]
fn losses_of_replicas_in_a_long_campaign() {
    let number =
        |name: &str, otherwise| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise);
    let (first, count) = (number("TETHER_FIRST_SEED", 0), number("TETHER_SEEDS", 60));
    let sets = [vec![0], vec![1], vec![2], vec![0, 1], vec![0, 2], vec![1, 2]];
    let loss = |seed: usize| (ALL[seed % ALL.len()], sets[seed / ALL.len() % sets.len()].clone());
    let losses: Vec<_> = (first..first + count).map(loss).collect();
    let mut stalls = lose(&losses);
    stalls.sort();
    let (median, longest) = (stalls[stalls.len() / 2], stalls[stalls.len() - 1]);
    eprintln!("{count} losses of one or two replicas of three: stall median {median:?}, longest {longest:?}");
}
