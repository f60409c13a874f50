//! Which pods garbage collection takes, and which it leaves.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod};
use proptest::prelude::*;
use tether_plan::Plan;
use tether_plan::pod_gc::{Change, Missing, Observed, Settings, decide};

use crate::build::*;

const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

fn gc(pods: &[Pod], nodes: &[Node], missing: &[(&str, Missing)], threshold: usize) -> Plan<Change> {
    let observed = Observed {
        pods: pods.iter().collect(),
        nodes: nodes.iter().map(|n| (n.metadata.name.as_deref().unwrap(), n)).collect(),
        missing: missing.iter().map(|(name, missing)| ((*name).to_owned(), *missing)).collect(),
    };
    decide(&observed, &Settings { terminated_threshold: threshold, ..Settings::default() }, now())
}

#[test]
fn the_oldest_finished_pods_go_first_and_evicted_ones_before_them() {
    let mut evicted = pod("evicted").on("a").phase("Failed").created(10);
    evicted.status.as_mut().unwrap().reason = Some("Evicted".into());
    let pods = [
        pod("young").on("a").phase("Succeeded").created(20),
        pod("old").on("a").phase("Succeeded").created(500),
        pod("running").on("a").phase("Running").created(900),
        evicted,
    ];
    golden(
        &gc(&pods, &[node("a").ready("True")], &[], 1),
        "acts    terminated-pods: Pod default/evicted: TooManyTerminatedPods: More than 1 finished pods are kept.
         acts    terminated-pods: Pod default/old: TooManyTerminatedPods: More than 1 finished pods are kept.
         => Remove { pod: default/evicted@1, fail: false, conditions: None }
         => Remove { pod: default/old@1, fail: false, conditions: None }",
    );
}

#[test]
fn a_terminating_pod_goes_when_its_node_is_out_of_service_and_not_ready() {
    let nodes = [
        node("dead").ready("Unknown").tainted(OUT_OF_SERVICE, "NoExecute", 5),
        node("alive").ready("True").tainted(OUT_OF_SERVICE, "NoExecute", 5),
        node("away").ready("Unknown"),
    ];
    let pods = [
        pod("a").on("dead").phase("Running").deleting(),
        pod("b").on("dead").phase("Running"),
        pod("c").on("alive").phase("Running").deleting(),
        pod("d").on("away").phase("Running").deleting(),
    ];
    golden(
        &gc(&pods, &nodes, &[], 0),
        "acts    terminating-pods-on-out-of-service-nodes: Pod default/a: NodeOutOfService: The pod is terminating and \
                 node \"dead\" is out of service.
         rests   terminating-pods-on-out-of-service-nodes: Pod default/c: NodeStillReady: Node \"alive\" is tainted \
                 node.kubernetes.io/out-of-service but Ready: its kubelet will finish.
         => Remove { pod: default/a@1, fail: true, conditions: None }",
    );
}

#[test]
fn an_orphan_waits_out_the_quarantine_then_the_node_is_asked_for_then_the_pod_goes() {
    let pods = [pod("web").on("gone").phase("Running")];
    golden(
        &gc(&pods, &[], &[], 0),
        "waits   orphaned-pods: Node gone: NodeNotSeen: 1 pods name it; it has been missing since \
                 2027-01-15T08:00:00Z. (until 2027-01-15T08:00:40Z)",
    );
    let since = Missing::Since(after(-40));
    golden(
        &gc(&pods, &[], &[("gone", since)], 0),
        "asks    orphaned-pods: Node gone: NodeNotSeen: 1 pods name it; it has been missing since 2027-01-15T07:59:20Z.
         => CheckNode { node: \"gone\" }",
    );
    golden(
        &gc(&pods, &[], &[("gone", Missing::Gone)], 0),
        "acts    orphaned-pods: Pod default/web: DeletionByPodGC: Node \"gone\" no longer exists.
         => Remove { pod: default/web@1, fail: true, conditions: Some([PodCondition { last_probe_time: None, \
            last_transition_time: Some(Time(2027-01-15T08:00:00Z)), message: Some(\"PodGC: node no longer exists\"), \
            observed_generation: None, reason: Some(\"DeletionByPodGC\"), status: \"True\", type_: \"DisruptionTarget\" }]) }",
    );
}

#[test]
fn a_terminating_pod_without_a_node_goes() {
    let pods = [pod("never").deleting(), pod("pending")];
    golden(
        &gc(&pods, &[], &[], 0),
        "acts    unscheduled-terminating-pods: Pod default/never: NeverScheduled: The pod is terminating and was never \
                 given to a node.
         => Remove { pod: default/never@1, fail: true, conditions: None }",
    );
}

proptest! {
    /// Once what it wants removed is gone, it wants nothing more; and it never takes a running pod from a known node.
    #[test]
    fn deciding_twice_changes_nothing(
        shapes in prop::collection::vec((0..4_u8, 0..5_u8, any::<bool>(), 0..1000_i64), 0..24),
        threshold in 0..6_usize,
    ) {
        let nodes = [
            node("ready").ready("True"),
            node("unknown").ready("Unknown"),
            node("retired").ready("Unknown").tainted(OUT_OF_SERVICE, "NoExecute", 5),
        ];
        let build = |(i, (place, phase, deleting, age)): (usize, (u8, u8, bool, i64))| {
            let mut built = pod(&format!("p{i}")).created(age);
            built = built.phase(["Pending", "Running", "Succeeded", "Failed", "Unknown"][phase as usize]);
            if let Some(name) = ["", "ready", "unknown", "retired"].get(place as usize).filter(|n| !n.is_empty()) {
                built = built.on(name);
            }
            if deleting { built.deleting() } else { built }
        };
        let mut pods: Vec<Pod> = shapes.into_iter().enumerate().map(build).collect();
        let removed: BTreeMap<String, bool> = gc(&pods, &nodes, &[], threshold).changes.into_iter().map(|c| match c {
            Change::Remove { pod, fail, .. } => (pod.uid, fail),
            Change::CheckNode { node } => panic!("{node} is known"),
        }).collect();
        for pod in &pods {
            let taken = removed.contains_key(pod.metadata.uid.as_deref().unwrap());
            let spared = pod.metadata.deletion_timestamp.is_none()
                && pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running");
            prop_assert!(!(taken && spared), "{:?}", pod.metadata.name);
        }
        pods.retain(|pod| !removed.contains_key(pod.metadata.uid.as_deref().unwrap()));
        prop_assert_eq!(gc(&pods, &nodes, &[], threshold).changes, vec![]);
    }
}
