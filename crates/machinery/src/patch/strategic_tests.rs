//! Strategic merge patch: tables of what merges how, and the inverse of a computed difference.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::strategic;
use crate::schema::{PatchMeta, Schema};
use crate::testing::{any_json, schema};

/// The schema with the patch strategies that its source names; custom resources have none, so the compiler
/// does not read them.
fn with_strategies(schema: &Schema, openapi: &Value) -> Arc<Schema> {
    let mut schema = schema.clone();
    let strategy = openapi["x-kubernetes-patch-strategy"].as_str().unwrap_or_default();
    schema.patch = PatchMeta {
        merge: strategy.contains("merge"),
        retain_keys: strategy.contains("retainKeys"),
        merge_key: openapi["x-kubernetes-patch-merge-key"].as_str().map(str::to_owned),
    };
    for (name, field) in &mut schema.properties {
        *field = with_strategies(field, &openapi["properties"][name]);
    }
    schema.items = schema.items.map(|items| with_strategies(&items, &openapi["items"]));
    Arc::new(schema)
}

/// Something like a pod: lists of every kind.
fn pod() -> Arc<Schema> {
    let ports = json!({"type": "array", "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "port",
        "items": {"type": "object", "properties": {"port": {"type": "integer"}, "name": {"type": "string"}}}});
    let containers = json!({"type": "array", "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "name",
    "items": {"type": "object", "properties": {
        "name": {"type": "string"}, "image": {"type": "string"}, "ports": ports,
        "args": {"type": "array", "items": {"type": "string"}},
    }}});
    let openapi = json!({"type": "object", "properties": {
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "finalizers": {"type": "array", "x-kubernetes-patch-strategy": "merge", "items": {"type": "string"}},
        "args": {"type": "array", "items": {"type": "string"}},
        "containers": containers,
        "noKey": {"type": "array", "x-kubernetes-patch-strategy": "merge", "items": {"type": "object"}},
        "volume": {"type": "object", "x-kubernetes-patch-strategy": "retainKeys"},
        "nested": {"type": "array", "x-kubernetes-patch-strategy": "merge",
            "items": {"type": "array", "items": {"type": "string"}}},
    }});
    with_strategies(&schema(&openapi), &openapi)
}

fn containers(names: &[&str]) -> Value {
    names.iter().map(|name| json!({"name": name})).collect()
}

#[test]
fn merging() {
    for (what, current, patch, result) in [
        ("scalars are set", json!({"a": 1, "b": 2}), json!({"a": 3, "c": 4}), json!({"a": 3, "b": 2, "c": 4})),
        (
            "null removes",
            json!({"a": 1, "b": {"c": 1, "d": 2}}),
            json!({"a": null, "b": {"c": null}, "x": null}),
            json!({"b": {"d": 2}}),
        ),
        (
            "maps merge",
            json!({"labels": {"a": "1", "b": "2"}}),
            json!({"labels": {"b": "3"}}),
            json!({"labels": {"a": "1", "b": "3"}}),
        ),
        (
            "a new map loses its nulls",
            json!({}),
            json!({"labels": {"a": "1", "b": null}}),
            json!({"labels": {"a": "1"}}),
        ),
        ("another type replaces", json!({"labels": "x"}), json!({"labels": {"a": "1"}}), json!({"labels": {"a": "1"}})),
        ("plain lists are replaced", json!({"args": ["a", "b"]}), json!({"args": ["c"]}), json!({"args": ["c"]})),
        (
            "sets are joined",
            json!({"finalizers": ["a", "b"]}),
            json!({"finalizers": ["c", "a"]}),
            json!({"finalizers": ["c", "a", "b"]}),
        ),
        (
            "$deleteFromPrimitiveList",
            json!({"finalizers": ["a", "b", "c"]}),
            json!({"$deleteFromPrimitiveList/finalizers": ["b", "x"]}),
            json!({"finalizers": ["a", "c"]}),
        ),
        (
            "… works on any list of scalars",
            json!({"args": ["a", "b"]}),
            json!({"$deleteFromPrimitiveList/args": ["b"]}),
            json!({"args": ["a"]}),
        ),
        ("… and on none", json!({}), json!({"$deleteFromPrimitiveList/args": ["b"]}), json!({})),
        (
            "both lists together",
            json!({"finalizers": ["a", "b"]}),
            json!({"$deleteFromPrimitiveList/finalizers": ["a"], "$setElementOrder/finalizers": ["c", "b"], "finalizers": ["c"]}),
            json!({"finalizers": ["c", "b"]}),
        ),
        (
            "elements merge by key",
            json!({"containers": [{"name": "a", "image": "1", "args": ["x"]}, {"name": "b", "image": "2"}]}),
            json!({"containers": [{"name": "b", "image": "3"}, {"name": "c", "image": "4", "args": null}]}),
            json!({"containers": [{"name": "a", "image": "1", "args": ["x"]}, {"name": "b", "image": "3"}, {"name": "c", "image": "4"}]}),
        ),
        (
            "lists merge in lists",
            json!({"containers": [{"name": "a", "ports": [{"port": 1, "name": "x"}, {"port": 2}]}]}),
            json!({"containers": [{"name": "a", "ports": [{"port": 1, "name": "y"}, {"port": 2, "$patch": "delete"}]}]}),
            json!({"containers": [{"name": "a", "ports": [{"port": 1, "name": "y"}]}]}),
        ),
        (
            "$patch: delete removes every match",
            json!({"containers": [{"name": "a"}, {"name": "b"}, {"name": "a", "image": "2"}]}),
            json!({"containers": [{"name": "a", "$patch": "delete"}]}),
            json!({"containers": [{"name": "b"}]}),
        ),
        (
            "$patch: replace in a list",
            json!({"containers": [{"name": "a", "image": "1"}, {"name": "b"}]}),
            json!({"containers": [{"$patch": "replace"}, {"name": "a"}, {"name": "c"}]}),
            json!({"containers": [{"name": "a"}, {"name": "c"}]}),
        ),
        (
            "$patch: replace in a map",
            json!({"labels": {"a": "1"}}),
            json!({"labels": {"$patch": "replace", "b": "2"}}),
            json!({"labels": {"b": "2"}}),
        ),
        (
            "$patch: delete in a map",
            json!({"labels": {"a": "1"}}),
            json!({"labels": {"$patch": "delete"}}),
            json!({"labels": {}}),
        ),
        ("a directive on nothing is nothing", json!({}), json!({"labels": {"$patch": "replace", "b": "2"}}), json!({})),
        (
            "$retainKeys",
            json!({"volume": {"name": "v", "emptyDir": {}, "x": 1}}),
            json!({"volume": {"$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/"}, "x": null}}),
            json!({"volume": {"name": "v", "hostPath": {"path": "/"}}}),
        ),
        ("a null patch changes nothing", json!({"a": 1}), Value::Null, json!({"a": 1})),
    ] {
        assert_eq!(strategic(&current, &patch, &pod()), Ok(result), "{what}");
    }
}

#[test]
fn order() {
    for (server, patch, order, result) in [
        (&["a", "b", "c"][..], &[][..], &["c", "a"][..], &["b", "c", "a"][..]),
        (&["a", "b"], &["x"], &["x", "a", "b"], &["x", "a", "b"]),
        (&["a", "b"], &["x"], &["a", "x", "b"], &["a", "x", "b"]),
        (&["s", "a", "b"], &["x"], &["a", "x", "b"], &["s", "a", "x", "b"]),
        (&["a", "s", "b"], &["x"], &["b", "a", "x"], &["s", "b", "a", "x"]),
        (&[], &["b", "a"], &["b", "a"], &["b", "a"]),
    ] {
        let mut current = json!({"containers": containers(server)});
        if server.is_empty() {
            current = json!({});
        }
        let mut change = json!({"$setElementOrder/containers": containers(order)});
        if !patch.is_empty() {
            change["containers"] = containers(patch);
        }
        let patched = strategic(&current, &change, &pod()).unwrap();
        assert_eq!(patched, json!({"containers": containers(result)}), "{server:?} + {patch:?} as {order:?}");
    }
    let replaced = strategic(
        &json!({"containers": containers(&["server-only", "gone"])}),
        &json!({"$setElementOrder/containers": containers(&["new"]),
            "containers": [{"name": "gone", "$patch": "delete"}, {"name": "new"}]}),
        &pod(),
    );
    assert_eq!(
        replaced,
        Ok(json!({"containers": containers(&["server-only", "new"])})),
        "a new element takes the place of a deleted one"
    );
    let in_patch_order = strategic(
        &json!({"containers": containers(&["a", "b", "c"])}),
        &json!({"containers": containers(&["c", "a"])}),
        &pod(),
    );
    assert_eq!(in_patch_order, Ok(json!({"containers": containers(&["b", "c", "a"])})), "the patch's own order counts");
}

#[test]
fn errors() {
    let current = json!({"containers": [{"name": "a"}], "args": ["a"], "noKey": [{"a": 1}], "nested": [["a"]], "labels": {"a": "b"}});
    for (patch, code, message) in [
        (json!([]), 400, "json: cannot unmarshal array into Go value of type map[string]interface {}"),
        (json!({"$deleteFromPrimitiveListargs": ["a"]}), 400, "invalid patch format of primitive list"),
        (json!({"$setElementOrderargs": ["a"]}), 400, "invalid patch format of setElementOrder list"),
        (json!({"labels": {"$retainKeys": ["a"], "b": "c"}}), 400, "invalid patch format of retainKeys"),
        (json!({"labels": {"$retainKeys": "a"}}), 400, "invalid patch format of retainKeys"),
        (json!({"nested": [["b"]]}), 422, "the server rejected our request due to an error in our request"),
        (json!({"containers": [{"image": "x"}]}), 500, "map: map[image:x] does not contain declared merge key: name"),
        (
            json!({"containers": [{"$patch": "delete"}]}),
            500,
            "map: map[$patch:delete] does not contain declared merge key: name",
        ),
        (
            json!({"containers": [{"name": "a", "$patch": "merge"}]}),
            500,
            "merging lists cannot yet be specified in the patch",
        ),
        (
            json!({"containers": [{"name": "a", "$patch": "x"}]}),
            500,
            "unknown patch type: x in map: map[$patch:x name:a]",
        ),
        (
            json!({"labels": {"$patch": "merge", "b": null}}),
            500,
            "unknown patch type: merge in map: map[$patch:merge b:<nil>]",
        ),
        (json!({"noKey": [{"a": 2}]}), 500, "cannot merge lists without merge key for struct"),
        (json!({"containers": ["a"]}), 500, "list element types are not identical: [[map[name:a]] [a]]"),
        (json!({"$setElementOrder/args": "a"}), 500, "expected a []interface {}, but received a string"),
        (
            json!({"$setElementOrder/containers": [{"name": "a"}], "containers": [{"name": "b"}]}),
            500,
            "The order in patch list:\n[map[name:b]]\n doesn't match $setElementOrder list:\n[map[name:a]]\n",
        ),
    ] {
        let e = strategic(&current, &patch, &pod()).expect_err(&patch.to_string());
        assert_eq!((e.code, e.message.as_str()), (code, message), "{patch}");
    }
}

/// The strategic merge patch that kubectl would compute between two objects.
fn difference(old: &Map<String, Value>, new: &Map<String, Value>, schema: &Schema) -> Map<String, Value> {
    let unknown = Schema::default();
    let mut patch = Map::new();
    for (name, value) in new {
        let field = schema.field(name).map_or(&unknown, |f| f);
        match (old.get(name), value) {
            (Some(before), after) if before == after => {}
            (Some(Value::Object(before)), Value::Object(after)) => {
                patch.insert(name.clone(), difference(before, after, field).into());
            }
            (Some(Value::Array(before)), Value::Array(after))
                if field.patch.merge && !(before.is_empty() && after.is_empty()) =>
            {
                list_difference(name, before, after, field, &mut patch);
            }
            (_, after) => {
                patch.insert(name.clone(), after.clone());
            }
        }
    }
    patch.extend(old.keys().filter(|name| !new.contains_key(*name)).map(|name| (name.clone(), Value::Null)));
    patch
}

fn list_difference(name: &str, before: &[Value], after: &[Value], field: &Schema, patch: &mut Map<String, Value>) {
    let Some(key) = &field.patch.merge_key else {
        let gone: Vec<Value> = before.iter().filter(|v| !after.contains(v)).cloned().collect();
        let added: Vec<Value> = after.iter().filter(|v| !before.contains(v)).cloned().collect();
        patch.insert(format!("$deleteFromPrimitiveList/{name}"), gone.into());
        if !added.is_empty() {
            patch.insert(name.to_owned(), added.into());
        }
        patch.insert(format!("$setElementOrder/{name}"), after.to_vec().into());
        return;
    };
    let items = field.items.as_ref().unwrap();
    let find = |list: &[Value], id: &Value| list.iter().find(|v| v[key] == *id).cloned();
    let mut changes = Vec::new();
    for element in after {
        match find(before, &element[key]) {
            Some(old) if old == *element => {}
            Some(old) => {
                let mut change = difference(old.as_object().unwrap(), element.as_object().unwrap(), items);
                change.insert(key.clone(), element[key].clone());
                changes.push(Value::Object(change));
            }
            None => changes.push(element.clone()),
        }
    }
    let gone = before.iter().filter(|v| find(after, &v[key]).is_none());
    changes.extend(gone.map(|v| json!({key: v[key], "$patch": "delete"})));
    patch.insert(name.to_owned(), changes.into());
    let order: Vec<Value> = after.iter().map(|v| json!({key: v[key]})).collect();
    patch.insert(format!("$setElementOrder/{name}"), order.into());
}

fn any_pod() -> impl Strategy<Value = Value> {
    let unique = |values: Vec<String>| {
        let mut seen = BTreeSet::new();
        values.into_iter().filter(|v| seen.insert(v.clone())).collect::<Vec<_>>()
    };
    let names = || prop::collection::vec("[a-d]", 1..5).prop_map(unique);
    let container = |name: String| {
        (
            Just(name),
            prop::option::of("[x-z]"),
            prop::option::of(prop::collection::btree_map(1..4i64, "[x-z]", 1..3)),
            prop::option::of(prop::collection::vec("[a-c]", 0..3)),
        )
            .prop_map(|(name, image, ports, args)| {
                let mut container = json!({"name": name});
                if let Some(image) = image {
                    container["image"] = image.into();
                }
                if let Some(ports) = ports {
                    container["ports"] =
                        ports.into_iter().map(|(port, name)| json!({"port": port, "name": name})).collect();
                }
                if let Some(args) = args {
                    container["args"] = args.into();
                }
                container
            })
    };
    let containers = names().prop_flat_map(move |names| names.into_iter().map(container).collect::<Vec<_>>());
    (
        prop::option::of(prop::collection::btree_map("[a-c]", "[x-z]", 0..3)),
        prop::option::of(names()),
        prop::option::of(containers),
        prop::option::of(prop::collection::vec("[a-c]", 0..3)),
    )
        .prop_map(|(labels, finalizers, containers, args)| {
            let mut pod = json!({"labels": labels, "finalizers": finalizers, "containers": containers, "args": args});
            pod.as_object_mut().unwrap().retain(|_, v| !v.is_null());
            pod
        })
}

proptest! {
    #[test]
    fn a_computed_difference_leads_to_its_target(old in any_pod(), new in any_pod()) {
        let patch = Value::Object(difference(old.as_object().unwrap(), new.as_object().unwrap(), &pod()));
        prop_assert_eq!(strategic(&old, &patch, &pod()), Ok(new), "{}", patch);
    }

    #[test]
    fn an_empty_patch_changes_nothing(pod_object in any_pod()) {
        prop_assert_eq!(strategic(&pod_object, &json!({}), &pod()), Ok(pod_object));
    }

    #[test]
    fn any_patch_is_taken_or_refused(current in any_pod(), field in "(\\$setElementOrder/|\\$deleteFromPrimitiveList/|)(containers|finalizers|args|nested|noKey)", value in any_json(), other in any_json()) {
        let _ = strategic(&current, &json!({ field.clone(): value, "containers": other.clone() }), &pod());
        let _ = strategic(&other, &json!({ field: value }), &pod());
        let _ = strategic(&current, &json!({"labels": {"$patch": value, "$retainKeys": other}}), &pod());
    }
}
