//! How much could still be promised to new replicas, and in how large a piece: what a driver answers when it is asked for
//! its capacity. The rules are those of placement, so that what is offered is what a replica would get.

use std::collections::BTreeSet;

use tether_crd::Node;

use super::filter::{promise_limit, space, tags, takes_replicas};
use super::{Host, Policy};

/// What one disk offers, and to whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    pub bytes: i64,
    pub node_tags: BTreeSet<String>,
    pub disk_tags: BTreeSet<String>,
}

/// Sums of offers, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// On all disks together.
    pub total: i64,
    /// On the one disk that has most: a replica does not span disks.
    pub largest: i64,
}

/// What the disks of a node offer; nothing where the node takes no replicas. Disks that can take none are left out.
pub fn offers(node: &Node, policy: &Policy) -> Vec<Offer> {
    let host = Host::of(node, None);
    if takes_replicas(&host).is_err() {
        return Vec::new();
    }
    let usable = host.disks.iter().filter(|disk| {
        let flags = disk.allows_scheduling && !disk.is_evicting && disk.is_filesystem;
        flags && disk.not_ready.is_none() && disk.unschedulable.is_none()
    });
    let offer = |disk: &super::Disk| {
        let promised = node.status.disk_status.get(&disk.name).map_or(0, |seen| seen.storage_scheduled);
        space(disk, policy, promised, 0, 0).ok()?;
        let bytes = promise_limit(disk, policy).saturating_sub(promised).max(0);
        Some(Offer { bytes, node_tags: host.tags.clone(), disk_tags: disk.tags.clone() })
    };
    usable.filter_map(offer).collect()
}

/// The offers that a volume with these selectors may take up.
pub fn room<'a>(
    offers: impl IntoIterator<Item = &'a Offer>,
    node_selector: &BTreeSet<String>,
    disk_selector: &BTreeSet<String>,
    policy: &Policy,
) -> Room {
    let fits = |offer: &&Offer| {
        tags("node", &offer.node_tags, node_selector, policy.empty_node_selector_fits_all).is_ok()
            && tags("disk", &offer.disk_tags, disk_selector, policy.empty_disk_selector_fits_all).is_ok()
    };
    offers.into_iter().filter(fits).fold(Room::default(), |room, offer| Room {
        total: room.total.saturating_add(offer.bytes),
        largest: room.largest.max(offer.bytes),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const GIB: i64 = 1 << 30;

    fn node(change: impl FnOnce(&mut serde_json::Value)) -> Node {
        let yes = json!([{ "type": "Ready", "status": "True" }, { "type": "Schedulable", "status": "True" }]);
        let disk = |uuid: &str, scheduled: i64| {
            json!({ "diskUUID": uuid, "conditions": yes, "storageAvailable": 90 * GIB, "storageMaximum": 100 * GIB,
                    "storageScheduled": scheduled })
        };
        let spec = |tag: &str| json!({ "path": "/d", "allowScheduling": true, "diskType": "filesystem", "storageReserved": 10 * GIB, "tags": [tag] });
        let mut node = json!({
            "apiVersion": "longhorn.io/v1beta2", "kind": "Node", "metadata": { "name": "a" },
            "spec": { "name": "a", "allowScheduling": true, "disks": { "one": spec("ssd"), "two": spec("hdd") } },
            "status": { "conditions": yes, "diskStatus": { "one": disk("u1", 20 * GIB), "two": disk("u2", 0) } },
        });
        change(&mut node);
        serde_json::from_value(node).unwrap()
    }

    fn of(node: &Node, disk_selector: &[&str]) -> Room {
        let selector = disk_selector.iter().map(|tag| (*tag).to_owned()).collect();
        room(&offers(node, &Policy::default()), &BTreeSet::new(), &selector, &Policy::default())
    }

    #[test]
    fn what_is_not_reserved_and_not_promised_is_offered_disk_by_disk() {
        let all = node(|_| ());
        assert_eq!(of(&all, &[]), Room { total: 160 * GIB, largest: 90 * GIB });
        assert_eq!(of(&all, &["ssd"]), Room { total: 70 * GIB, largest: 70 * GIB });
        assert_eq!(of(&all, &["nvme"]), Room::default());
        let twice = Policy { over_provisioning_percent: 200, ..Policy::default() };
        assert_eq!(offers(&all, &twice).iter().map(|offer| offer.bytes).collect::<Vec<_>>(), [160 * GIB, 180 * GIB]);
    }

    #[test]
    fn nothing_is_offered_where_placement_would_refuse() {
        let refusals: [fn(&mut serde_json::Value); 6] = [
            |node| node["spec"]["allowScheduling"] = false.into(),
            |node| node["spec"]["evictionRequested"] = true.into(),
            |node| node["status"]["conditions"][0]["status"] = "False".into(),
            |node| node["status"]["conditions"][1]["status"] = "False".into(),
            |node| {
                for disk in ["one", "two"] {
                    node["status"]["diskStatus"][disk]["storageAvailable"] = json!(20 * GIB);
                }
            },
            |node| {
                for disk in ["one", "two"] {
                    node["spec"]["disks"][disk]["allowScheduling"] = false.into();
                }
            },
        ];
        for (number, refuse) in refusals.into_iter().enumerate() {
            assert_eq!(of(&node(refuse), &[]), Room::default(), "case {number}");
        }
        let full = node(|node| node["status"]["diskStatus"]["two"]["storageScheduled"] = json!(95 * GIB));
        assert_eq!(of(&full, &[]), Room { total: 70 * GIB, largest: 70 * GIB }, "more was promised than there is");
    }
}
