//! Most changes leave who manages which field apart, as text. They have to lead where the thorough way leads, which is taken where
//! webhooks are configured: the same conversation with two servers, one of which has a webhook that nothing concerns.

mod common;

use common::{Api, CONFIGMAPS};
use http::Method;
use serde_json::{Value, json};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";
const WEBHOOKS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";

fn definition() -> Value {
    let port = json!({"type": "object", "required": ["port"], "properties": {"port": {"type": "integer"}, "name": {"type": "string"}}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {
                        "size": {"type": "integer", "default": 1, "maximum": 9},
                        "tags": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
                        "ports": {"type": "array", "items": port, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port"]},
                        "settings": {"type": "object", "additionalProperties": {"type": "string"}},
                    }},
                    "status": {"type": "object", "properties": {"phase": {"type": "string"}, "size": {"type": "integer"}}},
                }}},
            }],
        },
    })
}

/// A webhook that is never called.
fn webhook() -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration", "metadata": {"name": "w"},
        "webhooks": [{
            "name": "w.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": "https://127.0.0.1:1/"},
            "rules": [{"apiGroups": ["nobody.example.com"], "apiVersions": ["v1"], "operations": ["*"], "resources": ["*"]}],
        }],
    })
}

/// What is another on every server.
fn comparable(mut value: Value) -> Value {
    let message = value["message"].as_str().unwrap_or_default();
    if message.contains("creationTimestamp") {
        // It shows the object, which is whole or not.
        return json!([value["reason"], value["code"], message.matches("managedFields").count()]);
    }
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in ["uid", "creationTimestamp", "resourceVersion"] {
            metadata.remove(field);
        }
        if let Some(entries) = metadata.get_mut("managedFields").and_then(Value::as_array_mut) {
            for entry in &mut *entries {
                entry.as_object_mut().expect("an entry").remove("time").expect("the time of an entry");
            }
            // They are in the order of their times, which are whole seconds: that of two servers differs.
            entries.sort_by_key(ToString::to_string);
        }
    }
    value
}

/// The whole conversation, and what was stored after each word.
async fn conversation(api: &Api) -> Vec<(String, u16, Value, Value)> {
    let mut said = Vec::new();
    let widget = |name: &str, spec: Value| json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec});
    api.post(WIDGETS, widget("a", json!({"tags": ["x"], "ports": [{"port": 2, "name": "p"}]}))).await.ok();
    api.post(CONFIGMAPS, common::configmap("a")).await.ok();
    for (path, method, kind, body) in words() {
        let target = path.split('?').next().unwrap_or_default().trim_end_matches("/status").to_owned();
        let answer = match (method, kind) {
            (Method::PATCH, kind) => api.patch(&path, kind, body).await,
            (_, how) => {
                let mut object = api.get(&target).await.ok();
                let metadata = object["metadata"].as_object_mut().expect("metadata");
                match how {
                    "without managers" => drop(metadata.remove("managedFields")),
                    "without managers, on purpose" => drop(metadata.insert("managedFields".to_owned(), json!([]))),
                    "with other managers" => metadata["managedFields"][0]["manager"] = "other".into(),
                    _ => {}
                }
                tether_machinery::patch::merge(&mut object, &body);
                api.put(&path, object).await
            }
        };
        let stored = api.get(&target).await.ok();
        said.push((format!("{path} {kind}"), answer.code, comparable(answer.body), comparable(stored)));
    }
    said
}

fn words() -> Vec<(String, Method, &'static str, Value)> {
    let (widget, map) = (format!("{WIDGETS}/a"), format!("{CONFIGMAPS}/a"));
    let spec = |spec: Value| json!({"spec": spec});
    let at = |path: &str, who: &str| format!("{path}?fieldManager={who}");
    let status = format!("{widget}/status");
    let mut words = Vec::new();
    let mut patch =
        |path: &str, kind: &'static str, body: Value| words.push((path.to_owned(), Method::PATCH, kind, body));
    patch(&at(&status, "agent"), "merge", json!({"status": {"phase": "up"}}));
    patch(&at(&status, "agent"), "merge", json!({"status": {"phase": "down", "size": 1}}));
    patch(&at(&status, "agent"), "merge", json!({"status": {"phase": "down"}}));
    patch(
        &at(&status, "agent"),
        "merge",
        json!({"status": {"size": null}, "spec": {"size": 7}, "metadata": {"labels": {"a": "b"}}}),
    );
    patch(&at(&widget, "one"), "merge", spec(json!({"size": 2, "settings": {"a": "1", "b": "2"}, "tags": ["x", "y"]})));
    patch(&at(&widget, "two"), "merge", spec(json!({"size": 3, "settings": {"b": "3"}})));
    patch(&at(&widget, "two"), "merge", spec(json!({"size": 3})));
    patch(&at(&widget, "two"), "merge", spec(json!({"unknown": 3})));
    patch(&at(&widget, "two"), "merge", spec(json!({"size": 10})));
    patch(&at(&widget, "two"), "merge", spec(json!("text")));
    patch(&format!("{}&fieldValidation=Strict", at(&widget, "two")), "merge", spec(json!({"unknown": 3, "size": 4})));
    patch(&format!("{}&dryRun=All", at(&widget, "three")), "merge", spec(json!({"size": 5})));
    patch(&at(&widget, "odd\u{a0}name").replace('\u{a0}', "%C2%A0"), "merge", spec(json!({"size": 5})));
    patch(&at(&widget, "one"), "merge", json!({"metadata": {"labels": {"l": "1"}, "finalizers": ["example.com/f"]}}));
    patch(&at(&widget, "one"), "merge", json!({"metadata": {"managedFields": [{}]}, "spec": {"size": 6}}));
    patch(&at(&widget, "one"), "merge", spec(json!({"size": 4})));
    patch(
        &at(&widget, "four"),
        "apply",
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a"}, "spec": {"settings": {"z": "1"}}}),
    );
    patch(
        &at(&widget, "five"),
        "json",
        json!([{"op": "add", "path": "/spec/settings/y", "value": "2"}, {"op": "remove", "path": "/spec/tags"}]),
    );
    patch(&at(&widget, "five"), "json", json!([{"op": "test", "path": "/spec/size", "value": 99}]));
    patch(&at(&widget, "five"), "json", json!([{"op": "copy", "from": "/metadata", "path": "/spec/settings/m"}]));
    patch(&at(&widget, "five"), "json", json!([{"op": "replace", "path": "/metadata", "value": {"name": "a"}}]));
    patch(&at(&widget, "six"), "merge", spec(json!({"settings": null, "ports": [{"port": 1}, {"port": 1}]})));
    patch(&at(&widget, "six"), "merge", spec(json!({"settings": null, "ports": [{"port": 10}, {"port": 9}]})));
    patch(&at(&map, "one"), "strategic", json!({"data": {"b": "2"}}));
    patch(&at(&map, "two"), "strategic", json!({"metadata": {"$patch": "replace", "name": "a"}}));
    patch(&at(&map, "two"), "merge", json!({"data": {"a": null}, "metadata": {"annotations": {"x": "y"}}}));
    patch(&at(&map, "two"), "merge", json!({"data": {"c": 1}}));
    for name in 0..12 {
        patch(&at(&map, &format!("m{name}")), "merge", json!({"data": {format!("k{name}"): "v"}}));
    }
    let mut put = |path: &str, how: &'static str, body: Value| words.push((path.to_owned(), Method::PUT, how, body));
    for path in [&widget, &map] {
        put(&at(path, "put"), "as it was read", json!({"metadata": {"labels": {"put": "1"}}}));
        put(&at(path, "put"), "as it was read", json!({}));
        put(&at(path, "put"), "without managers", json!({"metadata": {"labels": {"put": "2"}}}));
        put(&at(path, "put"), "with other managers", json!({"metadata": {"labels": {"put": "3"}}}));
        put(&at(path, "put"), "without managers, on purpose", json!({"metadata": {"labels": {"put": "4"}}}));
    }
    put(&at(&status, "put"), "with other managers", json!({"status": {"phase": "odd"}, "spec": {"size": 8}}));
    words
}

#[tokio::test]
async fn the_short_way_leads_where_the_thorough_one_leads() {
    let (short, thorough) = (Api::start().await, Api::start().await);
    for api in [&short, &thorough] {
        api.post(DEFINITIONS, definition()).await.ok();
    }
    thorough.post(WEBHOOKS, webhook()).await.ok();
    let (short, thorough) = (conversation(&short).await, conversation(&thorough).await);
    assert!(short.iter().filter(|(_, code, ..)| *code == 200).count() > 30, "most of it is taken");
    for (short, thorough) in short.into_iter().zip(thorough) {
        assert_eq!(short, thorough);
    }
}
