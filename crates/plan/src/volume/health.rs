//! Robustness: how many replicas hold everything, as the engine and the record say; and which replicas failed.

use jiff::SignedDuration;
use tether_crd::condition::{self, rfc3339, time};
use tether_crd::engine::{INSTANCE_CREATION, InstanceState, ReplicaMode};
use tether_crd::volume::{Robustness, State};
use tether_crd::{NAMESPACE, Replica};
use tether_model::reason::Reason;
use tether_model::report::{Rule, Subject};

use super::draft::{Draft, Item};
use crate::object::name;

const ROBUSTNESS: Rule = Rule("volume-robustness");
const REPLICA_HEALTH: Rule = Rule("replica-health");

/// How long a replica of an attached volume may fail to start before it counts as failed, so that another can take its
/// place: longer than an instance manager takes to come back.
const START_FAILURE_PATIENCE: SignedDuration = SignedDuration::from_mins(1);
/// How long after it was last offered again a volume that died once more has to wait: an engine that cannot live does not
/// keep the cluster busy.
const RECOVERY_PAUSE: SignedDuration = SignedDuration::from_secs(10);

/// Looks at engine and replicas, and says how the volume is.
pub(super) fn look(draft: &mut Draft<'_>) {
    let state = draft.server_state();
    if draft.is_being_taken_over() {
        let words = "The engine is fenced: the one that stands by has taken the volume over.";
        draft.blocked(ROBUSTNESS, Reason::MigrationPromoted, words);
        return;
    }
    if state == InstanceState::Unknown && is_in_use(draft) {
        unknown(draft);
        return;
    }
    if state == InstanceState::Running {
        modes(draft);
    }
    errors(draft);
    if state == InstanceState::Running && count(draft) {
        return;
    }
    if state == InstanceState::Error && is_in_use(draft) {
        engine_died(draft);
    } else if !has_basis(draft) {
        no_basis(draft);
    } else {
        recover(draft);
    }
}

/// Attached, or about to be: what happens to the engine happens to somebody.
fn is_in_use(draft: &Draft<'_>) -> bool {
    !draft.status.current_node_id.is_empty() || draft.status.state == State::Attaching
}

fn unknown(draft: &mut Draft<'_>) {
    let volume = draft.name();
    let node = draft.server().spec.node_id.clone();
    let words = format!("Node {node:?}, where the engine runs, is not heard of.");
    if draft.status.robustness == Robustness::Unknown {
        draft.blocked(ROBUSTNESS, Reason::Unknown, words);
    } else {
        draft.set_robustness(Robustness::Unknown);
        draft.fires(ROBUSTNESS, Reason::Unknown, words);
        draft.warn(Reason::Unknown, format!("volume {volume} robustness is unknown"));
    }
}

/// What the engine says of its replicas.
fn modes(draft: &mut Draft<'_>) {
    for index in 0..draft.replicas.len() {
        let replica = &draft.replicas[index];
        if !replica.spec.active {
            continue;
        }
        match draft.mode(replica) {
            Some(ReplicaMode::Error) if replica.spec.failed_at.is_empty() => {
                let is_without_fault = went_with_manager(draft, replica);
                fail(draft, index, "the engine gave it up");
                if is_without_fault {
                    forgive(&mut draft.replicas[index]);
                }
            }
            Some(ReplicaMode::ReadWrite) if replica.spec.failed_at.is_empty() => {
                let now = draft.now;
                healthy(&mut draft.replicas[index], now);
            }
            _ => {}
        }
    }
}

/// Notes that a replica is good. At an ordinary attach nothing of this is new, and nothing is written.
pub(super) fn healthy(replica: &mut Item<'_, Replica>, now: jiff::Timestamp) {
    if replica.spec.healthy_at.is_empty() {
        let spec = &mut replica.spec;
        spec.healthy_at = rfc3339(now);
        spec.rebuild_retry_count = 0;
    }
    let (last, failed) = (time(&replica.spec.last_healthy_at), time(&replica.spec.last_failed_at));
    if last.is_none() || last <= failed {
        replica.spec.last_healthy_at = rfc3339(now);
    }
}

/// Whether the volume has yet to be used for the first time: no engine ever served it, and nothing happened to any of its
/// replicas. All of them hold every write, since there is none.
pub(super) fn begins(draft: &Draft<'_>) -> bool {
    let is_fresh = |Replica { spec, .. }: &Replica| {
        [&spec.healthy_at, &spec.last_healthy_at, &spec.last_failed_at].into_iter().all(String::is_empty)
    };
    draft.record().is_none() && draft.replicas.iter().all(|replica| is_fresh(replica))
}

/// Replicas whose process ended by itself.
fn errors(draft: &mut Draft<'_>) {
    for index in 0..draft.replicas.len() {
        let replica = &draft.replicas[index];
        if !replica.spec.active {
            continue;
        }
        if replica.spec.failed_at.is_empty() && replica.status.current_state == InstanceState::Error {
            if went_with_manager(draft, replica) {
                fail(draft, index, "its process ended with its instance manager");
                forgive(&mut draft.replicas[index]);
            } else {
                fail(draft, index, "its process ended without being told to");
            }
        } else if draft.status.state == State::Attached {
            start_failure(draft, index);
        }
    }
}

/// Whether the replica's process is not there, or not heard of, for a reason that is none of its own: its agent says of one
/// that ended by itself how it did.
fn went_with_manager(draft: &Draft<'_>, replica: &Replica) -> bool {
    let state = draft.replica_state(replica);
    let ended_by_itself = condition::is_false(&replica.status.conditions, INSTANCE_CREATION);
    match state {
        InstanceState::Running => draft.host(&replica.spec.node_id).is_none_or(|host| !host.can_launch()),
        InstanceState::Unknown => true,
        _ => !ended_by_itself,
    }
}

/// An attempt that its replica could not help does not count among those that failed.
fn forgive(replica: &mut Replica) {
    let count = &mut replica.spec.rebuild_retry_count;
    if *count < super::rebuild::RETRIES {
        *count = (*count - 1).max(0);
    }
}

/// A replica that is to run and cannot be started, as its agent says.
fn start_failure(draft: &mut Draft<'_>, index: usize) {
    let replica = &draft.replicas[index];
    let is_wanted = replica.spec.failed_at.is_empty() && replica.spec.desire_state == InstanceState::Running;
    if !is_wanted || replica.status.current_state != InstanceState::Stopped {
        return;
    }
    let refused =
        condition::find(&replica.status.conditions, INSTANCE_CREATION).filter(|c| c.status == condition::FALSE);
    let Some((since, why)) = refused.and_then(|c| Some((time(&c.last_transition_time)?, c.message.clone()))) else {
        return;
    };
    let until = since + START_FAILURE_PATIENCE;
    if draft.now >= until {
        fail(draft, index, &format!("it could not be started: {why}"));
    } else {
        let about = Subject::new("Replica", NAMESPACE, name(&**replica));
        let words = format!("The replica could not be started: {why}.");
        draft.plan.waits(REPLICA_HEALTH, about, Reason::ReplicasStarting, words, until);
    }
}

/// Takes a replica out of use.
pub(super) fn fail(draft: &mut Draft<'_>, index: usize, why: &str) {
    let (volume, now) = (draft.name(), draft.now);
    let replica = &mut draft.replicas[index];
    replica.fail(now);
    let (replica, node) = (name(&**replica).to_owned(), replica.spec.node_id.clone());
    let about = Subject::new("Replica", NAMESPACE, &replica);
    draft.plan.fires(REPLICA_HEALTH, about, Reason::ReplicaFailed, format!("The replica failed: {why}."));
    draft.warn(Reason::ReplicaFailed, format!("replica {replica} of volume {volume} on node {node} failed: {why}"));
}

/// Counts the replicas that the engine reads and writes; false if there are none, which says nothing yet.
fn count(draft: &mut Draft<'_>) -> bool {
    let is_good = |replica: &&Item<'_, Replica>| {
        let is_good = replica.spec.failed_at.is_empty() && replica.spec.active && !replica.is_leaving();
        is_good && draft.mode(replica) == Some(ReplicaMode::ReadWrite)
    };
    let good = draft.replicas.iter().filter(is_good).count();
    let wanted = usize::try_from(draft.volume().spec.number_of_replicas).unwrap_or(0);
    if good == 0 {
        return false;
    }
    let volume = draft.name();
    let (robustness, reason) =
        if good >= wanted { (Robustness::Healthy, Reason::Healthy) } else { (Robustness::Degraded, Reason::Degraded) };
    let words = format!("{good} of {wanted} replicas hold every write.");
    let was = draft.status.robustness;
    if was == robustness {
        if robustness == Robustness::Healthy {
            draft.rests(ROBUSTNESS, reason, words);
        } else {
            draft.blocked(ROBUSTNESS, reason, words);
        }
        return true;
    }
    draft.set_robustness(robustness);
    draft.fires(ROBUSTNESS, reason, words);
    match robustness {
        Robustness::Degraded => draft.tell(reason, format!("volume {volume} became degraded")),
        _ if was == Robustness::Degraded => draft.tell(reason, format!("volume {volume} became healthy")),
        _ => {}
    }
    true
}

fn engine_died(draft: &mut Draft<'_>) {
    let volume = draft.name();
    let node = draft.server().spec.node_id.clone();
    let words = format!("The engine on node {node:?} died; the volume is detached and attached again.");
    if draft.status.robustness == Robustness::Faulted {
        draft.blocked(ROBUSTNESS, Reason::DetachedUnexpectedly, words);
        return;
    }
    draft.set_robustness(Robustness::Faulted);
    draft.fires(ROBUSTNESS, Reason::DetachedUnexpectedly, words);
    draft.warn(
        Reason::DetachedUnexpectedly,
        format!("Engine of volume {volume} dead unexpectedly, setting v.Status.Robustness to faulted"),
    );
}

/// Whether a replica is there with which an engine could start: one that holds everything and did not fail.
pub(super) fn has_basis(draft: &Draft<'_>) -> bool {
    draft.replicas.iter().any(|r| r.spec.failed_at.is_empty() && r.spec.active && draft.is_in_sync(r))
}

fn no_basis(draft: &mut Draft<'_>) {
    let words = match draft.record() {
        None if draft.replicas.is_empty() => "The volume has no replica yet.".to_owned(),
        None => "All replicas failed.".to_owned(),
        Some(record) => {
            format!("All replicas that hold every write failed or are gone; these are {}.", record.in_sync.join(", "))
        }
    };
    if draft.status.robustness == Robustness::Faulted {
        draft.blocked(ROBUSTNESS, Reason::NoInSyncReplica, words);
        return;
    }
    let volume = draft.name();
    draft.set_robustness(Robustness::Faulted);
    draft.fires(ROBUSTNESS, Reason::NoInSyncReplica, words);
    draft.warn(Reason::Faulted, format!("volume {volume} became faulted"));
}

/// A faulted volume that was detached and could be attached again.
fn recover(draft: &mut Draft<'_>) {
    if draft.status.robustness != Robustness::Faulted {
        let words = "The volume is not attached; its replicas can be used.";
        draft.rests(ROBUSTNESS, Reason::UpToDate, words);
        return;
    }
    if draft.status.state != State::Detached {
        draft.blocked(ROBUSTNESS, Reason::Faulted, "The volume is faulted until it is detached.");
        return;
    }
    let until = time(&draft.status.remount_requested_at).map(|last| last + RECOVERY_PAUSE);
    if let Some(until) = until.filter(|until| draft.now < *until) {
        let words = "The volume died again soon after it was attached, and is attached again after a pause.";
        draft.waits(ROBUSTNESS, Reason::Faulted, words, until);
        return;
    }
    let (volume, now) = (draft.name(), rfc3339(draft.now));
    draft.set_robustness(Robustness::Unknown);
    draft.fires(ROBUSTNESS, Reason::Remount, "The volume is detached and can be attached again.");
    if draft.record().is_some() {
        draft.tell(Reason::Remount, format!("Volume {volume} requested remount at {now}"));
    }
    draft.status.remount_requested_at = now;
}
