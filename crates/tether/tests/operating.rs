//! What people who run a cluster rely on: metrics and alerts, explanations, and drains that lose nothing.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test fails by panicking and tells what it skips")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::runtime::conditions::is_deleted;
use serde_json::json;
use tether_crd::volume::{Robustness, State};
use tether_crd::{Replica, Volume, VolumeAttachment};
use tether_testkit::Lab;
use tether_testkit::cluster::eventually;
use tether_testkit::lab::{NODES, has_devices, has_kubectl, manager, ticket};

#[test]
fn a_cluster_can_be_watched_understood_and_drained() {
    if !has_kubectl() {
        eprintln!("a_cluster_can_be_watched_understood_and_drained: SKIPPED, there is no kubectl");
        return;
    }
    let lab = Lab::new(env!("CARGO_BIN_EXE_tether"));
    lab.create("v1", 1);
    lab.attach("v1", "node-1");
    metrics(&lab);
    explanations(&lab);
    lab.detach("v1");
    drain(&lab);
}

/// A volume that is deleted while somebody has it mounted says so, and goes when it is let go.
#[test]
fn a_volume_that_is_deleted_while_it_is_mounted_says_so_and_goes_later() {
    if !has_kubectl() || !has_devices() {
        eprintln!(
            "a_volume_that_is_deleted_while_it_is_mounted_says_so_and_goes_later: SKIPPED, it needs kubectl and devices"
        );
        return;
    }
    let lab = Lab::new(env!("CARGO_BIN_EXE_tether"));
    lab.create("v1", 2);
    let uid = lab.attach("v1", "node-1").metadata.uid.unwrap();
    let mount = lab.cluster.dir().join("mount");
    fs::create_dir(&mount).unwrap();
    let mount = mount.display();
    lab.must("node-1", &format!("mkfs.ext4 -q /dev/longhorn/v1; mount /dev/longhorn/v1 {mount}"));
    lab.must_kubectl(&["delete", "lhv", "v1", "--wait=false"]);
    eventually("the reason is told", || {
        let explained = lab.cluster.tether(&["explain", "volume", "v1"]);
        let events = lab.must_kubectl(&["get", "events", "-o", "jsonpath={.items[*].note} {.items[*].message}"]);
        let is_told = String::from_utf8_lossy(&explained.stdout).contains("/dev/longhorn/v1 is in use");
        (is_told && events.contains("volume v1 cannot be deleted yet")).then_some(())
    });
    lab.must("node-1", &format!("echo still there > {mount}/file; sync; umount {mount}"));
    lab.wait::<Volume>("v1", is_deleted(&uid));
    assert!(!lab.on("node-1", "test -e /dev/longhorn/v1").status.success(), "its device is gone");
}

/// Everything that an alert asks for is there, for those who may read it.
fn metrics(lab: &Lab) {
    let table = lab.cluster.table();
    let url = table.split_whitespace().find(|word| word.ends_with("/metrics")).unwrap();
    let token = lab.must_kubectl(&["create", "token", "longhorn-service-account"]);
    let nobody = lab.must_kubectl(&["create", "token", "default"]);
    let authority = lab.cluster.dir().join("apiserver/pki/ca.crt");
    let get = |token: Option<&str>| {
        let mut command = Command::new("curl");
        command.args(["-s", "-w", "%{http_code}", "--cacert"]).arg(&authority).arg(url);
        if let Some(token) = token {
            command.args(["-H", &format!("Authorization: Bearer {token}")]);
        }
        let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let (body, code) = text.split_at(text.len() - 3);
        (code.to_owned(), body.to_owned())
    };
    assert_eq!(get(None).0, "401");
    assert_eq!(get(Some("nonsense")).0, "401");
    assert_eq!(get(Some(&nobody)).0, "403");
    let (code, text) = get(Some(&token));
    assert_eq!(code, "200", "{text}");
    assert!(
        text.contains(r#"longhorn_volume_state{node="node-1",volume="v1",pvc="",pvc_namespace="",state="attached"} 1"#),
        "{text}"
    );
    assert!(text.contains(r#"tether_attach_seconds_count{phase="total"} 1"#), "{text}");

    let families: BTreeSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_whitespace().next()).collect();
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/prometheus-rules.yaml");
    let rules = fs::read_to_string(rules).unwrap();
    let word = regex::Regex::new(r"\b(?:longhorn|tether)_[a-z_]+").unwrap();
    let expressions = rules.lines().filter_map(|line| line.trim().strip_prefix("expr: "));
    let mut asked = 0;
    for found in expressions.flat_map(|expression| word.find_iter(expression)) {
        let family = ["_bucket", "_total"].iter().find_map(|end| found.as_str().strip_suffix(end));
        let family = family.filter(|family| families.contains(family)).unwrap_or(found.as_str());
        assert!(families.contains(family), "an alert asks for {}, which nobody tells", found.as_str());
        asked += 1;
    }
    assert!(asked >= 10, "{asked}");
}

/// `tether explain` says what is the case, what it waits for, and what will change it.
fn explanations(lab: &Lab) {
    let explain = |volume: &str| {
        let output = lab.cluster.tether(&["explain", "volume", volume]);
        String::from_utf8(output.stdout).unwrap()
    };
    let says = |volume: &str, words: &[&str]| {
        eventually(&format!("explain says {words:?} of {volume}"), || {
            let text = explain(volume);
            words.iter().all(|word| text.contains(word)).then_some(())
        });
    };
    says("v1", &["Volume v1 is attached on node node-1, healthy."]);
    lab.tickets("v1", &json!({"later": ticket("later", "csi-attacher", "node-2", "false")}));
    says("v1", &["Ticket later waits: volume v1 is attached to node node-1"]);
    lab.tickets("v1", &json!({"later": null, "hidden": ticket("hidden", "longhorn-api", "node-1", "true")}));
    says("v1", &["Ticket hidden waits: Volume v1 is attached to node node-1 with a frontend"]);
    lab.tickets("v1", &json!({"hidden": null}));

    let spec = json!({"size": "16777216", "numberOfReplicas": 1, "frontend": "blockdev", "nodeSelector": ["gold"]});
    let object =
        json!({"apiVersion": "longhorn.io/v1beta2", "kind": "Volume", "metadata": {"name": "nowhere"}, "spec": spec});
    let file = lab.cluster.dir().join("nowhere.json");
    fs::write(&file, object.to_string()).unwrap();
    lab.must_kubectl(&["create", "-f", file.to_str().unwrap()]);
    for node in NODES {
        says("nowhere", &[node, "lacks the tags gold"]);
    }
    lab.must_kubectl(&["delete", "lhv", "nowhere"]);
}

/// A drain waits for the last good replica of a volume, says so, and goes on when there is another.
fn drain(lab: &Lab) {
    let replicas = || -> Vec<Replica> {
        let list = lab.runtime.block_on(lab.api::<Replica>().list(&kube::api::ListParams::default())).unwrap();
        list.items.into_iter().filter(|replica| replica.spec.volume_name == "v1").collect()
    };
    let node = replicas()[0].spec.node_id.clone();
    let budget = manager(&node);
    lab.wait::<PodDisruptionBudget>(&budget, |found: Option<&PodDisruptionBudget>| {
        found.and_then(|found| found.status.as_ref()).is_some_and(|status| status.expected_pods == 1)
    });
    let drain = |seconds: u32| {
        lab.kubectl(&["drain", &node, "--force", "--ignore-daemonsets", &format!("--timeout={seconds}s")])
    };
    let refused = drain(7);
    let words = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && words.contains("violate the pod's disruption budget"), "{words}");
    eventually("the reason is told", || {
        let events = lab.must_kubectl(&["get", "events", "-A", "-o", "jsonpath={.items[*].message}"]);
        events.contains("is the last good one of volume v1").then_some(())
    });
    lab.must_kubectl(&["patch", "lhv", "v1", "--type=merge", "-p", r#"{"spec":{"numberOfReplicas":2}}"#]);
    let other = NODES.into_iter().find(|other| *other != node).unwrap();
    lab.ticket("v1", Some(other));
    lab.wait::<Volume>("v1", |found: Option<&Volume>| {
        found.is_some_and(|found| {
            let members = found.status.record.as_ref().map_or(0, |record| record.in_sync.len());
            found.status.robustness == Robustness::Healthy && members == 2
        })
    });
    let drained = drain(60);
    assert!(drained.status.success(), "{}", String::from_utf8_lossy(&drained.stderr));
    let volume: Volume = lab.get("v1");
    assert_eq!((volume.status.state, volume.status.current_node_id.as_str()), (State::Attached, other));
    assert!(lab.get::<VolumeAttachment>("v1").status.attachment_ticket_statuses["t"].satisfied);
    lab.must_kubectl(&["uncordon", &node]);
    lab.settle();
}
