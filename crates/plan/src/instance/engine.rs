//! An engine's process follows its object, and its replicas follow the map in the specification.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use tether_crd::condition::rfc3339;
use tether_crd::engine::{
    CloneProgress, EngineStatus, FENCED, INSTANCE_CREATION, INSTANCE_REMOVAL, InstanceState, RebuildProgress,
    ReplicaMode, SnapshotInfo,
};
use tether_crd::{Engine, FINALIZER, IntString, Snapshot};
use tether_model::reason::Reason;
use tether_model::report::Rule;

use super::snapshots::{self, SnapshotChange};
use super::told::{self, CREATION_FAILED, REMOVAL_FAILED, because};
use super::{Manager, Process, ProcessState, fill, observed_state};
use crate::Plan;
use crate::object::{Target, has_finalizer, is_deleting, subject};

const PROCESS: Rule = Rule("engine-process");
const MEMBERS: Rule = Rule("engine-members");
const SIZE: Rule = Rule("engine-size");
const STATUS: Rule = Rule("engine-status");
const REMOVAL: Rule = Rule("engine-removal");

/// An engine's process, and what only an engine has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineProcess {
    pub process: Process,
    /// It is named in the record and waits to be promoted.
    pub is_standby: bool,
    /// Another engine holds the volume.
    pub is_fenced: bool,
    pub size: u64,
    /// Path of the kernel device, or where NBD is served.
    pub endpoint: String,
    pub members: Vec<Member>,
    /// None: it was not asked yet, or did not answer.
    pub snapshots: Option<BTreeMap<String, SnapshotInfo>>,
}

/// A replica as an engine sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Its name in the record.
    pub id: String,
    pub address: String,
    pub in_sync: bool,
    pub connected: bool,
    /// Percent, while it is being brought back.
    pub resync: Option<i64>,
    pub error: String,
}

/// One engine of this node.
#[derive(Clone, Debug)]
pub struct EngineObserved<'a> {
    pub engine: &'a Engine,
    pub manager: Manager,
    pub manager_name: &'a str,
    pub process: Option<&'a EngineProcess>,
    /// What came of the last attempt to start it.
    pub start_error: Option<&'a str>,
    /// Why it did not end when it was last told to.
    pub stop_error: Option<&'a str>,
    /// It takes long to serve, so that it is worth saying that it is on its way.
    pub is_slow: bool,
    /// A ticket asks for the volume on this node: it will be back, and whoever has the device open waits for that.
    pub is_asked_for: bool,
    /// What it has may have changed since it was asked.
    pub list_due: bool,
    /// Snapshots of its volume that were handed to this node.
    pub snapshots: Vec<&'a Snapshot>,
    /// How far the copy is that it is filled with, if one was begun.
    pub copy: Option<CloneProgress>,
    /// The standby that it took out of the record last.
    pub dismissed: Option<&'a str>,
    /// Where its replicas were when it was started; none: somebody else started it.
    pub started_with: Option<&'a BTreeSet<String>>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum EngineChange {
    Start {
        standby: bool,
    },
    /// In order: it flushes and releases the volume. Its device goes with it, unless it is kept for the next engine.
    Stop {
        keep_device: bool,
    },
    /// The device of one that did not end in order: nobody serves it here any more.
    RemoveDevice,
    Promote,
    /// A standby is taken out of the record.
    DismissStandby {
        uid: String,
    },
    AddReplica {
        address: String,
    },
    RemoveReplica {
        id: String,
    },
    Expand {
        size: u64,
    },
    Snapshot(SnapshotChange),
    /// Copy a snapshot of another volume into it.
    Fill {
        volume: String,
        snapshot: String,
    },
    SetStatus {
        engine: Target,
        status: Box<EngineStatus>,
    },
    RemoveFinalizer {
        engine: Target,
    },
}

/// Decides about one engine.
pub fn decide_engine(observed: &EngineObserved<'_>, now: Timestamp) -> Plan<EngineChange> {
    let mut plan = decide(observed, now);
    if observed.stop_error.is_some() {
        // Why it does not end is told before that is tried once more.
        plan.changes.sort_by_key(|change| matches!(change, EngineChange::Stop { .. }));
    }
    plan
}

fn decide(observed: &EngineObserved<'_>, now: Timestamp) -> Plan<EngineChange> {
    let engine = observed.engine;
    let mut plan = Plan::default();
    let wanted = engine.spec.desire_state == InstanceState::Running && !is_deleting(engine);
    if observed.manager == Manager::Known {
        follow(&mut plan, observed, wanted);
    }
    let is_gone = observed.manager != Manager::Unknown && observed.process.is_none();
    if is_gone && !wanted && engine.status.current_state != InstanceState::Stopped {
        if observed.is_asked_for {
            let words = "Its device, if it left one, waits for the next engine: a ticket asks for the volume here.";
            plan.rests(PROCESS, subject(engine), Reason::VolumeWanted, words);
        } else {
            let words = "Its device, if it left one, goes.";
            plan.acts(PROCESS, subject(engine), Reason::EngineStopping, words, EngineChange::RemoveDevice);
        }
    }
    if is_deleting(engine) && has_finalizer(engine, FINALIZER) {
        if matches!((observed.manager, observed.process), (Manager::Known | Manager::Down, None)) {
            let change = EngineChange::RemoveFinalizer { engine: Target::of(engine) };
            plan.acts(REMOVAL, subject(engine), Reason::BeingDeleted, "Nothing of it is left.", change);
        } else {
            let words = format!("It has to end first.{}", because(observed.stop_error));
            plan.blocked(REMOVAL, subject(engine), Reason::EngineStopping, words);
            tell(&mut plan, observed, keeps(observed, now));
        }
        return plan;
    }
    let status = status(observed, wanted, now);
    // One that stood by is on its way from running to running.
    let awaited = status.current_state == InstanceState::Starting
        && matches!(engine.status.current_state, InstanceState::Stopped | InstanceState::Running)
        && !observed.is_slow;
    if awaited {
        plan.rests(STATUS, subject(engine), Reason::EngineStarting, "It will serve in a moment.");
    } else {
        tell(&mut plan, observed, status);
    }
    plan
}

/// Writes the status, if it says something new.
fn tell(plan: &mut Plan<EngineChange>, observed: &EngineObserved<'_>, status: EngineStatus) {
    let engine = observed.engine;
    if status == engine.status {
        plan.rests(STATUS, subject(engine), Reason::UpToDate, "The status tells how it is.");
    } else {
        let change = EngineChange::SetStatus { engine: Target::of(engine), status: Box::new(status) };
        plan.acts(STATUS, subject(engine), Reason::StatusFollows, "The status follows the process.", change);
    }
}

/// The status of one that is to go, and why it does not.
fn keeps(observed: &EngineObserved<'_>, now: Timestamp) -> EngineStatus {
    let mut status = observed.engine.status.clone();
    let problem = observed.stop_error.map(|why| (REMOVAL_FAILED, why));
    told::tell(&mut status.conditions, INSTANCE_REMOVAL, problem, now);
    status
}

fn follow(plan: &mut Plan<EngineChange>, observed: &EngineObserved<'_>, wanted: bool) {
    let engine = observed.engine;
    let never_ran = !engine.status.started && engine.status.current_state != InstanceState::Error;
    match (wanted, observed.process) {
        // One that failed is for the volume to decide about: it is told to stop, and then perhaps to start again. One that
        // ended in order was told to by somebody who is not here any more: it is as if it had never been.
        (true, found) if never_ran && found.is_none_or(|found| found.process.state == ProcessState::Stopped) => {
            let change = EngineChange::Start { standby: !engine.spec.active };
            plan.acts(PROCESS, subject(engine), Reason::EngineStarting, "It is to run.", change);
        }
        (false, Some(_)) => {
            let change = EngineChange::Stop { keep_device: observed.is_asked_for };
            plan.acts(PROCESS, subject(engine), Reason::EngineStopping, "It is not to run.", change);
        }
        (true, Some(found)) if is_lost(observed, found) => {
            let words = "It was to stop and to start again meanwhile: its replicas are elsewhere now.";
            let change = EngineChange::Stop { keep_device: true };
            plan.acts(PROCESS, subject(engine), Reason::ContentDiffers, words, change);
        }
        (true, Some(found)) if matches!(found.process.state, ProcessState::Starting | ProcessState::Running) => {
            if found.is_standby && engine.spec.active {
                let words = "The migration was confirmed.";
                plan.acts(PROCESS, subject(engine), Reason::EngineStarting, words, EngineChange::Promote);
            }
            dismiss(plan, observed, found);
            members(plan, engine, found);
            size(plan, engine, found);
            snapshots::follow(plan, observed, found);
            fill::follow(plan, observed, found);
        }
        _ => plan.rests(PROCESS, subject(engine), Reason::UpToDate, "Nothing is to be started or stopped."),
    }
}

/// Whether it looks for replicas where none of them is any more. Replicas that ended while an engine was being started, and
/// were started again, listen somewhere else; one that serves is told so, one that has yet to find them cannot be.
fn is_lost(observed: &EngineObserved<'_>, found: &EngineProcess) -> bool {
    let wanted = &observed.engine.spec.replica_address_map;
    let is_starting = found.process.state == ProcessState::Starting && !found.is_standby && found.members.is_empty();
    let is_elsewhere = |places: &BTreeSet<String>| !wanted.values().any(|address| places.contains(address));
    is_starting && !wanted.is_empty() && observed.started_with.is_some_and(is_elsewhere)
}

/// An engine that stood by, and that nobody stops where it is, cannot take over any more.
fn dismiss(plan: &mut Plan<EngineChange>, observed: &EngineObserved<'_>, found: &EngineProcess) {
    let (engine, uid) = (observed.engine, &observed.engine.spec.dismissed_standby);
    let serves = found.process.state == ProcessState::Running && !found.is_standby;
    if serves && !uid.is_empty() && observed.dismissed != Some(uid) {
        let words = format!("Engine {uid} must not take over.");
        let change = EngineChange::DismissStandby { uid: uid.clone() };
        plan.acts(PROCESS, subject(engine), Reason::StandbyDismissed, words, change);
    }
}

/// Replicas join and leave as the specification says; a replica that came back elsewhere is the same member.
fn members(plan: &mut Plan<EngineChange>, engine: &Engine, found: &EngineProcess) {
    if found.process.state != ProcessState::Running || found.is_standby {
        return;
    }
    let wanted: BTreeSet<&str> = engine.spec.replica_address_map.values().map(String::as_str).collect();
    let present: BTreeSet<&str> = found.members.iter().map(|member| member.address.as_str()).collect();
    for address in wanted.difference(&present) {
        let change = EngineChange::AddReplica { address: (*address).to_owned() };
        plan.acts(MEMBERS, subject(engine), Reason::ContentDiffers, format!("The replica at {address} joins."), change);
    }
    // A member that comes back at another address is first seen there; only then its old one is nobody's.
    if wanted.is_subset(&present) {
        for member in found.members.iter().filter(|member| !wanted.contains(member.address.as_str())) {
            let change = EngineChange::RemoveReplica { id: member.id.clone() };
            let words = format!("The replica {} leaves.", member.id);
            plan.acts(MEMBERS, subject(engine), Reason::ContentDiffers, words, change);
        }
    }
}

fn size(plan: &mut Plan<EngineChange>, engine: &Engine, found: &EngineProcess) {
    let wanted = u64::try_from(engine.spec.volume_size.0).unwrap_or_default();
    if found.process.state == ProcessState::Running && !found.is_standby && found.size < wanted {
        let words = format!("It grows from {} to {wanted} bytes.", found.size);
        plan.acts(SIZE, subject(engine), Reason::ContentDiffers, words, EngineChange::Expand { size: wanted });
    }
}

fn status(observed: &EngineObserved<'_>, wanted: bool, now: Timestamp) -> EngineStatus {
    let engine = observed.engine;
    let old = &engine.status;
    // What is not wanted any more, and known to be gone, did not fail.
    let started = old.started && (wanted || observed.manager == Manager::Unknown);
    let process = observed.process.map(|found| &found.process);
    let state = match observed_state(observed.manager, process, started, old.current_state) {
        // A device is part of what is waited for.
        InstanceState::Running if awaits_device(observed) => InstanceState::Starting,
        state => state,
    };
    let mut status = EngineStatus { current_state: state, ..old.clone() };
    status.owner_id.clone_from(&engine.spec.node_id);
    status.started = started || state == InstanceState::Running;
    match (state, observed.process) {
        (InstanceState::Running, Some(found)) => running(&mut status, observed, found, now),
        (InstanceState::Unknown, _) => {}
        (state, _) => {
            not_running(&mut status);
            status.starting = state == InstanceState::Starting;
            if state == InstanceState::Stopped {
                status.instance_manager_name.clear();
                status.current_replica_address_map.clear();
                (status.uuid, status.current_image) = (String::new(), String::new());
            }
        }
    }
    let reason = process.map(|process| process.reason.as_str());
    let failure = match state {
        InstanceState::Error => reason,
        InstanceState::Starting if awaits_device(observed) => reason.filter(|why| !why.is_empty()),
        InstanceState::Stopped if wanted => observed.start_error,
        _ => None,
    };
    let is_fenced = observed.process.is_some_and(|found| found.is_fenced);
    let reason = if is_fenced { FENCED } else { CREATION_FAILED };
    told::tell(&mut status.conditions, INSTANCE_CREATION, failure.map(|why| (reason, why)), now);
    let stays = observed.stop_error.filter(|_| process.is_some()).map(|why| (REMOVAL_FAILED, why));
    told::tell(&mut status.conditions, INSTANCE_REMOVAL, stays, now);
    status
}

fn awaits_device(observed: &EngineObserved<'_>) -> bool {
    let engine = observed.engine;
    let shows = !engine.spec.disable_frontend && engine.spec.frontend != tether_crd::volume::Frontend::None;
    let first = engine.status.current_state != InstanceState::Running;
    let serves = |found: &EngineProcess| found.process.state == ProcessState::Running && !found.is_standby;
    first && shows && observed.process.is_some_and(|found| found.endpoint.is_empty() && serves(found))
}

fn running(status: &mut EngineStatus, observed: &EngineObserved<'_>, found: &EngineProcess, now: Timestamp) {
    let engine = observed.engine;
    observed.manager_name.clone_into(&mut status.instance_manager_name);
    status.current_image.clone_from(&engine.spec.image);
    (status.ip, status.storage_ip) = (found.process.ip.clone(), found.process.ip.clone());
    status.port = i64::from(found.process.port);
    status.uuid.clone_from(&found.process.uid);
    status.starting = false;
    status.current_size = IntString(i64::try_from(found.size).unwrap_or(i64::MAX));
    status.is_expanding = status.current_size < engine.spec.volume_size;
    status.endpoint = if engine.spec.disable_frontend { String::new() } else { found.endpoint.clone() };
    status.current_replica_address_map.clone_from(&engine.spec.replica_address_map);
    status.clone_status = fill::told(engine, observed.copy.as_ref());
    if let Some(listed) = &found.snapshots {
        status.snapshots.clone_from(listed);
    }
    let modes: BTreeMap<String, ReplicaMode> = engine
        .spec
        .replica_address_map
        .iter()
        .filter_map(|(replica, address)| {
            // One that stands by reads through the engine that holds the volume: what that one has, it has.
            if found.is_standby {
                return Some((replica.clone(), ReplicaMode::ReadWrite));
            }
            let member = found.members.iter().find(|member| member.address == *address)?;
            mode(member, status.replica_mode_map.get(replica)).map(|mode| (replica.clone(), mode))
        })
        .collect();
    for (replica, mode) in &modes {
        if status.replica_mode_map.get(replica) != Some(mode) {
            status.replica_transition_time_map.insert(replica.clone(), rfc3339(now));
        }
    }
    status.replica_transition_time_map.retain(|replica, _| modes.contains_key(replica));
    let rebuilds = found.members.iter().filter_map(|member| {
        let progress = member.resync?;
        let rebuild = RebuildProgress {
            is_rebuilding: true,
            progress,
            state: "in_progress".to_owned(),
            error: member.error.clone(),
            ..RebuildProgress::default()
        };
        Some((format!("tcp://{}", member.address), rebuild))
    });
    status.rebuild_status = rebuilds.collect();
    status.replica_mode_map = modes;
}

/// RW holds every acknowledged write; WO is on its way there; ERR was in the set and is not any more. One that has yet
/// to be heard of has no mode.
fn mode(member: &Member, before: Option<&ReplicaMode>) -> Option<ReplicaMode> {
    match (member.in_sync, member.connected) {
        (true, true) => Some(ReplicaMode::ReadWrite),
        // It is in the set until the engine takes it out, which it does before it acknowledges anything without it.
        (true, false) => before.copied(),
        (false, true) if member.resync.is_some() || before != Some(&ReplicaMode::Error) => Some(ReplicaMode::WriteOnly),
        (false, true) => Some(ReplicaMode::Error),
        (false, false) => match before {
            Some(ReplicaMode::ReadWrite | ReplicaMode::Error) => Some(ReplicaMode::Error),
            Some(ReplicaMode::WriteOnly) if !member.error.is_empty() => Some(ReplicaMode::Error),
            other => other.copied(),
        },
    }
}

fn not_running(status: &mut EngineStatus) {
    status.endpoint.clear();
    status.replica_mode_map.clear();
    status.replica_transition_time_map.clear();
    status.rebuild_status.clear();
    status.purge_status.clear();
    status.restore_status.clear();
    status.last_expansion_error.clear();
    status.is_expanding = false;
    (status.ip, status.storage_ip, status.port) = (String::new(), String::new(), 0);
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
