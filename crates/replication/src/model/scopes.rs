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
        slow_copies: false,
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

pub(super) fn run(name: &str, scope: &Scope, max_states: usize) -> Found {
    let found = search(scope, serving(scope), max_states, true);
    println!("{name}: {found}");
    found
}

/// Scopes that are searched as far as a test may take; the campaign goes on from there.
pub(super) fn scopes() -> Vec<(&'static str, Scope)> {
    let none = Budget::default();
    let with = |budget| Scope { budget, ..plain() };
    vec![
        ("tiny", with(Budget { crashes: 1, suspicions: 1, breaks: 1, ticks: 1, impatience: 1, ..none })),
        (
            "takeover",
            Scope { engines: 2, writes: 2, ..with(Budget { ticks: 1, impatience: 1, suspicions: 1, ..none }) },
        ),
        ("three engines", Scope { engines: 3, ..with(Budget { crashes: 1, ticks: 1, impatience: 1, ..none }) }),
        ("unknown", with(Budget { suspicions: 1, unknown: 1, unreachable: 1, crashes: 1, reboots: 1, ..none })),
        ("join", Scope { writes: 2, ..with(Budget { suspicions: 1, joins: 1, flushes: 1, crashes: 1, ..none }) }),
        (
            "join unknown",
            with(Budget { suspicions: 1, joins: 1, unknown: 1, breaks: 1, crashes: 1, impatience: 1, ..none }),
        ),
        (
            "join copy",
            Scope {
                writes: 2,
                fine: &[Kind::Write, Kind::CopyRead, Kind::CopyWrite],
                ..with(Budget { suspicions: 1, joins: 1, breaks: 1, ..none })
            },
        ),
        (
            "reboots",
            Scope {
                writes: 1,
                ..with(Budget { reboots: 2, crashes: 1, suspicions: 1, flushes: 1, impatience: 1, ..none })
            },
        ),
        (
            "join reboots",
            Scope { writes: 2, ..with(Budget { suspicions: 1, joins: 1, flushes: 1, crashes: 1, reboots: 1, ..none }) },
        ),
        ("store", Scope { fine_store: true, ..with(Budget { crashes: 1, restarts: 1, ..none }) }),
        (
            "split reads",
            Scope {
                fine_store: true,
                split_reads: true,
                writes: 2,
                ..with(Budget { crashes: 1, impatience: 1, ..none })
            },
        ),
        (
            "answers",
            Scope {
                fine_answers: &[Kind::Done],
                ..with(Budget { ticks: 2, impatience: 1, suspicions: 1, reboots: 1, ..none })
            },
        ),
        (
            "migration",
            Scope { migration: true, writes: 2, engines: 3, ..with(Budget { crashes: 1, ticks: 1, ..none }) },
        ),
        (
            // What the source clears from the logs before it is replaced.
            "migration after a flush",
            Scope { migration: true, writes: 2, ..with(Budget { crashes: 1, flushes: 1, ..none }) },
        ),
        (
            "three replicas",
            Scope { replicas: 3, ..with(Budget { suspicions: 2, crashes: 1, impatience: 1, reboots: 1, ..none }) },
        ),
        (
            "errors",
            Scope {
                blocks: 2,
                slow_copies: true,
                ..with(Budget { errors: 1, suspicions: 1, joins: 1, beside: 1, crashes: 1, ..none })
            },
        ),
        (
            "errors and reboots",
            Scope { writes: 2, ..with(Budget { errors: 1, reboots: 1, breaks: 1, unreachable: 1, ..none }) },
        ),
    ]
}

#[test]
fn no_world_breaks_a_promise() {
    for (name, scope) in scopes() {
        let found = run(name, &scope, 30_000);
        assert!(found.violation.is_none(), "{name}: {found}");
    }
}
