//! Volumes that move while things fail: reads through the source, take-overs by a stray write, rollbacks.

use tether_sim::faults::Family;
use tether_sim::run::{Outcome, Plan, run};
use tether_store::files::fake::Random;

/// Seeds of each set of families; each kind of end must come up in some of them.
const SEEDS: u64 = 2;

#[test]
fn migrations_among_faults() {
    let sets: [&[Family]; 3] = [
        &[Family::Migration],
        &[Family::Migration, Family::EngineKill, Family::Record],
        &[Family::Migration, Family::Partition, Family::ReplicaKill, Family::EngineStop],
    ];
    let (mut reads, mut taken_over, mut rolled_back) = (0, 0, 0);
    for families in sets {
        for seed in 0..SEEDS {
            let outcome = run(&Plan { families: Some(families.to_vec()), ..Plan::of(seed) });
            assert_eq!(None, outcome.failure, "seed {seed} with {families:?}");
            reads += outcome.standby.0;
            taken_over += outcome.standby.1;
            rolled_back += outcome.standby.2;
        }
    }
    assert!(reads > 500, "standbys answered {reads} reads");
    assert!(taken_over > 0 && rolled_back > 0, "{taken_over} were taken over, {rolled_back} rolled back");
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// A volume that moves again and again while something else fails; what else is drawn from the seed.
fn moves(seed: u64) -> Outcome {
    let log = std::env::var_os("TETHER_SIM_LOG");
    let families = Family::moving(&mut Random::new(seed));
    let outcome = run(&Plan { keep_log: log.is_some(), families: Some(families.clone()), ..Plan::of(seed) });
    if let Some(failure) = &outcome.failure {
        if let Some(path) = log {
            std::fs::write(&path, outcome.log.join("\n")).expect("the log must be writable");
        }
        panic!(
            "seed {seed} with {families:?}: {failure}\nreplay: TETHER_SIM_LOG=/tmp/sim.log TETHER_FIRST_SEED={seed} \
             TETHER_SEEDS=1 cargo test -p tether-sim --test migration -- --ignored --nocapture"
        );
    }
    outcome
}

#[test]
#[ignore = "a campaign: cargo xtask campaign run sim-migration"]
#[allow(clippy::print_stdout)]
fn migrations_in_a_long_campaign() {
    let (first, seeds) = (number("TETHER_FIRST_SEED", 0), number("TETHER_SEEDS", 100));
    let (mut requests, mut engines, mut reads, mut taken_over, mut rolled_back, mut simulated) = (0, 0, 0, 0, 0, 0);
    for seed in first..first + seeds {
        let outcome = moves(seed);
        requests += outcome.requests.0;
        engines += outcome.engines;
        reads += outcome.standby.0;
        taken_over += outcome.standby.1;
        rolled_back += outcome.standby.2;
        simulated += outcome.virtual_seconds;
    }
    println!(
        "seeds {first}..{}: {requests} requests done, {engines} engines, {reads} reads of standbys, {taken_over} taken over \
         by a write, {rolled_back} rolled back, {simulated} s simulated",
        first + seeds
    );
}
