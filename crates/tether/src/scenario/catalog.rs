//! The scenarios, as data: what is done, and which ends are accepted.
//!
//! They are those of Longhorn's acceptance document for live migration, with its numbers, and a few more. *O* is the node that has
//! the volume, *N* the one that it moves to, *T* a third one that only has a replica. Where more than one end is accepted, the
//! first is what Tether is expected to do; docs/migration.md says why the others are safe.

use tether_crd::volume::State;

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
}

/// Whether objects are those from before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    Same,
    New,
}

/// How a scenario may end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) name: &'static str,
    /// `spec.nodeID` and `status.currentNodeID`.
    pub(crate) node: Option<Host>,
    pub(crate) current: Option<Host>,
    pub(crate) state: State,
    /// Whether the migration is still under way.
    pub(crate) migrating: bool,
    /// How often the volume was detached on the way.
    pub(crate) detached: usize,
    pub(crate) engine: Kept,
    pub(crate) replicas: Kept,
    /// The event MigrationFailed.
    pub(crate) failed: bool,
    /// The event DetachedUnexpectedly.
    pub(crate) unexpected: bool,
    /// Words of events and log lines.
    pub(crate) said: &'static [&'static str],
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
        all.into_iter().any(|step| matches!(step, Step::Down(_) | Step::Up(_)))
    }
}

use Host::{N, O, T};
use Kept::{New, Same};
use Step::{
    Ask, AskThird, Attach, AwaitConfirmed, AwaitDegraded, AwaitDown, AwaitFaulted, AwaitPending, AwaitReady,
    AwaitRolledBack, Confirm, Cordon, Crash, Down, DropThird, Pause, RollBack, Start, Uncordon, Up, WriteOnTarget,
};

/// Between a crash and what follows it, as in the acceptance document.
const MOMENT: Step = Pause(500);

const READY: &[Step] = &[Attach, Start];
const WAITING: &str = "Waiting to confirm migration until migration engine is ready";
const CONFIRMING: &str = "Confirming migration";
const ROLLING_BACK: &str = "Rolling back migration";
const CANCELLING: &str = "Cancelling migration for detached volume";

/// The volume is where it moved to, and was never detached.
const MOVED: Outcome = Outcome {
    name: "moved",
    node: Some(N),
    current: Some(N),
    state: State::Attached,
    migrating: false,
    detached: 0,
    engine: New,
    replicas: New,
    failed: false,
    unexpected: false,
    said: &[CONFIRMING],
};
/// The volume is where it was, and was never detached.
const STAYED: Outcome = Outcome {
    name: "stayed",
    node: Some(O),
    current: Some(O),
    engine: Same,
    replicas: Same,
    said: &[ROLLING_BACK],
    ..MOVED
};
/// The migration failed with its source; the volume was detached once.
const FAILED: Outcome = Outcome {
    name: "failed",
    node: None,
    current: None,
    state: State::Detached,
    detached: 1,
    failed: true,
    unexpected: true,
    said: &[CANCELLING],
    ..STAYED
};
/// It failed, and went on at N.
const RESUMED_AT_TARGET: Outcome =
    Outcome { name: "reattached to N", node: Some(N), current: Some(N), state: State::Attached, ..FAILED };

pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        id: "1.1",
        title: "new engine crashes, then confirmation",
        before: READY,
        steps: &[Crash(N), MOMENT, Confirm],
        outcomes: &[Outcome { said: &[WAITING, CONFIRMING], ..MOVED }],
        mend: &[],
        end: N,
    },
    Scenario {
        id: "1.2",
        title: "confirmation, then new engine crashes",
        before: READY,
        steps: &[Confirm, AwaitConfirmed, Crash(N)],
        outcomes: &[Outcome { name: "reattached to N", detached: 1, unexpected: true, ..MOVED }],
        mend: &[],
        end: N,
    },
    Scenario {
        id: "1.3",
        title: "new engine crashes, then rollback",
        before: READY,
        steps: &[Crash(N), MOMENT, RollBack],
        outcomes: &[STAYED],
        mend: &[],
        end: O,
    },
    Scenario {
        id: "1.3b",
        title: "rollback, then new engine crashes",
        before: READY,
        steps: &[RollBack, MOMENT, Crash(N)],
        outcomes: &[STAYED],
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
        outcomes: &[MOVED],
        mend: &[],
        end: N,
    },
    Scenario {
        id: "2.4",
        title: "old engine crashes, then rollback",
        before: READY,
        steps: &[Crash(O), AwaitFaulted, RollBack],
        outcomes: &[Outcome { name: "reattached to O", node: Some(O), current: Some(O), ..RESUMED_AT_TARGET }],
        mend: &[],
        end: O,
    },
    Scenario {
        id: "2.5",
        title: "rollback, then old engine crashes",
        before: READY,
        steps: &[RollBack, AwaitRolledBack, Crash(O)],
        outcomes: &[Outcome { name: "reattached to O", detached: 1, unexpected: true, ..STAYED }],
        mend: &[],
        end: O,
    },
    Scenario {
        id: "3.1",
        title: "degraded before the start, confirmation",
        before: &[Attach, Cordon(T), Crash(T), AwaitDegraded, Start],
        steps: &[Confirm],
        outcomes: &[MOVED],
        mend: &[Uncordon(T)],
        end: N,
    },
    Scenario {
        id: "3.2",
        title: "degraded before the start, rollback",
        before: &[Attach, Cordon(T), Crash(T), AwaitDegraded, Start],
        steps: &[RollBack],
        outcomes: &[STAYED],
        mend: &[Uncordon(T)],
        end: O,
    },
    Scenario {
        id: "3.3",
        title: "degraded after the start, confirmation",
        before: READY,
        steps: &[Cordon(T), Crash(T), AwaitDegraded, Confirm],
        outcomes: &[MOVED],
        mend: &[Uncordon(T)],
        end: N,
    },
    Scenario {
        id: "3.4",
        title: "degraded after the start, rollback",
        before: READY,
        steps: &[Cordon(T), Crash(T), AwaitDegraded, RollBack],
        outcomes: &[STAYED],
        mend: &[Uncordon(T)],
        end: O,
    },
    Scenario {
        id: "4",
        title: "a third attachment is refused",
        before: READY,
        steps: &[AskThird],
        outcomes: &[Outcome { name: "refused", migrating: true, said: &[], ..STAYED }],
        mend: &[DropThird, RollBack],
        end: O,
    },
    Scenario {
        id: "5.1",
        title: "node of the new engine down, confirmation",
        before: READY,
        steps: &[Down(N), AwaitDown(N), Confirm],
        outcomes: &[Outcome {
            name: "waits for N",
            node: Some(N),
            state: State::Attaching,
            unexpected: false,
            said: &["Detaching volume for attempted migration to down node"],
            ..FAILED
        }],
        mend: &[Up(N)],
        end: N,
    },
    Scenario {
        id: "5.2",
        title: "node of the new engine down, rollback",
        before: READY,
        steps: &[Down(N), AwaitDown(N), RollBack],
        outcomes: &[STAYED],
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
        outcomes: &[
            Outcome { name: "waits for O", ..STAYED },
            Outcome {
                name: "attaching to O",
                current: None,
                state: State::Attaching,
                detached: 1,
                unexpected: true,
                ..STAYED
            },
        ],
        mend: &[Up(O)],
        end: O,
    },
    Scenario {
        id: "7.1",
        title: "a migration waits until its target is ready",
        before: &[Attach, Down(N), AwaitDown(N)],
        steps: &[Ask, AwaitPending, Up(N), AwaitReady, Confirm],
        outcomes: &[MOVED],
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
        outcomes: &[STAYED, Outcome { name: "reattached to O", detached: 1, unexpected: true, ..STAYED }],
        mend: &[],
        end: O,
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
