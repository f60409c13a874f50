//! The ends that scenarios may have, as data: the assertion matrix of live migration.
//!
//! Everything is said of all versions of the volume since the first step, not only of the last one: which node ids it had, one after the
//! other; which words fell, in their order, and which did not.

use tether_crd::volume::{Robustness, State};

use super::catalog::Host::{self, N, O};

/// The values of a field in all versions, one after the other; none: it was empty.
pub(crate) type Path = &'static [Option<Host>];

/// Whether objects are those from before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    Same,
    New,
}

use Kept::{New, Same};

/// How a scenario may end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) name: &'static str,
    /// `spec.nodeID`.
    pub(crate) node: Path,
    /// `status.currentNodeID`. Each time that it got empty, the volume was detached.
    pub(crate) current: Path,
    /// `spec.migrationNodeID`, and `status.currentMigrationNodeID` after it.
    pub(crate) migration: Path,
    pub(crate) state: State,
    /// Any of these.
    pub(crate) robustness: &'static [Robustness],
    pub(crate) engine: Kept,
    pub(crate) replicas: Kept,
    /// The attachment tickets that are left, and whether they are satisfied.
    pub(crate) tickets: &'static [(Host, bool)],
    /// The event MigrationFailed.
    pub(crate) failed: bool,
    /// The event DetachedUnexpectedly.
    pub(crate) unexpected: bool,
    /// Other events, by their reasons.
    pub(crate) told: &'static [&'static str],
    /// Words of events and log lines, in this order; `{O}` and `{N}` are the nodes.
    pub(crate) said: &'static [&'static str],
    /// Words that must not fall.
    pub(crate) unsaid: &'static [&'static str],
}

impl Outcome {
    /// How often the volume is detached on the way.
    pub(crate) fn detachments(&self) -> usize {
        self.current.iter().filter(|host| host.is_none()).count()
    }

    /// Whether the volume still moves in the end.
    pub(crate) fn migrates(&self) -> bool {
        self.migration.last().is_some_and(Option::is_some)
    }
}

pub(crate) const WAITING: &str = "Waiting to confirm migration until migration engine is ready";
pub(crate) const CONFIRMING: &str = "Confirming migration";
pub(crate) const ROLLING_BACK: &str = "Rolling back migration";
pub(crate) const CANCELLING: &str = "Cancelling migration for detached volume";
pub(crate) const TARGET_DOWN: &str = "Detaching volume for attempted migration to down node {N}";
/// Which of the two nodes is named first depends on the names of tickets.
const UNRESOLVED: &str = "Volume migration between ";
const DETACH: &str = "is selected to detach from node ";
const DETACH_O: &str = "is selected to detach from node {O}";
const DETACH_N: &str = "is selected to detach from node {N}";
pub(crate) const ATTACH_O: &str = "is selected to attach to node {O}";
const ATTACH_N: &str = "is selected to attach to node {N}";

/// The event of a volume that has fewer replicas than it should.
pub(crate) const DEGRADED: &str = "Degraded";

const WHOLE_OR_NOT: &[Robustness] = &[Robustness::Healthy, Robustness::Degraded];

/// The volume is where it moved to, and was never detached.
pub(crate) const MOVED: Outcome = Outcome {
    name: "moved",
    node: &[Some(O), Some(N)],
    current: &[Some(O), Some(N)],
    migration: &[Some(N), None],
    state: State::Attached,
    robustness: WHOLE_OR_NOT,
    engine: New,
    replicas: New,
    tickets: &[(N, true)],
    failed: false,
    unexpected: false,
    told: &[],
    said: &[CONFIRMING],
    unsaid: &[ROLLING_BACK, CANCELLING, DETACH],
};
/// It moved, and its engine died afterwards.
pub(crate) const MOVED_AND_REATTACHED: Outcome = Outcome {
    name: "reattached to N",
    node: &[Some(O), Some(N), None, Some(N)],
    current: &[Some(O), Some(N), None, Some(N)],
    unexpected: true,
    said: &[CONFIRMING, DETACH_N, ATTACH_N],
    unsaid: &[ROLLING_BACK, CANCELLING],
    ..MOVED
};
/// The volume is where it was, and was never detached.
pub(crate) const STAYED: Outcome = Outcome {
    name: "stayed",
    node: &[Some(O)],
    current: &[Some(O)],
    engine: Same,
    replicas: Same,
    tickets: &[(O, true)],
    said: &[ROLLING_BACK],
    unsaid: &[CONFIRMING, CANCELLING, DETACH],
    ..MOVED
};
/// It stayed, and its engine died afterwards.
pub(crate) const STAYED_AND_REATTACHED: Outcome = Outcome {
    name: "reattached to O",
    node: &[Some(O), None, Some(O)],
    current: &[Some(O), None, Some(O)],
    unexpected: true,
    said: &[ROLLING_BACK, DETACH_O, ATTACH_O],
    unsaid: &[CONFIRMING, CANCELLING],
    ..STAYED
};
/// The migration failed with its source; the volume was detached, and waits for people.
pub(crate) const FAILED: Outcome = Outcome {
    name: "failed",
    node: &[Some(O), None],
    current: &[Some(O), None],
    state: State::Detached,
    robustness: &[Robustness::Unknown],
    tickets: &[(N, false), (O, false)],
    failed: true,
    unexpected: true,
    said: &[DETACH_O, CANCELLING, UNRESOLVED],
    unsaid: &[CONFIRMING, ROLLING_BACK],
    ..STAYED
};
/// It failed, and the volume went on at N.
pub(crate) const RESUMED_AT_TARGET: Outcome = Outcome {
    name: "reattached to N",
    node: &[Some(O), None, Some(N)],
    current: &[Some(O), None, Some(N)],
    state: State::Attached,
    robustness: WHOLE_OR_NOT,
    tickets: &[(N, true)],
    said: &[DETACH_O, CANCELLING, ATTACH_N],
    ..FAILED
};
/// It failed, and the volume went on at O.
pub(crate) const RESUMED_AT_SOURCE: Outcome = Outcome {
    name: "reattached to O",
    node: &[Some(O), None, Some(O)],
    current: &[Some(O), None, Some(O)],
    tickets: &[(O, true)],
    said: &[DETACH_O, CANCELLING, ATTACH_O],
    ..RESUMED_AT_TARGET
};
/// It was confirmed while its target was down: it is on its way there, and arrives when the target is back.
pub(crate) const WAITS_FOR_TARGET: Outcome = Outcome {
    name: "waits for N",
    node: &[Some(O), None, Some(N)],
    current: &[Some(O), None],
    state: State::Attaching,
    robustness: &[Robustness::Unknown],
    tickets: &[(N, false)],
    unexpected: false,
    said: &[TARGET_DOWN, ATTACH_N],
    ..FAILED
};
/// It was rolled back while its source was down: nobody knows how it is, until the source is back.
pub(crate) const WAITS_FOR_SOURCE: Outcome =
    Outcome { name: "waits for O", robustness: &[Robustness::Unknown], ..STAYED };
/// The same, after the engine at the source was given up.
pub(crate) const ATTACHING_TO_SOURCE: Outcome = Outcome {
    name: "attaching to O",
    current: &[Some(O), None],
    state: State::Attaching,
    robustness: &[Robustness::Unknown],
    tickets: &[(O, false)],
    ..STAYED_AND_REATTACHED
};
