//! The stories of [`super::mutants`]: for each rule, the way to a situation in which it is about to matter.

use super::action::Action::{self, *};
use super::action::Lost;
use super::mutants::Story;
use super::scopes::plain;
use super::world::{Budget, Scope};
use crate::ids::Session;
use crate::rules::Rule;
use crate::wire::Kind;

const A: u8 = 0;
const B: u8 = 1;

/// The write that an engine sent last arrives at a replica, in the engine's newest session.
fn arrives(engine: u8, replica: u8) -> Action {
    Arrive(engine, replica, Session(0))
}

fn with(budget: Budget) -> Scope {
    Scope { budget, ..plain() }
}

const NONE: Budget = Budget {
    crashes: 0,
    breaks: 0,
    suspicions: 0,
    restarts: 0,
    reboots: 0,
    unknown: 0,
    joins: 0,
    flushes: 0,
    ticks: 0,
    errors: 0,
    impatience: 0,
    unreachable: 0,
    beside: 0,
};

pub(super) fn stories() -> Vec<Story> {
    let story = |rule, scope, steps: &[Action]| Story { rule, scope, steps: steps.to_vec() };
    let crash = Budget { crashes: 1, impatience: 1, ..NONE };
    let store = |budget| Scope { fine_store: true, ..with(budget) };
    vec![
        story(
            Rule::drain,
            store(Budget { crashes: 1, ..NONE }),
            &[
                Write(0),
                arrives(0, A),
                Store(A, 0),
                Crash(0),
                Start(1),
                Cas(1),
                Dial(1, A),
                Store(A, 1),
                Dial(1, B),
                Store(B, 0),
            ],
        ),
        story(
            Rule::session,
            Scope { writes: 2, ..with(Budget { breaks: 1, ..NONE }) },
            &[Write(0), Break(0, A), Dial(0, A), arrives(0, A), arrives(0, B)],
        ),
        story(
            Rule::holder,
            Scope { engines: 3, fine: &[Kind::Write, Kind::CopyWrite], ..with(Budget { ticks: 1, ..crash }) },
            &[
                Start(1),
                Start(2),
                Write(0),
                arrives(0, B),
                Cas(1),
                Crash(0),
                Dial(1, A),
                Dial(1, B),
                Cas(2),
                Dial(2, B),
                Impatient(2),
                Cas(2),
                Tick,
            ],
        ),
        story(
            Rule::persist,
            with(Budget { restarts: 1, ticks: 1, ..NONE }),
            &[
                Start(1),
                Cas(1),
                Dial(1, A),
                Dial(1, B),
                Tick,
                Restart(A),
                Notice(0, A),
                Dial(0, A),
                Write(0),
                arrives(0, A),
            ],
        ),
        story(
            Rule::log_ahead,
            store(Budget { crashes: 1, restarts: 1, ..NONE }),
            &[Write(0), arrives(0, A), Store(A, 0), Restart(A), Crash(0), Start(1), Cas(1)],
        ),
        story(
            Rule::doubt_kept,
            Scope { engines: 3, ..with(Budget { crashes: 2, reboots: 1, impatience: 1, ..NONE }) },
            &[
                Write(0),
                arrives(0, A),
                arrives(0, B),
                Crash(0),
                Reboot(A, Lost::Everything),
                Start(1),
                Cas(1),
                Dial(1, A),
                Crash(1),
                Start(2),
                Cas(2),
                Dial(2, A),
            ],
        ),
        story(
            Rule::doubt,
            with(Budget { crashes: 1, reboots: 1, impatience: 1, ..NONE }),
            &[
                Write(0),
                arrives(0, A),
                arrives(0, B),
                Crash(0),
                Reboot(A, Lost::Everything),
                Start(1),
                Cas(1),
                Dial(1, A),
            ],
        ),
        story(
            Rule::source_not_doubtful,
            with(Budget { crashes: 1, reboots: 1, ..NONE }),
            &[Write(0), arrives(0, A), arrives(0, B), Crash(0), Reboot(A, Lost::Everything), Start(1), Cas(1)],
        ),
        story(
            Rule::missed_map,
            with(Budget { suspicions: 1, flushes: 1, joins: 1, ..NONE }),
            &[Suspect(0, B), Cas(0), Write(0), arrives(0, A), Flush(0), Join(0, B)],
        ),
        story(
            Rule::set_of_the_start,
            with(Budget { suspicions: 1, crashes: 1, ticks: 1, ..NONE }),
            &[Start(1), Suspect(0, A), Cas(0), Crash(0), Cas(1)],
        ),
        story(
            Rule::new_epoch,
            with(Budget { suspicions: 1, unknown: 1, crashes: 2, reboots: 1, ..NONE }),
            &[
                Suspect(0, A),
                CasUnknown(0),
                Crash(0),
                Start(0),
                Cas(0),
                Dial(0, A),
                Dial(0, B),
                Write(0),
                arrives(0, A),
                arrives(0, B),
                Reboot(B, Lost::Everything),
                Delayed,
                Crash(0),
            ],
        ),
        story(Rule::equalise, with(crash), &[Write(0), arrives(0, A), Crash(0), Start(1), Cas(1)]),
        story(Rule::union, with(crash), &[Write(0), arrives(0, B), Crash(0), Start(1), Cas(1)]),
        story(
            Rule::flush_at_start,
            Scope { engines: 3, ..with(Budget { crashes: 2, reboots: 1, impatience: 1, ..NONE }) },
            &[
                Write(0),
                arrives(0, A),
                arrives(0, B),
                Crash(0),
                Start(1),
                Cas(1),
                Dial(1, A),
                Reboot(A, Lost::Everything),
                Impatient(1),
                Cas(1),
                Crash(1),
            ],
        ),
        story(
            Rule::record_opened,
            Scope { engines: 3, ..with(Budget { crashes: 2, impatience: 2, ..NONE }) },
            &[
                Crash(0),
                Start(1),
                Cas(1),
                Dial(1, A),
                Impatient(1),
                Write(1),
                arrives(1, A),
                Crash(1),
                Start(2),
                Cas(2),
            ],
        ),
        story(Rule::read_waits, with(NONE), &[Write(0)]),
        story(
            Rule::write_waits_for_reads,
            Scope { split_reads: true, ..store(crash) },
            &[
                ReadSent(0),
                Write(0),
                arrives(0, A),
                Store(A, 1),
                Store(A, 1),
                Store(A, 0),
                Crash(0),
                Start(1),
                Cas(1),
                Dial(1, B),
                Store(B, 0),
                Impatient(1),
            ],
        ),
        story(
            Rule::write_waits_for_writes,
            Scope { writes: 2, ..store(NONE) },
            &[Write(0), Write(0), arrives(0, A), arrives(0, A), arrives(0, B), arrives(0, B), Store(A, 0), Store(B, 0)],
        ),
        story(Rule::all_store, with(NONE), &[Write(0)]),
        story(
            Rule::shrink_first,
            with(Budget { breaks: 1, crashes: 1, impatience: 1, ..NONE }),
            &[Break(0, B), Write(0), arrives(0, A), Crash(0)],
        ),
        story(
            Rule::flush_before_shrink,
            with(Budget { suspicions: 1, reboots: 1, crashes: 1, ..NONE }),
            &[Write(0), arrives(0, A), arrives(0, B), Reboot(A, Lost::Everything), Suspect(0, B), Cas(0), Crash(0)],
        ),
        story(Rule::last_member, with(Budget { suspicions: 2, ..NONE }), &[Suspect(0, A), Cas(0), Suspect(0, B)]),
        story(
            Rule::unknown,
            with(Budget { suspicions: 1, unknown: 1, reboots: 1, crashes: 1, ..NONE }),
            &[
                Suspect(0, A),
                CasUnknown(0),
                Dial(0, A),
                Write(0),
                arrives(0, A),
                arrives(0, B),
                Reboot(B, Lost::Everything),
                Delayed,
                Crash(0),
            ],
        ),
        story(
            Rule::rebooted_is_away,
            with(Budget { reboots: 1, ..NONE }),
            &[Write(0), arrives(0, A), arrives(0, B), Reboot(A, Lost::Everything)],
        ),
        story(
            Rule::joiner_not_read,
            with(Budget { suspicions: 1, joins: 1, ..NONE }),
            &[Suspect(0, A), Cas(0), Join(0, A)],
        ),
        story(
            Rule::source_log,
            with(Budget { suspicions: 1, joins: 1, ..NONE }),
            &[Suspect(0, A), Cas(0), Write(0), arrives(0, B), Join(0, A)],
        ),
        story(
            Rule::own_log,
            with(Budget { crashes: 1, impatience: 1, joins: 1, ..NONE }),
            &[Write(0), arrives(0, A), Crash(0), Start(1), Cas(1), Dial(1, B), Impatient(1), Cas(1), Join(1, A)],
        ),
        story(
            Rule::lease,
            with(Budget { ticks: 1, impatience: 1, ..NONE }),
            &[Start(1), Cas(1), Dial(1, A), Impatient(1), Cas(1), Tick, Write(1), arrives(1, A)],
        ),
        story(
            Rule::wait_after_promise,
            with(Budget { ticks: 1, impatience: 1, ..NONE }),
            &[Start(1), Cas(1), Tick, Heartbeat(0), Dial(1, A), Impatient(1), Cas(1), Write(1), arrives(1, A)],
        ),
        story(
            Rule::all_older_stopped,
            Scope { engines: 3, ..with(Budget { crashes: 1, impatience: 1, ..NONE }) },
            &[Start(1), Cas(1), Crash(1), Start(2), Cas(2), Dial(2, A), Impatient(2), Cas(2), Write(2), arrives(2, A)],
        ),
        story(
            Rule::standby_reads_source,
            Scope { migration: true, ..with(NONE) },
            &[StandBy(1), Cas(1), Write(0), arrives(0, A)],
        ),
        story(
            Rule::promotion_equalises,
            Scope { migration: true, ..with(Budget { ticks: 1, ..NONE }) },
            &[StandBy(1), Cas(1), Write(0), arrives(0, A), Promote(1), Cas(1)],
        ),
        story(Rule::promotion_named, Scope { migration: true, ..with(NONE) }, &[StandBy(1), Cas(1), RollBack(1)]),
        story(
            Rule::compare_generation,
            with(Budget { suspicions: 1, unknown: 1, unreachable: 1, crashes: 1, reboots: 1, ..NONE }),
            &[
                Suspect(0, A),
                CasUnknown(0),
                Cas(0),
                CasNotSent(0),
                Dial(0, A),
                Write(0),
                arrives(0, A),
                arrives(0, B),
                Reboot(B, Lost::Everything),
                Delayed,
                Crash(0),
            ],
        ),
    ]
}

/// Stories about replicas that come in, and those with many steps.
pub(super) fn long_stories() -> Vec<Story> {
    let story = |rule, scope, steps: &[Action]| Story { rule, scope, steps: steps.to_vec() };
    let store = |budget| Scope { fine_store: true, ..with(budget) };
    vec![
        story(
            Rule::quiesce,
            Scope { fine_answers: &[Kind::Done], ..store(Budget { suspicions: 1, reboots: 1, crashes: 1, ..NONE }) },
            &[
                Write(0),
                arrives(0, B),
                Store(B, 0),
                Store(B, 0),
                arrives(0, A),
                Suspect(0, B),
                Answer(0, A),
                Store(A, 0),
                Store(A, 0),
                Store(A, 0),
                Reboot(A, Lost::Everything),
                Answer(0, A),
                Answer(0, A),
                Cas(0),
                Crash(0),
            ],
        ),
        story(
            Rule::grow_required_first,
            with(Budget { suspicions: 1, joins: 1, unknown: 1, crashes: 1, impatience: 1, ..NONE }),
            &[Suspect(0, A), Cas(0), Join(0, A), Dial(0, A), CasUnknown(0), Write(0), arrives(0, B), Delayed, Crash(0)],
        ),
        story(
            Rule::flush_before_grow,
            Scope { writes: 2, ..with(Budget { suspicions: 1, joins: 1, flushes: 1, crashes: 1, reboots: 2, ..NONE }) },
            &[
                Suspect(0, A),
                Cas(0),
                Write(0),
                arrives(0, B),
                Flush(0),
                Join(0, A),
                Dial(0, A),
                Cas(0),
                Write(0),
                arrives(0, A),
                arrives(0, B),
                Crash(0),
                Reboot(A, Lost::Everything),
                Reboot(B, Lost::Everything),
                Start(1),
                Cas(1),
            ],
        ),
        story(
            Rule::flush_after_required,
            Scope {
                writes: 2,
                fine_answers: &[Kind::Done],
                ..with(Budget { suspicions: 1, joins: 1, flushes: 1, crashes: 1, reboots: 2, ..NONE })
            },
            &[
                Suspect(0, A),
                Answer(0, B),
                Answer(0, B),
                Cas(0),
                Join(0, A),
                Dial(0, A),
                Write(0),
                arrives(0, B),
                Answer(0, B),
                Flush(0),
                Answer(0, B),
                Answer(0, A),
                Cas(0),
                arrives(0, A),
                Answer(0, A),
                Answer(0, B),
                Write(0),
                arrives(0, A),
                arrives(0, B),
                Crash(0),
                Reboot(A, Lost::Everything),
                Reboot(B, Lost::Everything),
                Start(1),
                Cas(1),
            ],
        ),
        story(
            Rule::joiner_missed_write,
            Scope {
                blocks: 2,
                slow_copies: true,
                ..with(Budget { suspicions: 1, joins: 1, errors: 1, beside: 1, ..NONE })
            },
            &[
                Suspect(0, A),
                Cas(0),
                WriteBeside(0),
                arrives(0, B),
                Join(0, A),
                Dial(0, A),
                Write(0),
                BreakDisk(A),
                arrives(0, A),
                arrives(0, B),
            ],
        ),
        story(
            Rule::copy_excludes_writes,
            Scope {
                writes: 2,
                fine: &[Kind::Write, Kind::CopyRead],
                ..with(Budget { suspicions: 1, joins: 1, ..NONE })
            },
            &[Suspect(0, A), Cas(0), Write(0), arrives(0, B), Join(0, A), Dial(0, A), Write(0), arrives(0, A)],
        ),
        story(
            Rule::clear_only_quiet,
            store(Budget { flushes: 1, restarts: 1, crashes: 1, ..NONE }),
            &[
                Write(0),
                arrives(0, A),
                Store(A, 0),
                Store(A, 0),
                arrives(0, B),
                Store(B, 0),
                Flush(0),
                Store(A, 0),
                Store(B, 1),
                Restart(B),
                Crash(0),
                Start(1),
                Cas(1),
            ],
        ),
        story(
            Rule::clear_after_start,
            Scope { engines: 3, ..with(Budget { crashes: 2, impatience: 1, ..NONE }) },
            &[
                Write(0),
                arrives(0, A),
                Crash(0),
                Start(1),
                Cas(1),
                Dial(1, A),
                Impatient(1),
                Crash(1),
                Start(2),
                Cas(2),
            ],
        ),
        story(
            Rule::lease_from_sending,
            Scope { fine_answers: &[Kind::Done], ..with(Budget { ticks: 2, impatience: 1, ..NONE }) },
            &[
                Tick,
                Heartbeat(0),
                Start(1),
                Cas(1),
                Dial(1, A),
                Impatient(1),
                Answer(1, A),
                Answer(1, A),
                Cas(1),
                Tick,
                Write(1),
                arrives(1, A),
                Answer(1, A),
            ],
        ),
        story(
            Rule::no_replay,
            Scope { writes: 2, ..with(Budget { ticks: 2, ..NONE }) },
            &[
                Write(0),
                arrives(0, A),
                Start(1),
                Cas(1),
                Dial(1, A),
                Dial(1, B),
                arrives(0, B),
                Tick,
                Heartbeat(1),
                Read(1, A),
                Write(1),
                arrives(1, A),
                arrives(1, B),
                Start(0),
                Cas(0),
                Dial(0, A),
                Dial(0, B),
                Tick,
            ],
        ),
    ]
}
