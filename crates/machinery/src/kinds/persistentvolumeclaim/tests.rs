//! Claims as users write and change them.

use serde_json::{Value, json};

use super::*;
use crate::kinds::checks::texts;

fn claim(change: impl FnOnce(&mut Value)) -> Value {
    let mut claim = json!({
        "metadata": {"name": "data", "namespace": "default"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}, "storageClassName": "tether"},
    });
    change(&mut claim);
    default(&mut claim);
    claim
}

fn bound() -> Value {
    claim(|c| {
        c["spec"]["volumeName"] = "pv-1".into();
        c["status"] = json!({"phase": "Bound", "capacity": {"storage": "10Gi"}});
    })
}

#[test]
fn a_new_claim_is_pending_and_protected() {
    let mut claim = claim(|c| c["status"] = json!({"phase": "Bound"}));
    (STRATEGY.admit_create)(&mut claim);
    prepare_create(&mut claim, Timestamp::UNIX_EPOCH);
    assert_eq!(claim["status"], json!({"phase": "Pending"}));
    assert_eq!(claim["spec"]["volumeMode"], "Filesystem");
    assert_eq!(claim["metadata"]["finalizers"], json!([PROTECTION_FINALIZER]));
}

#[test]
fn what_is_refused_in_a_new_claim() {
    type Change = fn(&mut Value);
    let cases: &[(Change, &str)] = &[
        (
            |c| c["spec"]["accessModes"] = json!([]),
            "spec.accessModes: Required value: at least 1 access mode is required",
        ),
        (
            |c| c["spec"]["accessModes"] = json!(["Sometimes"]),
            "spec.accessModes: Unsupported value: \"Sometimes\": supported values: \"ReadOnlyMany\", \"ReadWriteMany\", \"ReadWriteOnce\", \"ReadWriteOncePod\"",
        ),
        (
            |c| c["spec"]["accessModes"] = json!(["ReadWriteOnce", "ReadWriteOncePod"]),
            "spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes",
        ),
        (|c| c["spec"]["resources"] = json!({}), "spec.resources[storage]: Required value"),
        (
            |c| c["spec"]["resources"]["requests"]["storage"] = "0".into(),
            "spec.resources[storage]: Invalid value: \"0\": must be greater than zero",
        ),
        (
            |c| c["spec"]["volumeMode"] = "Tape".into(),
            "spec.volumeMode: Unsupported value: \"Tape\": supported values: \"Block\", \"Filesystem\"",
        ),
        (
            |c| c["spec"]["dataSourceRef"] = json!({"kind": "Backup", "name": "b"}),
            "spec.dataSourceRef: Invalid value: \"Backup\": must be 'PersistentVolumeClaim' when referencing the default apiGroup",
        ),
    ];
    for (change, error) in cases {
        assert_eq!(texts(validate_create(&claim(change))), [*error]);
    }
    assert_eq!(validate_create(&claim(|_| {})), []);
}

#[test]
fn the_two_ways_to_name_a_source_agree() {
    let snapshot = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"});
    let mut claim = claim(|c| c["spec"]["dataSource"] = snapshot.clone());
    prepare_create(&mut claim, Timestamp::UNIX_EPOCH);
    assert_eq!(claim["spec"]["dataSourceRef"], snapshot);
    let mut odd = json!({"spec": {"dataSource": {"kind": "Backup", "name": "b"}}});
    prepare_create(&mut odd, Timestamp::UNIX_EPOCH);
    assert_eq!(odd["spec"].get("dataSource"), None, "what is neither claim nor snapshot has always been dropped");
}

#[test]
fn a_bound_claim_grows() {
    let old = bound();
    let mut new = old.clone();
    new["spec"]["resources"]["requests"]["storage"] = "20Gi".into();
    assert_eq!(validate_update(&new, &old), []);
    let mut back = new.clone();
    back["spec"]["resources"]["requests"]["storage"] = "15Gi".into();
    assert_eq!(validate_update(&back, &new), [], "an expansion that did not happen can be taken back");
    back["spec"]["resources"]["requests"]["storage"] = "10Gi".into();
    assert_eq!(
        texts(validate_update(&back, &new)),
        ["spec.resources.requests.storage: Forbidden: field can not be less than status.capacity"]
    );
}

#[test]
fn everything_else_stays() {
    let old = bound();
    let changes: [fn(&mut Value); 3] = [
        |c| c["spec"]["accessModes"] = json!(["ReadWriteMany"]),
        |c| c["spec"]["volumeName"] = "pv-2".into(),
        |c| c["spec"]["storageClassName"] = "other".into(),
    ];
    for change in changes {
        let mut new = old.clone();
        change(&mut new);
        let errors = texts(validate_update(&new, &old));
        assert!(
            errors[0].starts_with("spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n@@"),
            "{errors:?}"
        );
    }
}

#[test]
fn a_pending_claim_may_be_bound_and_get_a_class() {
    let old = claim(|c| {
        c["spec"].as_object_mut().unwrap().remove("storageClassName");
    });
    let mut new = old.clone();
    new["spec"]["volumeName"] = "pv-1".into();
    new["spec"]["storageClassName"] = "tether".into();
    assert_eq!(validate_update(&new, &old), []);
    let mut larger = old.clone();
    larger["spec"]["resources"]["requests"]["storage"] = "20Gi".into();
    assert_eq!(validate_update(&larger, &old).len(), 1, "only bound claims grow");
}

#[test]
fn the_newest_default_class_is_taken() {
    let class = |name: &str, created: &str, default: &str| json!({"metadata": {"name": name, "creationTimestamp": created, "annotations": {"storageclass.kubernetes.io/is-default-class": default}}});
    let classes = [
        class("a", "2026-01-01T00:00:00Z", "true"),
        class("c", "2026-01-02T00:00:00Z", "true"),
        class("b", "2026-01-02T00:00:00Z", "true"),
        class("d", "2026-01-03T00:00:00Z", "false"),
    ];
    let without = json!({"spec": {}});
    assert_eq!(default_class(&without, &classes), Some("b"));
    assert_eq!(default_class(&without, &classes[3..]), None);
    assert_eq!(default_class(&json!({"spec": {"storageClassName": ""}}), &classes), None, "no class is a choice");
}
