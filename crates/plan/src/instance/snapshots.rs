//! Snapshots at an engine: those that were handed to this node are made, removed, or reverted to.
//!
//! Every step is looked up in the engine's list before it is taken: one that was taken, and not heard of, is not taken
//! twice.

use std::collections::BTreeMap;

use tether_crd::engine::SnapshotInfo;
use tether_crd::{Engine, Snapshot};
use tether_model::reason::Reason;
use tether_model::report::Rule;

use super::engine::{EngineChange, EngineProcess};
use super::{EngineObserved, ProcessState};
use crate::Plan;
use crate::object::{Target, annotation, is_deleting, name, subject};
use crate::snapshot::{REVERT_REQUESTED, VOLUME_HEAD, reverts};

const SNAPSHOTS: Rule = Rule("engine-snapshots");

/// Something that is to be done with snapshots at an engine.
#[derive(Clone, Debug, PartialEq)]
pub enum SnapshotChange {
    /// Ask the engine what it has.
    List,
    Create {
        name: String,
        labels: BTreeMap<String, String>,
    },
    /// Mark it to go.
    Delete {
        name: String,
    },
    /// Give back the space of those that are marked.
    Purge,
    /// The volume becomes what it was; then the wish is taken back.
    Revert {
        snapshot: Target,
    },
    /// The wish to revert is of another run of the engine, or cannot be granted: it is taken back.
    Forget {
        snapshot: Target,
    },
}

/// What is to be done next; the list is asked for again after each step.
pub(super) fn follow(plan: &mut Plan<EngineChange>, observed: &EngineObserved<'_>, found: &EngineProcess) {
    let engine = observed.engine;
    if found.process.state != ProcessState::Running || found.is_standby {
        return;
    }
    let Some(listed) = found.snapshots.as_ref().filter(|_| !observed.list_due) else {
        if observed.list_due {
            let change = EngineChange::Snapshot(SnapshotChange::List);
            plan.asks(SNAPSHOTS, subject(engine), Reason::SnapshotsUnknown, "Which snapshots are there?", change);
        }
        return;
    };
    let mut steps: Vec<(SnapshotChange, String)> = Vec::new();
    for snapshot in &observed.snapshots {
        steps.extend(step(engine, snapshot, listed.get(name(*snapshot))));
    }
    // One purge is for all of them, after all marks are set.
    let purges = |change: &SnapshotChange| *change == SnapshotChange::Purge;
    if let Some(at) = steps.iter().position(|(change, _)| purges(change)) {
        let purge = steps[at].clone();
        steps.retain(|(change, _)| !purges(change));
        steps.push(purge);
    }
    for (change, words) in steps {
        plan.acts(SNAPSHOTS, subject(engine), Reason::SnapshotWanted, words, EngineChange::Snapshot(change));
    }
}

fn step(engine: &Engine, snapshot: &Snapshot, info: Option<&SnapshotInfo>) -> Option<(SnapshotChange, String)> {
    let called = name(snapshot);
    if is_deleting(snapshot) {
        return match info {
            Some(info) if !info.removed => {
                let change = SnapshotChange::Delete { name: called.to_owned() };
                Some((change, format!("Snapshot {called} is to go.")))
            }
            Some(info) if !info.children.contains_key(VOLUME_HEAD) => {
                Some((SnapshotChange::Purge, format!("The space of snapshot {called} is to be given back.")))
            }
            _ => None,
        };
    }
    if annotation(snapshot, REVERT_REQUESTED).is_some() {
        let is_there = info.is_some_and(|info| !info.removed);
        let target = Target::of(snapshot);
        return Some(match is_there && reverts(snapshot, engine) {
            true => (
                SnapshotChange::Revert { snapshot: target },
                format!("The volume becomes what it was at snapshot {called}."),
            ),
            false => (
                SnapshotChange::Forget { snapshot: target },
                format!("The wish to revert to {called} was not for this run of the engine."),
            ),
        });
    }
    if info.is_none() && snapshot.spec.create_snapshot && snapshot.status.creation_time.is_empty() {
        let change = SnapshotChange::Create { name: called.to_owned(), labels: snapshot.spec.labels.clone() };
        return Some((change, format!("Snapshot {called} is to be made.")));
    }
    None
}

/// Whether the engine is at work on something that will change its list.
pub fn is_purging(listed: &BTreeMap<String, SnapshotInfo>) -> bool {
    listed.values().any(|info| info.removed && !info.children.contains_key(VOLUME_HEAD))
}
