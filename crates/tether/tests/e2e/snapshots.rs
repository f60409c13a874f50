//! VolumeSnapshots and claims that are filled from others, checked by pods that read the data.

use serde_json::{Value, json};

use crate::lab::{Lab, until};

const API: &str = "snapshot.storage.k8s.io/v1";
const DELETED: &str = "tether-e2e-deleted";
const RETAINED: &str = "tether-e2e-retained";

fn classes(lab: &Lab) {
    for (name, policy) in [(DELETED, "Delete"), (RETAINED, "Retain")] {
        lab.apply(json!({
            "apiVersion": API, "kind": "VolumeSnapshotClass", "metadata": {"name": name},
            "driver": "driver.longhorn.io", "deletionPolicy": policy, "parameters": {"type": "snap"},
        }));
    }
}

fn snapshot(lab: &Lab, name: &str, class: &str, source: Value) {
    lab.apply(json!({
        "apiVersion": API, "kind": "VolumeSnapshot", "metadata": {"name": name, "namespace": "default"},
        "spec": {"volumeSnapshotClassName": class, "source": source},
    }));
}

fn of_claim(claim: &str) -> Value {
    json!({"persistentVolumeClaimName": claim})
}

/// Waits until it can be used; its content and the driver's handle.
fn ready(lab: &Lab, name: &str) -> (String, String) {
    let object = format!("volumesnapshot/{name}");
    lab.until_field(&object, "{.status.readyToUse}", "true");
    assert_eq!(lab.field(&object, "{.status.error}"), "");
    assert_eq!(lab.field(&object, "{.status.restoreSize}"), "128Mi");
    let content = lab.field(&object, "{.status.boundVolumeSnapshotContentName}");
    let handle = lab.field(&format!("volumesnapshotcontent/{content}"), "{.status.snapshotHandle}");
    assert!(handle.starts_with("snap://"), "{handle}");
    (content, handle)
}

fn from_snapshot(name: &str) -> Value {
    json!({"dataSource": {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": name}})
}

/// A pod that has said something in `/data/said`, flushed, and stays.
fn says(lab: &Lab, pod: &str, node: usize, claim: &str, word: &str) {
    lab.pod(pod, node, claim, &format!("echo {word} > /data/said; sync; echo flushed; exec sleep 3600"), json!({}));
    lab.running(pod);
    until("it has flushed", || (lab.kubectl(&["logs", pod], None) == "flushed\n").then_some(()));
}

/// A claim whose volume was left by a pod that said something.
fn filled(lab: &Lab, claim: &str, word: &str) {
    lab.claim(claim, json!({}));
    let pod = format!("{claim}-fills");
    lab.pod(&pod, 0, claim, &format!("echo {word} > /data/said"), json!({}));
    lab.succeeds(&pod);
}

/// A pod on some node finds this, and can write.
fn finds(lab: &Lab, pod: &str, node: usize, claim: &str, word: &str) {
    lab.pod(pod, node, claim, &format!("test \"$(cat /data/said)\" = {word}; echo x > /data/own; sync"), json!({}));
    lab.succeeds(pod);
}

fn delete_snapshot(lab: &Lab, name: &str) {
    lab.kubectl(&["delete", "volumesnapshot", name], None);
}

fn is_gone(lab: &Lab, object: &str) -> bool {
    lab.kubectl(&["get", object, "--ignore-not-found"], None).is_empty()
}

/// Whether the driver has a snapshot, by its handle. The newest one of a volume is marked, and removed with the next.
fn has(lab: &Lab, handle: &str) -> bool {
    let name = handle.rsplit('/').next().unwrap();
    let marked = "jsonpath={.metadata.name} {.status.markRemoved}";
    let args = ["-n", "longhorn-system", "get", "snapshots.longhorn.io", name, "--ignore-not-found", "-o", marked];
    let found = lab.kubectl(&args, None);
    !found.is_empty() && !found.ends_with("true")
}

/// It shows what was there when it was made, whatever is written later, and its copy is a volume like any other.
pub(crate) fn of_a_volume_in_use(lab: &Lab) {
    classes(lab);
    lab.claim("used", json!({}));
    says(lab, "used", 0, "used", "early");
    snapshot(lab, "used", DELETED, of_claim("used"));
    let (content, handle) = ready(lab, "used");
    lab.event("used", "SnapshotReady", "is ready to use");
    lab.delete("used");
    lab.pod("used-later", 1, "used", "echo late > /data/said", json!({}));
    lab.succeeds("used-later");
    lab.claim("restored", from_snapshot("used"));
    finds(lab, "restored-1", 2, "restored", "early");
    finds(lab, "restored-2", 0, "restored", "early");
    finds(lab, "used-2", 0, "used", "late");
    delete_snapshot(lab, "used");
    assert!(is_gone(lab, &format!("volumesnapshotcontent/{content}")));
    until("the driver deletes it", || (!has(lab, &handle)).then_some(()));
    lab.delete_claim("restored");
    lab.delete_claim("used");
}

pub(crate) fn of_a_detached_volume(lab: &Lab) {
    classes(lab);
    filled(lab, "rests", "quiet");
    lab.nothing_is_left();
    snapshot(lab, "rests", DELETED, of_claim("rests"));
    ready(lab, "rests");
    // A larger copy is as large as it asks to be.
    let mut larger = from_snapshot("rests");
    larger["resources"] = json!({"requests": {"storage": "192Mi"}});
    lab.claim("larger", larger);
    let script = "test \"$(cat /data/said)\" = quiet; test $(($(stat -f -c '%b * %S' /data) / 1048576)) -gt 140";
    lab.pod("larger", 1, "larger", script, json!({}));
    lab.succeeds("larger");
    delete_snapshot(lab, "rests");
    lab.delete_claim("larger");
    lab.delete_claim("rests");
}

/// With the policy Retain the content outlives its snapshot, and can become another one's by hand.
pub(crate) fn one_that_is_kept(lab: &Lab) {
    classes(lab);
    filled(lab, "kept", "treasure");
    snapshot(lab, "kept", RETAINED, of_claim("kept"));
    let (content, handle) = ready(lab, "kept");
    delete_snapshot(lab, "kept");
    assert!(!is_gone(lab, &format!("volumesnapshotcontent/{content}")), "it is retained");
    assert!(has(lab, &handle));
    lab.kubectl(&["delete", "volumesnapshotcontent", &content], None);
    assert!(has(lab, &handle), "what it stood for is retained too");

    // Somebody knows the handle, and makes it known again.
    lab.apply(json!({
        "apiVersion": API, "kind": "VolumeSnapshotContent", "metadata": {"name": "found"},
        "spec": {
            "driver": "driver.longhorn.io", "deletionPolicy": "Delete", "source": {"snapshotHandle": handle},
            "volumeSnapshotRef": {"name": "found", "namespace": "default"},
        },
    }));
    lab.apply(json!({
        "apiVersion": API, "kind": "VolumeSnapshot", "metadata": {"name": "found", "namespace": "default"},
        "spec": {"source": {"volumeSnapshotContentName": "found"}},
    }));
    assert_eq!(ready(lab, "found"), ("found".to_owned(), handle.clone()));
    lab.claim("again", from_snapshot("found"));
    finds(lab, "again", 1, "again", "treasure");
    delete_snapshot(lab, "found");
    assert!(is_gone(lab, "volumesnapshotcontent/found"));
    until("the driver deletes it", || (!has(lab, &handle)).then_some(()));
    lab.delete_claim("again");
    lab.delete_claim("kept");
}

pub(crate) fn a_clone(lab: &Lab) {
    lab.claim("original", json!({}));
    says(lab, "original", 0, "original", "mine");
    lab.claim("cloned", json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "original"}}));
    finds(lab, "cloned", 1, "cloned", "mine");
    lab.delete("original");
    finds(lab, "original-2", 2, "original", "mine");
    // Each goes without the other.
    lab.delete_claim("original");
    finds(lab, "cloned-2", 0, "cloned", "mine");
    lab.delete_claim("cloned");
}

/// A snapshot lives in its volume: without it, the snapshot is not ready any more, and can still be deleted.
pub(crate) fn a_source_that_is_deleted(lab: &Lab) {
    classes(lab);
    filled(lab, "source", "gone");
    snapshot(lab, "orphan", DELETED, of_claim("source"));
    let (content, _) = ready(lab, "orphan");
    lab.claim("heir", from_snapshot("orphan"));
    finds(lab, "heir", 1, "heir", "gone");
    lab.delete_claim("source");
    finds(lab, "heir-2", 2, "heir", "gone");
    delete_snapshot(lab, "orphan");
    assert!(is_gone(lab, &format!("volumesnapshotcontent/{content}")));
    lab.delete_claim("heir");
}

pub(crate) fn what_cannot_be_made(lab: &Lab) {
    classes(lab);
    lab.claim("odd", json!({}));
    lab.volume_of("odd");
    snapshot(lab, "odd", "no-such-class", of_claim("odd"));
    lab.event("odd", "SnapshotContentCreationFailed", "VolumeSnapshotClass \"no-such-class\" does not exist");
    delete_snapshot(lab, "odd");
    snapshot(lab, "odd-2", DELETED, of_claim("nobody"));
    lab.event("odd-2", "SnapshotContentCreationFailed", "the claim does not exist");
    delete_snapshot(lab, "odd-2");
    snapshot(lab, "odd-3", DELETED, of_claim("odd"));
    ready(lab, "odd-3");
    let mut smaller = from_snapshot("odd-3");
    smaller["resources"] = json!({"requests": {"storage": "64Mi"}});
    lab.claim("smaller", smaller);
    lab.event("smaller", "ProvisioningFailed", "is less than the size of the source snapshot");
    lab.delete_claim("smaller");
    delete_snapshot(lab, "odd-3");
    lab.delete_claim("odd");
}
