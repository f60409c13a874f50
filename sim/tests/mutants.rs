//! Bugs planted on purpose, each of which some seed must show.
//!
//! Rules of the protocol are removed one at a time and found by the model (`tether-replication`, `model::mutants`:
//! every rule of `Rule::ALL` has its counterexample there). Here are those that whole machines show within a few
//! seeds, and bugs below the machines that a model cannot have.

use tether_replication::rules::{Rule, Rules};
use tether_sim::faults::Family;
use tether_sim::run::{Plan, run};
use tether_sim::world::Plant;

/// Seeds tried for each bug; the slowest one needs four.
const SEEDS: u64 = 5;

/// Some seed fails with the bug, and passes without it.
fn must_be_caught(name: &str, families: &[Family], rules: Rules, plant: Option<Plant>) {
    let plan = |seed| Plan { families: Some(families.to_vec()), ..Plan::of(seed) };
    let found = (0..SEEDS).find(|seed| run(&Plan { rules, plant, ..plan(*seed) }).failure.is_some());
    let seed = found.unwrap_or_else(|| panic!("{name} was not noticed in {SEEDS} seeds"));
    assert_eq!(None, run(&plan(seed)).failure, "{name}: seed {seed} fails without the bug as well");
}

#[test]
fn rules_removed() {
    let table: [(Rule, &[Family]); 3] = [
        (Rule::shrink_first, &[Family::ReplicaPower, Family::Partition, Family::EngineKill]),
        (Rule::all_store, &[Family::ReplicaStop, Family::EngineKill]),
        (Rule::copy_excludes_writes, &[Family::ReplicaKill]),
    ];
    for (rule, families) in table {
        must_be_caught(rule.says(), families, Rules::without(rule), None);
    }
}

#[test]
fn syncs_that_do_nothing() {
    must_be_caught("skipped fdatasync", &[Family::TotalPower], Rules::default(), Some(Plant::SyncIsSkipped));
}

#[test]
fn reboots_that_nobody_notices() {
    must_be_caught("unnoticed reboot", &[Family::ReplicaPower], Rules::default(), Some(Plant::BootIsNotNoticed));
}
