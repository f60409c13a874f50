//! Placement: tables of places and refusals, and what holds whatever the cluster looks like.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const GIB: i64 = 1 << 30;

fn disk(name: &str) -> Disk {
    Disk {
        name: name.into(),
        uuid: format!("uuid-{name}"),
        path: format!("/data/{name}"),
        is_filesystem: true,
        allows_scheduling: true,
        available: 80 * GIB,
        maximum: 100 * GIB,
        reserved: 10 * GIB,
        ..Default::default()
    }
}

/// A node that is fine, with one disk of the same name.
fn host(name: &str) -> Host {
    Host {
        name: name.into(),
        allows_scheduling: true,
        manager: Manager::Running,
        disks: vec![disk(name)],
        ..Default::default()
    }
}

fn hosts(all: impl IntoIterator<Item = Host>) -> Hosts {
    all.into_iter().map(|host| (host.name.clone(), host)).collect()
}

fn wish() -> Wish {
    Wish { size: 10 * GIB, ..Default::default() }
}

fn on(node: &str) -> Sibling {
    Sibling { node: node.into(), disk: format!("uuid-{node}"), is_evicting: false }
}

fn leaving(node: &str) -> Sibling {
    Sibling { is_evicting: true, ..on(node) }
}

fn set(words: &[&str]) -> BTreeSet<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// The node that is chosen, or why none is.
fn outcome(wish: &Wish, policy: &Policy, hosts: &Hosts, siblings: &[Sibling]) -> String {
    match place(wish, policy, hosts, &Promised::new(), siblings) {
        Ok(spot) => spot.node,
        Err(no) => format!("{}: {no}", no.summary()),
    }
}

#[test]
fn a_node_that_is_not_possible_says_why() {
    type Change = fn(&mut Host);
    let table: &[(Change, &str)] = &[
        (|h| h.is_deleting = true, "nodes are unavailable: node a: it is being deleted"),
        (
            |h| h.not_ready = Some("KubernetesNodeNotReady".into()),
            "nodes are unavailable: node a: it is not ready: KubernetesNodeNotReady",
        ),
        (
            |h| h.unschedulable = Some("KubernetesNodeCordoned".into()),
            "nodes are unavailable: node a: nothing may be scheduled to it: KubernetesNodeCordoned",
        ),
        (|h| h.allows_scheduling = false, "nodes are unavailable: node a: spec.allowScheduling is false"),
        (|h| h.is_evicting = true, "nodes are unavailable: node a: spec.evictionRequested is true"),
        (|h| h.manager = Manager::Unknown, "nodes are unavailable: node a: its instance manager is unknown"),
        (|h| h.manager = Manager::Starting, "a"),
        (|h| h.disks.clear(), "disks are unavailable: node a: it has no disk"),
        (
            |h| h.disks[0].not_ready = Some("DiskFilesystemChanged".into()),
            "disks are unavailable: node a, disk a: it is not ready: DiskFilesystemChanged",
        ),
        (
            |h| h.disks[0].unschedulable = Some("DiskPressure".into()),
            "disks are unavailable: node a, disk a: nothing more may be put on it: DiskPressure",
        ),
        (
            |h| h.disks[0].allows_scheduling = false,
            "disks are unavailable: node a, disk a: its allowScheduling is false",
        ),
        (|h| h.disks[0].is_evicting = true, "disks are unavailable: node a, disk a: its evictionRequested is true"),
        (
            |h| h.disks[0].is_filesystem = false,
            "disks are unavailable: node a, disk a: it is a block disk, and replicas are files",
        ),
        (|h| h.disks[0].available = 0, "insufficient storage: node a, disk a: its size is not known, or it is full"),
    ];
    for (change, expected) in table {
        let mut changed = host("a");
        change(&mut changed);
        assert_eq!(outcome(&wish(), &Policy::default(), &hosts([changed]), &[]), *expected);
    }
    assert_eq!(outcome(&wish(), &Policy::default(), &Hosts::new(), &[]), "nodes are unavailable: there is no node");
}

#[test]
fn selectors_affinity_and_topology_narrow_the_choice() {
    let mut tagged = host("b");
    tagged.tags = set(&["ssd", "fast"]);
    tagged.disks[0].tags = set(&["nvme"]);
    tagged.zone = "z1".into();
    tagged.region = "r1".into();
    let all = hosts([host("a"), tagged]);
    let policy = Policy::default();
    let table = [
        (Wish { node_selector: set(&["ssd"]), ..wish() }, "b"),
        (Wish { disk_selector: set(&["nvme"]), ..wish() }, "b"),
        (Wish { only_node: Some("b".into()), ..wish() }, "b"),
        (Wish { prefer_node: Some("b".into()), ..wish() }, "b"),
        (Wish { prefer_node: Some("gone".into()), ..wish() }, "a"),
        (Wish { topology: vec![("z1".into(), String::new())], ..wish() }, "b"),
        (Wish { topology: vec![("z9".into(), String::new()), (String::new(), "r1".into())], ..wish() }, "b"),
        (
            Wish { node_selector: set(&["ssd", "big"]), ..wish() },
            "tags not fulfilled: node a: the node lacks the tags big, ssd; node b: the node lacks the tags big",
        ),
        (
            Wish { only_node: Some("c".into()), ..wish() },
            "hard affinity cannot be satisfied: node a: the replica is for another node; \
             node b: the replica is for another node",
        ),
    ];
    for (wish, expected) in table {
        assert_eq!(outcome(&wish, &policy, &all, &[]), expected, "{wish:?}");
    }
    let strict = Policy { empty_node_selector_fits_all: false, ..policy };
    assert_eq!(
        outcome(&wish(), &strict, &all, &[on("a")]).split(':').next(),
        Some("tags not fulfilled; replica scheduling failed")
    );
}

#[test]
fn space_is_promised_within_limits() {
    let mut small = host("a");
    small.disks[0] = Disk { maximum: 100, available: 60, reserved: 20, ..disk("a") };
    let all = hosts([small]);
    let fits = |size: i64, actual_size: i64, promised: i64, policy: &Policy| {
        let promised = Promised::from([("uuid-a".to_owned(), promised)]);
        place(&Wish { size, actual_size, ..Default::default() }, policy, &all, &promised, &[]).is_ok()
    };
    let policy = Policy::default();
    let table = [
        // size, actual, promised, over-provisioning, minimal available, fits
        (80, 0, 0, 100, 25, true),
        (81, 0, 0, 100, 25, false),
        (10, 0, 70, 100, 25, true),
        (11, 0, 70, 100, 25, false),
        (160, 0, 0, 200, 25, true),
        (161, 0, 0, 200, 25, false),
        // More than a quarter of the disk has to stay free with the data on it.
        (80, 34, 0, 100, 25, true),
        (80, 35, 0, 100, 25, false),
        (80, 59, 0, 100, 0, true),
        (i64::MAX, i64::MAX, i64::MAX, 100, 25, false),
    ];
    for (size, actual, promised, over, minimal, expected) in table {
        let policy = Policy { over_provisioning_percent: over, minimal_available_percent: minimal, ..policy.clone() };
        assert_eq!(fits(size, actual, promised, &policy), expected, "{size} {actual} {promised} {over} {minimal}");
    }
}

#[test]
fn replicas_spread_over_zones_then_nodes_then_disks() {
    let zoned = |name: &str, zone: &str| Host { zone: zone.into(), ..host(name) };
    let all = hosts([zoned("a", "z1"), zoned("b", "z1"), zoned("c", "z2")]);
    let both_hard = Policy { zone_soft: false, ..Policy::default() };
    let both_soft = Policy { node_soft: true, ..Policy::default() };
    let full = "replica scheduling failed";
    let table: &[(&Policy, &[Sibling], &str)] = &[
        (&Policy::default(), &[], "a"),
        (&Policy::default(), &[on("a")], "c"),
        (&Policy::default(), &[on("a"), on("c")], "b"),
        (&Policy::default(), &[on("a"), on("b"), on("c")], full),
        // A node whose only replica leaves can take the one that replaces it.
        (&Policy::default(), &[on("a"), on("c"), leaving("b")], "b"),
        (&both_hard, &[on("a")], "c"),
        (&both_hard, &[on("a"), on("c")], full),
        (&both_hard, &[on("c"), leaving("a")], "b"),
        (&both_soft, &[on("a"), on("b"), on("c")], "a"),
        (&both_soft, &[on("a"), on("c")], "b"),
        // A replica on a node that is gone takes nobody's place.
        (&both_hard, &[on("gone")], "a"),
    ];
    for (policy, siblings, expected) in table {
        let found = outcome(&wish(), policy, &all, siblings);
        assert_eq!(found.split(':').next(), Some(*expected), "{siblings:?}: {found}");
    }

    let mut two = host("a");
    two.disks.push(disk("second"));
    let all = hosts([two]);
    let spot = |policy: &Policy, siblings: &[Sibling]| {
        place(&wish(), policy, &all, &Promised::new(), siblings).map(|spot| spot.disk)
    };
    assert_eq!(spot(&both_soft, &[on("a")]).as_deref(), Ok("uuid-second"), "a free disk is preferred");
    let second = Sibling { disk: "uuid-second".into(), ..on("a") };
    assert!(spot(&both_soft, &[on("a"), second.clone()]).is_ok());
    let disks_hard = Policy { disk_soft: false, ..both_soft };
    assert!(spot(&disks_hard, &[on("a"), second]).is_err());
}

#[test]
fn the_place_with_the_most_room_is_taken() {
    let all = hosts(["a", "b", "c"].map(host));
    let promised =
        Promised::from([("uuid-a".into(), 30 * GIB), ("uuid-b".into(), 10 * GIB), ("uuid-c".into(), 20 * GIB)]);
    let spot = place(&wish(), &Policy::default(), &all, &promised, &[]).unwrap();
    assert_eq!(spot, Spot { node: "b".into(), disk: "uuid-b".into(), disk_path: "/data/b".into() });
}

fn any_host(index: usize) -> impl Strategy<Value = Host> {
    let flags = (any::<bool>(), any::<bool>(), 0..3_u8, 0..100_i64, 0..100_i64, 0..3_u8);
    flags.prop_map(move |(ready, allows, zone, available, reserved, disks)| {
        let mut made = host(&format!("n{index}"));
        made.not_ready = (!ready).then(|| "KubernetesNodeNotReady".to_owned());
        made.allows_scheduling = allows;
        made.zone = format!("z{zone}");
        made.disks = (0..disks)
            .map(|d| Disk { available: available * GIB, reserved: reserved * GIB, ..disk(&format!("n{index}d{d}")) })
            .collect();
        made
    })
}

fn any_hosts() -> impl Strategy<Value = Hosts> {
    (0..6_usize).prop_flat_map(|count| (0..count).map(any_host).collect::<Vec<_>>()).prop_map(hosts)
}

proptest! {
    /// Whatever is chosen is allowed; and if nothing is, every node says why.
    #[test]
    fn a_place_is_allowed_and_a_refusal_is_complete(
        all in any_hosts(), policy in any::<(bool, bool, bool)>(), taken in prop::collection::vec(0..6_usize, 0..4),
    ) {
        let policy = Policy { node_soft: policy.0, zone_soft: policy.1, disk_soft: policy.2, ..Policy::default() };
        let siblings: Vec<Sibling> =
            taken.iter().map(|n| Sibling { node: format!("n{n}"), disk: format!("uuid-n{n}d0"), is_evicting: false }).collect();
        match place(&wish(), &policy, &all, &Promised::new(), &siblings) {
            Ok(spot) => {
                let chosen = &all[&spot.node];
                prop_assert!(chosen.not_ready.is_none() && chosen.allows_scheduling);
                prop_assert!(policy.node_soft || siblings.iter().all(|s| s.node != spot.node));
                prop_assert!(policy.disk_soft || siblings.iter().all(|s| s.disk != spot.disk));
                let zone = |s: &Sibling| all.get(&s.node).map(|host| host.zone.clone());
                prop_assert!(policy.zone_soft || siblings.iter().all(|s| zone(s).as_ref() != Some(&chosen.zone)));
                let disk = chosen.disks.iter().find(|disk| disk.uuid == spot.disk).unwrap();
                prop_assert!(wish().size <= disk.maximum - disk.reserved);
            }
            Err(no) => {
                for host in all.values() {
                    let told = no.refusals.iter().filter(|refusal| refusal.node == host.name).count();
                    prop_assert_eq!(told, if no.refusals.iter().any(|r| r.node == host.name && r.disk.is_none()) { 1 } else { host.disks.len() });
                }
            }
        }
    }

    /// Many replicas, placed one after the other, never break a promise, and no two nodes that are equal end up more than
    /// one replica apart.
    #[test]
    fn room_stays_even(count in 1..40_usize, nodes in 1..6_usize) {
        let all = hosts((0..nodes).map(|n| host(&format!("n{n}"))));
        let mut promised = Promised::new();
        for _ in 0..count {
            let Ok(spot) = place(&wish(), &Policy::default(), &all, &promised, &[]) else { break };
            *promised.entry(spot.disk).or_default() += wish().size;
        }
        for held in promised.values() {
            prop_assert!(*held <= 90 * GIB);
        }
        let of = |n: usize| promised.get(&format!("uuid-n{n}")).copied().unwrap_or(0);
        let (most, least) = ((0..nodes).map(of).max().unwrap(), (0..nodes).map(of).min().unwrap());
        prop_assert!(most - least <= wish().size);
    }
}
