//! Webhooks against a real HTTPS server on loopback that answers what each test scripts.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::Response;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::admission::{GroupVersionKind, GroupVersionResource};
use crate::auth::User;
use crate::auth::tests::Memory;
use crate::pki::Pki;
use crate::serve::{Limits, PeerAddress, serve};

/// What the server does with a review: the `response` to send, or a raw reply.
type Script = Box<dyn Fn(&Value) -> Reply + Send>;

enum Reply {
    Response(Value),
    Raw(u16, String),
    Never,
}

#[derive(Default)]
struct Seen {
    reviews: Vec<Value>,
    paths: Vec<String>,
    peers: BTreeSet<SocketAddr>,
}

struct Hooked {
    objects: Arc<Memory>,
    webhooks: Webhooks,
    seen: Arc<Mutex<Seen>>,
    script: Arc<Mutex<VecDeque<Script>>>,
    url: String,
    ca: String,
    stop: CancellationToken,
    _home: tempfile::TempDir,
}

impl Drop for Hooked {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Hooked {
    async fn start() -> Self {
        let home = tempfile::tempdir().unwrap();
        let now = Timestamp::now();
        let pki = Pki::open_or_create(&home.path().join("pki"), now).unwrap();
        let tls = Arc::new(pki.server_config(&pki.server(&[], now).unwrap()).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Seen::default()));
        let script: Arc<Mutex<VecDeque<Script>>> = Arc::default();
        let (record, answers) = (seen.clone(), script.clone());
        let service = tower::service_fn(move |request: http::Request<Incoming>| {
            let (record, answers) = (record.clone(), answers.clone());
            async move {
                let (parts, body) = request.into_parts();
                let review: Value = serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap();
                let reply = {
                    let mut seen = record.lock();
                    seen.reviews.push(review.clone());
                    seen.paths.push(parts.uri.to_string());
                    seen.peers.insert(parts.extensions.get::<PeerAddress>().unwrap().0);
                    answers.lock().pop_front().expect("a webhook was called once too often")(&review)
                };
                let (status, text) = match reply {
                    Reply::Never => std::future::pending().await,
                    Reply::Raw(status, text) => (status, text),
                    Reply::Response(response) => {
                        let api_version = &review["apiVersion"];
                        let answer =
                            json!({"kind": "AdmissionReview", "apiVersion": api_version, "response": response});
                        (200, answer.to_string())
                    }
                };
                let response = Response::builder().status(status).body(Full::new(Bytes::from(text))).unwrap();
                Ok::<_, Infallible>(response)
            }
        });
        let stop = CancellationToken::new();
        tokio::spawn(serve(listener, tls, service, Limits::default(), stop.clone()));
        let objects = Memory::with([("namespaces", json!({"metadata": {"name": "a", "labels": {"team": "storage"}}}))]);
        let webhooks = Webhooks::new(objects.clone());
        let ca = STANDARD.encode(pki.ca_pem());
        Self { objects, webhooks, seen, script, url, ca, stop, _home: home }
    }

    /// A hook for all pods, with some fields set differently.
    fn hook(&self, name: &str, fields: Value) -> Value {
        let mut hook = json!({
            "name": name,
            "clientConfig": {"url": format!("{}/{name}", self.url), "caBundle": self.ca},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"],
                       "resources": ["pods"], "scope": "*"}],
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
            "timeoutSeconds": 10,
        });
        for (field, value) in fields.as_object().unwrap() {
            hook[field] = value.clone();
        }
        hook
    }

    fn configure(&self, resource: &str, hooks: Value) {
        self.objects.put(resource, json!({"metadata": {"name": "config"}, "webhooks": hooks}));
    }

    fn answer(&self, answer: impl Fn(&Value) -> Reply + Send + 'static) {
        self.script.lock().push_back(Box::new(answer));
    }

    fn allow(&self) {
        self.answer(|review| Reply::Response(json!({"uid": review["request"]["uid"], "allowed": true})));
    }

    fn patch(&self, operations: Value) {
        self.answer(move |review| {
            let patch = STANDARD.encode(operations.to_string());
            let uid = &review["request"]["uid"];
            Reply::Response(json!({"uid": uid, "allowed": true, "patchType": "JSONPatch", "patch": patch}))
        });
    }

    async fn validate(&self, request: &Request) -> (Result<(), ApiError>, Vec<String>) {
        let mut warnings = Vec::new();
        let result = self.webhooks.validate(request, &mut warnings).await;
        (result, warnings)
    }

    /// The message of the refusal by one validating hook.
    async fn refusal(&self, request: &Request) -> String {
        self.validate(request).await.0.unwrap_err().message
    }

    fn calls(&self) -> usize {
        self.seen.lock().reviews.len()
    }
}

fn pod() -> Request {
    Request {
        user: User::new("ann", ["devs"]),
        operation: Operation::Create,
        kind: GroupVersionKind { group: String::new(), version: "v1".into(), kind: "Pod".into() },
        resource: GroupVersionResource { group: String::new(), version: "v1".into(), resource: "pods".into() },
        subresource: String::new(),
        namespace: "a".into(),
        name: "web".into(),
        object: json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "labels": {"app": "web"}}}),
        old_object: None,
        dry_run: false,
        options: json!({"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"}),
    }
}

#[tokio::test]
async fn a_webhook_sees_the_whole_request() {
    let hooked = Hooked::start().await;
    hooked.configure(VALIDATING, json!([hooked.hook("check", json!({}))]));
    hooked.allow();
    hooked.validate(&pod()).await.0.unwrap();
    let seen = hooked.seen.lock();
    assert_eq!(seen.paths, ["/check?timeout=10s"]);
    let review = &seen.reviews[0];
    assert_eq!(review["apiVersion"], "admission.k8s.io/v1");
    let mut request = review["request"].clone();
    assert!(!request["uid"].take().as_str().unwrap().is_empty());
    assert_eq!(
        request,
        json!({
            "uid": null,
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
            "requestResource": {"group": "", "version": "v1", "resource": "pods"},
            "name": "web",
            "namespace": "a",
            "operation": "CREATE",
            "userInfo": {"username": "ann", "groups": ["devs", "system:authenticated"]},
            "object": pod().object,
            "oldObject": null,
            "dryRun": false,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        })
    );
}

#[tokio::test]
async fn refusals_carry_the_webhooks_words() {
    let hooked = Hooked::start().await;
    hooked.configure(VALIDATING, json!([hooked.hook("check", json!({}))]));
    let cases = [
        (json!(null), 400, "", "admission webhook \"check\" denied the request without explanation"),
        (
            json!({"message": "no", "code": 403, "reason": "Forbidden"}),
            403,
            "Forbidden",
            "admission webhook \"check\" denied the request: no",
        ),
        (json!({"reason": "Invalid"}), 400, "Invalid", "admission webhook \"check\" denied the request: Invalid"),
        (json!({"code": 200, "message": "ok?"}), 400, "", "admission webhook \"check\" denied the request: ok?"),
    ];
    for (status, code, reason, message) in cases {
        hooked.answer(move |review| {
            let uid = &review["request"]["uid"];
            Reply::Response(json!({"uid": uid, "allowed": false, "status": status, "warnings": ["careful"]}))
        });
        let error = hooked.validate(&pod()).await.0.unwrap_err();
        assert_eq!((error.code, error.reason, error.message.as_str()), (code, reason, message));
    }
}

#[tokio::test]
async fn warnings_are_passed_on() {
    let hooked = Hooked::start().await;
    hooked.configure(VALIDATING, json!([hooked.hook("check", json!({}))]));
    hooked.answer(|review| {
        let uid = &review["request"]["uid"];
        Reply::Response(json!({"uid": uid, "allowed": true, "warnings": ["old field"]}))
    });
    assert_eq!(hooked.validate(&pod()).await, (Ok(()), vec!["old field".to_owned()]));
}

#[tokio::test]
async fn answers_must_fit_the_question() {
    let hooked = Hooked::start().await;
    hooked.configure(VALIDATING, json!([hooked.hook("check", json!({}))]));
    let failed = "Internal error occurred: failed calling webhook \"check\": ";
    hooked.answer(|_| Reply::Response(json!({"uid": "other", "allowed": true})));
    let message = hooked.refusal(&pod()).await;
    assert!(message.starts_with(&format!("{failed}received invalid webhook response: expected response.uid=")));
    hooked.answer(|_| Reply::Raw(200, "{}".into()));
    assert_eq!(
        hooked.refusal(&pod()).await,
        format!("{failed}received invalid webhook response: webhook response was absent")
    );
    hooked.answer(|review| {
        let uid = &review["request"]["uid"];
        let response = json!({"uid": uid, "allowed": true});
        let wrong = json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1beta1", "response": response});
        Reply::Raw(200, wrong.to_string())
    });
    assert_eq!(
        hooked.refusal(&pod()).await,
        format!(
            "{failed}received invalid webhook response: expected webhook response of admission.k8s.io/v1, \
             Kind=AdmissionReview, got admission.k8s.io/v1beta1, Kind=AdmissionReview"
        )
    );
    hooked.patch(json!([{"op": "remove", "path": "/metadata"}]));
    assert_eq!(
        hooked.refusal(&pod()).await,
        format!("{failed}received invalid webhook response: validating webhook may not return response.patch")
    );
    hooked.answer(|_| Reply::Raw(200, "no json".into()));
    assert!(hooked.refusal(&pod()).await.contains("json parse error"));
    hooked.answer(|_| Reply::Raw(500, "boom".into()));
    assert_eq!(
        hooked.refusal(&pod()).await,
        format!(
            "{failed}failed to call webhook: an error on the server (\"boom\") has prevented the request from succeeding"
        )
    );
}

#[tokio::test]
async fn failure_policy_decides_when_nobody_answers() {
    let hooked = Hooked::start().await;
    let dead = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let nobody = |policy: &str| {
        let config = json!({"url": format!("https://{dead}/x"), "caBundle": hooked.ca});
        json!([hooked.hook("gone", json!({"failurePolicy": policy, "clientConfig": config, "timeoutSeconds": 3}))])
    };
    hooked.configure(VALIDATING, nobody("Ignore"));
    hooked.validate(&pod()).await.0.unwrap();
    hooked.configure(VALIDATING, nobody("Fail"));
    let error = hooked.validate(&pod()).await.0.unwrap_err();
    assert_eq!(
        error.message,
        format!(
            "Internal error occurred: failed calling webhook \"gone\": failed to call webhook: Post \
             \"https://{dead}/x?timeout=3s\": dial tcp {dead}: connect: connection refused"
        )
    );
    assert_eq!(error.code, 500);

    hooked.configure(VALIDATING, json!([hooked.hook("slow", json!({"timeoutSeconds": 1}))]));
    hooked.answer(|_| Reply::Never);
    let message = hooked.refusal(&pod()).await;
    assert!(message.ends_with("/slow?timeout=1s\": context deadline exceeded"), "{message}");
}

#[tokio::test]
async fn only_the_configured_authority_is_trusted() {
    let hooked = Hooked::start().await;
    let home = tempfile::tempdir().unwrap();
    let stranger = Pki::open_or_create(home.path(), Timestamp::now()).unwrap();
    let trust = |bundle: &str| {
        let config = json!({"url": format!("{}/x", hooked.url), "caBundle": STANDARD.encode(bundle)});
        json!([hooked.hook("check", json!({"clientConfig": config}))])
    };
    hooked.configure(VALIDATING, trust(stranger.ca_pem()));
    let message = hooked.refusal(&pod()).await;
    assert!(
        message.ends_with("tls: failed to verify certificate: x509: certificate signed by unknown authority"),
        "{message}"
    );
    hooked.configure(VALIDATING, trust("rubbish"));
    let message = hooked.refusal(&pod()).await;
    assert!(message.contains("unable to load root certificates"), "{message}");
    let service = json!({"clientConfig": {"service": {"namespace": "sys", "name": "hooks"}}});
    hooked.configure(VALIDATING, json!([hooked.hook("check", service)]));
    let message = hooked.refusal(&pod()).await;
    assert!(message.contains("service sys/hooks cannot be reached"), "{message}");
}

#[tokio::test]
async fn connections_are_used_again() {
    let hooked = Hooked::start().await;
    hooked.configure(VALIDATING, json!([hooked.hook("check", json!({}))]));
    for _ in 0..5 {
        hooked.allow();
        hooked.validate(&pod()).await.0.unwrap();
    }
    assert_eq!(hooked.seen.lock().peers.len(), 1);
}

#[tokio::test]
async fn patches_change_the_object_one_after_the_other() {
    let hooked = Hooked::start().await;
    hooked.configure(
        MUTATING,
        json!([
            hooked.hook("first", json!({"reinvocationPolicy": "IfNeeded"})),
            hooked.hook("second", json!({})),
            hooked.hook("third", json!({"reinvocationPolicy": "IfNeeded"})),
        ]),
    );
    hooked.patch(json!([{"op": "add", "path": "/metadata/labels/a", "value": "1"}]));
    hooked.patch(json!([{"op": "add", "path": "/metadata/labels/b", "value": "2"}]));
    hooked.allow();
    // `first` is asked again: `second` changed the object after it. `third` saw everything.
    hooked.answer(|review| {
        assert_eq!(review["request"]["object"]["metadata"]["labels"], json!({"app": "web", "a": "1", "b": "2"}));
        Reply::Response(json!({"uid": review["request"]["uid"], "allowed": true}))
    });
    let mut request = pod();
    hooked.webhooks.mutate(&mut request, &mut Vec::new()).await.unwrap();
    assert_eq!(request.object["metadata"]["labels"], json!({"app": "web", "a": "1", "b": "2"}));
    let paths: Vec<String> = hooked.seen.lock().paths.iter().map(|p| p.split('?').next().unwrap().to_owned()).collect();
    assert_eq!(paths, ["/first", "/second", "/third", "/first"]);
}

#[tokio::test]
async fn a_patch_that_does_not_fit_is_an_error() {
    let hooked = Hooked::start().await;
    hooked.configure(MUTATING, json!([hooked.hook("m", json!({"failurePolicy": "Ignore"}))]));
    let mut request = pod();
    hooked.patch(json!([{"op": "remove", "path": "/spec/nothing"}]));
    assert_eq!(hooked.webhooks.mutate(&mut request, &mut Vec::new()).await.unwrap_err().code, 500);
    hooked.patch(json!([{"op": "replace", "path": "/kind", "value": "Node"}]));
    assert_eq!(hooked.webhooks.mutate(&mut request, &mut Vec::new()).await.unwrap_err().code, 500);
    assert_eq!(request.object, pod().object);

    let rules = json!([{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["DELETE"], "resources": ["*"]}]);
    hooked.configure(MUTATING, json!([hooked.hook("m", json!({"rules": rules}))]));
    let mut delete = Request { operation: Operation::Delete, object: Value::Null, ..pod() };
    hooked.patch(json!([{"op": "add", "path": "/a", "value": 1}]));
    assert_eq!(
        hooked.webhooks.mutate(&mut delete, &mut Vec::new()).await.unwrap_err().message,
        "Internal error occurred: admission webhook \"m\" attempted to modify the object, which is not supported for \
         this operation"
    );
}

#[tokio::test]
async fn rules_choose_requests() {
    let hooked = Hooked::start().await;
    let rule = |fields: Value| {
        let mut rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["pods"]});
        for (field, value) in fields.as_object().unwrap() {
            rule[field] = value.clone();
        }
        json!({"rules": [rule]})
    };
    let node = || Request {
        namespace: String::new(),
        resource: GroupVersionResource { resource: "nodes".into(), ..pod().resource },
        ..pod()
    };
    let namespace =
        || Request { resource: GroupVersionResource { resource: "namespaces".into(), ..pod().resource }, ..pod() };
    let status = || Request { subresource: "status".into(), ..pod() };
    let cases = [
        (rule(json!({})), pod(), true),
        (rule(json!({"operations": ["DELETE"]})), pod(), false),
        (rule(json!({"operations": ["CREATE"]})), pod(), true),
        (rule(json!({"apiGroups": ["apps"]})), pod(), false),
        (rule(json!({"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]})), pod(), true),
        (rule(json!({"apiVersions": ["v2"]})), pod(), false),
        (rule(json!({})), status(), false),
        (rule(json!({"resources": ["pods/status"]})), status(), true),
        (rule(json!({"resources": ["pods/*"]})), status(), true),
        (rule(json!({"resources": ["pods/*"]})), pod(), true),
        (rule(json!({"resources": ["*"]})), status(), false),
        (rule(json!({"resources": ["*/*"]})), status(), true),
        (rule(json!({"resources": ["*"], "scope": "Namespaced"})), pod(), true),
        (rule(json!({"resources": ["*"], "scope": "Namespaced"})), node(), false),
        (rule(json!({"resources": ["*"], "scope": "Namespaced"})), namespace(), false),
        (rule(json!({"resources": ["*"], "scope": "Cluster"})), node(), true),
        (rule(json!({"resources": ["*"], "scope": "Cluster"})), namespace(), true),
        (rule(json!({"resources": ["*"], "scope": "Cluster"})), pod(), false),
    ];
    for (fields, request, expected) in cases {
        hooked.configure(VALIDATING, json!([hooked.hook("check", fields.clone())]));
        if expected {
            hooked.allow();
        }
        let before = hooked.calls();
        hooked.validate(&request).await.0.unwrap();
        assert_eq!(hooked.calls() - before, usize::from(expected), "{fields} {:?}", request.resource);
    }
}

#[tokio::test]
async fn selectors_and_conditions_choose_requests() {
    let hooked = Hooked::start().await;
    let condition = |expression: &str| json!({"matchConditions": [{"name": "c", "expression": expression}]});
    let cases = [
        (json!({"namespaceSelector": {"matchLabels": {"team": "storage"}}}), true),
        (json!({"namespaceSelector": {"matchLabels": {"team": "web"}}}), false),
        (json!({"objectSelector": {"matchLabels": {"app": "web"}}}), true),
        (json!({"objectSelector": {"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}}), false),
        (condition("object.metadata.name == 'web' && request.operation == 'CREATE'"), true),
        (condition("request.userInfo.username != 'ann'"), false),
        (condition("'devs' in request.userInfo.groups && oldObject == null"), true),
        (condition("object.metadata.labels.exists(l, l == 'nope')"), false),
    ];
    for (fields, expected) in cases {
        hooked.configure(VALIDATING, json!([hooked.hook("check", fields.clone())]));
        if expected {
            hooked.allow();
        }
        let before = hooked.calls();
        hooked.validate(&pod()).await.0.unwrap();
        assert_eq!(hooked.calls() - before, usize::from(expected), "{fields}");
    }
    // What cannot be evaluated is a matter of the failure policy, unless another condition says no.
    hooked.configure(VALIDATING, json!([hooked.hook("check", condition("object.spec.none > 1"))]));
    let message = hooked.refusal(&pod()).await;
    assert!(
        message.starts_with("pods \"web\" is forbidden: expression 'object.spec.none > 1' resulted in error: "),
        "{message}"
    );
    let mut open = condition("object.spec.none > 1");
    open["failurePolicy"] = "Ignore".into();
    hooked.configure(VALIDATING, json!([hooked.hook("check", open)]));
    hooked.validate(&pod()).await.0.unwrap();
    let both = json!({"matchConditions": [
        {"name": "c", "expression": "object.spec.none > 1"}, {"name": "d", "expression": "false"},
    ]});
    hooked.configure(VALIDATING, json!([hooked.hook("check", both)]));
    hooked.validate(&pod()).await.0.unwrap();
}

#[tokio::test]
async fn a_missing_namespace_is_told_if_the_rules_match() {
    let hooked = Hooked::start().await;
    let lost = Request { namespace: "gone".into(), ..pod() };
    let selector = json!({"namespaceSelector": {"matchLabels": {"team": "storage"}}});
    hooked.configure(VALIDATING, json!([hooked.hook("check", selector.clone())]));
    assert_eq!(hooked.refusal(&lost).await, "namespaces \"gone\" not found");
    let mut other = selector;
    other["rules"] = json!([]);
    hooked.configure(VALIDATING, json!([hooked.hook("check", other)]));
    hooked.validate(&lost).await.0.unwrap();
}

#[tokio::test]
async fn dry_runs_go_only_where_they_leave_no_trace() {
    let hooked = Hooked::start().await;
    let dry = || Request { dry_run: true, ..pod() };
    hooked.configure(VALIDATING, json!([hooked.hook("check", json!({"sideEffects": "Some"}))]));
    assert_eq!(hooked.refusal(&dry()).await, "admission webhook \"check\" does not support dry run");
    hooked.configure(VALIDATING, json!([hooked.hook("check", json!({"sideEffects": "NoneOnDryRun"}))]));
    hooked.answer(|review| {
        assert_eq!(review["request"]["dryRun"], true);
        Reply::Response(json!({"uid": review["request"]["uid"], "allowed": true}))
    });
    hooked.validate(&dry()).await.0.unwrap();
}

#[tokio::test]
async fn a_webhook_for_one_version_sees_the_others() {
    let hooked = Hooked::start().await;
    hooked.objects.put(
        "customresourcedefinitions.apiextensions.k8s.io",
        json!({"metadata": {"name": "volumes.longhorn.io"}, "spec": {"versions": [
            {"name": "v1beta1", "served": true}, {"name": "v1beta2", "served": true},
        ]}}),
    );
    let volume = Request {
        kind: GroupVersionKind { group: "longhorn.io".into(), version: "v1beta1".into(), kind: "Volume".into() },
        resource: GroupVersionResource {
            group: "longhorn.io".into(),
            version: "v1beta1".into(),
            resource: "volumes".into(),
        },
        object: json!({"apiVersion": "longhorn.io/v1beta1", "kind": "Volume", "metadata": {"name": "v"}}),
        ..pod()
    };
    let rules = json!([{"apiGroups": ["longhorn.io"], "apiVersions": ["v1beta2"], "operations": ["*"],
                        "resources": ["volumes"]}]);
    hooked.configure(MUTATING, json!([hooked.hook("m", json!({"rules": rules, "matchPolicy": "Exact"}))]));
    let mut request = volume.clone();
    hooked.webhooks.mutate(&mut request, &mut Vec::new()).await.unwrap();
    assert_eq!(hooked.calls(), 0);

    hooked.configure(MUTATING, json!([hooked.hook("m", json!({"rules": rules, "matchPolicy": "Equivalent"}))]));
    hooked.patch(json!([{"op": "add", "path": "/spec", "value": {"size": "1"}}]));
    hooked.webhooks.mutate(&mut request, &mut Vec::new()).await.unwrap();
    let sent = hooked.seen.lock().reviews[0]["request"].clone();
    assert_eq!(sent["object"]["apiVersion"], "longhorn.io/v1beta2");
    assert_eq!(sent["resource"]["version"], "v1beta2");
    assert_eq!(sent["requestResource"]["version"], "v1beta1");
    assert_eq!(request.object["apiVersion"], "longhorn.io/v1beta1");
    assert_eq!(request.object["spec"]["size"], "1");
}

#[tokio::test]
async fn webhooks_have_no_say_over_webhooks() {
    let hooked = Hooked::start().await;
    let everything = json!({"rules": [
        {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]},
    ]});
    hooked.configure(VALIDATING, json!([hooked.hook("check", everything)]));
    let group = "admissionregistration.k8s.io".to_owned();
    let request = Request {
        kind: GroupVersionKind { group: group.clone(), ..pod().kind },
        resource: GroupVersionResource { group, ..pod().resource },
        ..pod()
    };
    hooked.validate(&request).await.0.unwrap();
    assert_eq!(hooked.calls(), 0);
}
