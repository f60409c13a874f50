//! Nodes that stop, come back, are declared dead or are deleted, and agents that are killed.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::lab::{Lab, phase, until};

/// Writes once a moment, and fails if that fails.
const WRITES: &str =
    "trap 'exit 0' TERM; while echo x >> /data/beats && sync -d /data/beats; do sleep 0.2; done; exit 9";

/// The agent is killed under pods with volumes: they go on, and are cleaned up as if nothing had been.
pub(crate) fn agents_restart(lab: &Lab) {
    lab.claim("kept", json!({}));
    lab.pod("kept-1", 0, "kept", WRITES, json!({}));
    lab.running("kept-1");
    let mounted = lab.mounts();
    if !lab.node("kill", 0) {
        eprintln!("SKIPPED: there is no way to kill the agent of a node of this cluster");
        lab.delete("kept-1");
        return lab.delete_claim("kept");
    }
    // Another pod needs the new agent; the first has not noticed anything.
    lab.pod("kept-2", 0, "kept", "test -s /data/beats", json!({}));
    lab.succeeds("kept-2");
    let first = lab.run(lab.api::<Pod>().get("kept-1")).unwrap();
    assert_eq!(phase(Some(&first)), Some("Running"));
    // A pod that has ended is deleted at once; the node unmounts its volumes after that.
    until("nothing was unmounted, and nothing mounted twice", || (lab.mounts() == mounted).then_some(()));
    // It dies again while the pod goes: what it leaves, the next one finds.
    lab.run(lab.api::<Pod>().delete("kept-1", &DeleteParams::default())).unwrap();
    std::thread::sleep(Duration::from_millis(150));
    assert!(lab.node("kill", 0));
    lab.wait::<Pod>("kept-1", |pod: Option<&Pod>| pod.is_none());
    lab.pod("kept-3", 1, "kept", "test -s /data/beats", json!({}));
    lab.succeeds("kept-3");
    lab.delete_claim("kept");
}

fn is_ready(lab: &Lab, node: usize) -> Option<bool> {
    let node = lab.run(Api::<Node>::all(lab.client.clone()).get_opt(&lab.nodes[node])).ok()??;
    let conditions = node.status?.conditions?;
    Some(conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True"))
}

fn lose(lab: &Lab, node: usize) -> bool {
    if !lab.node("stop", node) {
        eprintln!("SKIPPED: there is no way to stop a node of this cluster");
        return false;
    }
    until("the node is found not ready", || (is_ready(lab, node) == Some(false)).then_some(()));
    true
}

fn regain(lab: &Lab, node: usize) {
    assert!(lab.node("start", node));
    until("the node is ready again", || (is_ready(lab, node) == Some(true)).then_some(()));
}

fn force_delete(lab: &Lab, pod: &str) {
    lab.run(lab.api::<Pod>().delete(pod, &DeleteParams::default().grace_period(0))).unwrap();
    lab.wait::<Pod>(pod, |pod: Option<&Pod>| pod.is_none());
}

/// A node that nothing is heard of keeps its mounted volumes for as long as is configured.
pub(crate) fn a_silent_node(lab: &Lab) {
    lab.claim("silent", json!({}));
    lab.pod("silent-1", 0, "silent", WRITES, json!({}));
    lab.running("silent-1");
    if !lose(lab, 0) {
        lab.delete("silent-1");
        return lab.delete_claim("silent");
    }
    force_delete(lab, "silent-1");
    let began = Instant::now();
    lab.pod("silent-2", 1, "silent", "test -s /data/beats; exec sleep 3600", json!({}));
    lab.running("silent-2");
    assert!(began.elapsed() >= Duration::from_secs(2), "the node still said that it uses the volume");
    regain(lab, 0);
    // The pod that is gone leaves nothing on the node that is back, and the new one keeps its volume.
    until("the node lets go", || lab.in_use(0).is_empty().then_some(()));
    let second = lab.run(lab.api::<Pod>().get("silent-2")).unwrap();
    assert_eq!(phase(Some(&second)), Some("Running"));
    lab.delete("silent-2");
    lab.delete_claim("silent");
}

/// With the taint that says that a node is out of service nothing is waited for.
pub(crate) fn out_of_service(lab: &Lab) {
    lab.claim("dead", json!({}));
    lab.pod("dead-1", 0, "dead", WRITES, json!({}));
    lab.running("dead-1");
    if !lose(lab, 0) {
        lab.delete("dead-1");
        return lab.delete_claim("dead");
    }
    let nodes: Api<Node> = Api::all(lab.client.clone());
    let taint = |taints: serde_json::Value| {
        let patch = Patch::Strategic(json!({"spec": {"taints": taints}}));
        lab.run(nodes.patch(&lab.nodes[0], &PatchParams::default(), &patch)).unwrap();
    };
    let key = "node.kubernetes.io/out-of-service";
    taint(json!([{"key": key, "value": "nodeshutdown", "effect": "NoExecute"}]));
    lab.wait::<Pod>("dead-1", |pod: Option<&Pod>| pod.is_none());
    lab.pod("dead-2", 1, "dead", "test -s /data/beats", json!({}));
    lab.succeeds("dead-2");
    taint(json!([{"key": key, "effect": "NoExecute", "$patch": "delete"}]));
    regain(lab, 0);
    lab.delete_claim("dead");
}

/// A node whose object is deleted while it is away: its pods go, and its volumes are free.
pub(crate) fn a_deleted_node(lab: &Lab) {
    lab.claim("gone", json!({}));
    lab.pod("gone-1", 2, "gone", WRITES, json!({}));
    lab.running("gone-1");
    if !lose(lab, 2) {
        lab.delete("gone-1");
        return lab.delete_claim("gone");
    }
    lab.run(Api::<Node>::all(lab.client.clone()).delete(&lab.nodes[2], &DeleteParams::default())).unwrap();
    force_delete(lab, "gone-1");
    lab.pod("gone-2", 1, "gone", "test -s /data/beats", json!({}));
    lab.succeeds("gone-2");
    // A new agent registers the node again, and cleans up.
    assert!(lab.node("start", 2) && lab.node("kill", 2));
    until("the node is back", || is_ready(lab, 2).filter(|ready| *ready));
    lab.delete_claim("gone");
}
