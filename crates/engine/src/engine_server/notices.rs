//! What the engine says that people should know: logged once, the last of it kept for whoever asks.

use std::collections::{BTreeMap, VecDeque};

use tether_replication::engine::{Leaving, Notice, Phase, Suspended};
use tether_replication::ids::{Holder, MemberId};

use super::settings::{Progress, Scrub};
use crate::host::Time;

/// Notices kept; enough to see a failover and its resync.
const KEPT: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Notices {
    kept: VecDeque<String>,
    pub progress: BTreeMap<MemberId, Progress>,
    pub suspended: Option<Suspended>,
    pub scrub: Option<Scrub>,
}

impl Notices {
    pub fn take(&mut self, notice: &Notice, now: Time) {
        let text = words(notice);
        match notice {
            Notice::Scrubbing { done, total, different } => {
                self.scrub = Some(Scrub { done: *done, total: *total, different: *different });
                tracing::debug!("{text}");
                return;
            }
            Notice::Scrubbed { bytes, different } => {
                self.scrub = Some(Scrub { done: *bytes, total: *bytes, different: *different });
            }
            Notice::Progress { member, done, total, copied } => {
                self.progress.insert(member.clone(), Progress { done: *done, total: *total, copied: *copied });
                tracing::debug!("{text}");
                return;
            }
            Notice::Resync { member, bytes, .. } => {
                self.progress.insert(member.clone(), Progress { done: 0, total: *bytes, copied: 0 });
            }
            Notice::Grown { member, .. } | Notice::JoinFailed { member, .. } => {
                self.progress.remove(member);
            }
            Notice::Suspended(why) => self.suspended = Some(*why),
            Notice::Resumed => self.suspended = None,
            _ => {}
        }
        if is_trouble(notice) {
            tracing::warn!("{text}");
        } else {
            tracing::info!("{text}");
        }
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(format!("{:.3} {text}", now.0 as f64 / 1e6));
    }

    pub fn kept(&self) -> Vec<String> {
        self.kept.iter().cloned().collect()
    }
}

fn is_trouble(notice: &Notice) -> bool {
    matches!(
        notice,
        Notice::WaitingForMembers { .. }
            | Notice::RecordRewound(_)
            | Notice::Leaving { .. }
            | Notice::Staying { .. }
            | Notice::Suspended(_)
            | Notice::Fenced { .. }
            | Notice::Different { .. }
            | Notice::LastMemberLost { .. }
            | Notice::Phase(Phase::Failed)
    )
}

fn list(members: &[MemberId]) -> String {
    members.iter().map(MemberId::as_str).collect::<Vec<_>>().join(", ")
}

/// Why a member leaves, in words.
pub(super) fn leaving(why: Leaving) -> String {
    match why {
        Leaving::Disconnected => "its connection is gone".to_owned(),
        Leaving::Silent => "it does not answer".to_owned(),
        Leaving::Failed(failure) => failure.to_string(),
        Leaving::Rebooted => "its host rebooted".to_owned(),
        Leaving::Chain => "its snapshots differ".to_owned(),
        Leaving::Asked => "somebody asked for it".to_owned(),
        Leaving::MissedWrite => "it missed a write while it was brought back".to_owned(),
    }
}

/// Why nothing goes on, in words.
pub(super) fn suspended(why: Suspended) -> &'static str {
    match why {
        Suspended::RecordUnreachable => "the record cannot be reached, and a replica must leave the in-sync set first",
        Suspended::RecordUnknown => "it is not known whether the last change of the record happened",
        Suspended::NoMembers => "no in-sync replica answers",
        Suspended::NoSpace => "the disks of all replicas are full",
    }
}

fn words(notice: &Notice) -> String {
    match notice {
        Notice::Phase(phase) => format!("engine is {phase:?}"),
        Notice::Started { epoch, previous } => format!("took the volume at epoch {epoch} from engine {previous}"),
        Notice::Serving { epoch, in_sync } => format!("serving at epoch {epoch} from {}", list(in_sync)),
        Notice::WaitingForMembers { doubtful, silent } => format!(
            "waiting: {} may have lost writes in a power failure, and {} did not answer",
            list(doubtful),
            list(silent)
        ),
        Notice::Equalised { bytes, copied } => {
            format!("replicas are equal where the last engine was writing: {copied} of {bytes} bytes had to be copied")
        }
        Notice::RecordRewound(rewound) => rewound.to_string(),
        Notice::Leaving { member, why } => format!("replica {member} leaves: {}", leaving(*why)),
        Notice::Staying { member } => format!("replica {member} stays: no other one that is in sync answers"),
        Notice::Shrunk { member, generation } => {
            format!("replica {member} is out of sync (record generation {generation})")
        }
        Notice::Resync { member, bytes, full } => {
            let how = if *full { "all of it" } else { "changed regions" };
            format!("resync of replica {member} begins: {bytes} bytes, {how}")
        }
        Notice::Progress { member, done, total, copied } => {
            format!("resync of replica {member}: {done} of {total} bytes looked at, {copied} copied")
        }
        Notice::Grown { member, generation, copied } => {
            format!("replica {member} is in sync (record generation {generation}); {copied} bytes were copied")
        }
        Notice::JoinFailed { member, why } => format!("resync of replica {member} failed: {}", leaving(*why)),
        Notice::Scrubbing { done, total, different } => {
            format!("comparison of replicas: {done} of {total} bytes, {different} differ")
        }
        Notice::Different { offset, len, members } => {
            format!("replicas differ in {len} bytes at {offset}: {} unlike most of them", list(members))
        }
        Notice::Scrubbed { bytes, different: 0 } => format!("replicas are equal: {bytes} bytes were compared"),
        Notice::Scrubbed { bytes, different } => {
            format!("replicas differ: {different} of {bytes} bytes; rebuild the replicas that were named")
        }
        Notice::Suspended(why) => format!("I/O is suspended: {}", suspended(*why)),
        Notice::Resumed => "I/O goes on".to_owned(),
        Notice::Fenced { by, epoch } if *by == Holder::NOBODY => {
            format!("fenced: another engine holds the volume at epoch {epoch}")
        }
        Notice::Fenced { by, epoch } => format!("fenced: engine {by} holds the volume at epoch {epoch}"),
        Notice::LastMemberLost { member } => {
            format!("the host of replica {member}, the last one, lost power; attach the volume again")
        }
    }
}
