//! Custom resources: definitions, schemas, rules, subresources, versions.

mod common;

use common::Api;
use serde_json::{Value, json};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";

fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "shortNames": ["wd"], "categories": ["all"]},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
                "additionalPrinterColumns": [{"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas"}],
                "selectableFields": [{"jsonPath": ".spec.color"}],
                "schema": {"openAPIV3Schema": {
                    "type": "object",
                    "properties": {
                        "spec": {
                            "type": "object", "required": ["color"],
                            "properties": {
                                "color": {"type": "string", "enum": ["red", "blue"]},
                                "replicas": {"type": "integer", "minimum": 0, "default": 1},
                                "max": {"type": "integer"},
                            },
                            "x-kubernetes-validations": [
                                {"rule": "!has(self.max) || self.replicas <= self.max", "message": "replicas must not exceed max"},
                            ],
                        },
                        "status": {"type": "object", "properties": {"replicas": {"type": "integer"}}},
                    },
                }},
            }],
        },
    })
}

fn widget(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec})
}

async fn with_widgets() -> Api {
    let api = Api::start().await;
    api.post(DEFINITIONS, definition()).await.ok();
    api
}

#[tokio::test]
async fn a_definition_serves_with_the_next_request() {
    let api = Api::start().await;
    api.get(WIDGETS).await.leads_nowhere();
    let made = api.post(DEFINITIONS, definition()).await.ok();
    let conditions = made["status"]["conditions"].as_array().expect("conditions");
    assert!(conditions.iter().any(|c| c["type"] == "Established" && c["status"] == "True"), "{made}");
    let list = api.get(WIDGETS).await.ok();
    assert_eq!(list["kind"], "WidgetList");
    let resources = api.get("/apis/example.com/v1").await.ok();
    assert_eq!(resources["resources"][0]["shortNames"], json!(["wd"]));
    let groups = api.get("/apis").await.ok();
    assert!(groups["groups"].as_array().expect("groups").iter().any(|g| g["name"] == "example.com"));
}

#[tokio::test]
async fn objects_are_defaulted_pruned_and_validated() {
    let api = with_widgets().await;
    let made = api.post(WIDGETS, widget("a", json!({"color": "red", "unknown": 1}))).await;
    assert_eq!(made.warnings(), ["299 - \"unknown field \\\"spec.unknown\\\"\""]);
    let made = made.ok();
    assert_eq!(made["spec"], json!({"color": "red", "replicas": 1}));
    assert_eq!(made["metadata"]["generation"], 1);
    let wrong = api.post(WIDGETS, widget("b", json!({"color": "green", "replicas": -1}))).await.fails(422);
    assert!(wrong.contains("spec.color: Unsupported value: \"green\"") && wrong.contains("spec.replicas"), "{wrong}");
    let missing = api.post(WIDGETS, widget("b", json!({}))).await.fails(422);
    assert!(missing.contains("spec.color: Required value"), "{missing}");
    let rule = api.post(WIDGETS, widget("b", json!({"color": "red", "replicas": 3, "max": 2}))).await.fails(422);
    assert!(rule.contains("replicas must not exceed max"), "{rule}");
}

#[tokio::test]
async fn generation_follows_the_spec_and_status_its_own_door() {
    let api = with_widgets().await;
    let path = format!("{WIDGETS}/a");
    api.post(WIDGETS, widget("a", json!({"color": "red"}))).await.ok();
    let status = json!({"status": {"replicas": 3}, "spec": {"color": "blue"}});
    let updated = api.patch(&format!("{path}/status"), "merge", status.clone()).await.ok();
    assert_eq!((&updated["status"]["replicas"], &updated["spec"]["color"]), (&json!(3), &json!("red")));
    assert_eq!(updated["metadata"]["generation"], 1);
    let updated = api.patch(&path, "merge", json!({"spec": {"color": "blue"}, "status": {"replicas": 9}})).await.ok();
    assert_eq!((&updated["status"]["replicas"], &updated["metadata"]["generation"]), (&json!(3), &json!(2)));
}

#[tokio::test]
async fn scale_is_a_small_window_on_the_object() {
    let api = with_widgets().await;
    api.post(WIDGETS, widget("a", json!({"color": "red", "replicas": 2}))).await.ok();
    let path = format!("{WIDGETS}/a/scale");
    let scale = api.get(&path).await.ok();
    assert_eq!((&scale["kind"], &scale["spec"]["replicas"]), (&json!("Scale"), &json!(2)));
    let scaled = api.patch(&path, "merge", json!({"spec": {"replicas": 5}})).await.ok();
    assert_eq!(scaled["spec"]["replicas"], 5);
    assert_eq!(api.get(&format!("{WIDGETS}/a")).await.ok()["spec"]["replicas"], 5);
    let wish = |name: &str, replicas: i64| json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {"name": name}, "spec": {"replicas": replicas}});
    assert_eq!(api.put(&path, wish("a", 6)).await.ok()["spec"]["replicas"], 6);
    assert_eq!(api.get(&format!("{WIDGETS}/a")).await.ok()["spec"]["replicas"], 6);
    assert!(api.put(&path, wish("a", -1)).await.fails(422).starts_with("Widget.example.com \"a\" is invalid"));
    assert!(api.put(&path, wish("b", 6)).await.fails(400).contains("does not match the name on the URL (a)"));
    let text = api.patch(&path, "merge", json!({"spec": {"replicas": "many"}})).await.fails(422);
    assert!(
        text.contains("cannot unmarshal string into Go struct field ScaleSpec.spec.replicas of type int32"),
        "{text}"
    );
}

#[tokio::test]
async fn a_patch_leaves_an_object_of_its_kind() {
    let api = with_widgets().await;
    api.post(WIDGETS, widget("a", json!({"color": "red"}))).await.ok();
    let path = format!("{WIDGETS}/a");
    let array = api.patch(&path, "merge", json!([])).await.fails(400);
    assert_eq!(
        array,
        "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}"
    );
    api.patch(&path, "json", json!([{"op": "replace", "path": "", "value": []}])).await.fails(422);
    assert_eq!(
        api.patch(&path, "merge", json!({"kind": null, "metadata": {"labels": {}}})).await.ok()["kind"],
        "Widget"
    );
    let other = api.patch(&path, "merge", json!({"kind": "Gadget"})).await.fails(422);
    assert_eq!(other, "Gadget.example.com \"a\" is invalid: kind: Invalid value: \"Gadget\": must be Widget");
    assert!(api.patch(&path, "merge", json!({"metadata": {"name": null}})).await.fails(400).contains("undeterminable"));
}

#[tokio::test]
async fn what_is_refused_is_warned_about_as_well() {
    let api = with_widgets().await;
    let answer = api.post(WIDGETS, widget("a", json!({"colour": "red"}))).await;
    assert_eq!(answer.warnings(), ["299 - \"unknown field \\\"spec.colour\\\"\""]);
    assert!(answer.fails(422).contains("spec.color: Required value"));
}

#[tokio::test]
async fn columns_selectable_fields_and_patch_kinds() {
    let api = with_widgets().await;
    api.post(WIDGETS, widget("a", json!({"color": "red"}))).await.ok();
    api.post(WIDGETS, widget("b", json!({"color": "blue", "replicas": 7}))).await.ok();
    let table = api.get_as(WIDGETS, "application/json;as=Table;v=v1;g=meta.k8s.io").await.ok();
    assert_eq!(table["columnDefinitions"][1]["name"], "Replicas");
    assert_eq!(table["rows"][1]["cells"][1], 7);
    let blue = api.get(&format!("{WIDGETS}?fieldSelector=spec.color%3Dblue")).await.ok();
    assert_eq!(blue["items"].as_array().map(Vec::len), Some(1));
    api.patch(&format!("{WIDGETS}/a"), "strategic", json!({"spec": {"replicas": 2}})).await.fails(415);
    let mut stale = api.get(&format!("{WIDGETS}/a")).await.ok();
    stale["metadata"]["resourceVersion"] = Value::Null;
    let unpinned = api.put(&format!("{WIDGETS}/a"), stale).await.fails(422);
    assert!(unpinned.contains("metadata.resourceVersion: Invalid value: 0: must be specified for an update"));
}

#[tokio::test]
async fn two_versions_show_one_object() {
    let api = Api::start().await;
    let mut two = definition();
    let mut beta = two["spec"]["versions"][0].clone();
    beta["name"] = "v1beta1".into();
    beta["storage"] = false.into();
    two["spec"]["versions"].as_array_mut().expect("versions").push(beta);
    api.post(DEFINITIONS, two).await.ok();
    api.post(WIDGETS, widget("a", json!({"color": "red"}))).await.ok();
    let old = api.get("/apis/example.com/v1beta1/namespaces/default/widgets/a").await.ok();
    assert_eq!(old["apiVersion"], "example.com/v1beta1");
    let mut made = widget("b", json!({"color": "blue"}));
    made["apiVersion"] = "example.com/v1beta1".into();
    api.post("/apis/example.com/v1beta1/namespaces/default/widgets", made).await.ok();
    assert_eq!(api.get(&format!("{WIDGETS}/b")).await.ok()["apiVersion"], "example.com/v1");
    let group = api.get("/apis/example.com").await.ok();
    assert_eq!(group["preferredVersion"]["version"], "v1");
}

#[tokio::test]
async fn a_new_default_shows_on_objects_written_before_it() {
    let api = with_widgets().await;
    api.post(WIDGETS, widget("a", json!({"color": "red"}))).await.ok();
    let mut changed = api.get(&format!("{DEFINITIONS}/widgets.example.com")).await.ok();
    let spec = &mut changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    spec["properties"]["size"] = json!({"type": "string", "default": "small"});
    api.put(&format!("{DEFINITIONS}/widgets.example.com"), changed).await.ok();
    assert_eq!(api.get(&format!("{WIDGETS}/a")).await.ok()["spec"]["size"], "small");
    assert_eq!(api.get(WIDGETS).await.ok()["items"][0]["spec"]["size"], "small");
}

#[tokio::test]
async fn a_terminating_definition_takes_nothing_new_and_waits_for_its_objects() {
    let api = with_widgets().await;
    let ending = api.delete(&format!("{DEFINITIONS}/widgets.example.com")).await.ok();
    assert_eq!(ending["metadata"]["finalizers"], json!(["customresourcecleanup.apiextensions.k8s.io"]));
    let refused = api.post(WIDGETS, widget("a", json!({"color": "red"}))).await.fails(405);
    assert!(refused.contains("while custom resource definition is terminating"), "{refused}");
    let path = format!("{DEFINITIONS}/widgets.example.com");
    api.patch(&path, "merge", json!({"metadata": {"finalizers": null}})).await.ok();
    api.get(WIDGETS).await.leads_nowhere();
}

#[tokio::test]
async fn a_wrong_definition_is_refused_with_the_field() {
    let api = Api::start().await;
    let mut wrong = definition();
    wrong["metadata"]["name"] = "other.example.com".into();
    let message = api.post(DEFINITIONS, wrong).await.fails(422);
    assert!(message.contains("metadata.name"), "{message}");
    let mut wrong = definition();
    wrong["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-validations"][0]["rule"] =
        "self.replicas <".into();
    let message = api.post(DEFINITIONS, wrong).await.fails(422);
    assert!(message.contains("x-kubernetes-validations[0].rule"), "{message}");
}
