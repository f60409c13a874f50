//! Bodies as Go clients write them, byte for byte, by round trip, and as somebody with bad intentions would.

use proptest::prelude::*;
use prost_reflect::{DescriptorPool, DynamicMessage};
use serde_json::json;

use super::*;

/// A field of bytes, by hand.
fn bytes(number: u8, inner: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2, u8::try_from(inner.len()).expect("fixtures must be short")];
    out.extend_from_slice(inner);
    out
}

fn body(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let type_meta = [bytes(1, api_version.as_bytes()), bytes(2, kind.as_bytes())].concat();
    [MAGIC.to_vec(), bytes(1, &type_meta), bytes(2, raw), bytes(3, b""), bytes(4, b"")].concat()
}

#[test]
fn a_configmap_byte_by_byte() {
    let metadata =
        [bytes(1, b"settings"), bytes(3, b"default"), bytes(8, b""), bytes(5, b""), vec![7 << 3, 0]].concat();
    let entry = [bytes(1, b"mode"), bytes(2, b"fast")].concat();
    let binary = [bytes(1, b"key"), bytes(2, &[0xff, 0x00])].concat();
    let raw = [bytes(1, &metadata), bytes(2, &entry), bytes(3, &binary), vec![4 << 3, 0]].concat();
    assert_eq!(
        decode(&body("v1", "ConfigMap", &raw)).unwrap(),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "settings", "namespace": "default"},
            "data": {"mode": "fast"}, "binaryData": {"key": "/wA="}, "immutable": false,
        }),
        "empty strings and times are absent, a false that was set is false"
    );
}

#[test]
fn every_group_has_delete_options() {
    let raw = [vec![1 << 3, 0], bytes(4, b"Foreground")].concat();
    for version in ["v1", "storage.k8s.io/v1"] {
        let options = decode(&body(version, "DeleteOptions", &raw)).unwrap();
        assert_eq!(options["gracePeriodSeconds"], 0);
        assert_eq!(options["propagationPolicy"], "Foreground");
    }
}

fn pod() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "web", "namespace": "a", "creationTimestamp": "2026-01-02T03:04:05Z", "labels": {"app": "web"},
            "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {"f:nodeName": {}}}}],
        },
        "spec": {
            "enableServiceLinks": false, "terminationGracePeriodSeconds": 0, "priority": -10, "securityContext": {"runAsUser": 0},
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}},
                {"name": "conf", "configMap": {"name": "settings", "defaultMode": 420}},
            ],
            "containers": [{
                "name": "main", "image": "web:1",
                "resources": {"requests": {"cpu": "1500m"}},
                "livenessProbe": {"httpGet": {"port": "http"}, "periodSeconds": 5},
                "readinessProbe": {"tcpSocket": {"port": 80}},
            }],
        },
        "status": {"phase": "Running", "containerStatuses": [
            {"name": "main", "ready": false, "restartCount": 0, "image": "web:1", "imageID": "", "state": {"running": {"startedAt": "2026-01-02T03:04:06Z"}}, "lastState": {}},
        ]},
    })
}

/// What a Go client would send as JSON instead.
fn complete_of(mut object: Value) -> Value {
    let (version, kind) =
        (object["apiVersion"].as_str().unwrap().to_owned(), object["kind"].as_str().unwrap().to_owned());
    complete(&version, &kind, &mut object);
    object
}

#[test]
fn objects_survive_the_wire() {
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "volumes.longhorn.io"},
        "spec": {"group": "longhorn.io", "scope": "Namespaced", "names": {"plural": "volumes", "kind": "Volume"}, "versions": [{
            "name": "v1beta2", "served": true, "storage": true, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                "properties": {
                    "size": {"type": "integer", "minimum": 0, "maximum": 1.5, "default": 3, "enum": [1, "a", {"b": null}]},
                    "disks": {"type": "array", "items": {"type": "string"}},
                    "free": {"additionalProperties": true}, "typed": {"additionalProperties": {"type": "string"}},
                },
            }},
        }]},
    });
    let event = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"}, "eventTime": "2026-01-02T03:04:05.678901Z",
        "series": {"count": 2, "lastObservedTime": "2026-01-02T03:04:06.000000Z"}, "note": "n",
    });
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "metadata": {},
        "spec": {"user": "ann", "extra": {"scopes": ["a", "b"]}, "resourceAttributes": {"verb": "get"}},
    });
    for object in [pod(), crd, event, review] {
        let sent = encode(&object).unwrap();
        assert_eq!(complete_of(decode(&sent).unwrap()), complete_of(object));
    }
}

#[test]
fn an_independent_decoder_reads_the_same_bytes() {
    let pool = DescriptorPool::decode(&include_bytes!(concat!(env!("OUT_DIR"), "/kubernetes.bin"))[..]).unwrap();
    let sent = encode(&pod()).unwrap();
    let unknown = pool.get_message_by_name("runtime.Unknown").unwrap();
    let envelope = DynamicMessage::decode(unknown, &sent[MAGIC.len()..]).unwrap();
    let raw = envelope.get_field_by_name("raw").unwrap();
    let message =
        DynamicMessage::decode(pool.get_message_by_name("core.v1.Pod").unwrap(), raw.as_bytes().unwrap().clone())
            .unwrap();
    assert_eq!(message.unknown_fields().count(), 0);
    let spec = message.get_field_by_name("spec").unwrap();
    let spec = spec.as_message().unwrap();
    assert_eq!(spec.get_field_by_name("priority").unwrap().as_i32(), Some(-10));
    assert_eq!(spec.get_field_by_name("volumes").unwrap().as_list().unwrap().len(), 3);
}

#[test]
fn what_go_forgets_and_what_it_always_writes() {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web", "creationTimestamp": null, "labels": {}, "generation": 0},
        "spec": {
            "hostNetwork": false, "nodeName": "", "enableServiceLinks": false, "nodeSelector": {}, "x-unknown": null,
            "containers": [{"name": "", "image": "web", "args": [], "resources": {"limits": {"cpu": "1000m", "memory": "1024Mi"}}}],
            "volumes": [{"name": "v", "emptyDir": {}}], "tolerations": [{"tolerationSeconds": 0}],
        },
        "status": {"startTime": "2026-01-02T04:04:05.5+01:00", "conditions": [{"type": "Ready", "status": "True"}]},
    });
    trim("v1", "Pod", &mut pod);
    assert_eq!(
        pod,
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
            "spec": {
                "enableServiceLinks": false, "x-unknown": null,
                "containers": [{"name": "", "image": "web", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}],
                "volumes": [{"name": "v", "emptyDir": {}}], "tolerations": [{"tolerationSeconds": 0}],
            },
            "status": {"startTime": "2026-01-02T03:04:05Z", "conditions": [{"type": "Ready", "status": "True"}]},
        })
    );
    complete("v1", "Pod", &mut pod);
    assert_eq!(
        pod["status"]["conditions"][0],
        json!({
            "type": "Ready", "status": "True", "lastProbeTime": null, "lastTransitionTime": null,
        })
    );
    let mut node = json!({"metadata": {"name": "n"}, "spec": {}});
    complete("storage.k8s.io/v1", "CSINode", &mut node);
    assert_eq!(node["spec"], json!({"drivers": null}));
    let mut volume = json!({"kind": "Volume", "spec": {"a": null}});
    let before = volume.clone();
    trim("longhorn.io/v1beta2", "Volume", &mut volume);
    complete("longhorn.io/v1beta2", "Volume", &mut volume);
    assert_eq!(volume, before, "custom resources have no Go type here");
}

#[test]
fn bodies_that_are_refused() {
    let named = |field: &str| DecodeError::Field { field: field.to_owned(), problem: String::new() };
    let cut = encode(&pod()).unwrap();
    for (body, error) in [
        (b"{}".to_vec(), DecodeError::NotProtobuf),
        (vec![0; MAX_BODY_BYTES + 1], DecodeError::TooLarge(MAX_BODY_BYTES + 1)),
        (cut[..cut.len() - 10].to_vec(), DecodeError::Truncated),
        (body("v1", "Pod", &[1 << 3 | 7, 0]), DecodeError::WireType(7)),
        (
            body("v1", "Pod", &[1 << 3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
            DecodeError::Varint,
        ),
        (body("v1", "Pod", &[1 << 3, 1]), named("metadata")),
        (body("v1", "Pod", &bytes(1, &bytes(1, &[0xff]))), named("name")),
        (
            body("v1", "Pod", &bytes(1, &bytes(8, &[1 << 3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]))),
            named("creationTimestamp"),
        ),
        (
            body("apps/v1", "Deployment", &[]),
            DecodeError::UnknownKind { api_version: "apps/v1".to_owned(), kind: "Deployment".to_owned() },
        ),
    ] {
        match (decode(&body).unwrap_err(), error) {
            (DecodeError::Field { field, .. }, DecodeError::Field { field: wanted, .. }) => assert_eq!(field, wanted),
            (found, wanted) => assert_eq!(found, wanted),
        }
    }
}

/// A CRD whose schema says `not` to itself, `depth` times over.
fn nested_schema(depth: usize) -> Vec<u8> {
    let mut schema = json!({"type": "object"});
    for _ in 0..depth {
        schema = json!({"not": schema});
    }
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": schema}}]},
    });
    encode(&crd).unwrap()
}

#[test]
fn nesting_and_numbers_of_values_are_bounded() {
    assert!(decode(&nested_schema(MAX_DEPTH / 2)).is_ok());
    assert_eq!(decode(&nested_schema(MAX_DEPTH + 1)), Err(DecodeError::TooDeep));

    let mut raw = Vec::new();
    for _ in 0..=MAX_VALUES {
        raw.extend([2 << 3 | 2, 0]);
    }
    let envelope = [bytes(1, b"v1"), bytes(2, b"ServiceAccount")].concat();
    let mut body = [MAGIC.to_vec(), bytes(1, &envelope)].concat();
    body.push(2 << 3 | 2);
    let length = raw.len() as u32;
    body.extend([length as u8 | 0x80, (length >> 7) as u8 | 0x80, (length >> 14) as u8 & 0x7f]);
    body.extend(raw);
    assert_eq!(decode(&body), Err(DecodeError::TooMany));
}

proptest! {
    #[test]
    fn no_bytes_panic(raw in proptest::collection::vec(any::<u8>(), 0..120), kind in prop::sample::select(vec![
        ("v1", "Pod"), ("v1", "Event"), ("apiextensions.k8s.io/v1", "CustomResourceDefinition"), ("policy/v1", "Eviction"),
    ])) {
        let _ = decode(&raw);
        let _ = decode(&body(kind.0, kind.1, &raw));
    }

    #[test]
    fn no_damage_panics(at in 0_usize..600, value in any::<u8>()) {
        let mut sent = encode(&pod()).unwrap();
        let at = at % sent.len();
        sent[at] = value;
        let _ = decode(&sent);
    }

    #[test]
    fn shaping_twice_changes_nothing(name in "[a-z]{0,4}", number in any::<i32>(), flag in any::<Option<bool>>()) {
        let mut object = pod();
        object["metadata"]["generateName"] = name.into();
        object["spec"]["priority"] = number.into();
        object["spec"]["hostPID"] = flag.into();
        trim("v1", "Pod", &mut object);
        complete("v1", "Pod", &mut object);
        let once = object.clone();
        trim("v1", "Pod", &mut object);
        complete("v1", "Pod", &mut object);
        prop_assert_eq!(object, once);
    }
}
