//! Replicas that are not needed any more.
//!
//! A replica that holds every write is never just deleted: first the engine lets it go, which takes it out of the record,
//! then it is deleted. While no engine serves nothing can be taken out of the record, and surplus replicas stay.

use std::cmp::Reverse;

use jiff::SignedDuration;
use tether_crd::condition::time;
use tether_crd::engine::{InstanceState, ReplicaMode};
use tether_crd::volume::{DataLocality, State};
use tether_crd::{FINALIZER, NAMESPACE, Replica};
use tether_model::reason::Reason;
use tether_model::report::{Rule, Subject};

use super::draft::{Draft, Item};
use super::rebuild::RETRIES;
use super::{Change, Kind};
use crate::object::{Target, has_finalizer, is_deleting, name};

const CLEANUP: Rule = Rule("replica-cleanup");

pub(super) fn cleanup(draft: &mut Draft<'_>) {
    let_go(draft);
    if draft.volume().is_migrating() {
        return;
    }
    inactive(draft);
    stale(draft);
    if let Some(surplus) = surplus(draft) {
        remove(draft, &surplus);
    }
}

/// Deleted replicas and engines whose node cannot clean up: what is left there is an orphan, found when the node is back.
fn let_go(draft: &mut Draft<'_>) {
    for replica in &draft.observed.replicas {
        if is_deleting(*replica) && has_finalizer(*replica, FINALIZER) && draft.is_down(&replica.spec.node_id) {
            draft.last.push(Change::RemoveFinalizer { kind: Kind::Replica, target: Target::of(*replica) });
        }
    }
    for engine in &draft.observed.engines {
        if is_deleting(*engine) && has_finalizer(*engine, FINALIZER) && draft.is_down(&engine.spec.node_id) {
            draft.last.push(Change::RemoveFinalizer { kind: Kind::Engine, target: Target::of(*engine) });
        }
    }
}

fn inactive(draft: &mut Draft<'_>) {
    for index in 0..draft.replicas.len() {
        if !draft.replicas[index].spec.active && !draft.replicas[index].is_leaving() {
            delete(draft, index, Reason::ReplicaInactive, "Removing inactive replica");
        }
    }
}

/// Failed replicas that nobody waits for any more.
fn stale(draft: &mut Draft<'_>) {
    let minutes = draft.volume().spec.stale_replica_timeout;
    for index in 0..draft.replicas.len() {
        let replica = &draft.replicas[index];
        let Some(failed) = time(&replica.spec.failed_at).filter(|_| !replica.is_leaving()) else { continue };
        let is_old = minutes > 0 && draft.now >= failed + SignedDuration::from_mins(minutes);
        if !is_old && replica.spec.rebuild_retry_count < RETRIES {
            if minutes > 0 {
                let until = failed + SignedDuration::from_mins(minutes);
                let about = Subject::new("Replica", NAMESPACE, name(&**replica));
                draft.plan.waits(CLEANUP, about, Reason::StaleReplica, "The replica failed; it may come back.", until);
            }
            continue;
        }
        if draft.record().is_some() && draft.is_in_sync(replica) {
            let about = Subject::new("Replica", NAMESPACE, name(&**replica));
            let words = "The record names the replica as in sync: it stays, however long ago it failed.";
            draft.plan.blocked(CLEANUP, about, Reason::StaleReplica, words);
        } else if !replica.spec.last_healthy_at.is_empty() && !has_safe_one(draft) {
            let about = Subject::new("Replica", NAMESPACE, name(&**replica));
            let words = "No other replica is known to be good: it stays, however long ago it failed.";
            draft.plan.blocked(CLEANUP, about, Reason::StaleReplica, words);
        } else {
            delete(draft, index, Reason::StaleReplica, "The replica failed too long ago or too often.");
        }
    }
}

/// Whether a replica is there that holds everything and was good after it last failed.
fn has_safe_one(draft: &Draft<'_>) -> bool {
    draft.replicas.iter().any(|replica| {
        let (healthy, failed) = (time(&replica.spec.last_healthy_at), time(&replica.spec.last_failed_at));
        is_good(replica) && draft.is_in_sync(replica) && (failed.is_none() || healthy > failed)
    })
}

/// Was good, and nothing was heard to the contrary.
fn is_good(replica: &Item<'_, Replica>) -> bool {
    replica.spec.active
        && !replica.spec.healthy_at.is_empty()
        && replica.spec.failed_at.is_empty()
        && !replica.is_leaving()
}

/// Which of the replicas goes first; the smallest does.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Order<'a> {
    /// Those that the engine has let go already.
    is_member: bool,
    is_wanted_here: bool,
    is_needed_for_locality: bool,
    /// Those whose node has most replicas of the volume.
    on_node: Reverse<usize>,
    in_zone: Reverse<usize>,
    name: &'a str,
}

/// The replica that is one too many, if there is one.
pub(super) fn surplus(draft: &Draft<'_>) -> Option<String> {
    let wanted = usize::try_from(draft.volume().spec.number_of_replicas.max(1)).unwrap_or(1);
    if draft.volume().is_migrating() || draft.engines.len() > 1 {
        return None;
    }
    let never_started = draft.record().is_none() && draft.status.state == State::Detached;
    let counts = |replica: &&Item<'_, Replica>| {
        let known = draft.mode(replica);
        let is_out = known.is_none() && !draft.engine().spec.replica_address_map.contains_key(name(&***replica));
        is_good(replica) && (known == Some(ReplicaMode::ReadWrite) || is_out)
    };
    let candidates: Vec<&Item<'_, Replica>> = if never_started {
        draft.replicas.iter().filter(|replica| replica.spec.failed_at.is_empty() && !replica.is_leaving()).collect()
    } else if draft.status.state == State::Attached && draft.is_serving() {
        draft.replicas.iter().filter(counts).collect()
    } else {
        return None;
    };
    if candidates.len() <= wanted {
        return None;
    }
    let first = candidates.iter().min_by_key(|replica| order(draft, &candidates, replica))?;
    Some(name(&***first).to_owned())
}

fn order<'a>(draft: &Draft<'_>, all: &[&Item<'_, Replica>], replica: &'a Item<'_, Replica>) -> Order<'a> {
    let spec = &draft.volume().spec;
    let home = &draft.status.current_node_id;
    let zone = |replica: &Replica| draft.host(&replica.spec.node_id).map(|host| host.zone.as_str());
    let same_node = all.iter().filter(|other| other.spec.node_id == replica.spec.node_id).count();
    let same_zone = all.iter().filter(|other| zone(other) == zone(replica)).count();
    Order {
        is_member: is_member(draft, replica),
        is_wanted_here: !replica.spec.eviction_requested,
        is_needed_for_locality: spec.data_locality != DataLocality::Disabled && replica.spec.node_id == *home,
        on_node: Reverse(same_node),
        in_zone: Reverse(same_zone),
        name: name(&**replica),
    }
}

/// Whether the engine or the record still counts on the replica.
fn is_member(draft: &Draft<'_>, replica: &Replica) -> bool {
    let recorded = draft.record().is_some() && draft.is_in_sync(replica);
    recorded
        || draft.mode(replica).is_some()
        || draft.engine().status.current_replica_address_map.contains_key(name(replica))
}

/// Deletes a surplus replica, once the engine has let it go.
fn remove(draft: &mut Draft<'_>, surplus: &str) {
    let Some(index) = draft.replicas.iter().position(|replica| name(&**replica) == surplus) else { return };
    let is_running = draft.engine().spec.desire_state == InstanceState::Running;
    if is_running && is_member(draft, &draft.replicas[index]) {
        let about = Subject::new("Replica", NAMESPACE, surplus);
        let words = "The replica is one too many; it goes when the engine has let it go.";
        draft.plan.blocked(CLEANUP, about, Reason::ReplicaSurplus, words);
        return;
    }
    delete(draft, index, Reason::ReplicaSurplus, "The replica is one too many.");
}

fn delete(draft: &mut Draft<'_>, index: usize, reason: Reason, words: &str) {
    let about = Subject::new("Replica", NAMESPACE, name(&*draft.replicas[index]));
    draft.plan.fires(CLEANUP, about, reason, words);
    draft.replicas[index].delete();
}
