//! From the last sign of life to the taints.

use k8s_openapi::api::core::v1::Node;
use proptest::prelude::*;
use tether_plan::Plan;
use tether_plan::node::lifecycle::{Change, Observed, Settings, decide};

use crate::build::*;

const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const NOT_READY: &str = "node.kubernetes.io/not-ready";

fn look(nodes: &[(Node, i64)]) -> Plan<Change> {
    let observed: Vec<Observed<'_>> =
        nodes.iter().map(|(node, silent)| Observed { node, silent_for: seconds(*silent), is_certain: true }).collect();
    decide(&observed, &Settings::default(), now())
}

/// The node as it is after the plan.
fn apply(nodes: &mut [(Node, i64)], plan: Plan<Change>) {
    for change in plan.changes {
        let (Change::SetConditions { node: target, .. } | Change::SetTaints { node: target, .. }) = &change else {
            panic!("nothing is uncertain here")
        };
        let (node, _) = nodes.iter_mut().find(|(n, _)| n.metadata.uid.as_ref() == Some(&target.uid)).unwrap();
        match change {
            Change::SetConditions { conditions, .. } => {
                node.status.get_or_insert_default().conditions = Some(conditions);
            }
            Change::SetTaints { taints, .. } => node.spec.get_or_insert_default().taints = Some(taints),
            Change::CheckLease { .. } => {}
        }
    }
}

fn taints(node: &Node) -> Vec<String> {
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_deref()).unwrap_or_default();
    taints.iter().map(|t| format!("{}:{}", t.key, t.effect)).collect()
}

#[test]
fn a_silent_node_becomes_unknown_with_kubernetes_words() {
    let plan = look(&[(node("a").ready("True"), 51), (node("b").ready("True"), 50)]);
    let Change::SetConditions { node, conditions } = &plan.changes[0] else { panic!("{plan}") };
    assert_eq!((plan.changes.len(), node.name.as_str()), (1, "a"));
    for condition in conditions {
        assert_eq!(condition.status, "Unknown");
        assert_eq!(condition.reason.as_deref(), Some("NodeStatusUnknown"));
        assert_eq!(condition.message.as_deref(), Some("Kubelet stopped posting node status."));
        assert_eq!(condition.last_transition_time.as_ref().unwrap().0, now());
    }
    assert_eq!(format!("{:?}", plan.events), "[Normal NodeNotReady Node/a: Node a status is now: NodeNotReady]");
    assert_eq!(plan.wake_at(), Some(now() + jiff::SignedDuration::from_millis(1)), "b is due right after its grace");
}

#[test]
fn silence_is_checked_before_it_counts() {
    let silent = node("a").ready("True");
    let observed = [Observed { node: &silent, silent_for: seconds(51), is_certain: false }];
    let plan = decide(&observed, &Settings::default(), now());
    golden(
        &plan,
        "asks    node-heartbeat: Node a: NodeSilent: Nothing was heard for 51s.
         rests   node-condition-taints: Node a: UpToDate: The NoSchedule taints agree with the node's conditions.
         rests   node-eviction-taint: Node a: NodeAlive: The node needs no NoExecute taint.
         => CheckLease { node: \"a\" }",
    );
}

#[test]
fn a_node_that_never_posted_its_status_gets_the_longer_grace() {
    assert!(look(&[(node("a"), 60)]).changes.is_empty());
    let plan = look(&[(node("a"), 61)]);
    let Change::SetConditions { conditions, .. } = &plan.changes[0] else { panic!("{plan}") };
    assert_eq!(conditions.len(), 4);
    assert_eq!(conditions[0].reason.as_deref(), Some("NodeStatusNeverUpdated"));
    assert_eq!(conditions[0].message.as_deref(), Some("Kubelet never posted node status."));
    assert!(plan.events.is_empty(), "it never was Ready");
}

#[test]
fn conditions_and_the_cordon_become_taints_and_foreign_taints_stay() {
    let mut pressed = node("a").ready("True").tainted("dedicated", "NoSchedule", 9).cordoned();
    pressed.status.as_mut().unwrap().conditions.as_mut().unwrap()[2].status = "True".into();
    let mut nodes = [(pressed, 0), (node("b").ready("True"), 0)];
    let plan = look(&nodes);
    apply(&mut nodes, plan);
    assert_eq!(
        taints(&nodes[0].0),
        [
            "dedicated:NoSchedule",
            "node.kubernetes.io/disk-pressure:NoSchedule",
            "node.kubernetes.io/unschedulable:NoSchedule"
        ]
    );
    nodes[0].0.spec.as_mut().unwrap().unschedulable = None;
    nodes[0].0.status.as_mut().unwrap().conditions.as_mut().unwrap()[2].status = "False".into();
    let plan = look(&nodes);
    apply(&mut nodes, plan);
    assert_eq!(taints(&nodes[0].0), ["dedicated:NoSchedule"]);
}

#[test]
fn an_unknown_node_is_tainted_for_scheduling_and_execution_and_both_go_when_it_is_back() {
    let mut nodes = [(node("a").ready("Unknown"), 90), (node("b").ready("True"), 0)];
    let plan = look(&nodes);
    golden(
        &plan,
        "rests   node-heartbeat: Node a: NodeStatusUnknown: The node's conditions are Unknown already.
         acts    node-condition-taints: Node a: TaintsFollowConditions: The node's conditions ask for these NoSchedule \
                 taints: [node.kubernetes.io/unreachable].
         acts    node-eviction-taint: Node a: TaintsFollowConditions: The node is Unknown: taint \
                 node.kubernetes.io/unreachable:NoExecute.
         waits   node-heartbeat: Node b: NodeAlive: Last sign of life 0s ago. (until 2027-01-15T08:00:50.001Z)
         rests   node-condition-taints: Node b: UpToDate: The NoSchedule taints agree with the node's conditions.
         rests   node-eviction-taint: Node b: NodeAlive: The node needs no NoExecute taint.
         => SetTaints { node: a@1, taints: [Taint { effect: \"NoSchedule\", key: \"node.kubernetes.io/unreachable\", \
            time_added: Some(Time(2027-01-15T08:00:00Z)), value: None }, Taint { effect: \"NoExecute\", key: \
            \"node.kubernetes.io/unreachable\", time_added: Some(Time(2027-01-15T08:00:00Z)), value: None }] }",
    );
    apply(&mut nodes, plan);
    assert_eq!(look(&nodes).changes, vec![], "deciding twice changes nothing");
    nodes[0].0.status.as_mut().unwrap().conditions = node("a").ready("True").status.unwrap().conditions;
    nodes[0].1 = 0;
    let plan = look(&nodes);
    apply(&mut nodes, plan);
    assert!(taints(&nodes[0].0).is_empty());
}

#[test]
fn not_ready_and_unreachable_exclude_each_other() {
    let tainted = node("a").ready("False").tainted(UNREACHABLE, "NoExecute", 100);
    let mut nodes = [(tainted, 0), (node("b").ready("True"), 0)];
    let plan = look(&nodes);
    apply(&mut nodes, plan);
    assert_eq!(taints(&nodes[0].0), [format!("{NOT_READY}:NoSchedule"), format!("{NOT_READY}:NoExecute")]);
}

#[test]
fn one_node_of_a_zone_is_evicted_in_ten_seconds() {
    let mut nodes = [
        (node("a").ready("Unknown"), 90),
        (node("b").ready("Unknown"), 90),
        (node("c").ready("True"), 0),
        (node("far").ready("Unknown").labelled("topology.kubernetes.io/zone", "z2"), 90),
        (node("far-too").ready("True").labelled("topology.kubernetes.io/zone", "z2"), 0),
    ];
    let plan = look(&nodes);
    assert_eq!(plan.wake_at(), Some(after(10)), "{plan}");
    apply(&mut nodes, plan);
    let evicting = |node: &Node| taints(node).contains(&format!("{UNREACHABLE}:NoExecute"));
    assert_eq!(nodes.iter().map(|(n, _)| evicting(n)).collect::<Vec<_>>(), [true, false, false, true, false]);
}

#[test]
fn while_no_node_is_ready_nothing_is_evicted() {
    let mut nodes =
        [(node("a").ready("Unknown").tainted(UNREACHABLE, "NoExecute", 20), 90), (node("b").ready("Unknown"), 90)];
    let plan = look(&nodes);
    apply(&mut nodes, plan);
    for (node, _) in &nodes {
        assert_eq!(taints(node), [format!("{UNREACHABLE}:NoSchedule")]);
    }
}

#[test]
fn evictions_stop_in_a_small_zone_that_is_mostly_away() {
    let mut nodes: Vec<(Node, i64)> = (0..3).map(|i| (node(&format!("away{i}")).ready("Unknown"), 90)).collect();
    nodes.push((node("here").ready("True"), 0));
    let plan = look(&nodes);
    assert!(plan.to_string().contains("blocked node-eviction-taint: Node away0: ZoneUnhealthy"), "{plan}");
    apply(&mut nodes, plan);
    assert!(nodes.iter().all(|(n, _)| !taints(n).contains(&format!("{UNREACHABLE}:NoExecute"))));
}

prop_compose! {
    fn any_node(index: usize)(
        ready in prop::sample::select(vec!["", "True", "False", "Unknown"]),
        silent in 0..120_i64,
        cordoned in any::<bool>(),
        zone in prop::option::of(prop::sample::select(vec!["z1", "z2"])),
        tainted in prop::option::of((prop::sample::select(vec![UNREACHABLE, NOT_READY]), 0..30_i64)),
    ) -> (Node, i64) {
        let mut built = node(&format!("n{index}"));
        if !ready.is_empty() { built = built.ready(ready); }
        if cordoned { built = built.cordoned(); }
        if let Some(zone) = zone { built = built.labelled("topology.kubernetes.io/zone", zone); }
        if let Some((key, ago)) = tainted { built = built.tainted(key, "NoExecute", ago); }
        (built, silent)
    }
}

proptest! {
    /// Conditions first, then taints; after those two steps nothing is left to do at the same moment.
    #[test]
    fn two_steps_settle_every_node(nodes in (0..5_usize).prop_flat_map(|n| (0..n).map(any_node).collect::<Vec<_>>())) {
        let mut nodes = nodes;
        for _ in 0..2 {
            let plan = look(&nodes);
            apply(&mut nodes, plan);
        }
        let last = look(&nodes);
        prop_assert!(last.changes.is_empty(), "{}", last);
        prop_assert!(last.wake_at().is_none_or(|at| at > now()), "a wait must end later: {}", last);
    }
}
