//! Claims that ask for more: under a pod that stays as it is, and while nobody has the volume.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::lab::{CLASS, Lab};

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

/// The claim has what it asked for, and waits for nothing.
fn has_grown(lab: &Lab, claim: &str, size: &str) {
    let claim = format!("pvc/{claim}");
    lab.until_field(&claim, "{.status.capacity.storage}", size);
    lab.until_field(&claim, "{.status.conditions}", "");
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
    lab.event(name, "Resizing", "External resizer is resizing volume");
    lab.event(name, "FileSystemResizeRequired", "Require file system resize of volume on node");
    lab.event(name, "FileSystemResizeSuccessful", "NodeExpandVolume succeeded for volume");
    let ended = lab.wait::<Pod>(name, crate::lab::phase_is("Succeeded")).unwrap();
    let status = &ended.status.unwrap().container_statuses.unwrap()[0];
    assert_eq!(status.restart_count, 0);
    lab.delete(name);
    lab.delete_claim(name);
}

pub(crate) fn ext4_under_its_pod(lab: &Lab) {
    if lab.cluster.is_none() || may_grow_mounted() {
        file_system(lab, "grows", json!({}), "256Mi", 140);
        return;
    }
    eprintln!("growth of a mounted ext4: SKIPPED, it needs CAP_SYS_RESOURCE; that this is told is checked instead");
    lab.claim("grows", json!({}));
    lab.pod("grows-1", 0, "grows", "echo old > /data/file; exec sleep 3600", json!({}));
    lab.running("grows-1");
    ask(lab, "grows", "256Mi");
    lab.event("grows-1", "VolumeResizeFailed", "this node lacks CAP_SYS_RESOURCE");
    lab.until_field("pvc/grows", "{.status.conditions[*].type}", "FileSystemResizePending");
    lab.running("grows-1");
    lab.delete("grows-1");
    lab.pod("grows-2", 1, "grows", &format!("grep old /data/file; {}", has_more_than(140)), json!({}));
    has_grown(lab, "grows", "256Mi");
    lab.succeeds("grows-2");
    lab.delete_claim("grows");
}

/// The kernel asks for this capability to grow a mounted ext file system.
fn may_grow_mounted() -> bool {
    use rustix::thread::{CapabilitySet, capabilities};
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_RESOURCE))
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
