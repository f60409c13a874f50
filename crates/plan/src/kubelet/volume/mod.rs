//! A volume of a driver on a node: from the wish of a pod to a mount, and back to nothing.
//!
//! ```text
//!            reported in use ─► listed as attached ─► staged ─► published for each pod ─► grown
//!   Nothing ───────────────────────────────────────────────────────────────────────────────────┐
//!      ▲                                                                                       │
//!      └── no longer in use ◄── unstaged, when no pod has it ◄── unpublished for each pod ◄────┘
//! ```
//!
//! One step at a time: what comes next follows from what is written on the node's disk before each call, from what is
//! known to have succeeded, and from the node's object. A step that was begun and whose end is not known is *unknown*: it
//! is made again while the volume is wanted, and undone when it is not. So nothing depends on who began it.
//!
//! Order is what keeps data whole: a volume is staged only after the node said that it is in use and the list of
//! attached volumes, read after that, has it; it is unstaged only after the last pod let go; only then the node stops
//! saying that it is in use, and only then the attach/detach controller may take it away.

pub mod claim;
pub mod errors;
pub mod layout;

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use tether_model::reason::Reason;
use tether_model::report::{Rule, Subject};

pub use self::claim::{ClaimError, Found, Purpose, Wanted, awaits_node, find, purposes};
pub use self::errors::{Class, after_failure};
use crate::Plan;

const RELEASE: Rule = Rule("release-volume");
const ATTACHMENT: Rule = Rule("wait-for-attachment");
const MOUNT: Rule = Rule("mount-volume");
const GROW: Rule = Rule("grow-volume");

/// A kubelet's pauses after failures: the first, doubled up to the last.
const FIRST_PAUSE: SignedDuration = SignedDuration::from_millis(500);
const LAST_PAUSE: SignedDuration = SignedDuration::from_secs(122);

/// How far a step got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Progress {
    #[default]
    Nothing,
    /// It was begun; what came of it is not known, or it was undone in part.
    Unknown,
    Done,
}

/// What the node knows of a volume.
#[derive(Clone, Debug, Default)]
pub struct Observed<'a> {
    /// `<driver>^<handle>`
    pub name: &'a str,
    /// The pods that want it, by uid.
    pub users: BTreeMap<&'a str, User>,
    pub staged: Progress,
    /// By uid of the pod.
    pub published: BTreeMap<&'a str, Progress>,
    /// Pods of which it is not known yet whether they still want their volumes: the agent has just started.
    pub unsure: BTreeSet<&'a str>,
    pub attachment: Attachment,
    /// Failures in a row, and when the last one was.
    pub failures: Option<(u32, Timestamp)>,
}

/// How a pod wants a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// No other pod may have it.
    pub alone: bool,
    /// The volume is larger than the claim says: its file system has to follow.
    pub grows: bool,
}

/// What is known of the attachment to this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attachment {
    /// The driver attaches nothing.
    NotNeeded,
    /// The node has yet to say that it uses the volume.
    #[default]
    Unreported,
    /// It said so; the volume is not on the list of attached ones.
    Unlisted,
    /// The list, as it was last seen, has it.
    Seen,
    /// The list had it when it was read after the node had said that it uses the volume.
    Confirmed,
}

/// What is done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Say that the volume is in use.
    Report,
    /// Read from the server whether it is attached.
    Confirm,
    Stage,
    Publish {
        pod: String,
    },
    Grow {
        pod: String,
    },
    Unpublish {
        pod: String,
    },
    Unstage,
    /// Say that it is not in use any more, and forget it.
    Forget,
}

/// Decides the next step.
pub fn decide(observed: &Observed<'_>, now: Timestamp) -> Plan<Step> {
    let mut plan = Plan::default();
    if observed.failures.is_some_and(|(count, at)| now < at + pause(count)) {
        let (count, at) = observed.failures.unwrap_or_default();
        let words = format!("The last step failed, {count} times in a row.");
        plan.waits(MOUNT, about(observed), Reason::BackingOff, words, at + pause(count));
        return plan;
    }
    let unwanted: Vec<_> = observed.published.keys().filter(|pod| !observed.users.contains_key(*pod)).collect();
    if let Some(pod) = unwanted.iter().find(|pod| !observed.unsure.contains(**pod)) {
        let step = Step::Unpublish { pod: (**pod).to_owned() };
        plan.acts(RELEASE, about(observed), Reason::VolumeNotWanted, format!("Pod {pod} needs it no more."), step);
        return plan;
    }
    if observed.users.is_empty() {
        release(&mut plan, observed);
    } else {
        mount(&mut plan, observed);
    }
    plan
}

/// The pause after so many failures in a row.
fn pause(failures: u32) -> SignedDuration {
    let doubled = FIRST_PAUSE.as_millis().checked_shl(failures.saturating_sub(1).min(16));
    SignedDuration::from_millis(doubled.map_or(i64::MAX, |millis| millis as i64)).min(LAST_PAUSE)
}

fn about(observed: &Observed<'_>) -> Subject {
    Subject::new("Volume", "", observed.name)
}

fn release(plan: &mut Plan<Step>, observed: &Observed<'_>) {
    if !observed.published.is_empty() {
        let words = "A pod had it before this agent started; whether it still wants it is not known yet.";
        plan.blocked(RELEASE, about(observed), Reason::VolumeWanted, words);
    } else if observed.staged != Progress::Nothing {
        plan.acts(RELEASE, about(observed), Reason::VolumeNotWanted, "No pod here has it any more.", Step::Unstage);
    } else {
        plan.acts(RELEASE, about(observed), Reason::VolumeNotWanted, "Nothing of it is left here.", Step::Forget);
    }
}

fn mount(plan: &mut Plan<Step>, observed: &Observed<'_>) {
    if observed.staged != Progress::Done {
        let step = match observed.attachment {
            Attachment::Unreported => (Reason::VolumeWanted, "A pod wants it.", Step::Report),
            Attachment::Unlisted => {
                let words = format!("volume {} is not yet in node's status", observed.name);
                plan.blocked(ATTACHMENT, about(observed), Reason::FailedAttachVolume, words);
                return;
            }
            Attachment::Seen => (Reason::VolumeAttached, "The node's status lists it.", Step::Confirm),
            Attachment::Confirmed => (Reason::VolumeAttached, "It is attached.", Step::Stage),
            Attachment::NotNeeded => (Reason::VolumeWanted, "Its driver attaches nothing.", Step::Stage),
        };
        plan.acts(MOUNT, about(observed), step.0, step.1, step.2);
        return;
    }
    for (pod, user) in &observed.users {
        let done = observed.published.get(pod).copied().unwrap_or_default() == Progress::Done;
        if done && user.grows {
            let words = "It is larger than its claim says.";
            plan.acts(GROW, about(observed), Reason::VolumeWanted, words, Step::Grow { pod: (*pod).to_owned() });
            return;
        }
        if done {
            continue;
        }
        if user.alone && observed.published.keys().any(|other| other != pod) {
            plan.blocked(MOUNT, about(observed), Reason::FailedMount, ALONE);
            continue;
        }
        let step = Step::Publish { pod: (*pod).to_owned() };
        plan.acts(MOUNT, about(observed), Reason::VolumeWanted, format!("Pod {pod} wants it."), step);
        return;
    }
    if plan.report.findings.is_empty() {
        plan.rests(MOUNT, about(observed), Reason::UpToDate, "Every pod that wants it has it.");
    }
}

/// What a pod is told that wants a ReadWriteOncePod volume for itself.
pub const ALONE: &str = "volume uses the ReadWriteOncePod access mode and is already in use by another pod";

#[cfg(test)]
mod tests {
    use super::*;

    const POD: User = User { alone: false, grows: false };

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn wanted(staged: Progress, attachment: Attachment) -> Observed<'static> {
        Observed { name: "d^v", users: BTreeMap::from([("a", POD)]), staged, attachment, ..Default::default() }
    }

    fn step(observed: &Observed<'_>) -> Option<Step> {
        let plan = decide(observed, second(100));
        assert!(plan.changes.len() <= 1, "{plan}");
        plan.changes.into_iter().next()
    }

    #[test]
    fn a_volume_is_reported_confirmed_staged_and_published_in_this_order() {
        let table = [
            (Attachment::Unreported, Some(Step::Report)),
            (Attachment::Unlisted, None),
            (Attachment::Seen, Some(Step::Confirm)),
            (Attachment::Confirmed, Some(Step::Stage)),
            (Attachment::NotNeeded, Some(Step::Stage)),
        ];
        for (attachment, expected) in table {
            for staged in [Progress::Nothing, Progress::Unknown] {
                assert_eq!(step(&wanted(staged, attachment)), expected, "{attachment:?} {staged:?}");
            }
        }
        let mut volume = wanted(Progress::Done, Attachment::Unlisted);
        volume.users.insert("b", POD);
        assert_eq!(step(&volume), Some(Step::Publish { pod: "a".into() }), "it is staged: no further pod asks");
        volume.published.insert("a", Progress::Done);
        assert_eq!(step(&volume), Some(Step::Publish { pod: "b".into() }));
        volume.published.insert("b", Progress::Unknown);
        assert_eq!(step(&volume), Some(Step::Publish { pod: "b".into() }), "nobody knows what came of it");
        volume.published.insert("b", Progress::Done);
        assert_eq!(step(&volume), None);
        volume.users.insert("b", User { grows: true, ..POD });
        assert_eq!(step(&volume), Some(Step::Grow { pod: "b".into() }));
    }

    #[test]
    fn a_volume_is_unpublished_unstaged_and_forgotten_in_this_order() {
        let mut volume = wanted(Progress::Done, Attachment::Confirmed);
        volume.published = BTreeMap::from([("a", Progress::Done), ("b", Progress::Unknown)]);
        assert_eq!(step(&volume), Some(Step::Unpublish { pod: "b".into() }), "whatever came of it");
        volume.users.clear();
        assert_eq!(step(&volume), Some(Step::Unpublish { pod: "a".into() }));
        volume.published.clear();
        assert_eq!(step(&volume), Some(Step::Unstage));
        volume.staged = Progress::Unknown;
        assert_eq!(step(&volume), Some(Step::Unstage));
        volume.staged = Progress::Nothing;
        assert_eq!(step(&volume), Some(Step::Forget));
    }

    #[test]
    fn after_a_restart_nothing_is_taken_from_a_pod_that_nobody_looked_at_yet() {
        let mut volume = Observed { name: "d^v", staged: Progress::Unknown, ..Default::default() };
        volume.published.insert("a", Progress::Unknown);
        volume.unsure.insert("a");
        assert_eq!(step(&volume), None);
        volume.users.insert("b", POD);
        volume.attachment = Attachment::Confirmed;
        assert_eq!(step(&volume), Some(Step::Stage), "another pod does not have to wait for it");
        volume.users.clear();
        volume.unsure.clear();
        assert_eq!(step(&volume), Some(Step::Unpublish { pod: "a".into() }));
    }

    #[test]
    fn a_pod_that_wants_a_volume_alone_waits_for_the_others() {
        let mut volume = wanted(Progress::Done, Attachment::Confirmed);
        volume.users = BTreeMap::from([("a", User { alone: true, ..POD }), ("b", User { alone: true, ..POD })]);
        volume.published.insert("b", Progress::Done);
        assert_eq!(step(&volume), None);
        volume.users.remove("b");
        assert_eq!(step(&volume), Some(Step::Unpublish { pod: "b".into() }));
        volume.published.clear();
        assert_eq!(step(&volume), Some(Step::Publish { pod: "a".into() }));
    }

    #[test]
    fn pauses_after_failures_double_up_to_a_bound() {
        let pauses: Vec<_> = [1, 2, 3, 8, 9, 60].map(|count| pause(count).as_millis()).into();
        assert_eq!(pauses, [500, 1000, 2000, 64_000, 122_000, 122_000]);
        let mut volume = wanted(Progress::Nothing, Attachment::Confirmed);
        volume.failures = Some((2, second(100)));
        let plan = decide(&volume, second(100));
        assert_eq!((plan.changes.len(), plan.wake_at()), (0, Some(second(101))));
        assert_eq!(decide(&volume, second(101)).changes, [Step::Stage]);
    }
}
