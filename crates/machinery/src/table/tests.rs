//! What kubectl would show.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;
use crate::kinds;

const NOW: &str = "2026-01-01T12:00:00Z";

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

/// The cells of `object`, those of `-o wide` included, joined by a bar.
fn line(group: &str, plural: &str, object: &Value) -> String {
    let printer = Printer::builtin(kinds::by_plural(group, "v1", plural).unwrap());
    let table = printer.table([object], &json!({}), now(), Options::default());
    let cells = table["rows"][0]["cells"].as_array().unwrap();
    assert_eq!(cells.len(), printer.columns().len(), "every column has its cell");
    cells.iter().map(jsonpath::print).collect::<Vec<_>>().join("|")
}

fn pod(status: &Value) -> Value {
    json!({
        "metadata": {"name": "web", "creationTimestamp": "2026-01-01T11:59:15Z"},
        "spec": {"nodeName": "node-a", "containers": [{"name": "main"}, {"name": "side"}]},
        "status": status,
    })
}

fn pod_words(pod: &Value) -> String {
    line("", "pods", pod).split('|').skip(1).take(3).collect::<Vec<_>>().join(" ")
}

/// Columns as a definition spells them.
fn columns(definitions: &Value) -> Vec<crate::crd::PrinterColumn> {
    let text = |column: &Value, field: &str| column[field].as_str().unwrap_or_default().to_owned();
    let list = definitions.as_array().unwrap();
    list.iter()
        .map(|column| crate::crd::PrinterColumn {
            name: text(column, "name"),
            ty: text(column, "type"),
            format: text(column, "format"),
            description: text(column, "description"),
            priority: column["priority"].as_i64().unwrap_or_default(),
            json_path: text(column, "jsonPath"),
        })
        .collect()
}

#[test]
fn pods_say_what_their_containers_do() {
    let running = json!({"name": "main", "ready": true, "restartCount": 0, "state": {"running": {}}});
    let done = json!({"name": "side", "state": {"terminated": {"reason": "Completed", "exitCode": 0}}});
    let crashing = json!({
        "name": "side", "restartCount": 4, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"exitCode": 1, "finishedAt": "2026-01-01T11:58:00Z"}},
    });
    let killed = json!({"name": "side", "state": {"terminated": {"exitCode": 137, "signal": 9}}});
    let exited = json!({"name": "side", "state": {"terminated": {"exitCode": 3}}});
    let ready = json!([{"type": "Ready", "status": "True"}]);
    for (status, words) in [
        (json!({"phase": "Pending"}), "0/2 Pending 0"),
        (
            json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "reason": "SchedulingGated"}]}),
            "0/2 SchedulingGated 0",
        ),
        (json!({"phase": "Running", "containerStatuses": [running]}), "1/2 Running 0"),
        (json!({"phase": "Running", "containerStatuses": [running, crashing]}), "1/2 CrashLoopBackOff 4 (2m ago)"),
        (json!({"phase": "Running", "containerStatuses": [running, killed]}), "1/2 Signal:9 0"),
        (json!({"phase": "Running", "containerStatuses": [running, exited]}), "1/2 ExitCode:3 0"),
        (json!({"phase": "Running", "containerStatuses": [running, done], "conditions": ready}), "1/2 Running 0"),
        (json!({"phase": "Running", "containerStatuses": [running, done]}), "1/2 NotReady 0"),
        (json!({"phase": "Succeeded", "containerStatuses": [done]}), "0/2 Completed 0"),
        (json!({"phase": "Failed", "reason": "Evicted"}), "0/2 Evicted 0"),
    ] {
        assert_eq!(pod_words(&pod(&status)), words, "{status}");
    }
}

#[test]
fn init_containers_are_counted_until_they_are_done() {
    let with_init = |init: Value| {
        let mut pod = pod(&json!({"phase": "Pending", "initContainerStatuses": init}));
        pod["spec"]["initContainers"] =
            json!([{"name": "one"}, {"name": "two"}, {"name": "proxy", "restartPolicy": "Always"}]);
        pod
    };
    let done = json!({"name": "one", "state": {"terminated": {"exitCode": 0}}});
    for (init, words) in [
        (json!([{"name": "one", "state": {"running": {}}}]), "0/3 Init:0/3 0"),
        (json!([done, {"name": "two", "state": {"waiting": {"reason": "PodInitializing"}}}]), "0/3 Init:1/3 0"),
        (
            json!([done, {"name": "two", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]),
            "0/3 Init:ImagePullBackOff 0",
        ),
        (
            json!([done, {"name": "two", "restartCount": 2, "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}]),
            "0/3 Init:Error 2",
        ),
        (json!([done, {"name": "two", "state": {"terminated": {"exitCode": 1}}}]), "0/3 Init:ExitCode:1 0"),
        (
            json!([done, done, {"name": "proxy", "started": true, "ready": true, "state": {"running": {}}}]),
            "1/3 Pending 0",
        ),
    ] {
        assert_eq!(pod_words(&with_init(init.clone())), words, "{init}");
    }
}

#[test]
fn a_pod_that_is_being_deleted_says_so() {
    let mut pod = pod(&json!({"phase": "Running"}));
    pod["metadata"]["deletionTimestamp"] = NOW.into();
    assert_eq!(pod_words(&pod), "0/2 Terminating 0");
    pod["status"]["reason"] = "NodeLost".into();
    assert_eq!(pod_words(&pod), "0/2 Unknown 0");
    pod["status"] = json!({"phase": "Succeeded"});
    assert_eq!(pod_words(&pod), "0/2 Succeeded 0");
}

#[test]
fn wide_columns_of_pods() {
    let mut pod = pod(
        &json!({"phase": "Running", "podIPs": [{"ip": "10.0.0.9"}], "conditions": [{"type": "a", "status": "True"}]}),
    );
    pod["spec"]["readinessGates"] = json!([{"conditionType": "a"}, {"conditionType": "b"}]);
    assert_eq!(line("", "pods", &pod), "web|0/2|Running|0|45s|10.0.0.9|node-a|<none>|1/2");
}

#[test]
fn nodes() {
    let mut node = json!({
        "metadata": {
            "name": "node-a", "creationTimestamp": "2025-12-29T12:00:00Z",
            "labels": {"node-role.kubernetes.io/storage": "", "kubernetes.io/role": "worker", "zone": "z"},
        },
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"kubeletVersion": "v1.35.0", "kernelVersion": "6.18", "architecture": "amd64"},
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        },
    });
    assert_eq!(
        line("", "nodes", &node),
        "node-a|Ready|storage,worker|3d|v1.35.0|10.0.0.1|<none>|<unknown>|6.18|<unknown>"
    );
    node["spec"] = json!({"unschedulable": true});
    node["status"] = json!({"conditions": [{"type": "Ready", "status": "Unknown"}]});
    node["metadata"]["labels"] = json!({});
    assert_eq!(
        line("", "nodes", &node),
        "node-a|NotReady,SchedulingDisabled|<none>|3d||<none>|<none>|<unknown>|<unknown>|<unknown>"
    );
    node["status"] = json!({});
    assert!(line("", "nodes", &node).contains("|Unknown,SchedulingDisabled|"));
}

#[test]
fn volumes_and_claims() {
    let created = "2026-01-01T11:50:00Z";
    let mut pv = json!({
        "metadata": {"name": "pv-1", "creationTimestamp": created},
        "spec": {
            "capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteMany", "ReadWriteOnce"], "volumeMode": "Block",
            "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "tether",
            "claimRef": {"namespace": "a", "name": "data"},
        },
        "status": {"phase": "Bound"},
    });
    assert_eq!(line("", "persistentvolumes", &pv), "pv-1|10Gi|RWO,RWX|Retain|Bound|a/data|tether|<unset>||10m|Block");
    pv["metadata"]["deletionTimestamp"] = NOW.into();
    assert!(line("", "persistentvolumes", &pv).contains("|Terminating|"));

    let mut pvc = json!({
        "metadata": {"name": "data", "creationTimestamp": created},
        "spec": {"storageClassName": "tether", "volumeMode": "Filesystem", "accessModes": ["ReadWriteOnce"]},
        "status": {"phase": "Pending"},
    });
    assert_eq!(line("", "persistentvolumeclaims", &pvc), "data|Pending||||tether|<unset>|10m|Filesystem");
    pvc["spec"]["volumeName"] = "pv-1".into();
    pvc["status"] = json!({"phase": "Bound", "capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOncePod"]});
    assert_eq!(line("", "persistentvolumeclaims", &pvc), "data|Bound|pv-1|10Gi|RWOP|tether|<unset>|10m|Filesystem");
}

#[test]
fn storage_kinds() {
    let meta = json!({"name": "x", "creationTimestamp": "2026-01-01T11:00:00Z"});
    let mut class = json!({"metadata": meta, "provisioner": "driver.tether.io", "allowVolumeExpansion": true});
    assert_eq!(line("storage.k8s.io", "storageclasses", &class), "x|driver.tether.io|Delete|Immediate|true|60m");
    class["metadata"]["annotations"] = json!({"storageclass.kubernetes.io/is-default-class": "true"});
    assert!(line("storage.k8s.io", "storageclasses", &class).starts_with("x (default)|"));
    let attachment = json!({
        "metadata": meta, "status": {"attached": true},
        "spec": {"attacher": "driver", "nodeName": "node-a", "source": {"persistentVolumeName": "pv-1"}},
    });
    assert_eq!(line("storage.k8s.io", "volumeattachments", &attachment), "x|driver|pv-1|node-a|true|60m");
    let driver = json!({"metadata": meta, "spec": {
        "attachRequired": false, "tokenRequests": [{"audience": "a"}, {"audience": "b"}], "volumeLifecycleModes": ["Persistent", "Ephemeral"],
    }});
    assert_eq!(line("storage.k8s.io", "csidrivers", &driver), "x|false|false|false|a,b|false|Persistent,Ephemeral|60m");
    let bare = json!({"metadata": meta, "spec": {}});
    assert_eq!(line("storage.k8s.io", "csidrivers", &bare), "x|true|false|false|<unset>|false|<none>|60m");
    let node = json!({"metadata": meta, "spec": {"drivers": [{}, {}]}});
    assert_eq!(line("storage.k8s.io", "csinodes", &node), "x|2|60m");
    let mut capacity = json!({"metadata": meta, "storageClassName": "fast", "capacity": "1Gi"});
    assert_eq!(line("storage.k8s.io", "csistoragecapacities", &capacity), "x|fast|1Gi");
    capacity["capacity"] = json!(null);
    assert_eq!(line("storage.k8s.io", "csistoragecapacities", &capacity), "x|fast|<unset>");
}

#[test]
fn both_faces_of_an_event_print_alike() {
    let core = json!({
        "metadata": {"name": "web.1"}, "type": "Warning", "reason": "BackOff", "message": " back-off \n",
        "involvedObject": {"kind": "Pod", "name": "web", "fieldPath": "spec.containers{main}"},
        "source": {"component": "kubelet", "host": "node-a"},
        "firstTimestamp": "2026-01-01T11:00:00Z", "lastTimestamp": "2026-01-01T11:59:30Z", "count": 12,
    });
    let shown = "30s|Warning|BackOff|pod/web|spec.containers{main}|kubelet, node-a|back-off|60m|12|web.1";
    assert_eq!(line("", "events", &core), shown);
    let series = json!({
        "metadata": {"name": "web.1"}, "type": "Warning", "reason": "BackOff", "note": "back-off",
        "regarding": {"kind": "Pod", "name": "web", "fieldPath": "spec.containers{main}"},
        "reportingController": "kubelet", "reportingInstance": "node-a", "eventTime": "2026-01-01T11:00:00.123456Z",
        "series": {"count": 12, "lastObservedTime": "2026-01-01T11:59:30.000000Z"},
    });
    assert_eq!(line("events.k8s.io", "events", &series), shown.replace("60m", "59m"));
    let single =
        json!({"metadata": {"name": "e"}, "eventTime": "2026-01-01T11:59:50Z", "involvedObject": {"kind": "Node"}});
    assert_eq!(line("", "events", &single), "10s|||node||||10s|1|e");
}

#[test]
fn the_rest() {
    let meta = json!({"name": "x", "creationTimestamp": "2026-01-01T11:00:00Z"});
    for (group, plural, object, shown) in [
        ("", "namespaces", json!({"status": {"phase": "Active"}}), "x|Active|60m"),
        ("", "secrets", json!({"type": "Opaque", "data": {"a": "", "b": ""}}), "x|Opaque|2|60m"),
        ("", "configmaps", json!({"data": {"a": ""}, "binaryData": {"b": ""}}), "x|2|60m"),
        ("", "serviceaccounts", json!({}), "x|60m"),
        ("coordination.k8s.io", "leases", json!({"spec": {"holderIdentity": "node-a"}}), "x|node-a|60m"),
        ("apiextensions.k8s.io", "customresourcedefinitions", json!({}), "x|2026-01-01T11:00:00Z"),
        ("rbac.authorization.k8s.io", "roles", json!({}), "x|2026-01-01T11:00:00Z"),
        (
            "rbac.authorization.k8s.io",
            "rolebindings",
            json!({
                "roleRef": {"kind": "Role", "name": "reader"},
                "subjects": [{"kind": "User", "name": "ann"}, {"kind": "User", "name": "bob"}, {"kind": "ServiceAccount", "namespace": "n", "name": "s"}],
            }),
            "x|Role/reader|60m|ann, bob||n/s",
        ),
        ("admissionregistration.k8s.io", "validatingwebhookconfigurations", json!({"webhooks": [{}]}), "x|1|60m"),
    ] {
        let mut object = object;
        object["metadata"] = meta.clone();
        assert_eq!(line(group, plural, &object), shown, "{plural}");
    }
}

#[test]
fn custom_columns() {
    let printer = Printer::custom(&columns(&json!([
        json!({"name": "State", "type": "string", "jsonPath": ".status.state"}),
        json!({"name": "Size", "type": "integer", "jsonPath": ".spec.size", "priority": 1}),
        json!({"name": "Ready", "type": "boolean", "jsonPath": ".status.ready", "description": "Whether it is ready"}),
        json!({"name": "Scheduled", "type": "date", "jsonPath": ".status.scheduledAt"}),
    ])))
    .unwrap();
    let object = json!({
        "metadata": {"name": "v1"}, "spec": {"size": 5},
        "status": {"ready": "yes", "scheduledAt": "2026-01-01T11:59:00Z"},
    });
    let table = printer.table([&object], &json!({"resourceVersion": "7"}), now(), Options::default());
    assert_eq!(table["rows"][0]["cells"], json!(["v1", null, 5, null, "60s"]));
    assert_eq!(table["columnDefinitions"][2]["priority"], 1);
    assert_eq!(
        table["columnDefinitions"][1]["description"],
        "Custom resource definition column (in JSONPath format): .status.state"
    );
    assert_eq!(table["metadata"]["resourceVersion"], "7");

    let plain = Printer::custom(&[]).unwrap();
    let object = json!({"metadata": {"name": "v1", "creationTimestamp": "2026-01-01T11:59:00Z"}});
    let table = plain.table([&object], &json!({}), now(), Options::default());
    assert_eq!(table["rows"][0]["cells"], json!(["v1", "60s"]));
}

#[test]
fn rows_carry_what_was_asked_for() {
    let printer = Printer::custom(&[]).unwrap();
    let object = json!({"kind": "V", "metadata": {"name": "v1"}, "spec": {"a": 1}});
    let row = |include| {
        let options = Options { include, headers: false };
        let table = printer.table([&object], &json!({}), now(), options);
        assert_eq!(table["columnDefinitions"], Value::Null);
        table["rows"][0]["object"].clone()
    };
    assert_eq!(row(IncludeObject::None), Value::Null);
    assert_eq!(row(IncludeObject::Object), object);
    let partial = row(IncludeObject::Metadata);
    assert_eq!(partial["kind"], "PartialObjectMetadata");
    assert_eq!(partial["metadata"]["name"], "v1");
    assert_eq!(partial.get("spec"), None);
    assert_eq!(IncludeObject::parse(""), Some(IncludeObject::Metadata));
    assert_eq!(IncludeObject::parse("All"), None);
}
