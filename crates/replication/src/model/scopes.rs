//! Which worlds are searched with all rules in force.

use super::action::Action;
use super::search::{Found, search};
use super::world::{Budget, Scope, World};
use crate::engine::Phase;
use crate::rules::Rules;
use crate::wire::Kind;

/// Two engines, two replicas, one write, no faults; arrivals of writes are steps.
pub(super) fn plain() -> Scope {
    Scope {
        rules: Rules::default(),
        engines: 2,
        replicas: 2,
        writes: 1,
        budget: Budget::default(),
        fine: &[Kind::Write],
        fine_answers: &[],
        fine_store: false,
        split_reads: false,
        migration: false,
        blocks: 1,
    }
}

/// The first engine serves from all replicas.
pub(super) fn serving(scope: &Scope) -> World {
    let mut world = World::new(scope);
    world.step(scope, Action::Start(0));
    world.step(scope, Action::Cas(0));
    for replica in 0..scope.replicas {
        world.step(scope, Action::Dial(0, replica));
        while !world.disks[usize::from(replica)].ops.is_empty() {
            world.step(scope, Action::Store(replica, 0));
        }
    }
    for _ in 0..4 {
        for replica in 0..scope.replicas {
            world.step(scope, Action::Answer(0, replica));
        }
    }
    let engine = world.hosts[0].engine.as_ref().expect("an engine that was started must be there");
    assert_eq!(Phase::Serving, engine.phase(), "{engine:#?}");
    world
}

fn run(name: &str, scope: &Scope, max_states: usize) -> Found {
    let found = search(scope, serving(scope), max_states, true);
    println!("{name}: {found}");
    found
}

#[test]
fn tiny() {
    let budget = Budget { crashes: 1, suspicions: 1, breaks: 1, ticks: 1, impatience: 1, ..Budget::default() };
    let found = run("tiny", &Scope { budget, ..plain() }, 200_000);
    assert!(found.violation.is_none());
}
