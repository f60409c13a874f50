//! Which nodes and disks are possible. The first filter that says no speaks for the node or the disk.

use std::collections::BTreeSet;

use tether_model::reason::Reason;

use super::{Disk, Host, Policy, Use, Uses, Wish};

type Filtered = Result<(), (Reason, String)>;

fn refuse(reason: Reason, words: impl Into<String>) -> Filtered {
    Err((reason, words.into()))
}

pub(super) fn host(host: &Host, wish: &Wish, policy: &Policy, uses: &Uses<'_>) -> Filtered {
    takes_replicas(host)?;
    if !host.manager.can_launch() {
        return refuse(Reason::NodeUnavailable, format!("its instance manager is {}", host.manager.word()));
    }
    if wish.only_node.as_ref().is_some_and(|node| *node != host.name) {
        return refuse(Reason::NodeAffinityNotSatisfied, "the replica is for another node");
    }
    if !topology_fits(host, wish) {
        let words = format!("zone {:?} in region {:?} is not what the volume asks for", host.zone, host.region);
        return refuse(Reason::NodeAffinityNotSatisfied, words);
    }
    tags("node", &host.tags, &wish.node_selector, policy.empty_node_selector_fits_all)?;
    anti_affinity(host, policy, uses)
}

/// Whether anything at all may be put on the node, if it can start replicas.
pub(super) fn takes_replicas(host: &Host) -> Filtered {
    let gone = Reason::NodeUnavailable;
    if host.is_deleting {
        return refuse(gone, "it is being deleted");
    }
    if let Some(why) = &host.not_ready {
        return refuse(gone, format!("it is not ready: {why}"));
    }
    if let Some(why) = &host.unschedulable {
        return refuse(gone, format!("nothing may be scheduled to it: {why}"));
    }
    if !host.allows_scheduling {
        return refuse(gone, "spec.allowScheduling is false");
    }
    if host.is_evicting {
        return refuse(gone, "spec.evictionRequested is true");
    }
    Ok(())
}

fn topology_fits(host: &Host, wish: &Wish) -> bool {
    let fits = |(zone, region): &(String, String)| {
        (zone.is_empty() || *zone == host.zone) && (region.is_empty() || *region == host.region)
    };
    wish.topology.is_empty() || wish.topology.iter().any(fits)
}

pub(super) fn tags(what: &str, tags: &BTreeSet<String>, selector: &BTreeSet<String>, empty_fits_all: bool) -> Filtered {
    if selector.is_empty() {
        if tags.is_empty() || empty_fits_all {
            return Ok(());
        }
        return refuse(Reason::TagsNotFulfilled, format!("the {what} has tags and the volume selects none"));
    }
    let missing: Vec<&str> = selector.difference(tags).map(String::as_str).collect();
    if missing.is_empty() {
        return Ok(());
    }
    refuse(Reason::TagsNotFulfilled, format!("the {what} lacks the tags {}", missing.join(", ")))
}

fn anti_affinity(host: &Host, policy: &Policy, uses: &Uses<'_>) -> Filtered {
    // A place whose only replica is to leave will be free: hard anti-affinity holds again when it left.
    if !policy.node_soft && uses.node(&host.name) == Use::Taken {
        return refuse(Reason::ReplicaAntiAffinity, "it has a replica of the volume");
    }
    if !policy.zone_soft && uses.zone(&host.zone) == Use::Taken {
        let words = format!("its zone {:?} has a replica of the volume", host.zone);
        return refuse(Reason::ReplicaAntiAffinity, words);
    }
    Ok(())
}

pub(super) fn disk(disk: &Disk, wish: &Wish, policy: &Policy, promised: i64, uses: &Uses<'_>) -> Filtered {
    let gone = Reason::DiskUnavailable;
    if let Some(why) = &disk.not_ready {
        return refuse(gone, format!("it is not ready: {why}"));
    }
    if !disk.allows_scheduling {
        return refuse(gone, "its allowScheduling is false");
    }
    if disk.is_evicting {
        return refuse(gone, "its evictionRequested is true");
    }
    if !disk.is_filesystem {
        return refuse(gone, "it is a block disk, and replicas are files");
    }
    tags("disk", &disk.tags, &wish.disk_selector, policy.empty_disk_selector_fits_all)?;
    if !policy.disk_soft && uses.disk(&disk.uuid) != Use::Free {
        return refuse(Reason::ReplicaAntiAffinity, "it has a replica of the volume");
    }
    // Before the disk's own condition, which says less: how much is missing.
    if let Err(words) = space(disk, policy, promised, wish.size, wish.actual_size) {
        return refuse(Reason::InsufficientStorage, words);
    }
    if let Some(why) = &disk.unschedulable {
        return refuse(gone, format!("nothing more may be put on it: {why}"));
    }
    Ok(())
}

/// What may be promised on the disk in all.
pub(super) fn promise_limit(disk: &Disk, policy: &Policy) -> i64 {
    percent(disk.maximum.saturating_sub(disk.reserved), policy.over_provisioning_percent)
}

/// Whether the disk can take a replica of `size` that holds `actual` bytes soon.
pub(crate) fn space(disk: &Disk, policy: &Policy, promised: i64, size: i64, actual: i64) -> Result<(), String> {
    if disk.available <= 0 || disk.maximum <= 0 {
        return Err("its size is not known, or it is full".to_owned());
    }
    let floor = percent(disk.maximum, policy.minimal_available_percent);
    if disk.available.saturating_sub(actual) <= floor {
        return Err(format!(
            "{} of {} bytes are available, and more than {} % must stay so with {actual} bytes on it",
            disk.available, disk.maximum, policy.minimal_available_percent
        ));
    }
    let limit = promise_limit(disk, policy);
    if size.saturating_add(promised) > limit {
        return Err(format!(
            "{promised} bytes are promised and {size} more are asked for, of {limit} that may be \
             ({} less {} reserved, over-provisioning {} %)",
            disk.maximum, disk.reserved, policy.over_provisioning_percent
        ));
    }
    Ok(())
}

/// `value` × `percent` / 100, without overflow.
fn percent(value: i64, percent: i64) -> i64 {
    let product = i128::from(value) * i128::from(percent) / 100;
    i64::try_from(product).unwrap_or(if product < 0 { i64::MIN } else { i64::MAX })
}
