//! Volumes that move while things fail: reads through the source, take-overs by a stray write, rollbacks.

use tether_sim::faults::Family;
use tether_sim::run::{Plan, run};

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
