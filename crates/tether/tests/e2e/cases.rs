//! What a pod sees of its volumes, from node to node.

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};
use tether_plan::attach_detach::{attachment_name, unique_name};

use crate::lab::{LATE_CLASS, Lab, of};

const SLEEP: &str = "exec sleep 3600";

/// A file system follows its pods from node to node, and the objects on the way are Kubernetes'.
pub(crate) fn data_follows_the_pod(lab: &Lab) {
    lab.claim("follows", json!({}));
    let write = "stop=0; trap 'stop=1' TERM; grep -q ' /data ext4 ' /proc/mounts; echo hello > /data/greeting; \
                 sync; touch /data/written; while [ $stop = 0 ]; do sleep 0.1; done";
    lab.pod("follows-1", 0, "follows", write, json!({}));
    lab.running("follows-1");
    let volume = lab.volume_of("follows");
    let name = attachment_name(&volume, "driver.longhorn.io", &lab.nodes[0]);
    let attachments = lab.attachments();
    let held = attachments.iter().find(|held| held.name_any() == name).expect("named as Kubernetes names it");
    assert_eq!(held.spec.source.persistent_volume_name.as_deref(), Some(volume.as_str()));
    assert!(held.status.as_ref().is_some_and(|status| status.attached));
    assert!(lab.in_use(0).contains(&unique_name("driver.longhorn.io", &volume)));
    lab.delete("follows-1");
    for (pod, node) in [("follows-2", 1), ("follows-3", 2), ("follows-4", 0)] {
        lab.pod(pod, node, "follows", "test -e /data/written; grep hello /data/greeting", json!({}));
        lab.succeeds(pod);
    }
    lab.delete_claim("follows");
}

/// A block volume is a device.
pub(crate) fn a_block_volume_is_a_device(lab: &Lab) {
    lab.claim("raw", json!({"volumeMode": "Block"}));
    let device = |script: &str| {
        json!({"containers": [{
            "name": "app", "image": "tether", "command": ["sh", "-euc", script], "volumeMounts": [],
            "volumeDevices": [{"name": "data", "devicePath": "/dev/xvda"}],
        }]})
    };
    let write = "test -b /dev/xvda; test ! -e /dev/longhorn; \
                 head -c 1048576 /dev/zero | tr '\\0' x | dd of=/dev/xvda bs=64k oflag=direct iflag=fullblock";
    lab.pod("raw-1", 0, "raw", "", device(write));
    lab.succeeds("raw-1");
    let read = "test \"$(dd if=/dev/xvda bs=64k count=16 iflag=direct | tr -d x | wc -c)\" = 0";
    lab.pod("raw-2", 1, "raw", "", device(read));
    lab.succeeds("raw-2");
    lab.pod("raw-3", 1, "raw", SLEEP, json!({}));
    lab.event("raw-3", "FailedMount", "has volumeMode Block, but is specified in volumeMounts");
    lab.delete("raw-3");
    lab.delete_claim("raw");
}

/// The second pod on another node waits with an event, and goes on when the first is gone.
pub(crate) fn a_second_node_waits(lab: &Lab) {
    lab.claim("single", json!({}));
    lab.pod("single-1", 0, "single", SLEEP, json!({}));
    lab.running("single-1");
    lab.pod("single-2", 1, "single", SLEEP, json!({}));
    lab.event("single-2", "FailedAttachVolume", "single-1");
    // On the same node there is no need to wait.
    lab.pod("single-3", 0, "single", "test -d /data/lost+found", json!({}));
    lab.succeeds("single-3");
    assert_ne!(lab.run(lab.api::<Pod>().get("single-2")).unwrap().status.unwrap().phase.as_deref(), Some("Running"));
    lab.delete("single-1");
    lab.running("single-2");
    lab.delete("single-2");
    lab.delete_claim("single");
}

/// A volume for one pod is for one pod, on the same node as well.
pub(crate) fn one_pod_alone(lab: &Lab) {
    lab.claim("alone", json!({"accessModes": ["ReadWriteOncePod"]}));
    lab.pod("alone-1", 0, "alone", SLEEP, json!({}));
    lab.running("alone-1");
    lab.pod("alone-2", 0, "alone", SLEEP, json!({}));
    std::thread::sleep(std::time::Duration::from_secs(1));
    let second = lab.run(lab.api::<Pod>().get("alone-2")).unwrap();
    assert_eq!(crate::lab::phase(Some(&second)), Some("Pending"), "{second:#?}");
    lab.delete("alone-1");
    lab.running("alone-2");
    lab.delete("alone-2");
    lab.delete_claim("alone");
}

/// Sub-paths, read-only mounts, groups, and volumes that need no driver.
pub(crate) fn what_containers_see(lab: &Lab) {
    lab.claim("seen", json!({}));
    let map: ConfigMap = of(json!({"metadata": {"name": "seen"}, "data": {"who": "you", "other": "x"}}));
    lab.run(lab.api::<ConfigMap>().create(&PostParams::default(), &map)).unwrap();
    let secret: Secret = of(json!({"metadata": {"name": "seen"}, "stringData": {"key": "s3"}}));
    lab.run(lab.api::<Secret>().create(&PostParams::default(), &secret)).unwrap();
    let script = "echo inner > /data/file; echo inner > /var/lib/no/such/dir/file; \
                  test \"$(stat -c %g /data)\" = 4242; \
                  ! touch /read-only/x; \
                  test \"$(cat /config/name)\" = you; test ! -e /config/other; \
                  test \"$(cat /secret/key)\" = s3; \
                  echo x > /scratch/x; grep -q ' /memory tmpfs ' /proc/mounts; \
                  test \"$(cat /pod/name)\" = seen-1; test -s /token/token; \
                  test -c /dev/null; test ! -e /dev/loop-control; \
                  ! grep -v ' /data \\| /var/lib/no\\| /read-only ' /proc/mounts | grep ext4.*loop";
    let mounts: Value = json!([
        {"name": "data", "mountPath": "/data", "subPath": "a/b"},
        {"name": "data", "mountPath": "/var/lib/no/such/dir", "subPathExpr": "of-$(POD)"},
        {"name": "data", "mountPath": "/read-only", "readOnly": true},
        {"name": "config", "mountPath": "/config"}, {"name": "secret", "mountPath": "/secret"},
        {"name": "scratch", "mountPath": "/scratch"}, {"name": "memory", "mountPath": "/memory"},
        {"name": "fields", "mountPath": "/pod"}, {"name": "token", "mountPath": "/token"},
    ]);
    let field = json!({"fieldRef": {"fieldPath": "metadata.name"}});
    let spec = |script: &str| {
        json!({
            "securityContext": {"fsGroup": 4242},
            "containers": [{
                "name": "app", "image": "tether", "command": ["sh", "-euc", script], "volumeMounts": mounts.clone(),
                "env": [{"name": "POD", "valueFrom": field.clone()}],
            }],
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "seen"}},
                {"name": "config", "configMap": {"name": "seen", "items": [{"key": "who", "path": "name"}]}},
                {"name": "secret", "secret": {"secretName": "seen"}},
                {"name": "scratch", "emptyDir": {}}, {"name": "memory", "emptyDir": {"medium": "Memory"}},
                {"name": "fields", "downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
                {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
            ],
        })
    };
    lab.pod("seen-1", 0, "seen", "", spec(script));
    lab.succeeds("seen-1");
    let whole = "grep inner /data/a/b/file; grep inner /data/of-seen-1/file; test ! -e /var/lib/no";
    lab.pod("seen-2", 1, "seen", whole, json!({}));
    lab.succeeds("seen-2");
    let other_user = json!({"securityContext": {"runAsUser": 1234, "fsGroup": 4242}});
    lab.pod("seen-3", 2, "seen", "test \"$(id -u)\" = 1234; echo mine > /data/of-1234", other_user);
    lab.succeeds("seen-3");
    lab.run(lab.api::<ConfigMap>().delete("seen", &DeleteParams::default())).unwrap();
    lab.run(lab.api::<Secret>().delete("seen", &DeleteParams::default())).unwrap();
    lab.delete_claim("seen");
}

/// A container that ends is run again and finds its data; a claim that comes late is waited for.
pub(crate) fn pods_restart_and_wait(lab: &Lab) {
    let script = "if [ -e /data/once ]; then exec sleep 3600; fi; touch /data/once; exit 3";
    lab.pod("late", 0, "late", script, json!({"restartPolicy": "Always"}));
    lab.event("late", "FailedMount", "persistentvolumeclaims \"late\" not found");
    lab.claim("late", json!({}));
    let again = |pod: Option<&Pod>| {
        let status = pod.and_then(|pod| pod.status.as_ref()?.container_statuses.as_ref()?.first());
        status.is_some_and(|status| status.restart_count == 1 && status.ready)
    };
    lab.wait::<Pod>("late", again);
    lab.delete("late");
    lab.delete_claim("late");
}

/// Pods that name no node get one from the scheduler. A volume that waits for its first consumer is made for that node's
/// pod, and a later pod finds its data wherever it is put.
pub(crate) fn the_scheduler_chooses(lab: &Lab) {
    lab.claim("chosen", json!({"storageClassName": LATE_CLASS}));
    lab.event("chosen", "WaitForFirstConsumer", "waiting for first consumer");
    // It writes all of it, however soon it is to end.
    let writes =
        "end=; trap 'end=1' TERM; echo here > /data/who; sync; touch /data/done; until test $end; do sleep 0.1; done";
    lab.pod_anywhere("chosen-1", "chosen", writes, json!({}));
    let first = lab.running("chosen-1");
    let node = first.spec.and_then(|spec| spec.node_name).expect("it runs on a node");
    let claim = lab.run(lab.api::<PersistentVolumeClaim>().get("chosen")).unwrap();
    assert_eq!(claim.annotations().get("volume.kubernetes.io/selected-node"), Some(&node));
    // The scheduler may put the second pod where the volume is, or anywhere once it is free.
    lab.pod_anywhere(
        "chosen-2",
        "chosen",
        "until test -e /data/done; do sleep 0.1; done; grep here /data/who",
        json!({}),
    );
    lab.delete("chosen-1");
    lab.succeeds("chosen-2");
    lab.delete_claim("chosen");
}
