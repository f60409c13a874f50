//! Replicas that are to leave their place: a disk or a node is to be emptied, or a cordoned node is to be drained.
//!
//! A replica that is to leave counts no more ([`super::rebuild`] makes another one elsewhere) and goes when that one holds
//! everything ([`super::cleanup`]). A volume that nobody uses is attached for it, by a ticket of its own.

use tether_crd::attachment::{ANY, TicketType};
use tether_crd::{NAMESPACE, Replica};
use tether_model::reason::Reason;
use tether_model::report::{Rule, Subject};

use super::create::place;
use super::draft::{Draft, Item};
use super::tickets::{self, Wish};
use crate::object::name;

const EVICTION: Rule = Rule("replica-eviction");

pub(super) fn evict(draft: &mut Draft<'_>) {
    for index in 0..draft.replicas.len() {
        let why = why(draft, &draft.replicas[index]);
        let replica = &mut draft.replicas[index];
        if replica.spec.eviction_requested == why.is_some() {
            continue;
        }
        replica.spec.eviction_requested = why.is_some();
        let about = Subject::new("Replica", NAMESPACE, name(&**replica));
        let words = why.unwrap_or_else(|| "The replica may stay where it is.".to_owned());
        draft.plan.fires(EVICTION, about, Reason::ReplicaEviction, words);
    }
    let leaving = |replica: &&Item<'_, Replica>| replica.spec.eviction_requested && !replica.is_leaving();
    let wish = if draft.replicas.iter().filter(leaving).count() == 0 {
        Wish::Drop
    } else if draft.record().is_none() || place(draft, None).is_err() {
        // It would be attached for nothing. A volume that never was attached has nothing to copy.
        Wish::Leave
    } else {
        Wish::Hold
    };
    tickets::set(draft, TicketType::Eviction, wish, ANY);
}

/// Why a replica is to leave its place; none: it may stay.
fn why(draft: &Draft<'_>, replica: &Item<'_, Replica>) -> Option<String> {
    let node = &replica.spec.node_id;
    // What is on a node that does not answer cannot be copied from there; it is replaced as what failed is.
    let host = draft.host(node).filter(|host| !host.is_down && !replica.is_leaving())?;
    if host.is_evicting {
        return Some(format!("Node {node:?} is to be emptied: its evictionRequested is true."));
    }
    if let Some(disk) = host.disk(&replica.spec.disk_id).filter(|disk| disk.is_evicting) {
        return Some(format!("Disk {:?} of node {node:?} is to be emptied: its evictionRequested is true.", disk.name));
    }
    let policy = draft.observed.settings.drain_policy;
    let goes = host.is_cordoned && draft.record().is_some() && policy.evicts(is_last(draft, replica));
    goes.then(|| format!("Node {node:?} is cordoned, and node-drain-policy moves its replicas before it is drained."))
}

/// Whether no other replica that holds every write is on a node that stays.
fn is_last(draft: &Draft<'_>, replica: &Item<'_, Replica>) -> bool {
    let stays =
        |other: &Replica| draft.host(&other.spec.node_id).is_some_and(|host| !host.is_down && !host.is_cordoned);
    draft.is_in_sync(replica)
        && !draft.replicas.iter().any(|other| {
            name(&**other) != name(&**replica) && !other.is_leaving() && draft.is_in_sync(other) && stays(other)
        })
}
