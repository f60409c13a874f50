//! Volumes as provisioners and users write and change them.

use serde_json::{Value, json};

use super::*;
use crate::kinds::checks::texts;

fn volume(change: impl FnOnce(&mut Value)) -> Value {
    let mut volume = json!({
        "metadata": {"name": "pv-1"},
        "spec": {
            "capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": "driver.tether.io", "volumeHandle": "v1"},
        },
    });
    change(&mut volume);
    default(&mut volume);
    volume
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

#[test]
fn a_new_volume_is_pending_since_now() {
    let mut volume = volume(|_| {});
    prepare_create(&mut volume, at("2026-01-01T00:00:00Z"));
    assert_eq!(volume["status"], json!({"phase": "Pending", "lastPhaseTransitionTime": "2026-01-01T00:00:00Z"}));
    assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], "Retain");
    assert_eq!(volume["spec"]["volumeMode"], "Filesystem");
    assert_eq!(validate_create(&volume), []);
}

#[test]
fn a_change_of_phase_carries_its_time() {
    let old =
        json!({"spec": {"a": 1}, "status": {"phase": "Pending", "lastPhaseTransitionTime": "2026-01-01T00:00:00Z"}});
    let mut new = json!({"status": {"phase": "Available", "lastPhaseTransitionTime": "2026-01-01T00:00:00Z"}});
    prepare_status(&mut new, &old, at("2026-01-02T00:00:00Z"));
    assert_eq!(new["status"]["lastPhaseTransitionTime"], "2026-01-02T00:00:00Z");
    assert_eq!(new["spec"], json!({"a": 1}));
    let mut same = json!({"status": {"phase": "Pending"}});
    prepare_status(&mut same, &old, at("2026-01-02T00:00:00Z"));
    assert_eq!(same["status"]["lastPhaseTransitionTime"], "2026-01-01T00:00:00Z");
}

#[test]
fn what_is_refused_in_a_new_volume() {
    type Change = fn(&mut Value);
    let cases: &[(Change, &[&str])] = &[
        (|v| v["spec"]["accessModes"] = json!([]), &["spec.accessModes: Required value"]),
        (
            |v| v["spec"]["capacity"] = json!({}),
            &["spec.capacity: Required value", "spec.capacity: Unsupported value: {}: supported values: \"storage\""],
        ),
        (
            |v| v["spec"]["capacity"]["storage"] = "0".into(),
            &["spec.capacity[storage]: Invalid value: \"0\": must be greater than zero"],
        ),
        (|v| v["spec"]["csi"]["volumeHandle"] = "".into(), &["spec.csi.volumeHandle: Required value"]),
        (
            |v| v["spec"]["nfs"] = json!({"server": "s", "path": "/p"}),
            &["spec.csi: Forbidden: may not specify more than 1 volume type"],
        ),
        (
            |v| v["spec"]["hostPath"] = json!({"path": "../x"}),
            &[
                "spec.hostPath.path: Invalid value: \"../x\": must not contain '..'",
                "spec.csi: Forbidden: may not specify more than 1 volume type",
            ],
        ),
        (
            |v| {
                v["spec"].as_object_mut().unwrap().remove("csi");
            },
            &["spec: Required value: must specify a volume type"],
        ),
        (
            |v| {
                v["spec"].as_object_mut().unwrap().remove("csi");
                v["spec"]["local"] = json!({"path": "/mnt"});
            },
            &["spec.nodeAffinity: Required value: Local volume requires node affinity"],
        ),
        (
            |v| v["spec"]["persistentVolumeReclaimPolicy"] = "Burn".into(),
            &[
                "spec.persistentVolumeReclaimPolicy: Unsupported value: \"Burn\": supported values: \"Delete\", \"Recycle\", \"Retain\"",
            ],
        ),
        (
            |v| v["spec"]["csi"]["nodePublishSecretRef"] = json!({"name": "s"}),
            &["spec.csi.nodePublishSecretRef.namespace: Required value"],
        ),
    ];
    for (change, errors) in cases {
        assert_eq!(texts(validate_create(&volume(change))), *errors);
    }
}

#[test]
fn size_policy_and_claim_may_change_the_source_may_not() {
    let old = volume(|_| {});
    let allowed: [fn(&mut Value); 4] = [
        |v| v["spec"]["capacity"]["storage"] = "20Gi".into(),
        |v| v["spec"]["persistentVolumeReclaimPolicy"] = "Delete".into(),
        |v| v["spec"]["claimRef"] = json!({"namespace": "a", "name": "data", "uid": "1"}),
        |v| v["spec"]["csi"]["controllerExpandSecretRef"] = json!({"namespace": "a", "name": "s"}),
    ];
    for change in allowed {
        let mut new = old.clone();
        change(&mut new);
        assert_eq!(validate_update(&new, &old), []);
    }
    let mut new = old.clone();
    new["spec"]["csi"]["volumeHandle"] = "v2".into();
    let errors = texts(validate_update(&new, &old));
    assert!(
        errors[0].starts_with(
            "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation\n"
        ),
        "{errors:?}"
    );
    let mut new = old.clone();
    new["spec"]["volumeMode"] = "Block".into();
    assert_eq!(texts(validate_update(&new, &old)), ["volumeMode: Invalid value: \"Block\": field is immutable"]);
}

#[test]
fn inline_volumes_are_csi_and_nothing_else() {
    let mut problems = Problems::new();
    let inline = json!({"accessModes": ["ReadWriteOnce"], "csi": {"driver": "driver.tether.io", "volumeHandle": "v1"}});
    spec(&mut problems, &Path::new("s"), &inline, true);
    assert_eq!(problems.0, []);
    let inline = json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1"}, "hostPath": {"path": "/x"}});
    spec(&mut problems, &Path::new("s"), &inline, true);
    assert_eq!(
        texts(problems.0),
        [
            "s.capacity: Forbidden: may not be specified in the context of inline volumes",
            "s.csi: Required value: has to be specified in the context of inline volumes",
        ]
    );
}
