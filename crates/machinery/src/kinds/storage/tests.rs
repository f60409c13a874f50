//! Classes, attachments, drivers and nodes as CSI uses them.

use serde_json::{Value, json};

use super::*;
use crate::kinds::checks::texts;

fn attachment() -> Value {
    json!({
        "metadata": {"name": "csi-1"},
        "spec": {"attacher": "driver.tether.io", "nodeName": "node-a", "source": {"persistentVolumeName": "pv-1"}},
        "status": {"attached": false},
    })
}

#[test]
fn classes_do_not_change() {
    let mut old = json!({"provisioner": "driver.tether.io", "parameters": {"replicas": "3"}});
    default_class(&mut old);
    assert_eq!(old["reclaimPolicy"], "Delete");
    assert_eq!(old["volumeBindingMode"], "Immediate");
    assert_eq!(validate_class(&old), []);
    let new = json!({
        "provisioner": "other", "parameters": {"replicas": "2"}, "reclaimPolicy": "Retain",
        "volumeBindingMode": "WaitForFirstConsumer", "allowVolumeExpansion": true,
    });
    assert_eq!(
        texts(validate_class_update(&new, &old)),
        [
            "parameters: Forbidden: updates to parameters are forbidden.",
            "provisioner: Forbidden: updates to provisioner are forbidden.",
            "reclaimPolicy: Forbidden: updates to reclaimPolicy are forbidden.",
            "volumeBindingMode: Invalid value: \"WaitForFirstConsumer\": field is immutable",
        ]
    );
}

#[test]
fn classes_name_a_provisioner_and_real_topologies() {
    let class = json!({
        "volumeBindingMode": "Later",
        "allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["a", "a"]}, {"key": "zone", "values": []}]}],
    });
    assert_eq!(
        texts(validate_class(&class)),
        [
            "provisioner: Required value",
            "volumeBindingMode: Unsupported value: \"Later\": supported values: \"Immediate\", \"WaitForFirstConsumer\"",
            "allowedTopologies[0].matchLabelExpressions[0].values[1]: Duplicate value: \"a\"",
            "allowedTopologies[0].matchLabelExpressions[1].values: Required value",
            "allowedTopologies[0].matchLabelExpressions[1].key: Duplicate value: \"zone\"",
        ]
    );
}

#[test]
fn attachments_name_one_volume_and_stay() {
    assert_eq!(validate_new_attachment(&attachment()), []);
    let mut both = attachment();
    both["spec"]["source"]["inlineVolumeSpec"] = json!({});
    assert_eq!(
        texts(validate_new_attachment(&both)),
        ["spec.source: Forbidden: must specify exactly one of inlineVolumeSpec and persistentVolumeName"]
    );
    let mut moved = attachment();
    moved["spec"]["nodeName"] = "node-b".into();
    let errors = texts(validate_attachment_update(&moved, &attachment()));
    assert_eq!(errors.len(), 1);
    assert!(errors[0].starts_with("spec: Invalid value: {") && errors[0].ends_with(": field is immutable"));
}

#[test]
fn the_status_of_an_attachment_changes_alone() {
    let mut new = attachment();
    new["metadata"]["labels"] = json!({"a": "b"});
    new["spec"]["nodeName"] = "node-b".into();
    new["status"] = json!({"attached": true, "attachError": {"message": "x".repeat(2000)}});
    prepare_attachment_status(&mut new, &attachment(), Timestamp::UNIX_EPOCH);
    assert_eq!(new["metadata"], attachment()["metadata"]);
    assert_eq!(new["spec"], attachment()["spec"]);
    assert_eq!(new["status"]["attached"], true);
    assert_eq!(
        texts(validate_attachment_update(&new, &attachment())),
        ["status.attachError.message: Too long: may not be more than 262144 bytes"]
    );
    let mut created = new;
    (VOLUME_ATTACHMENT.prepare_create)(&mut created, Timestamp::UNIX_EPOCH);
    assert_eq!(created["status"], json!({"attached": false}));
}

#[test]
fn drivers_get_defaults_and_keep_their_nature() {
    let mut old = json!({"metadata": {"name": "driver.tether.io"}, "spec": {}});
    default_driver(&mut old);
    assert_eq!(
        old["spec"],
        json!({
            "attachRequired": true, "podInfoOnMount": false, "storageCapacity": false, "requiresRepublish": false, "seLinuxMount": false,
            "fsGroupPolicy": "ReadWriteOnceWithFSType", "volumeLifecycleModes": ["Persistent"],
        })
    );
    assert_eq!(validate_driver(&old), []);
    let mut new = old.clone();
    new["spec"]["attachRequired"] = false.into();
    new["spec"]["tokenRequests"] = json!([{"audience": "a", "expirationSeconds": 10}, {"audience": "a"}]);
    prepare_driver_update(&mut new, &old);
    assert_eq!(new["metadata"]["generation"], 1);
    assert_eq!(
        texts(validate_driver_update(&new, &old)),
        [
            "spec.tokenRequests[0].expirationSeconds: Invalid value: 10: may not specify a duration less than 10 minutes",
            "spec.tokenRequests[1].audience: Duplicate value: \"a\"",
            "spec.attachedRequired: Invalid value: false: field is immutable",
        ]
    );
}

#[test]
fn a_driver_on_a_node_changes_only_its_limit() {
    let old = json!({"spec": {"drivers": [{"name": "driver.tether.io", "nodeID": "a", "topologyKeys": ["zone"]}]}});
    assert_eq!(validate_node(&old), []);
    let mut new = old.clone();
    new["spec"]["drivers"][0]["allocatable"] = json!({"count": 5});
    assert_eq!(validate_node_update(&new, &old), []);
    new["spec"]["drivers"][0]["nodeID"] = "b".into();
    assert_eq!(validate_node_update(&new, &old).len(), 1);
    assert_eq!(validate_node_update(&json!({"spec": {"drivers": []}}), &old), []);
    let wrong = json!({"spec": {"drivers": [{"name": "d", "nodeID": ""}, {"name": "d", "nodeID": "a", "allocatable": {"count": -1}}]}});
    assert_eq!(
        texts(validate_node(&wrong)),
        [
            "spec.drivers[0].nodeID: Required value",
            "spec.drivers[1].allocatable.count: Invalid value: -1: must be greater than or equal to 0",
            "spec.drivers[1].name: Duplicate value: \"d\"",
        ]
    );
}

#[test]
fn capacity_changes_but_not_what_it_is_the_capacity_of() {
    let old = json!({
        "storageClassName": "fast", "capacity": "1Gi", "maximumVolumeSize": "512Mi",
        "nodeTopology": {"matchLabels": {"kubernetes.io/hostname": "node-1"}},
    });
    assert_eq!(validate_capacity(&old), []);
    let mut new = old.clone();
    new["capacity"] = "2Gi".into();
    assert_eq!(validate_capacity_update(&new, &old), []);
    new["capacity"] = "-1".into();
    new["storageClassName"] = "Slow".into();
    let found = texts(validate_capacity_update(&new, &old));
    assert!(
        found[0].starts_with("storageClassName: Invalid value: \"Slow\": a lowercase RFC 1123 subdomain"),
        "{found:?}"
    );
    assert_eq!(
        found[1..],
        [
            "capacity: Invalid value: \"-1\": must be greater than or equal to 0",
            "storageClassName: Invalid value: \"Slow\": field is immutable",
        ]
    );
    assert_eq!(validate_capacity(&json!({"storageClassName": ""})).len(), 1);
}
