//! Failed replicas that are used again because nothing else is left: those that the record names, and no others.
//!
//! Longhorn guesses from times of files which copy is the newest. Here the record says which replicas hold every
//! acknowledged write; all of them are equal, and a replica outside of the set is never a basis.

use tether_crd::NAMESPACE;
use tether_crd::condition::rfc3339;
use tether_crd::engine::InstanceState;
use tether_crd::volume::{Robustness, State};
use tether_model::reason::Reason;
use tether_model::report::{Rule, Subject};

use super::draft::Draft;
use super::health::has_basis;
use crate::object::name;

const SALVAGE: Rule = Rule("auto-salvage");

pub(super) fn salvage(draft: &mut Draft<'_>) {
    if draft.status.robustness != Robustness::Faulted || draft.replicas.is_empty() || has_basis(draft) {
        return;
    }
    if !draft.observed.settings.auto_salvage {
        draft.blocked(SALVAGE, Reason::NotConfigured, "The setting auto-salvage is off.");
        return;
    }
    if draft.status.state != State::Detached {
        draft.blocked(SALVAGE, Reason::Detaching, "Failed replicas are used again once the volume is detached.");
        return;
    }
    let mut salvaged = false;
    for index in 0..draft.replicas.len() {
        match obstacle(draft, index) {
            None => {
                salvaged = true;
                let volume = draft.name();
                let replica = name(&*draft.replicas[index]).to_owned();
                draft.replicas[index].spec.failed_at = String::new();
                let words = "The record names the replica as in sync: it is used again.";
                draft.plan.fires(SALVAGE, Subject::new("Replica", NAMESPACE, &replica), Reason::AutoSalvaged, words);
                draft.warn(
                    Reason::AutoSalvaged,
                    format!("Replica {replica} of volume {volume} will be automatically salvaged"),
                );
            }
            Some((reason, words)) => {
                let replica = Subject::new("Replica", NAMESPACE, name(&*draft.replicas[index]));
                draft.plan.blocked(SALVAGE, replica, reason, words);
            }
        }
    }
    if salvaged {
        draft.set_robustness(Robustness::Unknown);
        draft.status.last_auto_salvaged_at = rfc3339(draft.now);
        draft.status.remount_requested_at = rfc3339(draft.now);
    }
}

/// Why a failed replica cannot be used again.
fn obstacle(draft: &Draft<'_>, index: usize) -> Option<(Reason, String)> {
    let replica = &draft.replicas[index];
    let node = &replica.spec.node_id;
    if replica.is_leaving() {
        return Some((Reason::BeingDeleted, "The replica is being deleted.".to_owned()));
    }
    if !draft.is_in_sync(replica) {
        let words = "The replica missed writes: the record does not name it as in sync.";
        return Some((Reason::NoInSyncReplica, words.to_owned()));
    }
    if !replica.is_scheduled() {
        return Some((Reason::ReplicaSchedulingFailure, "The replica never had a place.".to_owned()));
    }
    let Some(host) = draft.host(node).filter(|host| !host.is_down) else {
        return Some((Reason::NodeUnavailable, format!("Its node {node:?} is down or gone.")));
    };
    if replica.status.current_state != InstanceState::Stopped {
        return Some((Reason::ReplicasStopping, "Its process has not ended yet.".to_owned()));
    }
    // A disk that may take no new replicas still has this one; only one that cannot be used stands in the way.
    match host.disk(&replica.spec.disk_id) {
        None => {
            Some((Reason::DiskUnavailable, format!("Its disk {:?} is not on node {node:?}.", replica.spec.disk_id)))
        }
        Some(disk) => {
            let words = |why: &String| format!("Its disk {:?} on node {node:?} is not ready: {why}.", disk.name);
            disk.not_ready.as_ref().map(|why| (Reason::DiskUnavailable, words(why)))
        }
    }
}
