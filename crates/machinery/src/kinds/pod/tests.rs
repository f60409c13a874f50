//! Pods as users write them.

use serde_json::{Value, json};

use super::*;
use crate::kinds::checks::texts;

fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

/// A pod that a user would write, after `change`, as the server sees it when it judges it.
fn pod(change: impl FnOnce(&mut Value)) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"containers": [{"name": "main", "image": "web:1"}]},
    });
    change(&mut pod);
    defaults::default(&mut pod);
    pod
}

fn errors(pod: &Value) -> Vec<String> {
    texts(validate_create(pod))
}

#[test]
fn defaults_are_those_of_kubernetes() {
    let mut pod = pod(|pod| {
        pod["spec"]["containers"][0]["ports"] = json!([{"containerPort": 80}]);
        pod["spec"]["containers"][0]["livenessProbe"] = json!({"httpGet": {"port": 80}});
        pod["spec"]["containers"][0]["resources"] =
            json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}});
        pod["spec"]["volumes"] = json!([{"name": "scratch"}, {"name": "conf", "configMap": {"name": "c"}}, {"name": "host", "hostPath": {"path": "/x"}}]);
    });
    defaults::admit(&mut pod);
    prepare_create(&mut pod, now());
    assert_eq!(
        pod["spec"],
        json!({
            "containers": [{
                "name": "main", "image": "web:1", "imagePullPolicy": "IfNotPresent",
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                "ports": [{"containerPort": 80, "protocol": "TCP"}],
                "livenessProbe": {
                    "httpGet": {"port": 80, "path": "/", "scheme": "HTTP"},
                    "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3,
                },
                "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "1Gi"}},
            }],
            "volumes": [
                {"name": "scratch", "emptyDir": {}}, {"name": "conf", "configMap": {"name": "c", "defaultMode": 420}},
                {"name": "host", "hostPath": {"path": "/x", "type": ""}},
            ],
            "restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler",
            "terminationGracePeriodSeconds": 30, "securityContext": {}, "enableServiceLinks": true,
            "serviceAccountName": "default", "serviceAccount": "default", "priority": 0, "preemptionPolicy": "PreemptLowerPriority",
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
                {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
            ],
        })
    );
    assert_eq!(pod["status"], json!({"phase": "Pending", "qosClass": "Burstable"}));
    assert_eq!(pod["metadata"]["generation"], 1);
    assert_eq!(errors(&pod), [""; 0]);
}

#[test]
fn images_are_pulled_by_their_tag() {
    for (image, policy) in [
        ("web", "Always"),
        ("web:latest", "Always"),
        ("web:1", "IfNotPresent"),
        ("registry:5000/web", "Always"),
        ("registry:5000/web:1", "IfNotPresent"),
        ("web@sha256:0123", "IfNotPresent"),
        ("web:latest@sha256:0123", "Always"),
        ("localhost/a_b/c-d", "Always"),
        ("Upper", "IfNotPresent"),
        ("../web", "IfNotPresent"),
        ("web:", "IfNotPresent"),
    ] {
        assert_eq!(defaults::pull_policy(image), policy, "{image}");
    }
}

#[test]
fn a_pod_that_tolerates_everything_gets_no_tolerations() {
    let mut pod = pod(|pod| pod["spec"]["tolerations"] = json!([{"operator": "Exists"}]));
    defaults::admit(&mut pod);
    assert_eq!(pod["spec"]["tolerations"], json!([{"operator": "Exists"}]));
}

#[test]
fn only_the_priority_classes_of_every_cluster_exist() {
    let class = |name: &str| defaults::refuse_create(&pod(|p| p["spec"]["priorityClassName"] = name.into()));
    assert_eq!(class(""), None);
    assert_eq!(class("system-node-critical"), None);
    assert_eq!(class("mine"), Some("no PriorityClass with name mine was found".to_owned()));
}

#[test]
fn service_class_follows_from_resources() {
    let class = |containers: Value| {
        let mut pod = pod(|pod| pod["spec"]["containers"] = containers);
        prepare_create(&mut pod, now());
        pod["status"]["qosClass"].clone()
    };
    let both = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
    assert_eq!(class(json!([{"name": "a"}])), "BestEffort");
    assert_eq!(class(json!([{"name": "a", "resources": both}])), "Guaranteed");
    assert_eq!(class(json!([{"name": "a", "resources": both}, {"name": "b"}])), "Burstable");
    assert_eq!(class(json!([{"name": "a", "resources": {"limits": {"cpu": "1"}}}])), "Burstable");
    assert_eq!(class(json!([{"name": "a", "resources": {"requests": {"cpu": "1"}}}])), "Burstable");
}

#[test]
fn gated_pods_say_so() {
    let mut pod = pod(|pod| pod["spec"]["schedulingGates"] = json!([{"name": "example.com/wait"}]));
    prepare_create(&mut pod, now());
    assert_eq!(pod["status"]["conditions"][0]["reason"], "SchedulingGated");
    assert_eq!(pod["status"]["conditions"][0]["lastTransitionTime"], "2026-01-01T12:00:00Z");
}

#[test]
fn match_label_keys_become_requirements() {
    let mut pod = pod(|pod| {
        pod["metadata"]["labels"] = json!({"app": "web"});
        pod["spec"]["topologySpreadConstraints"] = json!([{
            "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}, "matchLabelKeys": ["app", "gone"],
        }]);
    });
    prepare_create(&mut pod, now());
    let selector = &pod["spec"]["topologySpreadConstraints"][0]["labelSelector"];
    assert_eq!(selector["matchExpressions"], json!([{"key": "app", "operator": "In", "values": ["web"]}]));
}

#[test]
fn what_is_refused_in_a_new_pod() {
    type Change = fn(&mut Value);
    let cases: &[(Change, &[&str])] = &[
        (|p| p["spec"]["containers"] = json!([]), &["spec.containers: Required value"]),
        (|p| p["spec"]["containers"][0]["image"] = "".into(), &["spec.containers[0].image: Required value"]),
        (
            |p| p["spec"]["containers"][0]["image"] = " web".into(),
            &["spec.containers[0].image: Invalid value: \" web\": must not have leading or trailing whitespace"],
        ),
        (
            |p| p["spec"]["containers"] = json!([{"name": "a", "image": "i"}, {"name": "a", "image": "i"}]),
            &["spec.containers[1].name: Duplicate value: \"a\""],
        ),
        (
            |p| p["spec"]["restartPolicy"] = "Sometimes".into(),
            &[
                "spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"OnFailure\", \"Never\"",
            ],
        ),
        (
            |p| p["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/d"}]),
            &["spec.containers[0].volumeMounts[0].name: Not found: \"data\""],
        ),
        (
            |p| p["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}, "hostPath": {"path": "/x"}}]),
            &["spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type"],
        ),
        (
            |p| p["spec"]["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {}}]),
            &["spec.volumes[0].persistentVolumeClaim.claimName: Required value"],
        ),
        (
            |p| p["spec"]["containers"][0]["ports"] = json!([{"containerPort": 70000}]),
            &[
                "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
            ],
        ),
        (
            |p| p["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}),
            &[
                "spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
            ],
        ),
        (
            |p| p["spec"]["containers"][0]["resources"] = json!({"requests": {"gpu": "2"}}),
            &[
                "spec.containers[0].resources.requests[gpu]: Invalid value: \"gpu\": must be a standard resource type or fully qualified",
                "spec.containers[0].resources.requests[gpu]: Invalid value: \"gpu\": must be a standard resource for containers",
            ],
        ),
        (
            |p| p["spec"]["containers"][0]["resources"] = json!({"requests": {"example.com/gpu": "1"}}),
            &[
                "spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources",
            ],
        ),
        (
            |p| {
                p["spec"]["containers"][0]["livenessProbe"] =
                    json!({"exec": {"command": ["true"]}, "tcpSocket": {"port": 1}});
            },
            &["spec.containers[0].livenessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type"],
        ),
        (
            |p| p["spec"]["containers"][0]["livenessProbe"] = json!({}),
            &["spec.containers[0].livenessProbe: Required value: must specify a handler type"],
        ),
        (
            |p| {
                p["spec"]["containers"][0]["env"] =
                    json!([{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.gone"}}}]);
            },
            &[
                "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Invalid value: \"spec.gone\": error converting fieldPath: field label not supported: spec.gone",
            ],
        ),
        (
            |p| p["spec"]["containers"][0]["env"] = json!([{"name": "A=B"}]),
            &[
                "spec.containers[0].env[0].name: Invalid value: \"A=B\": a valid environment variable name must consist only of printable ASCII characters other than '='",
            ],
        ),
        (
            |p| p["spec"]["tolerations"] = json!([{"key": "a", "operator": "Exists", "value": "b"}]),
            &["spec.tolerations[0].operator: Invalid value: \"b\": value must be empty when `operator` is 'Exists'"],
        ),
        (
            |p| {
                p["spec"]["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}});
            },
            &[
                "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: Required value: must have at least one node selector term",
            ],
        ),
        (
            |p| {
                p["spec"]["nodeName"] = "node-a".into();
                p["spec"]["schedulingGates"] = json!([{"name": "a"}]);
            },
            &["spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared"],
        ),
        (
            |p| {
                p["spec"]["initContainers"] =
                    json!([{"name": "i", "image": "i", "livenessProbe": {"tcpSocket": {"port": 1}}}]);
            },
            &[
                "spec.initContainers[0].livenessProbe: Forbidden: may not be set for init containers without restartPolicy=Always",
            ],
        ),
        (
            |p| {
                p["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
                p["spec"]["containers"][0]["volumeDevices"] = json!([{"name": "v", "devicePath": "/dev/x"}]);
            },
            &[
                "spec.containers[0].volumeDevices[0].name: Invalid value: \"v\": can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode",
            ],
        ),
        (
            |p| p["spec"]["dnsPolicy"] = "None".into(),
            &["spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None"],
        ),
    ];
    for (change, expected) in cases {
        assert_eq!(errors(&pod(change)), *expected);
    }
}

#[test]
fn block_volumes_and_projected_tokens_are_fine() {
    let pod = pod(|p| {
        p["spec"]["serviceAccountName"] = "default".into();
        p["spec"]["volumes"] = json!([
            {"name": "disk", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}, {"configMap": {"name": "ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}]}},
            {"name": "eph", "ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}}},
        ]);
        p["spec"]["containers"][0]["volumeDevices"] = json!([{"name": "disk", "devicePath": "/dev/x"}]);
        p["spec"]["containers"][0]["volumeMounts"] =
            json!([{"name": "token", "mountPath": "/t"}, {"name": "eph", "mountPath": "/e"}]);
    });
    assert_eq!(errors(&pod), [""; 0]);
}

#[test]
fn a_pod_may_change_images_deadlines_and_tolerations() {
    type Change = fn(&mut Value);
    let old = pod(|p| {
        p["spec"]["activeDeadlineSeconds"] = 100.into();
        p["spec"]["tolerations"] =
            json!([{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}]);
    });
    let cases: &[(Change, Option<&str>)] = &[
        (|p| p["spec"]["containers"][0]["image"] = "web:2".into(), None),
        (|p| p["spec"]["activeDeadlineSeconds"] = 50.into(), None),
        (
            |p| p["spec"]["activeDeadlineSeconds"] = 150.into(),
            Some("spec.activeDeadlineSeconds: Invalid value: 150: must be less than or equal to previous value"),
        ),
        (|p| p["spec"]["tolerations"][0]["tolerationSeconds"] = 9.into(), None),
        (|p| p["spec"]["tolerations"].as_array_mut().unwrap().push(json!({"key": "b", "operator": "Exists"})), None),
        (
            |p| p["spec"]["tolerations"] = json!([]),
            Some("spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds"),
        ),
        (|p| p["spec"]["containers"] = json!([]), Some("spec.containers: Required value")),
        (|p| p["metadata"]["labels"] = json!({"a": "b"}), None),
    ];
    for (change, error) in cases {
        let mut new = old.clone();
        change(&mut new);
        let errors = texts(update::validate_update(&new, &old));
        match error {
            None => assert_eq!(errors, [""; 0]),
            Some(error) => assert_eq!(errors[0], *error),
        }
    }
    let mut new = old.clone();
    new["spec"]["nodeName"] = "node-b".into();
    let errors = texts(update::validate_update(&new, &old));
    assert!(
        errors[0]
            .starts_with("spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"),
        "{errors:?}"
    );
    assert!(errors[0].contains("+ \"nodeName\": \"node-b\""), "{errors:?}");
}

#[test]
fn a_gated_pod_may_narrow_its_nodes() {
    let old = pod(|p| {
        p["spec"]["schedulingGates"] = json!([{"name": "a"}]);
        p["spec"]["nodeSelector"] = json!({"zone": "z1"});
    });
    let mut new = old.clone();
    new["spec"]["nodeSelector"]["disk"] = "ssd".into();
    assert_eq!(update::validate_update(&new, &old), []);
    new["spec"]["nodeSelector"]["zone"] = "z2".into();
    let errors = texts(update::validate_update(&new, &old));
    assert_eq!(errors.len(), 1);
    assert!(errors[0].ends_with("only additions to spec.nodeSelector are allowed (no mutations or deletions)"));
    new = old.clone();
    new["spec"]["schedulingGates"] = json!([{"name": "a"}, {"name": "b"}]);
    assert_eq!(
        texts(update::validate_update(&new, &old)),
        ["spec.schedulingGates[1].name: Forbidden: only deletion is allowed, but found new scheduling gate 'b'"]
    );
}

#[test]
fn the_status_endpoint_leaves_spec_and_owners_alone() {
    let old = json!({
        "metadata": {"ownerReferences": [{"uid": "1"}]}, "spec": {"nodeName": "a", "restartPolicy": "Never"},
        "status": {"qosClass": "Burstable", "observedGeneration": 3, "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 0}}}]},
    });
    let mut new = json!({
        "metadata": {"labels": {"a": "b"}}, "spec": {"nodeName": "b"},
        "status": {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]},
    });
    prepare_status(&mut new, &old, now());
    assert_eq!(new["spec"], old["spec"]);
    assert_eq!(new["metadata"], json!({"labels": {"a": "b"}, "ownerReferences": [{"uid": "1"}]}));
    assert_eq!(new["status"]["qosClass"], "Burstable");
    assert_eq!(new["status"]["observedGeneration"], 3);
    assert_eq!(
        texts(update::validate_status(&new, &old)),
        ["status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state"]
    );
    new["status"]["qosClass"] = "Guaranteed".into();
    new["status"]["podIPs"] = json!([{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}]);
    assert_eq!(update::validate_status(&new, &old).len(), 3);
}

#[test]
fn binding_leaves_its_mark() {
    let binding =
        json!({"metadata": {"annotations": {"a": "b"}, "labels": {"zone": "z"}}, "target": {"name": "node-a"}});
    let pod = json!({"metadata": {"name": "web"}, "spec": {}, "status": {"nominatedNodeName": "x"}});
    let bound = bind(&pod, &binding, now()).unwrap();
    assert_eq!(bound["metadata"], json!({"name": "web", "annotations": {"a": "b"}, "labels": {"zone": "z"}}));
    assert_eq!(
        bound["status"],
        json!({"conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T12:00:00Z"}]})
    );
}

#[test]
fn grace_ends_with_the_pod() {
    let running =
        json!({"spec": {"nodeName": "a", "terminationGracePeriodSeconds": 30}, "status": {"phase": "Running"}});
    let ended = json!({"spec": {"nodeName": "a", "terminationGracePeriodSeconds": 30}, "status": {"phase": "Failed"}});
    let unscheduled = json!({"spec": {"terminationGracePeriodSeconds": 30}, "status": {"phase": "Pending"}});
    for (pod, asked, grace) in [
        (&running, None, 30),
        (&running, Some(5), 5),
        (&running, Some(0), 0),
        (&running, Some(-1), 1),
        (&ended, None, 0),
        (&ended, Some(9), 0),
        (&unscheduled, None, 0),
    ] {
        assert_eq!(deletion_grace(pod, asked), grace);
    }
}

#[test]
fn an_evicted_pod_carries_the_reason() {
    let mut pod = json!({"status": {"phase": "Running"}});
    assert!(!eviction_ignores_budgets(&pod));
    mark_evicted(&mut pod, now());
    assert_eq!(pod["status"]["conditions"][0]["type"], "DisruptionTarget");
    assert!(eviction_ignores_budgets(&json!({"status": {"phase": "Pending"}})));
}

#[test]
fn every_container_gets_a_token_unless_it_has_one() {
    let account = json!({"imagePullSecrets": [{"name": "pull"}]});
    let mut pod = pod(|p| {
        p["spec"]["containers"] = json!([
            {"name": "a", "image": "i"},
            {"name": "b", "image": "i", "volumeMounts": [{"name": "own", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}]},
        ]);
    });
    admit_service_account(&mut pod, &account, "x2x4z");
    assert_eq!(pod["spec"]["imagePullSecrets"], json!([{"name": "pull"}]));
    assert_eq!(pod["spec"]["volumes"][0]["name"], "kube-api-access-x2x4z");
    assert_eq!(pod["spec"]["containers"][0]["volumeMounts"][0]["name"], "kube-api-access-x2x4z");
    assert_eq!(pod["spec"]["containers"][1]["volumeMounts"].as_array().unwrap().len(), 1);
    let mut other = pod.clone();
    other["spec"] = json!({"automountServiceAccountToken": false, "containers": [{"name": "a"}]});
    admit_service_account(&mut other, &account, "x2x4z");
    assert_eq!(other["spec"].get("volumes"), None);
}
