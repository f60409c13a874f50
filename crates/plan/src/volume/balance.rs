//! Replicas that are spread more evenly when there is a better place: one more is made there, and the one that is then too
//! many goes ([`super::cleanup`] takes it from the zone and the node that have most).

use std::collections::BTreeMap;

use tether_crd::Replica;
use tether_crd::volume::{ReplicaAutoBalance, Robustness};
use tether_model::reason::Reason;
use tether_model::report::Rule;

use super::create::place;
use super::draft::{Draft, Item};
use super::rebuild::is_usable;

const BALANCE: Rule = Rule("replica-auto-balance");

/// Whether one more replica would make the spread better.
pub(super) fn wants_one_more(draft: &mut Draft<'_>) -> bool {
    let policy = match draft.volume().spec.replica_auto_balance {
        ReplicaAutoBalance::Ignored => draft.observed.settings.auto_balance,
        own => own,
    };
    if matches!(policy, ReplicaAutoBalance::Disabled | ReplicaAutoBalance::Ignored)
        || draft.status.robustness != Robustness::Healthy
    {
        return false;
    }
    let Ok(spot) = place(draft, None) else { return false };
    let zone = |node: &str| draft.host(node).map(|host| host.zone.clone()).unwrap_or_default();
    let usable: Vec<&Item<'_, Replica>> = draft.replicas.iter().filter(|replica| is_usable(replica)).collect();
    let zones = counts(usable.iter().map(|replica| zone(&replica.spec.node_id)));
    let nodes = counts(usable.iter().map(|replica| replica.spec.node_id.clone()));
    let is_better = |held: &BTreeMap<String, usize>, there: &str| {
        let (most, here) = (held.values().max().copied().unwrap_or(0), held.get(there).copied().unwrap_or(0));
        match policy {
            // Two are together while a place has none.
            ReplicaAutoBalance::LeastEffort => here == 0 && most > 1,
            // One place has at least two more than another: after the move they differ by less.
            _ => most > here + 1,
        }
    };
    let better = is_better(&zones, &zone(&spot.node)) || is_better(&nodes, &spot.node);
    if better {
        let words = format!("Replicas are spread better with one on node {:?}.", spot.node);
        draft.fires(BALANCE, Reason::ReplicaBalance, words);
    }
    better
}

fn counts(words: impl Iterator<Item = String>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for word in words {
        *counts.entry(word).or_default() += 1;
    }
    counts
}
