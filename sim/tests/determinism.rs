//! The first property: a seed is a run.

use tether_sim::run::{Plan, run};

#[test]
fn the_same_seed_gives_the_same_log() {
    let plan = Plan { keep_log: true, ..Plan::of(1) };
    let (one, two) = (run(&plan), run(&plan));
    let differ = one.log.iter().zip(&two.log).find(|(one, two)| one != two);
    assert_eq!(None, differ);
    assert_eq!(one.hash, two.hash);
    assert_ne!(one.hash, run(&Plan::of(20)).hash);
}
