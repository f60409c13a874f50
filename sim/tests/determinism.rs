//! The first property: a seed is a run.

use tether_sim::run::{Plan, run};

#[test]
fn the_same_seed_gives_the_same_log() {
    for seed in [1, 2] {
        let plan = Plan { keep_log: true, ..Plan::of(seed) };
        let (one, two) = (run(&plan), run(&plan));
        if one.hash != two.hash {
            let at = one.log.iter().zip(&two.log).position(|(one, two)| one != two).unwrap_or(0);
            panic!("seed {seed} differs at line {at}:\n{}\n{}", one.log[at], two.log[at]);
        }
    }
    assert_ne!(run(&Plan::of(1)).hash, run(&Plan::of(2)).hash);
}
