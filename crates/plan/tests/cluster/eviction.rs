//! Pods that have to leave a tainted node, and when.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tether_plan::Plan;
use tether_plan::node::eviction::{Change, Observed, decide};

use crate::build::*;

const KEY: &str = "node.kubernetes.io/unreachable";

fn look(node: &Node, pods: &[Pod]) -> Plan<Change> {
    decide(&Observed { node, pods: pods.iter().collect(), noticed: BTreeMap::new() }, now())
}

#[test]
fn a_pod_without_toleration_goes_at_once() {
    let pods = [pod("web").on("a").phase("Running")];
    let plan = look(&node("a").ready("True").tainted(KEY, "NoExecute", 0), &pods);
    let Change::Evict { pod, conditions: Some(conditions) } = &plan.changes[0] else { panic!("{plan}") };
    assert_eq!(pod.name, "web");
    assert_eq!(conditions[0].type_, "DisruptionTarget");
    assert_eq!(conditions[0].reason.as_deref(), Some("DeletionByTaintManager"));
    assert_eq!(conditions[0].message.as_deref(), Some("Taint manager: deleting due to NoExecute taint"));
    let events = format!("{:?}", plan.events);
    assert_eq!(events, "[Normal TaintManagerEviction Pod/web: Marking for deletion Pod default/web]");
}

#[test]
fn tolerations_say_how_long() {
    let tainted = node("a").ready("True").tainted(KEY, "NoExecute", 100);
    let cases: [(&str, Pod, &str); 6] = [
        ("for ever", pod("p").tolerating(KEY, None), "rests"),
        ("300 s, of which 100 are over", pod("p").tolerating(KEY, Some(300)), "waits"),
        ("100 s, which are over", pod("p").tolerating(KEY, Some(100)), "acts"),
        ("the shorter of two", pod("p").tolerating(KEY, Some(300)).tolerating(KEY, Some(50)), "acts"),
        ("a time wins over for ever", pod("p").tolerating(KEY, None).tolerating(KEY, Some(50)), "acts"),
        ("no time at all", pod("p").tolerating(KEY, Some(-1)), "acts"),
    ];
    for (what, pod, expected) in cases {
        let plan = look(&tainted, &[pod.on("a").phase("Running")]);
        assert_eq!(plan.report.findings[0].verdict.word(), expected, "{what}: {plan}");
        if expected == "waits" {
            assert_eq!(plan.wake_at(), Some(after(200)));
        }
    }
}

#[test]
fn patience_starts_when_the_pod_arrives_if_that_is_later() {
    let mut late = pod("late").on("a").phase("Running").tolerating(KEY, Some(300));
    let scheduled = PodCondition {
        type_: "PodScheduled".into(),
        status: "True".into(),
        last_transition_time: Some(Time(after(-10))),
        ..Default::default()
    };
    late.status.as_mut().unwrap().conditions = Some(vec![scheduled]);
    let plan = look(&node("a").ready("True").tainted(KEY, "NoExecute", 1000), &[late]);
    assert_eq!(plan.wake_at(), Some(after(290)));
}

#[test]
fn pods_of_an_unknown_node_are_not_ready() {
    let pods = [pod("up").on("a").phase("Running").ready(), pod("starting").on("a").phase("Pending")];
    let plan = look(&node("a").ready("Unknown"), &pods);
    let [Change::SetConditions { pod, conditions }] = plan.changes.as_slice() else { panic!("{plan}") };
    assert_eq!((pod.name.as_str(), conditions[0].status.as_str()), ("up", "False"));
    assert_eq!(format!("{:?}", plan.events), "[Warning NodeNotReady Pod/up: Node is not ready]");
    assert!(look(&node("a").ready("False"), &pods).changes.is_empty(), "its kubelet speaks for itself");
}

#[test]
fn pods_that_are_leaving_or_have_ended_are_left_alone() {
    let pods = [pod("leaving").on("a").phase("Running").deleting(), pod("done").on("a").phase("Succeeded")];
    assert!(look(&node("a").ready("Unknown").tainted(KEY, "NoExecute", 0), &pods).changes.is_empty());
}
