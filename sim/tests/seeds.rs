//! Random runs. A seed that fails is replayed with its log by the command that is printed.

use tether_sim::run::{Outcome, Plan, run};

/// Seeds of the ordinary run: as many as fit into some seconds of an unoptimized build.
const FEW: u64 = 4;
/// Seeds that found something: 20, a start that waited forever for a member whose disk had failed once; 41084, a handshake
/// that waited forever for a replica that stood still when it began and whose host then lost power.
const FOUND: [u64; 2] = [20, 41084];

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn check(seed: u64) -> Outcome {
    let keep_log = std::env::var_os("TETHER_SIM_LOG").is_some();
    let outcome = run(&Plan { keep_log, ..Plan::of(seed) });
    if let Some(failure) = &outcome.failure {
        if let Some(path) = std::env::var_os("TETHER_SIM_LOG") {
            std::fs::write(&path, outcome.log.join("\n")).expect("the log must be writable");
        }
        panic!(
            "seed {seed}: {failure}\nreplay: TETHER_SIM_LOG=/tmp/sim.log TETHER_FIRST_SEED={seed} TETHER_SEEDS=1 cargo \
             test -p tether-sim --test seeds -- --ignored --nocapture"
        );
    }
    outcome
}

#[test]
fn a_few_seeds() {
    let mut done = 0;
    for seed in (0..FEW).chain(FOUND) {
        done += check(seed).requests.0;
    }
    assert!(done > FEW * 200, "hardly anything was asked: {done}");
}

#[test]
#[ignore = "a campaign: cargo xtask campaign run sim"]
#[allow(clippy::print_stdout)]
fn seeds_in_a_long_campaign() {
    let first = number("TETHER_FIRST_SEED", 0);
    let seeds = number("TETHER_SEEDS", 100);
    let mut totals = (0, 0, 0, 0, 0);
    for seed in first..first + seeds {
        let outcome = check(seed);
        totals.0 += outcome.requests.0;
        totals.1 += outcome.requests.1 + outcome.requests.2;
        totals.2 += outcome.engines;
        totals.3 += outcome.generations;
        totals.4 += outcome.virtual_seconds;
    }
    println!(
        "{seeds} seeds: {} requests done, {} not, {} engines, {} changes of the record, {} s simulated",
        totals.0, totals.1, totals.2, totals.3, totals.4
    );
}
