//! Where pods go, and what they are told when there is no place.

use k8s_openapi::api::core::v1::{
    Affinity, CSIPersistentVolumeSource, Node, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    PersistentVolume, PersistentVolumeClaim, Pod, PreferredSchedulingTerm, VolumeNodeAffinity,
};
use k8s_openapi::api::storage::v1::{
    CSIDriver, CSINode, CSINodeDriver, CSINodeSpec, CSIStorageCapacity, StorageClass, VolumeNodeResources,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use proptest::prelude::*;
use tether_plan::Plan;
use tether_plan::schedule::volumes::Volumes;
use tether_plan::schedule::{Change, NodeView, Observed, decide};

use crate::build::*;

#[derive(Clone, Debug, Default)]
struct Cluster {
    nodes: Vec<Node>,
    pods: Vec<Pod>,
    claims: Vec<PersistentVolumeClaim>,
    volumes: Vec<PersistentVolume>,
    classes: Vec<StorageClass>,
    csi_nodes: Vec<CSINode>,
    csi_drivers: Vec<CSIDriver>,
    capacities: Vec<CSIStorageCapacity>,
}

fn name<K: k8s_openapi::Metadata<Ty = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta>>(object: &K) -> &str {
    object.metadata().name.as_deref().unwrap()
}

impl Cluster {
    fn place(&self, pod: &Pod) -> Plan<Change> {
        let on = |node: &Node| -> Vec<&Pod> {
            self.pods.iter().filter(|p| p.spec.as_ref().unwrap().node_name.as_deref() == Some(name(node))).collect()
        };
        let mut volumes = Volumes {
            claims: self.claims.iter().map(|c| (format!("default/{}", name(c)), c)).collect(),
            volumes: self.volumes.iter().map(|v| (name(v), v)).collect(),
            classes: self.classes.iter().map(|c| (name(c), c)).collect(),
            csi_nodes: self.csi_nodes.iter().map(|n| (name(n), n)).collect(),
            csi_drivers: self.csi_drivers.iter().map(|d| (name(d), d)).collect(),
            capacities: self.capacities.iter().collect(),
            ..Default::default()
        };
        for pod in &self.pods {
            for claim in tether_plan::pod::claim_names(pod) {
                *volumes.users.entry(format!("default/{claim}")).or_default() += 1;
            }
        }
        let nodes = self.nodes.iter().map(|node| NodeView { node, pods: on(node) }).collect();
        decide(pod, &Observed { nodes, volumes }, now())
    }

    /// The node that the pod gets, or what it is told.
    fn outcome(&self, pod: &Pod) -> String {
        let plan = self.place(pod);
        match plan.changes.as_slice() {
            [Change::Bind { node, .. }] => format!("on {node}"),
            [Change::SetConditions { conditions, .. }] => {
                let condition = &conditions[0];
                assert_eq!(condition.reason.as_deref(), Some("Unschedulable"));
                assert_eq!(condition.observed_generation, pod.metadata.generation);
                condition.message.clone().unwrap()
            }
            other => format!("{other:?}"),
        }
    }
}

fn affinity(key: &str, operator: &str, values: &[&str]) -> NodeSelectorTerm {
    let values = values.iter().map(|v| (*v).to_owned()).collect();
    let requirement = NodeSelectorRequirement { key: key.into(), operator: operator.into(), values: Some(values) };
    NodeSelectorTerm { match_expressions: Some(vec![requirement]), match_fields: None }
}

fn node_affinity(pod: &mut Pod) -> &mut NodeAffinity {
    let affinity: &mut Affinity = pod.spec.get_or_insert_default().affinity.get_or_insert_default();
    affinity.node_affinity.get_or_insert_default()
}

fn only_on(mut volume: PersistentVolume, node: &str) -> PersistentVolume {
    let required = NodeSelector { node_selector_terms: vec![affinity("kubernetes.io/hostname", "In", &[node])] };
    volume.spec.as_mut().unwrap().node_affinity = Some(VolumeNodeAffinity { required: Some(required) });
    volume
}

fn three() -> Vec<Node> {
    ["a", "b", "c"]
        .map(|n| node(n).ready("True").labelled("kubernetes.io/hostname", n).has("cpu", "4").has("pods", "10"))
        .into()
}

fn bound(mut claim: PersistentVolumeClaim, volume: &str) -> PersistentVolumeClaim {
    claim.spec.as_mut().unwrap().volume_name = Some(volume.into());
    claim.metadata.annotations = Some([("pv.kubernetes.io/bind-completed".into(), "yes".into())].into());
    claim
}

#[test]
fn the_message_counts_why_not() {
    let mut nodes = three();
    nodes[0] = nodes[0].clone().cordoned();
    nodes[1] = nodes[1].clone().tainted("dedicated", "NoSchedule", 5);
    let cluster = Cluster { nodes, ..Default::default() };
    let pod = pod("web").asking("cpu", "8");
    let plan = cluster.place(&pod);
    golden(
        &Plan { changes: Vec::<()>::new(), events: plan.events, report: plan.report },
        "blocked node-cordon: Node a: NodeUnschedulable: node(s) were unschedulable
         blocked node-taints: Node b: UntoleratedTaint: Untolerated taint {dedicated: }.
         blocked node-resources: Node c: InsufficientResources: Insufficient cpu
         blocked schedule-pod: Pod default/web: Unschedulable: 0/3 nodes are available: 1 Insufficient cpu, 1 node(s) \
                 had untolerated taint(s), 1 node(s) were unschedulable.
         !! Warning FailedScheduling Pod/web: 0/3 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated \
            taint(s), 1 node(s) were unschedulable.",
    );
    assert_eq!(Cluster::default().outcome(&pod), "no nodes available to schedule pods");
    let missing = pod.using("missing");
    assert_eq!(Cluster::default().outcome(&missing), "no nodes available to schedule pods");
}

#[test]
fn selectors_and_required_affinity_bind_preferred_affinity_sways() {
    let cluster = Cluster { nodes: three(), ..Default::default() };
    let mut selected = pod("web");
    selected.spec.get_or_insert_default().node_selector = Some([("kubernetes.io/hostname".into(), "b".into())].into());
    assert_eq!(cluster.outcome(&selected), "on b");

    let mut required = pod("web");
    node_affinity(&mut required).required_during_scheduling_ignored_during_execution =
        Some(NodeSelector { node_selector_terms: vec![affinity("kubernetes.io/hostname", "NotIn", &["a", "b"])] });
    assert_eq!(cluster.outcome(&required), "on c");

    let mut nowhere = pod("web");
    nowhere.spec.get_or_insert_default().node_selector = Some([("disk".into(), "ssd".into())].into());
    let expected = "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.";
    assert_eq!(cluster.outcome(&nowhere), expected);

    let mut preferred = pod("web");
    node_affinity(&mut preferred).preferred_during_scheduling_ignored_during_execution =
        Some(vec![PreferredSchedulingTerm {
            weight: 10,
            preference: affinity("kubernetes.io/hostname", "In", &["c"]),
        }]);
    assert_eq!(cluster.outcome(&preferred), "on c");
}

#[test]
fn the_emptiest_node_is_taken_and_soft_taints_are_shunned() {
    let mut cluster = Cluster { nodes: three(), ..Default::default() };
    cluster.pods = vec![pod("x").on("a").asking("cpu", "1"), pod("y").on("b").asking("cpu", "500m")];
    assert_eq!(cluster.outcome(&pod("web").asking("cpu", "1")), "on c");
    cluster.nodes[2] = cluster.nodes[2].clone().tainted("maintenance", "PreferNoSchedule", 5);
    assert_eq!(cluster.outcome(&pod("web").asking("cpu", "1")), "on b");
    cluster.nodes.iter_mut().for_each(|n| *n = n.clone().has("pods", "1"));
    cluster.pods.push(pod("z").on("c"));
    assert_eq!(cluster.outcome(&pod("web")), "0/3 nodes are available: 3 Too many pods.");
}

#[test]
fn a_bound_volume_draws_the_pod_to_where_it_can_be_reached() {
    let mut cluster = Cluster { nodes: three(), ..Default::default() };
    cluster.claims = vec![bound(claim("data", "1Gi", ""), "v")];
    cluster.volumes = vec![only_on(volume("v", "1Gi", ""), "b")];
    assert_eq!(cluster.outcome(&pod("db").using("data")), "on b");
    cluster.nodes[1] = cluster.nodes[1].clone().cordoned();
    let expected = "0/3 nodes are available: 1 node(s) were unschedulable, 2 node(s) didn't match PersistentVolume's \
                    node affinity.";
    assert_eq!(cluster.outcome(&pod("db").using("data")), expected);
}

#[test]
fn a_pod_whose_claims_cannot_be_used_goes_nowhere() {
    let mut cluster = Cluster { nodes: three(), ..Default::default() };
    let db = pod("db").using("data");
    let expected = "0/3 nodes are available: persistentvolumeclaim \"data\" not found.";
    assert_eq!(cluster.outcome(&db), expected);
    cluster.claims = vec![claim("data", "1Gi", "")];
    let expected = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims.";
    assert_eq!(cluster.outcome(&db), expected);

    let mut alone = bound(claim("data", "1Gi", ""), "v");
    alone.spec.as_mut().unwrap().access_modes = Some(vec!["ReadWriteOncePod".into()]);
    cluster.claims = vec![alone];
    cluster.volumes = vec![volume("v", "1Gi", "")];
    assert_eq!(cluster.outcome(&db), "on a");
    cluster.pods = vec![pod("other").on("c").using("data")];
    let expected = "0/3 nodes are available: 3 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod \
                    access mode already in-use by another pod.";
    assert_eq!(cluster.outcome(&db), expected);
}

#[test]
fn a_waiting_claim_gets_a_volume_of_the_node_or_the_node_is_named_to_its_provisioner() {
    let mut cluster = Cluster { nodes: three(), ..Default::default() };
    cluster.classes = vec![class("late", "WaitForFirstConsumer")];
    cluster.claims = vec![claim("data", "1Gi", "late")];
    cluster.volumes = vec![only_on(volume("local-c", "1Gi", "late"), "c")];
    let db = pod("db").using("data");
    cluster.classes[0].provisioner = "kubernetes.io/no-provisioner".into();
    let plan = cluster.place(&db);
    let [Change::SetClaimRef { volume: chosen, mark: true, .. }] = plan.changes.as_slice() else { panic!("{plan}") };
    assert_eq!(chosen.name, "local-c");

    cluster.volumes.clear();
    let expected = "0/3 nodes are available: 3 node(s) didn't find available persistent volumes to bind.";
    assert_eq!(cluster.outcome(&db), expected);

    cluster.classes[0].provisioner = "driver.example.com".into();
    let plan = cluster.place(&db);
    let [Change::SelectNode { node, .. }] = plan.changes.as_slice() else { panic!("{plan}") };
    assert_eq!(node, "a");

    cluster.claims[0].metadata.annotations = Some([("volume.kubernetes.io/selected-node".into(), "b".into())].into());
    let plan = cluster.place(&db);
    assert!(plan.changes.is_empty(), "it waits for the provisioner: {plan}");
    assert!(plan.to_string().contains("blocked schedule-pod: Pod default/db: VolumesBinding"), "{plan}");

    cluster.claims = vec![bound(cluster.claims.remove(0), "made")];
    cluster.volumes = vec![only_on(volume("made", "1Gi", "late"), "b")];
    assert_eq!(cluster.outcome(&db), "on b");
}

#[test]
fn a_pod_goes_where_its_volume_was_made_for_although_others_reach_it() {
    let mut cluster = Cluster { nodes: three(), ..Default::default() };
    let mut data = bound(claim("data", "1Gi", "late"), "made");
    data.metadata.annotations.as_mut().unwrap().insert("volume.kubernetes.io/selected-node".into(), "b".into());
    cluster.claims = vec![data];
    cluster.volumes = vec![volume("made", "1Gi", "late")];
    let made = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(after(-5));
    cluster.volumes[0].metadata.creation_timestamp = Some(made);
    assert_eq!(cluster.outcome(&pod("db").using("data").created(6)), "on b");
    assert_eq!(cluster.outcome(&pod("db").using("data").created(4)), "on a", "the volume was there before it");
    cluster.nodes[1] = cluster.nodes[1].clone().cordoned();
    assert_eq!(cluster.outcome(&pod("db").using("data").created(6)), "on a", "any node that can is better than none");
}

fn capacity(class: &str, node: &str, bytes: &str, largest: Option<&str>) -> CSIStorageCapacity {
    CSIStorageCapacity {
        metadata: meta("system", &format!("{class}-{node}")),
        storage_class_name: class.into(),
        node_topology: Some(LabelSelector {
            match_labels: Some([("kubernetes.io/hostname".to_owned(), node.to_owned())].into()),
            ..Default::default()
        }),
        capacity: Some(Quantity(bytes.into())),
        maximum_volume_size: largest.map(|largest| Quantity(largest.into())),
    }
}

#[test]
fn a_volume_is_made_only_for_a_node_whose_driver_has_room_for_it() {
    let mut cluster = Cluster { nodes: three(), ..Default::default() };
    cluster.classes = vec![class("late", "WaitForFirstConsumer")];
    cluster.claims = vec![claim("data", "1Gi", "late")];
    let db = pod("db").using("data");
    let selected = |cluster: &Cluster| match cluster.place(&db).changes.as_slice() {
        [Change::SelectNode { node, .. }] => node.clone(),
        _ => cluster.outcome(&db),
    };
    cluster.csi_drivers = vec![CSIDriver { metadata: meta("", "driver.example.com"), ..Default::default() }];
    assert_eq!(selected(&cluster), "a", "a driver that does not publish its capacity is not held to it");

    cluster.csi_drivers[0].spec.storage_capacity = Some(true);
    let nowhere = "0/3 nodes are available: 3 node(s) did not have enough free storage.";
    assert_eq!(selected(&cluster), nowhere, "what is not published is not there");
    cluster.capacities = vec![
        capacity("late", "a", "5Gi", Some("512Mi")),
        capacity("other", "b", "5Gi", None),
        capacity("late", "b", "1023Mi", None),
    ];
    assert_eq!(selected(&cluster), nowhere, "too small a piece, another class, too little");
    cluster.capacities.push(capacity("late", "c", "1Gi", None));
    assert_eq!(selected(&cluster), "c");
    cluster.capacities[3].node_topology = None;
    assert_eq!(selected(&cluster), nowhere, "no node reaches it");

    cluster.claims[0].metadata.annotations = Some([("volume.kubernetes.io/selected-node".into(), "b".into())].into());
    let plan = cluster.place(&db);
    assert!(plan.changes.is_empty(), "the volume that is being made there may be what takes the room: {plan}");
    cluster.claims[0].metadata.annotations = None;
    cluster.volumes = vec![volume("free", "1Gi", "late")];
    assert!(
        matches!(cluster.place(&db).changes[..], [Change::SetClaimRef { .. }]),
        "a volume that exists needs no room"
    );
}

#[test]
fn a_node_takes_no_more_volumes_than_its_driver_can_attach() {
    let mut cluster = Cluster { nodes: three(), ..Default::default() };
    for (i, on) in [(0, "a"), (1, "a"), (2, "b")] {
        let mut volume = volume(&format!("v{i}"), "1Gi", "");
        volume.spec.as_mut().unwrap().csi = Some(CSIPersistentVolumeSource {
            driver: "driver.example.com".into(),
            volume_handle: format!("h{i}"),
            ..Default::default()
        });
        cluster.volumes.push(volume);
        cluster.claims.push(bound(claim(&format!("c{i}"), "1Gi", ""), &format!("v{i}")));
        cluster.pods.push(pod(&format!("p{i}")).on(on).using(&format!("c{i}")));
    }
    let limited = |node: &str, count: i32| CSINode {
        metadata: meta("", node),
        spec: CSINodeSpec {
            drivers: vec![CSINodeDriver {
                name: "driver.example.com".into(),
                node_id: node.into(),
                allocatable: Some(VolumeNodeResources { count: Some(count) }),
                topology_keys: None,
            }],
        },
    };
    cluster.csi_nodes = vec![limited("a", 2), limited("b", 1), limited("c", 0)];
    let (fourth, shared) = (cluster.volumes[0].clone(), pod("shared").using("c0"));
    assert_eq!(cluster.outcome(&shared), "on a", "a volume that is there already is not a new one");
    cluster.volumes.push(PersistentVolume { metadata: meta("", "v3"), ..fourth });
    cluster.volumes[3].spec.as_mut().unwrap().csi.as_mut().unwrap().volume_handle = "h3".into();
    cluster.claims.push(bound(claim("c3", "1Gi", ""), "v3"));
    let expected = "0/3 nodes are available: 3 node(s) exceed max volume count.";
    assert_eq!(cluster.outcome(&pod("more").using("c3")), expected);
}

#[test]
fn pods_that_are_not_its_own_are_left_alone() {
    let cluster = Cluster { nodes: three(), ..Default::default() };
    let mut other = pod("other");
    other.spec.get_or_insert_default().scheduler_name = Some("mine".into());
    let mut gated = pod("gated");
    gated.spec.get_or_insert_default().scheduling_gates =
        Some(vec![k8s_openapi::api::core::v1::PodSchedulingGate { name: "wait".into() }]);
    for pod in [other, gated, pod("placed").on("a"), pod("leaving").deleting()] {
        assert!(cluster.place(&pod).changes.is_empty());
    }
}

prop_compose! {
    fn any_cluster()(
        nodes in prop::collection::vec((any::<bool>(), any::<bool>(), 0..3_u8, 1..5_u8), 0..5),
        pods in prop::collection::vec((0..5_usize, 0..3_u8), 0..8),
        reach in prop::option::of(0..5_usize),
    ) -> Cluster {
        let mut cluster = Cluster::default();
        for (i, (cordoned, tainted, zone, cpu)) in nodes.into_iter().enumerate() {
            let mut built = node(&format!("n{i}")).ready("True").has("cpu", &cpu.to_string()).has("pods", "3")
                .labelled("zone", &zone.to_string()).labelled("kubernetes.io/hostname", &format!("n{i}"));
            if cordoned { built = built.cordoned(); }
            if tainted { built = built.tainted("k", "NoSchedule", 1); }
            cluster.nodes.push(built);
        }
        for (i, (on, cpu)) in pods.into_iter().enumerate() {
            cluster.pods.push(pod(&format!("p{i}")).on(&format!("n{on}")).asking("cpu", &cpu.to_string()));
        }
        cluster.claims = vec![bound(claim("data", "1Gi", ""), "v")];
        let v = volume("v", "1Gi", "");
        cluster.volumes = vec![match reach { Some(n) => only_on(v, &format!("n{n}")), None => v }];
        cluster
    }
}

proptest! {
    /// A pod that gets a node satisfies every filter there, said again in other words; one that gets none could have
    /// gone nowhere.
    #[test]
    fn a_scheduled_pod_satisfies_every_filter(
        cluster in any_cluster(),
        cpu in 0..4_i64,
        tolerates in any::<bool>(),
        zone in prop::option::of(0..3_u8),
        uses in any::<bool>(),
    ) {
        let mut web = pod("web").asking("cpu", &cpu.to_string());
        if tolerates { web = web.tolerating("k", None); }
        if uses { web = web.using("data"); }
        if let Some(zone) = zone {
            web.spec.as_mut().unwrap().node_selector = Some([("zone".into(), zone.to_string())].into());
        }
        let possible = |node: &Node| {
            let on: Vec<&Pod> = cluster.pods.iter().filter(|p| p.spec.as_ref().unwrap().node_name.as_deref() == Some(name(node))).collect();
            let asked = |p: &Pod| -> i64 {
                p.spec.as_ref().unwrap().containers[0].resources.as_ref().unwrap().requests.as_ref().unwrap()["cpu"].0.parse().unwrap()
            };
            let has: i64 = node.status.as_ref().unwrap().allocatable.as_ref().unwrap()["cpu"].0.parse().unwrap();
            let labels = node.metadata.labels.as_ref().unwrap();
            let spec = node.spec.clone().unwrap_or_default();
            let terms = cluster.volumes[0].spec.as_ref().unwrap().node_affinity.as_ref();
            let reachable = terms.is_none_or(|a| {
                let term = &a.required.as_ref().unwrap().node_selector_terms[0].match_expressions.as_ref().unwrap()[0];
                term.values.as_ref().unwrap().iter().any(|v| v == name(node))
            });
            spec.unschedulable != Some(true)
                && (tolerates || spec.taints.is_none())
                && zone.is_none_or(|z| labels["zone"] == z.to_string())
                && (cpu == 0 || on.iter().map(|p| asked(p)).sum::<i64>() + cpu <= has)
                && on.len() < 3
                && (!uses || reachable)
        };
        let plan = cluster.place(&web);
        match plan.changes.as_slice() {
            [Change::Bind { node, .. }] => {
                let chosen = cluster.nodes.iter().find(|n| name(*n) == node).unwrap();
                prop_assert!(possible(chosen), "{}", plan);
            }
            [Change::SetConditions { conditions, .. }] => {
                prop_assert!(!cluster.nodes.iter().any(possible), "{}", plan);
                let mut told = web.clone();
                told.status.get_or_insert_default().conditions = Some(conditions.clone());
                prop_assert!(cluster.place(&told).changes.is_empty(), "deciding twice changes nothing");
            }
            other => prop_assert!(false, "{other:?}"),
        }
    }
}
