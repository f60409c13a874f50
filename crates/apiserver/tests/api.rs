//! The verbs of the API, each as a conversation over plain HTTP in process.

mod common;

use common::{Api, CONFIGMAPS, PODS, configmap, pod};
use http::Method;
use serde_json::{Value, json};

fn at(path: &str, name: &str) -> String {
    format!("{path}/{name}")
}

#[tokio::test]
async fn an_object_is_created_read_changed_and_deleted() {
    let api = Api::start().await;
    let made = api.post(CONFIGMAPS, configmap("a")).await.ok();
    assert_eq!(made["metadata"]["namespace"], "default");
    for field in ["uid", "creationTimestamp", "resourceVersion"] {
        assert!(!made["metadata"][field].as_str().unwrap_or_default().is_empty(), "{field}");
    }
    assert_eq!(made["metadata"]["managedFields"][0]["manager"], "test");
    let read = api.get(&at(CONFIGMAPS, "a")).await.ok();
    assert_eq!(read, made);
    let mut changed = read.clone();
    changed["data"]["a"] = "2".into();
    let updated = api.put(&at(CONFIGMAPS, "a"), changed.clone()).await.ok();
    assert_ne!(updated["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);
    let conflict = api.put(&at(CONFIGMAPS, "a"), changed).await.fails(409);
    assert!(conflict.starts_with("Operation cannot be fulfilled on configmaps \"a\": the object has been modified"));
    let gone = api.delete(&at(CONFIGMAPS, "a")).await.ok();
    assert_eq!((gone["kind"].as_str(), gone["status"].as_str()), (Some("Status"), Some("Success")));
    assert_eq!(api.get(&at(CONFIGMAPS, "a")).await.fails(404), "configmaps \"a\" not found");
}

#[tokio::test]
async fn an_update_that_changes_nothing_writes_nothing() {
    let api = Api::start().await;
    let made = api.post(CONFIGMAPS, configmap("a")).await.ok();
    let same = api.put(&at(CONFIGMAPS, "a"), made.clone()).await.ok();
    assert_eq!(same["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);
    let patched = api.patch(&at(CONFIGMAPS, "a"), "merge", json!({"data": {"a": "1"}})).await.ok();
    assert_eq!(patched["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);
}

#[tokio::test]
async fn creating_twice_or_nowhere_is_refused() {
    let api = Api::start().await;
    api.post(CONFIGMAPS, configmap("a")).await.ok();
    assert_eq!(api.post(CONFIGMAPS, configmap("a")).await.fails(409), "configmaps \"a\" already exists");
    let nowhere = api.post("/api/v1/namespaces/none/configmaps", configmap("a")).await.fails(404);
    assert_eq!(nowhere, "namespaces \"none\" not found");
    let mut other = configmap("b");
    other["metadata"]["namespace"] = "kube-system".into();
    assert!(api.post(CONFIGMAPS, other).await.fails(400).contains("does not match the namespace"));
    let wrong = api.post(CONFIGMAPS, pod("p")).await.fails(400);
    assert!(wrong.contains("Pod") && wrong.contains("ConfigMap"), "{wrong}");
}

#[tokio::test]
async fn names_are_generated_and_checked() {
    let api = Api::start().await;
    let mut object = configmap("");
    object["metadata"] = json!({"generateName": "job-"});
    let made = api.post(CONFIGMAPS, object).await.ok();
    let name = made["metadata"]["name"].as_str().expect("name");
    assert!(name.starts_with("job-") && name.len() == 9, "{name}");
    let invalid = api.post(CONFIGMAPS, configmap("Not_A_Name")).await.fails(422);
    assert!(invalid.starts_with("ConfigMap \"Not_A_Name\" is invalid: metadata.name: Invalid value"), "{invalid}");
}

#[tokio::test]
async fn a_dry_run_leaves_nothing_behind() {
    let api = Api::start().await;
    let made = api.post(&format!("{CONFIGMAPS}?dryRun=All"), configmap("a")).await.ok();
    assert_eq!(made["metadata"]["name"], "a");
    api.get(&at(CONFIGMAPS, "a")).await.fails(404);
    api.post(CONFIGMAPS, configmap("a")).await.ok();
    let patch = json!({"data": {"a": "9"}});
    let patched = api.patch(&format!("{CONFIGMAPS}/a?dryRun=All"), "merge", patch).await.ok();
    assert_eq!(patched["data"]["a"], "9");
    assert_eq!(api.get(&at(CONFIGMAPS, "a")).await.ok()["data"]["a"], "1");
    api.delete(&format!("{CONFIGMAPS}/a?dryRun=All")).await.ok();
    api.get(&at(CONFIGMAPS, "a")).await.ok();
}

#[tokio::test]
async fn unknown_fields_warn_or_fail_as_asked() {
    let api = Api::start().await;
    let mut object = pod("p");
    object["spec"]["wrong"] = 1.into();
    let warned = api.post(PODS, object.clone()).await;
    assert_eq!(warned.warnings(), ["299 - \"unknown field \\\"spec.wrong\\\"\""]);
    assert!(warned.ok()["spec"].get("wrong").is_none());
    object["metadata"]["name"] = "q".into();
    let strict = api.post(&format!("{PODS}?fieldValidation=Strict"), object).await.fails(400);
    assert!(strict.contains("strict decoding error: unknown field \"spec.wrong\""), "{strict}");
    let typed = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "r"}, "spec": {"containers": "none"}});
    assert!(api.post(PODS, typed).await.fails(400).contains("spec.containers"));
}

#[tokio::test]
async fn patches_of_every_kind() {
    let api = Api::start().await;
    api.post(PODS, pod("p")).await.ok();
    let path = at(PODS, "p");
    let merged = api.patch(&path, "merge", json!({"metadata": {"labels": {"a": "1"}}})).await.ok();
    assert_eq!(merged["metadata"]["labels"]["a"], "1");
    let json_patch = json!([{"op": "replace", "path": "/metadata/labels/a", "value": "2"}]);
    assert_eq!(api.patch(&path, "json", json_patch).await.ok()["metadata"]["labels"]["a"], "2");
    let strategic = json!({"spec": {"containers": [{"name": "c", "image": "img:2"}]}});
    let patched = api.patch(&path, "strategic", strategic).await.ok();
    assert_eq!(patched["spec"]["containers"].as_array().map(Vec::len), Some(1));
    assert_eq!(patched["spec"]["containers"][0]["image"], "img:2");
    let failing = json!([{"op": "test", "path": "/metadata/name", "value": "other"}]);
    api.patch(&path, "json", failing).await.fails(422);
    let unknown = api.send(Method::PATCH, &path, &[("content-type", "text/plain")], "{}").await;
    unknown.fails(415);
}

#[tokio::test]
async fn server_side_apply_owns_and_conflicts() {
    let api = Api::start().await;
    let path = format!("{CONFIGMAPS}/a?fieldManager=one");
    let made = api.patch(&path, "apply", configmap("a")).await;
    assert_eq!(made.code, 201);
    assert_eq!(made.body["metadata"]["managedFields"][0]["operation"], "Apply");
    let again = api.patch(&path, "apply", configmap("a")).await.ok();
    assert_eq!(again["metadata"]["resourceVersion"], made.body["metadata"]["resourceVersion"]);
    let mut theirs = configmap("a");
    theirs["data"]["a"] = "2".into();
    let two = format!("{CONFIGMAPS}/a?fieldManager=two");
    let conflict = api.patch(&two, "apply", theirs.clone()).await;
    assert_eq!(conflict.body["details"]["causes"][0]["reason"], "FieldManagerConflict");
    assert!(conflict.fails(409).contains("conflict with \"one\""));
    let forced = api.patch(&format!("{two}&force=true"), "apply", theirs).await.ok();
    assert_eq!(forced["data"]["a"], "2");
    let without = api.patch(&format!("{CONFIGMAPS}/a"), "apply", configmap("a")).await.fails(422);
    assert!(without.contains("fieldManager"), "{without}");
}

#[tokio::test]
async fn finalizers_hold_an_object_and_preconditions_guard_it() {
    let api = Api::start().await;
    let mut object = configmap("a");
    object["metadata"]["finalizers"] = json!(["example.com/hold"]);
    let made = api.post(CONFIGMAPS, object).await.ok();
    let path = at(CONFIGMAPS, "a");
    let wrong = api.delete_with(&path, json!({"preconditions": {"uid": "other"}})).await.fails(409);
    assert!(wrong.contains("the UID in the precondition (other) does not match"), "{wrong}");
    let deleting = api.delete_with(&path, json!({"preconditions": {"uid": made["metadata"]["uid"]}})).await.ok();
    assert!(deleting["metadata"]["deletionTimestamp"].is_string());
    let added = json!({"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}});
    api.patch(&path, "merge", added).await.fails(422);
    api.patch(&path, "merge", json!({"metadata": {"finalizers": null}})).await.ok();
    api.get(&path).await.fails(404);
}

#[tokio::test]
async fn deletion_policies_are_finalizers_for_the_collector() {
    let api = Api::start().await;
    for (policy, finalizer) in [("Foreground", "foregroundDeletion"), ("Orphan", "orphan")] {
        api.post(CONFIGMAPS, configmap("a")).await.ok();
        let path = at(CONFIGMAPS, "a");
        let deleting = api.delete_with(&path, json!({"propagationPolicy": policy})).await.ok();
        assert_eq!(deleting["metadata"]["finalizers"], json!([finalizer]));
        api.patch(&path, "merge", json!({"metadata": {"finalizers": []}})).await.ok();
        api.get(&path).await.fails(404);
    }
}

#[tokio::test]
async fn a_bound_pod_gets_its_grace_and_an_unbound_one_goes_at_once() {
    let api = Api::start().await;
    api.post(PODS, pod("loose")).await.ok();
    api.delete(&at(PODS, "loose")).await.ok();
    api.get(&at(PODS, "loose")).await.fails(404);
    api.post(PODS, pod("web")).await.ok();
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": "web"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    });
    assert_eq!(api.post(&at(PODS, "web/binding"), binding.clone()).await.code, 201);
    assert_eq!(api.get(&at(PODS, "web")).await.ok()["spec"]["nodeName"], "n1");
    api.post(&at(PODS, "web/binding"), binding).await.fails(409);
    let deleting = api.delete(&at(PODS, "web")).await.ok();
    assert_eq!(deleting["metadata"]["deletionGracePeriodSeconds"], 30);
    api.delete(&format!("{PODS}/web?gracePeriodSeconds=0")).await.ok();
    api.get(&at(PODS, "web")).await.fails(404);
}

#[tokio::test]
async fn an_eviction_deletes_the_pod() {
    let api = Api::start().await;
    api.post(PODS, pod("web")).await.ok();
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "web"}});
    assert_eq!(api.post(&at(PODS, "web/eviction"), eviction).await.code, 201);
    api.get(&at(PODS, "web")).await.fails(404);
}

#[tokio::test]
async fn status_is_a_door_of_its_own() {
    let api = Api::start().await;
    let made = api.post(PODS, pod("p")).await.ok();
    let mut wish = made.clone();
    wish["status"]["phase"] = "Running".into();
    assert_eq!(api.put(&at(PODS, "p"), wish.clone()).await.ok()["status"]["phase"], "Pending");
    wish["metadata"]["resourceVersion"] = Value::Null;
    wish["spec"]["containers"][0]["image"] = "other".into();
    let updated = api.put(&at(PODS, "p/status"), wish).await.ok();
    assert_eq!(updated["status"]["phase"], "Running");
    assert_eq!(updated["spec"]["containers"][0]["image"], "img");
}

#[tokio::test]
async fn lists_are_selected_and_paged_consistently() {
    let api = Api::start().await;
    for i in 0..10 {
        let mut object = configmap(&format!("c{i}"));
        object["metadata"]["labels"] = json!({"parity": if i % 2 == 0 { "even" } else { "odd" }});
        api.post(CONFIGMAPS, object).await.ok();
    }
    let even = api.get(&format!("{CONFIGMAPS}?labelSelector=parity%3Deven")).await.ok();
    assert_eq!(even["items"].as_array().map(Vec::len), Some(5));
    let one = api.get(&format!("{CONFIGMAPS}?fieldSelector=metadata.name%3Dc3")).await.ok();
    assert_eq!(one["items"][0]["metadata"]["name"], "c3");
    assert_eq!((&one["kind"], one["items"][0].get("kind")), (&json!("ConfigMapList"), None), "the list has the type");
    let unsupported = api.get(&format!("{CONFIGMAPS}?fieldSelector=data.a%3D1")).await.fails(400);
    assert!(unsupported.contains("\"data.a\" is not a known field selector"), "{unsupported}");

    let first = api.get(&format!("{CONFIGMAPS}?limit=4")).await.ok();
    assert_eq!(first["metadata"]["remainingItemCount"], 6);
    api.delete(&at(CONFIGMAPS, "c9")).await.ok();
    let mut names = Vec::new();
    let mut page = first.clone();
    loop {
        names.extend(page["items"].as_array().expect("items").iter().map(|o| o["metadata"]["name"].clone()));
        assert_eq!(page["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
        let Some(token) = page["metadata"]["continue"].as_str() else { break };
        page = api.get(&format!("{CONFIGMAPS}?limit=4&continue={token}")).await.ok();
    }
    assert_eq!(names.len(), 10, "the deleted object is still in the list as it was: {names:?}");
    assert!(api.get(&format!("{CONFIGMAPS}?limit=4&continue=x")).await.fails(400).contains("continue"));
}

#[tokio::test]
async fn reads_know_what_revision_they_were_asked_for() {
    let api = Api::start().await;
    let made = api.post(CONFIGMAPS, configmap("a")).await.ok();
    let revision: u64 = made["metadata"]["resourceVersion"].as_str().and_then(|s| s.parse().ok()).expect("revision");
    api.delete(&at(CONFIGMAPS, "a")).await.ok();
    let exact = format!("{CONFIGMAPS}?resourceVersion={revision}&resourceVersionMatch=Exact");
    assert_eq!(api.get(&exact).await.ok()["items"].as_array().map(Vec::len), Some(1));
    let newest = format!("{CONFIGMAPS}?resourceVersion={revision}&resourceVersionMatch=NotOlderThan");
    assert_eq!(api.get(&newest).await.ok()["items"].as_array().map(Vec::len), Some(0));
    let future = api.get(&format!("{CONFIGMAPS}?resourceVersion={}", revision + 1000)).await;
    assert_eq!(future.body["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    future.fails(504);
}

#[tokio::test]
async fn watches_start_resume_and_follow_selectors() {
    let api = Api::start().await;
    api.post(CONFIGMAPS, configmap("a")).await.ok();
    let mut watch = api.watch(&format!("{CONFIGMAPS}?watch=1")).await;
    assert_eq!(watch.word().await, ("ADDED".into(), "a".into()));
    let made = api.post(CONFIGMAPS, configmap("b")).await.ok();
    assert_eq!(watch.word().await, ("ADDED".into(), "b".into()));
    let from = made["metadata"]["resourceVersion"].as_str().expect("revision").to_owned();
    let mut labelled = api.watch(&format!("{CONFIGMAPS}?watch=1&resourceVersion={from}&labelSelector=x%3D1")).await;
    api.patch(&at(CONFIGMAPS, "b"), "merge", json!({"metadata": {"labels": {"x": "1"}}})).await.ok();
    api.patch(&at(CONFIGMAPS, "b"), "merge", json!({"data": {"a": "3"}})).await.ok();
    api.patch(&at(CONFIGMAPS, "b"), "merge", json!({"metadata": {"labels": null}})).await.ok();
    for word in ["ADDED", "MODIFIED", "DELETED"] {
        assert_eq!(labelled.word().await, (word.into(), "b".into()));
    }
    let mut resumed = api.watch(&format!("{CONFIGMAPS}?watch=1&resourceVersion={from}")).await;
    for _ in 0..3 {
        assert_eq!(resumed.word().await, ("MODIFIED".into(), "b".into()));
    }
}

#[tokio::test]
async fn a_streaming_list_ends_with_its_bookmark() {
    let api = Api::start().await;
    api.post(CONFIGMAPS, configmap("a")).await.ok();
    let path = format!(
        "{CONFIGMAPS}?watch=1&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=1"
    );
    let mut watch = api.watch(&path).await;
    assert_eq!(watch.word().await, ("ADDED".into(), "a".into()));
    let bookmark = watch.next().await.expect("bookmark");
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(bookmark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert!(watch.next().await.is_none(), "the watch ends after timeoutSeconds");
}

#[tokio::test]
async fn tables_and_metadata_are_views_of_the_same_objects() {
    let api = Api::start().await;
    api.post(CONFIGMAPS, configmap("a")).await.ok();
    let table = api.get_as(CONFIGMAPS, "application/json;as=Table;v=v1;g=meta.k8s.io,application/json").await.ok();
    assert_eq!(table["kind"], "Table");
    assert_eq!(table["columnDefinitions"][0]["name"], "Name");
    assert_eq!(table["rows"][0]["cells"][0], "a");
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let partial = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    let metadata = api.get_as(CONFIGMAPS, partial).await.ok();
    assert_eq!(metadata["kind"], "PartialObjectMetadataList");
    assert!(metadata["items"][0].get("data").is_none());
}

#[tokio::test]
async fn collections_are_deleted_by_selector() {
    let api = Api::start().await;
    for name in ["a", "b", "c"] {
        let mut object = configmap(name);
        object["metadata"]["labels"] = json!({"keep": (name == "c").to_string()});
        api.post(CONFIGMAPS, object).await.ok();
    }
    api.delete(&format!("{CONFIGMAPS}?labelSelector=keep%3Dfalse")).await.ok();
    let left = api.get(CONFIGMAPS).await.ok();
    assert_eq!(left["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(left["items"][0]["metadata"]["name"], "c");
}

#[tokio::test]
async fn a_namespace_terminates_and_takes_nothing_new() {
    let api = Api::start().await;
    api.post("/api/v1/namespaces", json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}}))
        .await
        .ok();
    let ending = api.delete("/api/v1/namespaces/x").await.ok();
    assert_eq!(ending["status"]["phase"], "Terminating");
    let refused = api.post("/api/v1/namespaces/x/configmaps", configmap("a")).await.fails(403);
    assert!(refused.contains("because it is being terminated"), "{refused}");
    let mut finalized = api.get("/api/v1/namespaces/x").await.ok();
    finalized["spec"]["finalizers"] = json!([]);
    api.put("/api/v1/namespaces/x/finalize", finalized).await.ok();
    api.get("/api/v1/namespaces/x").await.fails(404);
    assert!(api.delete("/api/v1/namespaces/default").await.fails(403).contains("may not be deleted"));
}

#[tokio::test]
async fn what_is_not_served_is_said_so() {
    let api = Api::start().await;
    for path in ["/apis/apps/v1/namespaces/default/deployments", "/api/v2/pods", "/nowhere"] {
        api.get(path).await.leads_nowhere();
    }
    for path in ["/api/v1/namespaces/default/nodes", "/api/v1/namespaces/default/services"] {
        assert_eq!(api.get(path).await.fails(404), "the server could not find the requested resource", "{path}");
    }
    api.post(&at(CONFIGMAPS, "a"), configmap("a")).await.fails(405);
    api.get(&at(CONFIGMAPS, "a/status")).await.fails(404);
    api.send(Method::OPTIONS, CONFIGMAPS, &[], "").await.fails(405);
}

#[tokio::test]
async fn events_have_two_faces() {
    let api = Api::start().await;
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
        "reason": "Started", "message": "it started", "type": "Normal", "count": 2,
        "source": {"component": "kubelet"},
    });
    api.post("/api/v1/namespaces/default/events", event).await.ok();
    let new = api.get("/apis/events.k8s.io/v1/namespaces/default/events/e").await.ok();
    assert_eq!(new["apiVersion"], "events.k8s.io/v1");
    assert_eq!(new["note"], "it started");
    assert_eq!(new["regarding"]["name"], "p");
    let old = api.get("/api/v1/namespaces/default/events/e").await.ok();
    assert_eq!(old["message"], "it started");
}

#[tokio::test]
async fn claims_get_the_default_class() {
    let api = Api::start().await;
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": "x.io",
        "metadata": {"name": "fast", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
    });
    api.post("/apis/storage.k8s.io/v1/storageclasses", class).await.ok();
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    let made = api.post("/api/v1/namespaces/default/persistentvolumeclaims", claim).await.ok();
    assert_eq!(made["spec"]["storageClassName"], "fast");
}

#[tokio::test]
async fn health_version_and_metrics() {
    let api = Api::start().await;
    for path in ["/livez", "/readyz", "/healthz"] {
        assert_eq!(api.get(path).await.ok(), "ok", "{path}");
    }
    assert_eq!(api.get("/version").await.ok()["major"], "1");
    let metrics = api.get("/metrics").await.ok();
    assert!(metrics.as_str().is_some_and(|m| m.contains("apiserver_request_total")), "{metrics}");
}
