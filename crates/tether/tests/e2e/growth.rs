//! Claims that ask for more: under a pod that stays as it is, and while nobody has the volume.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::lab::{CLASS, Lab, until};

/// Waits until the file system at `/data` has more than so many MiB, and finds its data.
fn waits_for(mebibytes: u32) -> String {
    format!(
        "echo old > /data/file; sync; \
         until {}; do sleep 0.2; done; \
         grep old /data/file; dd if=/dev/zero of=/data/more bs=1M count={mebibytes}; sync",
        has_more_than(mebibytes)
    )
}

fn ask(lab: &Lab, claim: &str, size: &str) {
    let patch = json!({"spec": {"resources": {"requests": {"storage": size}}}}).to_string();
    lab.kubectl(&["patch", "pvc", claim, "-p", &patch], None);
}

/// What a claim's conditions say of its growth. A server may say other things there, too.
fn growth(lab: &Lab, claim: &str) -> Vec<String> {
    let all = lab.field(claim, "{.status.conditions[*].type}");
    all.split_whitespace().filter(|condition| condition.contains("Resiz")).map(str::to_owned).collect()
}

/// The claim has what it asked for, and waits for nothing.
fn has_grown(lab: &Lab, claim: &str, size: &str) {
    let claim = format!("pvc/{claim}");
    lab.until_field(&claim, "{.status.capacity.storage}", size);
    until("its growth is over", || growth(lab, &claim).is_empty().then_some(()));
    assert_eq!(lab.field(&claim, "{.status.allocatedResourceStatuses}"), "");
    assert_eq!(lab.field(&claim, "{.status.allocatedResources.storage}"), size);
    let volume = lab.field(&claim, "{.spec.volumeName}");
    assert_eq!(lab.field(&format!("pv/{volume}"), "{.spec.capacity.storage}"), size);
}

fn grows_under_its_pod(lab: &Lab, name: &str, script: &str, more: Value, claim: Value, size: &str) -> Pod {
    lab.claim(name, claim);
    let pod = lab.pod(name, 0, name, script, more);
    let before = lab.running(name);
    assert_eq!(before.metadata.uid, pod.metadata.uid);
    ask(lab, name, size);
    has_grown(lab, name, size);
    before
}

/// A file system grows while its pod has files open on it; the pod ends well only if it saw that, having started once.
fn file_system(lab: &Lab, name: &str, claim: Value, size: &str, mebibytes: u32) {
    grows_under_its_pod(lab, name, &waits_for(mebibytes), json!({}), claim, size);
    pod_saw_it(lab, name);
    lab.delete_claim(name);
}

fn pod_saw_it(lab: &Lab, name: &str) {
    lab.event(name, "Resizing", "External resizer is resizing volume");
    lab.event(name, "FileSystemResizeRequired", "Require file system resize of volume on node");
    lab.event(name, "FileSystemResizeSuccessful", "NodeExpandVolume succeeded for volume");
    let ended = lab.wait::<Pod>(name, crate::lab::phase_is("Succeeded")).unwrap();
    let status = &ended.status.unwrap().container_statuses.unwrap()[0];
    assert_eq!(status.restart_count, 0);
    lab.delete(name);
}

/// The kernel asks for a capability to grow a mounted ext file system. Whether the node has it is seen by what becomes of
/// the claim: it grows, or the pod is told, and the file system grows when it is next mounted.
pub(crate) fn ext4_under_its_pod(lab: &Lab) {
    lab.claim("grows", json!({}));
    lab.pod("grows", 0, "grows", &waits_for(140), json!({}));
    lab.running("grows");
    ask(lab, "grows", "256Mi");
    let told = |(reason, message): &(String, String)| {
        reason == "VolumeResizeFailed" && message.contains("this node lacks CAP_SYS_RESOURCE")
    };
    let grew = until("it grows, or its pod is told why it does not", || {
        let grown = lab.field("pvc/grows", "{.status.capacity.storage}") == "256Mi";
        (grown || lab.events("grows").iter().any(told)).then_some(grown)
    });
    if grew {
        has_grown(lab, "grows", "256Mi");
        pod_saw_it(lab, "grows");
    } else {
        eprintln!(
            "growth of a mounted ext4: its node lacks CAP_SYS_RESOURCE; that it is told and grows later is checked"
        );
        until("it waits for its file system", || {
            (growth(lab, "pvc/grows") == ["FileSystemResizePending"]).then_some(())
        });
        lab.running("grows");
        lab.delete("grows");
        lab.pod("grows-2", 1, "grows", &format!("grep old /data/file; {}", has_more_than(140)), json!({}));
        has_grown(lab, "grows", "256Mi");
        lab.succeeds("grows-2");
    }
    lab.delete_claim("grows");
}

fn has_more_than(mebibytes: u32) -> String {
    format!("test $(($(stat -f -c '%b * %S' /data) / 1048576)) -gt {mebibytes}")
}

/// The smallest xfs has 300 MiB.
pub(crate) fn xfs_under_its_pod(lab: &Lab) {
    lab.apply(json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "tether-e2e-xfs"},
        "provisioner": "driver.longhorn.io", "allowVolumeExpansion": true,
        "parameters": {"numberOfReplicas": "2", "csi.storage.k8s.io/fstype": "xfs"},
    }));
    let request = json!({"storageClassName": "tether-e2e-xfs", "resources": {"requests": {"storage": "320Mi"}}});
    file_system(lab, "grows-xfs", request, "480Mi", 340);
    lab.kubectl(&["delete", "storageclass", "tether-e2e-xfs"], None);
}

pub(crate) fn a_device_under_its_pod(lab: &Lab) {
    let script = "until [ \"$(blockdev --getsize64 /dev/xvda)\" = 268435456 ]; do sleep 0.2; done; \
                  dd if=/dev/zero of=/dev/xvda bs=1M seek=255 count=1 oflag=direct";
    let device = json!({"containers": [{
        "name": "app", "image": "tether", "command": ["sh", "-euc", script], "volumeMounts": [],
        "volumeDevices": [{"name": "data", "devicePath": "/dev/xvda"}],
    }]});
    grows_under_its_pod(lab, "grows-raw", "", device, json!({"volumeMode": "Block"}), "256Mi");
    lab.succeeds("grows-raw");
    lab.delete_claim("grows-raw");
}

pub(crate) fn while_nobody_has_it(lab: &Lab) {
    lab.claim("rests", json!({}));
    lab.pod("rests-1", 0, "rests", "echo old > /data/file", json!({}));
    lab.succeeds("rests-1");
    // Nobody has it: the volume grows at once, its file system when the next pod mounts it.
    lab.nothing_is_left();
    ask(lab, "rests", "256Mi");
    has_grown(lab, "rests", "256Mi");
    lab.pod("rests-2", 1, "rests", &format!("grep old /data/file; {}", has_more_than(140)), json!({}));
    lab.succeeds("rests-2");
    lab.delete_claim("rests");
}

pub(crate) fn what_cannot_grow(lab: &Lab) {
    lab.claim("fixed", json!({}));
    lab.volume_of("fixed");
    let smaller = json!({"spec": {"resources": {"requests": {"storage": "64Mi"}}}}).to_string();
    let refused = lab.try_kubectl(&["patch", "pvc", "fixed", "-p", &smaller], None);
    assert!(!refused.status.success(), "a volume does not shrink");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("less than"), "{refused:?}");
    let class = |allow: bool| json!({"allowVolumeExpansion": allow}).to_string();
    lab.kubectl(&["patch", "storageclass", CLASS, "-p", &class(false)], None);
    let larger = json!({"spec": {"resources": {"requests": {"storage": "256Mi"}}}}).to_string();
    let refused = lab.try_kubectl(&["patch", "pvc", "fixed", "-p", &larger], None);
    lab.kubectl(&["patch", "storageclass", CLASS, "-p", &class(true)], None);
    assert!(!refused.status.success(), "its class does not allow it");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("storageclass"), "{refused:?}");
    lab.delete_claim("fixed");
}
