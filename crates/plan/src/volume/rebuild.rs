//! Redundancy that was lost comes back: a replica that returned is used again, or a new one is made.
//!
//! A returned replica missed only what was written while it was away, so that it is always tried first. It is not new:
//! a cordon, or a disk that takes no new replicas, does not keep it away.

use jiff::{SignedDuration, Timestamp};
use tether_crd::condition::time;
use tether_crd::engine::{InstanceState, ReplicaMode};
use tether_crd::volume::{DataLocality, Robustness, State};
use tether_crd::{NAMESPACE, Replica};
use tether_model::reason::Reason;
use tether_model::report::{Rule, Subject};

use super::balance;
use super::create::{find_place, replica};
use super::draft::{Draft, Item};
use crate::object::name;

const REPLENISH: Rule = Rule("replica-replenish");
const REUSE: Rule = Rule("replica-reuse");

/// A replica that failed so often in a row, in one instance manager, is given up; also what a new replica begins with, which
/// has nothing to keep.
pub(super) const RETRIES: i64 = 5;
/// After a second failure in a row: what keeps failing is not tried all the time. What failed with its instance manager, or
/// before that was started anew, did not fail by itself and is tried at once.
const FIRST_RETRY: SignedDuration = SignedDuration::from_mins(1);
const LONGEST_RETRY: SignedDuration = SignedDuration::from_mins(3);

/// Brings a replica back, one at a time.
pub(super) fn rebuild(draft: &mut Draft<'_>) {
    if draft.status.state != State::Attached || !draft.is_serving() {
        return;
    }
    if let Some((reason, words)) = obstacle(draft) {
        draft.blocked(REPLENISH, reason, words);
        return;
    }
    let wanted = usize::try_from(draft.volume().spec.number_of_replicas).unwrap_or(0);
    let usable = draft.replicas.iter().filter(|replica| is_usable(replica)).count();
    if usable >= wanted {
        let moves = bring_home(draft) || (balance::wants_one_more(draft) && add(draft, None));
        if !moves {
            draft.rests(REPLENISH, Reason::UpToDate, format!("{usable} of {wanted} replicas are there."));
        }
        return;
    }
    if reuse(draft) {
        return;
    }
    let is_evicting = draft.replicas.iter().any(|replica| replica.spec.eviction_requested && is_kept(replica));
    if draft.status.robustness == Robustness::Degraded
        && let Some(until) = wait_ends(draft).filter(|until| draft.now < *until)
        && draft.replicas.iter().any(is_potentially_reusable)
    {
        let words = "A failed replica may come back; a new one is made after a while.";
        draft.waits(REPLENISH, Reason::ReplenishmentWait, words, until);
        return;
    }
    if !add(draft, None) && is_evicting {
        let volume = draft.name();
        draft.warn(
            Reason::EvictionFailed,
            format!("volume {volume}: no place for a replica that is to leave its place"),
        );
    }
}

/// Why nothing is rebuilt now.
fn obstacle(draft: &Draft<'_>) -> Option<(Reason, String)> {
    if draft.observed.settings.rebuilds_per_node == 0 {
        let words = "The setting concurrent-replica-rebuild-per-node-limit is 0.";
        return Some((Reason::NotConfigured, words.to_owned()));
    }
    if draft.volume().is_migrating() || draft.engines.len() > 1 {
        return Some((Reason::RebuildAfterMigration, "Nothing is rebuilt while the volume moves.".to_owned()));
    }
    let size = draft.volume().spec.size;
    if draft.status.expansion_required || draft.engine().spec.volume_size != size {
        return Some((Reason::ExpansionInProgress, "Nothing is rebuilt while the volume grows.".to_owned()));
    }
    let pending = draft.replicas.iter().find(|replica| {
        is_kept(replica) && replica.is_scheduled() && draft.mode(replica) != Some(ReplicaMode::ReadWrite)
    });
    pending.map(|replica| {
        let words =
            format!("Replica {} on node {} is being brought up to date.", name(&**replica), replica.spec.node_id);
        (Reason::RebuildInProgress, words)
    })
}

/// Not failed, and not on its way out.
fn is_kept(replica: &Item<'_, Replica>) -> bool {
    replica.spec.failed_at.is_empty() && replica.spec.active && !replica.is_leaving()
}

/// Counts for the number of replicas that the volume asks for.
pub(super) fn is_usable(replica: &Item<'_, Replica>) -> bool {
    is_kept(replica) && !replica.spec.eviction_requested
}

/// Failed, and may come back.
pub(super) fn is_potentially_reusable(replica: &Item<'_, Replica>) -> bool {
    !replica.spec.failed_at.is_empty()
        && replica.is_scheduled()
        && replica.spec.active
        && !replica.is_leaving()
        && !replica.spec.eviction_requested
        && replica.spec.rebuild_retry_count < RETRIES
}

/// Until when a degraded volume waits for failed replicas.
fn wait_ends(draft: &Draft<'_>) -> Option<Timestamp> {
    time(&draft.status.last_degraded_at).map(|since| since + draft.observed.settings.replenishment_wait)
}

/// Whether a failed replica still keeps its place from being taken.
pub(super) fn is_waited_for(draft: &Draft<'_>, replica: &Item<'_, Replica>) -> bool {
    is_potentially_reusable(replica) && wait_ends(draft).is_none_or(|until| draft.now < until)
}

/// Uses the replica again that failed last, of those that can be.
fn reuse(draft: &mut Draft<'_>) -> bool {
    let mut candidates: Vec<usize> = Vec::new();
    for index in 0..draft.replicas.len() {
        if !is_potentially_reusable(&draft.replicas[index]) {
            continue;
        }
        let about = Subject::new("Replica", NAMESPACE, name(&*draft.replicas[index]));
        match readiness(draft, &draft.replicas[index]) {
            Readiness::Now => candidates.push(index),
            Readiness::At(until) => {
                let words = "The replica failed several times in a row, and is tried again later.";
                draft.plan.waits(REUSE, about, Reason::StaleReplica, words, until);
            }
            Readiness::Not(reason, words) => draft.plan.blocked(REUSE, about, reason, words),
        }
    }
    let failed_at = |index: &usize| time(&draft.replicas[*index].spec.failed_at);
    let Some(chosen) = candidates.into_iter().max_by_key(failed_at) else { return false };
    let starts_over = is_manager_newer(draft, &draft.replicas[chosen]);
    let spec = &mut draft.replicas[chosen].spec;
    spec.failed_at.clear();
    spec.healthy_at.clear();
    spec.rebuild_retry_count = if starts_over { 1 } else { spec.rebuild_retry_count + 1 };
    let about = Subject::new("Replica", NAMESPACE, name(&*draft.replicas[chosen]));
    draft.plan.fires(REUSE, about, Reason::ReplicaReused, "The replica is back; it gets what it missed.");
    true
}

enum Readiness {
    Now,
    At(Timestamp),
    Not(Reason, String),
}

/// Whether a failed replica could run now.
fn readiness(draft: &Draft<'_>, replica: &Replica) -> Readiness {
    let node = &replica.spec.node_id;
    let Some(host) = draft.host(node).filter(|host| !host.is_down) else {
        return Readiness::Not(Reason::NodeUnavailable, format!("Its node {node:?} is down or gone."));
    };
    if !host.can_launch() {
        let words = format!("The instance manager of node {node:?} is {}.", host.manager.word());
        return Readiness::Not(Reason::InstanceManagerUnavailable, words);
    }
    match host.disk(&replica.spec.disk_id) {
        None => {
            let words = format!("Its disk {:?} is not on node {node:?}.", replica.spec.disk_id);
            return Readiness::Not(Reason::DiskUnavailable, words);
        }
        Some(disk) => {
            if let Some(why) = &disk.not_ready {
                return Readiness::Not(
                    Reason::DiskUnavailable,
                    format!("Its disk {:?} is not ready: {why}.", disk.name),
                );
            }
        }
    }
    if replica.status.current_state != InstanceState::Stopped {
        return Readiness::Not(Reason::ReplicasStopping, "Its process has not ended yet.".to_owned());
    }
    let back_off = if is_manager_newer(draft, replica) { None } else { retry_at(replica) };
    match back_off.filter(|at| draft.now < *at) {
        Some(at) => Readiness::At(at),
        None => Readiness::Now,
    }
}

/// Whether the instance manager of the replica's node was started after the replica failed.
fn is_manager_newer(draft: &Draft<'_>, replica: &Replica) -> bool {
    let since = draft.host(&replica.spec.node_id).and_then(|host| host.manager_since);
    // Times are told in whole seconds, and a manager ends before its replicas are found to have failed.
    since.zip(time(&replica.spec.last_failed_at)).is_some_and(|(since, failed)| since >= failed)
}

/// When a replica that failed may be tried again: at once after the first failure, later after more.
fn retry_at(replica: &Replica) -> Option<Timestamp> {
    let tries = u32::try_from(replica.spec.rebuild_retry_count).ok().filter(|tries| *tries > 0)?;
    let doubled = FIRST_RETRY * 2_i32.saturating_pow(tries - 1).min(8);
    time(&replica.spec.last_failed_at).map(|failed| failed + doubled.min(LONGEST_RETRY))
}

/// With best-effort locality a healthy volume gets a replica where it is attached; the surplus goes elsewhere.
fn bring_home(draft: &mut Draft<'_>) -> bool {
    let volume = draft.volume();
    let home = draft.status.current_node_id.clone();
    let is_local = draft.replicas.iter().any(|replica| is_kept(replica) && replica.spec.node_id == home);
    let wanted = volume.spec.data_locality == DataLocality::BestEffort
        && draft.status.robustness == Robustness::Healthy
        && !volume.spec.disable_frontend
        && !is_local;
    if !wanted {
        return false;
    }
    if super::create::place(draft, Some(home.clone())).is_err() {
        let words = format!("Node {home:?}, where the volume is attached, has no place for a replica.");
        draft.rests(REPLENISH, Reason::LocalReplicaSchedulingFailure, words);
        return true;
    }
    add(draft, Some(home))
}

/// Adds a new replica.
fn add(draft: &mut Draft<'_>, only_node: Option<String>) -> bool {
    let mut made = replica(draft);
    made.spec.rebuild_retry_count = RETRIES;
    made.spec.hard_node_affinity = only_node.clone().unwrap_or_default();
    if !find_place(draft, &mut made, only_node, "precheck new replica failed: ") {
        return false;
    }
    let words = format!("A new replica, {}, is made on node {:?}.", name(&made), made.spec.node_id);
    draft.fires(REPLENISH, Reason::ReplicaReplenished, words);
    draft.add_replica(made);
    true
}
