//! The scenarios, as data: what is done, and which ends are accepted.
//!
//! They are those of Longhorn's acceptance document for live migration, with its numbers, and a few more. *O* is the node that has
//! the volume, *N* the one that it moves to, *T* a third one that only has a replica. Where more than one end is accepted, the
//! first is what Tether is expected to do; docs/migration.md says why the others are safe.

use tether_crd::volume::Robustness;

use super::outcome::{
    ATTACHING_TO_SOURCE, CANCELLING, CONFIRMING, DEGRADED, FAILED, MOVED, MOVED_AND_REATTACHED, Outcome,
    RESUMED_AT_SOURCE, RESUMED_AT_TARGET, ROLLING_BACK, STAYED, STAYED_AND_REATTACHED, WAITING, WAITS_FOR_SOURCE,
    WAITS_FOR_TARGET,
};

/// A node of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    O,
    N,
    T,
}

/// One thing that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The volume is attached to O.
    Attach,
    /// A second attachment, for N; the migration gets ready.
    Start,
    /// A second attachment, for N; nobody waits for it.
    Ask,
    /// Nothing is to come of the second attachment as long as N is not ready.
    AwaitPending,
    AwaitReady,
    /// A third attachment, for T.
    AskThird,
    DropThird,
    /// The pod of the node's instance manager is deleted.
    Crash(Host),
    /// The volume is seen to have lost its engine.
    AwaitFaulted,
    Pause(u64),
    /// The attachment of O is deleted.
    Confirm,
    /// The confirmation is seen to be decided.
    AwaitConfirmed,
    /// The attachment of N is deleted.
    RollBack,
    AwaitRolledBack,
    Cordon(Host),
    Uncordon(Host),
    AwaitDegraded,
    /// All processes of the node end at once.
    Down(Host),
    /// The cluster has noticed.
    AwaitDown(Host),
    Up(Host),
    /// The guest's first write on N, before anything is decided.
    WriteOnTarget,
    /// A snapshot is taken, and something overwritten; in the end it must show what was there.
    Snapshot,
    /// The process of the controllers is killed; it is started again.
    CrashControllers,
    /// The confirmation is seen to have begun.
    AwaitConfirming,
}

/// One scenario.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    /// Up to where the history is looked at.
    pub(crate) before: &'static [Step],
    pub(crate) steps: &'static [Step],
    /// Any of these.
    pub(crate) outcomes: &'static [Outcome],
    /// What puts everything right.
    pub(crate) mend: &'static [Step],
    /// Where the volume is attached, healthy and complete in the end.
    pub(crate) end: Host,
}

impl Scenario {
    /// Whether it needs to switch nodes off.
    pub(crate) fn needs_power(&self) -> bool {
        let all = self.before.iter().chain(self.steps).chain(self.mend);
        all.into_iter().any(|step| matches!(step, Step::Down(_) | Step::Up(_) | Step::CrashControllers))
    }
}

use Host::{N, O, T};
use Step::{
    Ask, AskThird, Attach, AwaitConfirmed, AwaitConfirming, AwaitDegraded, AwaitDown, AwaitFaulted, AwaitPending,
    AwaitReady, AwaitRolledBack, Confirm, Cordon, Crash, CrashControllers, Down, DropThird, Pause, RollBack, Snapshot,
    Start, Uncordon, Up, WriteOnTarget,
};

/// Between a crash and what follows it, as in the acceptance document.
const MOMENT: Step = Pause(500);

const READY: &[Step] = &[Attach, Start];
/// A replica was lost on the way.
const LOST: &[&str] = &[DEGRADED];

/// It moved without the replica of T.
const MOVED_DEGRADED: Outcome = Outcome { robustness: &[Robustness::Degraded], told: LOST, ..MOVED };
/// It stayed, and lacks a replica.
const STAYED_DEGRADED: Outcome = Outcome { robustness: &[Robustness::Degraded], told: LOST, ..STAYED };
/// Nothing came of it: the volume moves as before.
const REFUSED: Outcome = Outcome {
    name: "refused",
    migration: &[Some(N)],
    tickets: &[(N, true), (O, true)],
    said: &[],
    unsaid: &[CONFIRMING, ROLLING_BACK, CANCELLING],
    ..STAYED
};

pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        id: "1.1",
        title: "new engine crashes, then confirmation",
        before: READY,
        steps: &[Crash(N), MOMENT, Confirm],
        outcomes: &[Outcome { said: &[WAITING, CONFIRMING], told: LOST, ..MOVED }],
        mend: &[],
        end: N,
    },
    Scenario {
        id: "1.2",
        title: "confirmation, then new engine crashes",
        before: READY,
        steps: &[Confirm, AwaitConfirmed, Crash(N)],
        outcomes: &[MOVED_AND_REATTACHED],
        mend: &[],
        end: N,
    },
    Scenario {
        id: "1.3",
        title: "new engine crashes, then rollback",
        before: READY,
        steps: &[Crash(N), MOMENT, RollBack],
        outcomes: &[Outcome { told: LOST, ..STAYED }],
        mend: &[],
        end: O,
    },
    Scenario {
        id: "1.3b",
        title: "rollback, then new engine crashes",
        before: READY,
        steps: &[RollBack, MOMENT, Crash(N)],
        outcomes: &[Outcome { told: LOST, ..STAYED }],
        mend: &[],
        end: O,
    },
    Scenario {
        id: "2.1",
        title: "old engine crashes; rollback resolves it",
        before: READY,
        steps: &[Crash(O)],
        outcomes: &[FAILED],
        mend: &[RollBack],
        end: O,
    },
    Scenario {
        id: "2.1b",
        title: "old engine crashes; confirmation resolves it",
        before: READY,
        steps: &[Crash(O)],
        outcomes: &[FAILED],
        mend: &[Confirm],
        end: N,
    },
    Scenario {
        id: "2.2",
        title: "old engine crashes, then confirmation",
        before: READY,
        steps: &[Crash(O), MOMENT, Confirm],
        outcomes: &[RESUMED_AT_TARGET, MOVED],
        mend: &[],
        end: N,
    },
    Scenario {
        id: "2.3",
        title: "confirmation, then old engine crashes",
        before: READY,
        steps: &[Confirm, AwaitConfirmed, Crash(O)],
        outcomes: &[Outcome { told: LOST, ..MOVED }],
        mend: &[],
        end: N,
    },
    Scenario {
        id: "2.4",
        title: "old engine crashes, then rollback",
        before: READY,
        steps: &[Crash(O), AwaitFaulted, RollBack],
        outcomes: &[RESUMED_AT_SOURCE],
        mend: &[],
        end: O,
    },
    Scenario {
        id: "2.5",
        title: "rollback, then old engine crashes",
        before: READY,
        steps: &[RollBack, AwaitRolledBack, Crash(O)],
        outcomes: &[STAYED_AND_REATTACHED],
        mend: &[],
        end: O,
    },
    Scenario {
        id: "3.1",
        title: "degraded before the start, confirmation",
        before: &[Attach, Cordon(T), Crash(T), AwaitDegraded, Start],
        steps: &[Confirm],
        outcomes: &[MOVED_DEGRADED],
        mend: &[Uncordon(T)],
        end: N,
    },
    Scenario {
        id: "3.2",
        title: "degraded before the start, rollback",
        before: &[Attach, Cordon(T), Crash(T), AwaitDegraded, Start],
        steps: &[RollBack],
        outcomes: &[STAYED_DEGRADED],
        mend: &[Uncordon(T)],
        end: O,
    },
    Scenario {
        id: "3.3",
        title: "degraded after the start, confirmation",
        before: READY,
        steps: &[Cordon(T), Crash(T), AwaitDegraded, Confirm],
        outcomes: &[MOVED_DEGRADED],
        mend: &[Uncordon(T)],
        end: N,
    },
    Scenario {
        id: "3.4",
        title: "degraded after the start, rollback",
        before: READY,
        steps: &[Cordon(T), Crash(T), AwaitDegraded, RollBack],
        outcomes: &[STAYED_DEGRADED],
        mend: &[Uncordon(T)],
        end: O,
    },
    Scenario {
        id: "4",
        title: "a third attachment is refused",
        before: READY,
        steps: &[AskThird],
        outcomes: &[REFUSED],
        mend: &[DropThird, RollBack],
        end: O,
    },
    Scenario {
        id: "5.1",
        title: "node of the new engine down, confirmation",
        before: READY,
        steps: &[Down(N), AwaitDown(N), Confirm],
        outcomes: &[WAITS_FOR_TARGET],
        mend: &[Up(N)],
        end: N,
    },
    Scenario {
        id: "5.2",
        title: "node of the new engine down, rollback",
        before: READY,
        steps: &[Down(N), AwaitDown(N), RollBack],
        outcomes: &[STAYED_DEGRADED],
        mend: &[Up(N)],
        end: O,
    },
    Scenario {
        id: "6.1",
        title: "node of the old engine down, confirmation",
        before: READY,
        steps: &[Down(O), AwaitDown(O), Confirm],
        outcomes: &[MOVED, RESUMED_AT_TARGET],
        mend: &[Up(O)],
        end: N,
    },
    Scenario {
        id: "6.2",
        title: "node of the old engine down, rollback",
        before: READY,
        steps: &[Down(O), AwaitDown(O), RollBack],
        outcomes: &[WAITS_FOR_SOURCE, ATTACHING_TO_SOURCE],
        mend: &[Up(O)],
        end: O,
    },
    Scenario {
        id: "7.1",
        title: "a migration waits until its target is ready",
        before: &[Attach, Down(N), AwaitDown(N)],
        steps: &[Ask, AwaitPending, Up(N), AwaitReady, Confirm],
        outcomes: &[Outcome { migration: &[None, Some(N), None], said: &["Pending migration", CONFIRMING], ..MOVED }],
        mend: &[],
        end: N,
    },
    Scenario {
        id: "7.2",
        title: "the target writes before the confirmation",
        before: READY,
        steps: &[WriteOnTarget, Confirm],
        outcomes: &[MOVED],
        mend: &[],
        end: N,
    },
    Scenario {
        id: "7.3",
        title: "the target writes before the rollback",
        before: READY,
        steps: &[WriteOnTarget, RollBack],
        outcomes: &[STAYED, STAYED_AND_REATTACHED],
        mend: &[],
        end: O,
    },
    Scenario {
        id: "7.4",
        title: "snapshots from before the migration",
        before: &[Attach, Snapshot, Start],
        steps: &[Confirm],
        outcomes: &[MOVED],
        mend: &[],
        end: N,
    },
    Scenario {
        id: "7.5",
        title: "all instance managers crash; rollback resolves it",
        before: READY,
        steps: &[Crash(O), Crash(N), Crash(T)],
        outcomes: &[FAILED],
        mend: &[RollBack],
        end: O,
    },
    Scenario {
        id: "7.6",
        title: "the controllers crash before and after the confirmation",
        before: READY,
        steps: &[CrashControllers, Confirm, AwaitConfirming, CrashControllers],
        outcomes: &[MOVED],
        mend: &[],
        end: N,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_of_the_acceptance_document_is_there_once() {
        let ids: Vec<&str> = ALL.iter().map(|scenario| scenario.id).collect();
        let wanted = "1.1 1.2 1.3 2.1 2.2 2.3 2.4 2.5 3.1 3.2 3.3 3.4 4 5.1 5.2 6.1 6.2";
        for id in wanted.split(' ') {
            assert_eq!(ids.iter().filter(|known| **known == id).count(), 1, "{id}");
        }
        let mut sorted = ids.clone();
        sorted.dedup();
        assert_eq!(ids, sorted);
    }

    /// What was cordoned or switched off is put right again: the next scenario runs on the same cluster.
    #[test]
    fn scenarios_clean_up_after_themselves() {
        for scenario in ALL {
            let mut open = Vec::new();
            for step in scenario.before.iter().chain(scenario.steps).chain(scenario.mend) {
                match step {
                    Cordon(_) | Down(_) | AskThird => open.push(*step),
                    Uncordon(host) => open.retain(|step| *step != Cordon(*host)),
                    Up(host) => open.retain(|step| *step != Down(*host)),
                    DropThird => open.retain(|step| *step != AskThird),
                    _ => {}
                }
            }
            assert!(open.is_empty(), "{}: {open:?}", scenario.id);
        }
    }
}
