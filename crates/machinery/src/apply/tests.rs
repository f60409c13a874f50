//! Scenarios of several managers writing to one object.

// Literal objects read better without an ampersand before each.
#![allow(clippy::needless_pass_by_value)]

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{FieldSet, Retracked, Write, apply, retrack, track_update};
use crate::builtin;
use crate::schema::Schema;
use crate::status::ApiError;
use crate::testing::schema;

/// A kind with a field of every sort.
fn kind() -> Arc<Schema> {
    let text = json!({"type": "string"});
    let port = json!({"type": "object", "properties": {
        "containerPort": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"}, "name": text,
    }});
    let container = json!({"type": "object", "properties": {
        "name": text,
        "image": text,
        "args": {"type": "array", "items": text},
        "ports": {"type": "array", "items": port, "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["containerPort", "protocol"]},
    }});
    schema(&json!({"type": "object", "properties": {
        "apiVersion": text, "kind": text, "metadata": {"type": "object"},
        "spec": {"type": "object", "properties": {
            "replicas": {"type": "integer"},
            "paused": {"type": "boolean"},
            "atomicList": {"type": "array", "items": text},
            "atomicMap": {"type": "object", "additionalProperties": text, "x-kubernetes-map-type": "atomic"},
            "settings": {"type": "object", "additionalProperties": text},
            "set": {"type": "array", "items": text, "x-kubernetes-list-type": "set"},
            "numbers": {"type": "array", "items": {"type": "integer"}, "x-kubernetes-list-type": "set"},
            "nested": {"type": "object", "additionalProperties": {"type": "object", "properties": {"a": text, "b": text}}},
            "struct": {"type": "object", "properties": {"a": text, "b": {"type": "object", "properties": {"c": text}}}},
            "containers": {"type": "array", "items": container, "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"]},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "any": {"x-kubernetes-preserve-unknown-fields": true},
        }},
        "status": {"type": "object", "properties": {"phase": text}},
    }}))
}

/// An object that several managers write to, one after the other.
pub(super) struct Object {
    pub(super) schema: Arc<Schema>,
    pub(super) live: Option<Value>,
    second: i64,
}

impl Object {
    pub(super) fn none() -> Self {
        Self { schema: kind(), live: None, second: 0 }
    }

    pub(super) fn write<'a>(schema: &'a Schema, manager: &'a str, reset: &'a FieldSet, second: i64) -> Write<'a> {
        let now = Timestamp::from_second(1_700_000_000 + second).unwrap();
        Write { manager, subresource: "", api_version: "v1", kind: "Thing", now, schema, reset }
    }

    /// A configuration; an empty spec is left out, for `spec: {}` would be owned.
    pub(super) fn config(spec: &Value) -> Value {
        let mut config = json!({"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "x"}});
        if *spec != json!({}) {
            config["spec"] = spec.clone();
        }
        config
    }

    pub(super) fn try_apply(&mut self, manager: &str, config: &Value, force: bool) -> Result<bool, ApiError> {
        self.second += 1;
        let reset = FieldSet::of_fields(&[&["status"]]);
        let write = Self::write(&self.schema, manager, &reset, self.second);
        let applied = apply(self.live.as_ref(), config, force, &write)?;
        self.live = Some(applied.object);
        Ok(applied.changed)
    }

    /// Applies a spec, which must succeed.
    pub(super) fn apply(mut self, manager: &str, spec: Value) -> Self {
        self.try_apply(manager, &Self::config(&spec), false).unwrap();
        self
    }

    pub(super) fn force(mut self, manager: &str, spec: Value) -> Self {
        self.try_apply(manager, &Self::config(&spec), true).unwrap();
        self
    }

    /// The message of the conflict that applying a spec must end in.
    fn conflict(&mut self, manager: &str, spec: Value) -> String {
        let e = self.try_apply(manager, &Self::config(&spec), false).unwrap_err();
        assert_eq!((e.code, e.reason), (409, "Conflict"), "{}", e.message);
        e.message
    }

    /// Creates the object, or replaces its spec.
    pub(super) fn update(mut self, manager: &str, spec: Value) -> Self {
        let mut new = self.live.clone().unwrap_or_else(|| Self::config(&Value::Null));
        new["spec"] = spec;
        self.replace(manager, new);
        self
    }

    pub(super) fn replace(&mut self, manager: &str, mut new: Value) {
        self.second += 1;
        let reset = FieldSet::of_fields(&[&["status"]]);
        let write = Self::write(&self.schema, manager, &reset, self.second);
        let by_text = self.live.as_ref().and_then(|live| Self::retracked(live, new.clone(), &write));
        track_update(self.live.as_ref(), &mut new, &write);
        if let Some(by_text) = by_text {
            assert_eq!(by_text, new, "the short way leads elsewhere");
        }
        self.live = Some(new);
    }

    /// The same by [`retrack`], where that may be used: the client leaves it to the server who manages what.
    fn retracked(live: &Value, mut new: Value, write: &Write<'_>) -> Option<Value> {
        let take = |object: &mut Value| object.get_mut("metadata")?.as_object_mut()?.remove("managedFields");
        let mut live = live.clone();
        let kept = take(&mut live);
        let sent = take(&mut new);
        if sent.is_some() && sent != kept {
            return None;
        }
        let text = kept.as_ref().map(Value::to_string);
        let entries = match retrack(&live, text.as_deref(), &new, write) {
            Retracked::Kept => kept,
            Retracked::Changed(text) => Some(serde_json::from_str(&text).unwrap()),
            Retracked::Gone => None,
        };
        if let (Some(entries), Some(metadata)) = (entries, new.get_mut("metadata").and_then(Value::as_object_mut)) {
            metadata.insert("managedFields".to_owned(), entries);
        }
        Some(new)
    }

    fn spec(&self) -> &Value {
        &self.live.as_ref().unwrap()["spec"]
    }

    pub(super) fn entries(&self) -> &[Value] {
        self.live.as_ref().unwrap()["metadata"]["managedFields"].as_array().map_or(&[], Vec::as_slice)
    }

    /// Who owns what: `one+` applies, `one` updates.
    pub(super) fn owners(&self) -> BTreeMap<String, Vec<String>> {
        let owner = |entry: &Value| {
            let plus = if entry["operation"] == "Apply" { "+" } else { "" };
            let set = FieldSet::decode(&entry["fieldsV1"]).unwrap();
            let paths = set.paths().iter().map(|path| path.to_string().replacen(".spec", "", 1)).collect();
            (format!("{}{plus}", entry["manager"].as_str().unwrap()), paths)
        };
        self.entries().iter().map(owner).collect()
    }

    #[track_caller]
    fn owned(&self, expected: &[(&str, &[&str])]) -> &Self {
        let expected =
            expected.iter().map(|(who, paths)| ((*who).to_owned(), paths.iter().map(ToString::to_string).collect()));
        assert_eq!(self.owners(), expected.collect());
        self
    }

    #[track_caller]
    fn is(&self, spec: Value) -> &Self {
        assert_eq!(*self.spec(), spec);
        self
    }
}

#[test]
fn an_applied_field_is_owned_and_removed_with_the_configuration() {
    Object::none()
        .apply("one", json!({"replicas": 1, "paused": true}))
        .apply("one", json!({"replicas": 2}))
        .is(json!({"replicas": 2}))
        .owned(&[("one+", &[".replicas"])]);
}

#[test]
fn a_field_of_another_manager_is_a_conflict() {
    let mut object = Object::none().apply("one", json!({"replicas": 1, "paused": true}));
    assert_eq!(
        object.conflict("two", json!({"replicas": 2})),
        "Apply failed with 1 conflict: conflict with \"one\": .spec.replicas"
    );
    object.is(json!({"replicas": 1, "paused": true})).owned(&[("one+", &[".paused", ".replicas"])]);
    object
        .force("two", json!({"replicas": 2}))
        .is(json!({"replicas": 2, "paused": true}))
        .owned(&[("one+", &[".paused"]), ("two+", &[".replicas"])]);
}

#[test]
fn several_conflicts_are_listed_by_manager() {
    let mut object = Object::none()
        .apply("one", json!({"replicas": 1, "settings": {"a": "1", "b": "1"}}))
        .update("kubectl-edit", json!({"replicas": 1, "settings": {"a": "1", "b": "2"}}));
    let e = object.try_apply("two", &Object::config(&json!({"replicas": 2, "settings": {"a": "3", "b": "3"}})), false);
    let e = e.unwrap_err();
    assert_eq!(
        e.message,
        "Apply failed with 3 conflicts: conflicts with \"kubectl-edit\" using v1:\n- .spec.settings.b\nconflicts with \"one\":\n- .spec.replicas\n- .spec.settings.a"
    );
    assert_eq!(
        e.details["causes"][0],
        json!({"reason": "FieldManagerConflict", "message": "conflict with \"kubectl-edit\" using v1", "field": ".spec.settings.b"})
    );
}

#[test]
fn equal_values_are_shared_until_the_last_owner_lets_go() {
    Object::none()
        .apply("one", json!({"replicas": 1, "paused": true}))
        .apply("two", json!({"replicas": 1}))
        .apply("one", json!({"paused": true}))
        .is(json!({"replicas": 1, "paused": true}))
        .owned(&[("one+", &[".paused"]), ("two+", &[".replicas"])]);
    Object::none()
        .apply("one", json!({"replicas": 1, "paused": true}))
        .apply("two", json!({"replicas": 1}))
        .apply("one", json!({"paused": true}))
        .apply("two", json!({"settings": {"x": "y"}}))
        .is(json!({"paused": true, "settings": {"x": "y"}}));
}

#[test]
fn updates_take_what_they_change() {
    Object::none()
        .apply("one", json!({"replicas": 1, "settings": {"a": "1", "b": "1"}}))
        .update("two", json!({"replicas": 5, "settings": {"a": "1"}}))
        .is(json!({"replicas": 5, "settings": {"a": "1"}}))
        .owned(&[("one+", &[".settings.a"]), ("two", &[".replicas"])]);
    // What an update added stays when the applier never had it.
    Object::none()
        .apply("one", json!({"replicas": 1}))
        .update("two", json!({"replicas": 1, "settings": {"x": "y"}}))
        .apply("one", json!({}))
        .is(json!({"settings": {"x": "y"}}))
        .owned(&[("two", &[".settings", ".settings.x"])]);
}

#[test]
fn maps_and_structs_go_with_their_last_field() {
    Object::none()
        .apply(
            "one",
            json!({"settings": {"a": "1"}, "struct": {"a": "1", "b": {"c": "2"}}, "nested": {"n": {"a": "1"}}}),
        )
        .apply("one", json!({"replicas": 1}))
        .is(json!({"replicas": 1}));
    Object::none()
        .apply("one", json!({"nested": {"n": {"a": "1"}}}))
        .apply("two", json!({"nested": {"n": {"b": "2"}, "m": {"a": "3"}}}))
        .apply("one", json!({}))
        .is(json!({"nested": {"n": {"b": "2"}, "m": {"a": "3"}}}))
        .owned(&[("two+", &[".nested.m", ".nested.n", ".nested.m.a", ".nested.n.b"])]);
}

#[test]
fn atomic_lists_and_maps_have_one_owner() {
    let mut object = Object::none().apply("one", json!({"atomicList": ["a"], "atomicMap": {"x": "1"}}));
    object.owned(&[("one+", &[".atomicList", ".atomicMap"])]);
    assert_eq!(
        object.conflict("two", json!({"atomicMap": {"x": "1", "y": "2"}})),
        "Apply failed with 1 conflict: conflict with \"one\": .spec.atomicMap"
    );
    object
        .apply("one", json!({"atomicList": ["b", "c"]}))
        .is(json!({"atomicList": ["b", "c"]}))
        .owned(&[("one+", &[".atomicList"])]);
}

#[test]
fn sets_are_owned_element_by_element() {
    Object::none().apply("one", json!({"set": ["a", "b"]})).apply("two", json!({"set": ["c", "b"]})).owned(&[
        ("one+", &["[=\"a\"]", "[=\"b\"]"].map(|e| format!(".set{e}")).each_ref().map(String::as_str)),
        ("two+", &["[=\"b\"]", "[=\"c\"]"].map(|e| format!(".set{e}")).each_ref().map(String::as_str)),
    ]);
    Object::none()
        .apply("one", json!({"set": ["a", "b"]}))
        .apply("two", json!({"set": ["c", "b"]}))
        .apply("one", json!({"set": ["a"]}))
        .is(json!({"set": ["a", "c", "b"]}));
    Object::none()
        .apply("one", json!({"set": ["a", "b"], "numbers": [1, 2]}))
        .apply("one", json!({"set": ["c", "a"], "numbers": [2.0]}))
        .is(json!({"set": ["c", "a"], "numbers": [2.0]}));
}

#[test]
fn elements_with_keys_are_owned_field_by_field() {
    Object::none()
        .apply("one", json!({"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]}))
        .apply("two", json!({"containers": [{"name": "b", "args": ["x"]}, {"name": "c"}]}))
        .is(json!({"containers": [
            {"name": "a", "image": "1"}, {"name": "b", "image": "1", "args": ["x"]}, {"name": "c"}]}))
        .owned(&[
            (
                "one+",
                &[
                    ".containers[name=\"a\"]",
                    ".containers[name=\"b\"]",
                    ".containers[name=\"a\"].image",
                    ".containers[name=\"a\"].name",
                    ".containers[name=\"b\"].image",
                    ".containers[name=\"b\"].name",
                ],
            ),
            (
                "two+",
                &[
                    ".containers[name=\"b\"]",
                    ".containers[name=\"c\"]",
                    ".containers[name=\"b\"].args",
                    ".containers[name=\"b\"].name",
                    ".containers[name=\"c\"].name",
                ],
            ),
        ]);
    Object::none()
        .apply("one", json!({"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]}))
        .apply("two", json!({"containers": [{"name": "b", "args": ["x"]}]}))
        .apply("one", json!({}))
        .is(json!({"containers": [{"name": "b", "args": ["x"]}]}));
}

#[test]
fn missing_keys_take_their_default() {
    let port = |protocol: Option<&str>, name: &str| {
        let mut port = json!({"containerPort": 80, "name": name});
        if let Some(protocol) = protocol {
            port["protocol"] = protocol.into();
        }
        port
    };
    let spec = |ports: Value| json!({"containers": [{"name": "a", "ports": ports}]});
    let mut object = Object::none().apply("one", spec(json!([port(Some("TCP"), "x"), port(Some("UDP"), "y")])));
    assert_eq!(
        object.conflict("two", spec(json!([port(None, "z")]))),
        "Apply failed with 1 conflict: conflict with \"one\": .spec.containers[name=\"a\"].ports[containerPort=80,protocol=\"TCP\"].name"
    );
    // The protocol is no longer applied; defaulting brings it back.
    object.apply("one", spec(json!([port(None, "x")]))).is(spec(json!([port(None, "x")])));
}

#[test]
fn the_order_of_a_configuration_is_kept() {
    for (live, config, result) in [
        (&["a", "b", "c"][..], &["c", "a"][..], &["b", "c", "a"][..]),
        (&["a", "b", "c"], &["x", "b"], &["a", "x", "b", "c"]),
        (&["a", "b", "c"], &["x", "y"], &["a", "b", "c", "x", "y"]),
        (&["a", "b", "c", "d"], &["d", "b"], &["a", "c", "d", "b"]),
        (&[], &["b", "a"], &["b", "a"]),
    ] {
        let object = Object::none().update("server", json!({"set": live})).apply("one", json!({"set": config}));
        assert_eq!(object.spec()["set"], json!(result), "{live:?} + {config:?}");
    }
}

#[test]
fn duplicates_in_the_live_object_are_tolerated_in_a_configuration_refused() {
    let mut object = Object::none().update("old", json!({"set": ["a", "a", "b"]}));
    object.owned(&[("old", &["", ".set", ".set[=\"a\"]", ".set[=\"b\"]"])]);
    let e = object.try_apply("one", &Object::config(&json!({"set": ["c", "c"]})), false).unwrap_err();
    assert_eq!(
        (e.code, e.message.as_str()),
        (
            500,
            "failed to create typed patch object (/x; /v1, Kind=Thing): .spec.set: duplicate entries for key [=\"c\"]"
        )
    );
    object.force("one", json!({"set": ["a"]})).is(json!({"set": ["a", "b"]}));
}

#[test]
fn fields_without_a_schema() {
    Object::none()
        .apply("one", json!({"free": {"a": {"b": 1}, "list": [1, 2]}, "any": {"x": "y"}}))
        .apply("two", json!({"free": {"a": {"c": 2}}}))
        .apply("one", json!({"free": {"list": [3]}, "any": "text"}))
        .is(json!({"free": {"a": {"c": 2}, "list": [3]}, "any": "text"}))
        .owned(&[("one+", &[".any", ".free.list"]), ("two+", &[".free.a", ".free.a.c"])]);
}

#[test]
fn a_configuration_must_fit_its_schema() {
    for (spec, message) in [
        (json!({"nope": 1}), ".spec.nope: field not declared in schema"),
        (json!({"replicas": "many"}), ".spec.replicas: expected numeric (int or float), got string"),
        (json!({"paused": "yes"}), ".spec.paused: expected boolean, got &{yes}"),
        (
            json!({"containers": [{"image": "x"}]}),
            ".spec.containers: element 0: associative list with keys has an element that omits all key fields [\"name\"] (and doesn't have default values for any key fields)",
        ),
        (json!({"set": [["a"]]}), ".spec.set: element 0: not supported: associative list with lists as elements"),
        (json!({"atomicList": [1]}), ".spec.atomicList[0]: expected string, got &value.valueUnstructured{Value:1}"),
        (json!({"nope": 1, "struct": []}), "errors:\n  .spec.nope: field not declared in schema"),
    ] {
        let e = Object::none().try_apply("one", &Object::config(&spec), false).unwrap_err();
        let prefix = "failed to create typed patch object (/x; /v1, Kind=Thing): ";
        let expected = message.strip_prefix("errors:\n  ").unwrap_or(message);
        assert_eq!((e.code, e.message.as_str()), (500, format!("{prefix}{expected}").as_str()));
    }
    for (config, message) in [
        (json!({"apiVersion": "v2", "kind": "Thing"}), "invalid object type: /v2, Kind=Thing"),
        (json!({"apiVersion": "v1", "kind": "Other"}), "invalid object type: /v1, Kind=Other"),
        (
            json!({"apiVersion": "v1", "kind": "Thing", "metadata": {"managedFields": [{}]}}),
            "metadata.managedFields must be nil",
        ),
    ] {
        let e = Object::none().try_apply("one", &config, false).unwrap_err();
        assert_eq!((e.code, e.message.as_str()), (400, message));
    }
}

#[test]
fn status_and_the_servers_metadata_belong_to_no_one() {
    let mut object = Object::none();
    let mut config = Object::config(&json!({"replicas": 1}));
    config["status"] = json!({"phase": "x"});
    config["metadata"] = json!({
        "name": "x", "namespace": "n", "uid": "u", "creationTimestamp": null, "generation": 3, "resourceVersion": "",
        "labels": {"a": "b"}, "finalizers": ["x/y"],
    });
    object.try_apply("one", &config, false).unwrap();
    let expected: &[&str] = &[".metadata.finalizers[=\"x/y\"]", ".metadata.labels.a", ".replicas"];
    object.owned(&[("one+", expected)]);
}

#[test]
fn entries_are_sorted_and_dated() {
    let object = Object::none()
        .update("creator", json!({"replicas": 1}))
        .apply("b", json!({"paused": true}))
        .apply("a", json!({"settings": {"x": "y"}}))
        .update("other", json!({"replicas": 2, "paused": true, "settings": {"x": "y"}}));
    let entries: Vec<_> = object
        .entries()
        .iter()
        .map(|e| ["operation", "time", "manager", "apiVersion", "fieldsType"].map(|f| e[f].as_str().unwrap_or("-")))
        .collect();
    assert_eq!(
        entries,
        [
            ["Apply", "2023-11-14T22:13:22Z", "b", "v1", "FieldsV1"],
            ["Apply", "2023-11-14T22:13:23Z", "a", "v1", "FieldsV1"],
            ["Update", "2023-11-14T22:13:21Z", "creator", "v1", "FieldsV1"],
            ["Update", "2023-11-14T22:13:24Z", "other", "v1", "FieldsV1"],
        ]
    );
}

#[test]
fn nothing_changes_when_nothing_changes() {
    let spec = json!({"replicas": 1, "containers": [{"name": "a"}]});
    let mut object = Object::none().apply("one", spec.clone());
    let before = object.live.clone();
    assert!(!object.try_apply("one", &Object::config(&spec), false).unwrap());
    assert_eq!(object.live, before, "not even the time");
    object.replace("two", before.clone().unwrap());
    assert_eq!(object.live, before);
    // A new owner of the same values is a change of ownership, but has not written anything: it has no time.
    assert!(object.try_apply("two", &Object::config(&json!({"replicas": 1})), false).unwrap());
    let entry = object.entries().iter().find(|e| e["manager"] == "two").unwrap();
    assert_eq!((&entry["time"], &entry["fieldsV1"]), (&Value::Null, &json!({"f:spec": {"f:replicas": {}}})));
}

#[test]
fn clients_reset_continue_or_ignore_managed_fields() {
    let start = || Object::none().apply("one", json!({"replicas": 1}));
    for reset in [json!([]), json!([{}])] {
        let mut object = start();
        let mut new = object.live.clone().unwrap();
        new["metadata"]["managedFields"] = reset;
        object.replace("two", new);
        assert_eq!(object.entries(), &[] as &[Value]);
    }
    for ignored in [Value::Null, json!([{"manager": "x", "operation": "Nonsense"}])] {
        let mut object = start();
        let mut new = object.live.clone().unwrap();
        new["metadata"]["managedFields"] = ignored;
        object.replace("two", new);
        object.owned(&[("one+", &[".replicas"])]);
    }
    let mut object = start();
    let mut new = object.live.clone().unwrap();
    new["metadata"]["managedFields"][0]["manager"] = "renamed".into();
    object.replace("two", new);
    object.owned(&[("renamed+", &[".replicas"])]);
}

#[test]
fn an_object_without_entries_is_tracked_from_the_first_apply_on() {
    let mut object = Object::none().update("one", json!({"replicas": 1, "paused": true}));
    let mut new = object.live.clone().unwrap();
    new["metadata"]["managedFields"] = json!([]);
    object.replace("one", new);
    object = object.update("two", json!({"replicas": 2, "paused": true}));
    object.owned(&[]);
    assert_eq!(
        object.conflict("three", json!({"replicas": 3})),
        "Apply failed with 1 conflict: conflict with \"before-first-apply\" using v1: .spec.replicas"
    );
    object
        .apply("three", json!({"replicas": 2}))
        .owned(&[("before-first-apply", &["", ".paused", ".replicas"]), ("three+", &[".replicas"])]);
}

#[test]
fn old_updates_are_merged() {
    let mut object = Object::none().update("m00", json!({"settings": {"k00": "v"}}));
    for i in 1..15 {
        let mut settings = object.spec()["settings"].clone();
        settings[format!("k{i:02}")] = "v".into();
        object = object.update(&format!("m{i:02}"), json!({"settings": settings}));
    }
    let owners = object.owners();
    assert_eq!(owners.len(), super::MAX_UPDATE_MANAGERS);
    assert_eq!(
        owners["ancient-changes"],
        [
            "",
            ".settings",
            ".settings.k00",
            ".settings.k01",
            ".settings.k02",
            ".settings.k03",
            ".settings.k04",
            ".settings.k05"
        ]
    );
    assert_eq!(owners["m14"], [".settings.k14"]);
}

#[test]
fn kubectl_takes_over_from_client_side_apply() {
    let last = |spec: &Value| {
        json!({"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "x"}, "spec": spec}).to_string()
    };
    let annotation = "kubectl.kubernetes.io/last-applied-configuration";
    let mut object = Object::none();
    let mut new = Object::config(&json!({"replicas": 1, "paused": true}));
    new["metadata"]["annotations"] = json!({annotation: last(&json!({"replicas": 1, "paused": true}))});
    object.replace("kubectl-client-side-apply", new);
    let mut scaled = object.live.clone().unwrap();
    scaled["spec"]["replicas"] = 5.into();
    object.replace("scaler", scaled);

    let e = object.try_apply("other", &Object::config(&json!({"replicas": 2, "paused": false})), false).unwrap_err();
    assert!(e.message.starts_with("Apply failed with 2 conflicts"), "only kubectl takes over: {}", e.message);
    let e = object.try_apply("kubectl", &Object::config(&json!({"replicas": 2, "paused": false})), false).unwrap_err();
    assert_eq!(
        e.message, "Apply failed with 1 conflict: conflict with \"scaler\" using v1: .spec.replicas",
        "what was changed since is not taken over"
    );
    object.try_apply("kubectl", &Object::config(&json!({"paused": false})), false).unwrap();
    object.is(json!({"replicas": 5, "paused": false}));
    let live = object.live.as_ref().unwrap();
    assert_eq!(
        live["metadata"]["annotations"][annotation],
        format!("{}\n", last(&json!({"paused": false}))),
        "the annotation follows"
    );
}

#[test]
fn what_became_atomic_is_owned_as_a_whole() {
    let mut object = Object::none().apply("one", json!({"settings": {"a": "1"}, "set": ["x"]}));
    object.schema = schema(&json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "replicas": {"type": "integer"},
        "settings": {"type": "object", "additionalProperties": {"type": "string"}, "x-kubernetes-map-type": "atomic"},
        "set": {"type": "array", "items": {"type": "string"}},
    }}}}));
    object = object.update("two", json!({"settings": {"a": "1"}, "set": ["x"], "replicas": 1}));
    object.owned(&[("one+", &[".set", ".settings"]), ("two", &[".replicas"])]);
}

#[test]
fn writes_to_a_subresource_have_entries_of_their_own() {
    let mut object = Object::none().apply("one", json!({"replicas": 1}));
    let mut new = object.live.clone().unwrap();
    new["status"] = json!({"phase": "Running"});
    new["metadata"]["managedFields"] = json!([]);
    let reset = FieldSet::of_fields(&[&["spec"]]);
    let write = Write { subresource: "status", ..Object::write(&object.schema, "kubelet", &reset, 9) };
    track_update(object.live.as_ref(), &mut new, &write);
    object.live = Some(new);
    let entry = &object.entries()[1];
    assert_eq!(
        (&entry["manager"], &entry["subresource"], &entry["fieldsV1"]),
        (&json!("kubelet"), &json!("status"), &json!({"f:status": {".": {}, "f:phase": {}}})),
        "and cannot touch those of others"
    );
}

#[test]
fn structs_of_built_in_kinds_are_always_there() {
    let created = |group: &str, api_version: &str, kind: &str, object: Value| {
        let schema = builtin::schema(group, api_version.rsplit('/').next().unwrap(), kind).unwrap();
        let reset = FieldSet::of_fields(&[&["status"]]);
        let mut new = object;
        let write = Write { api_version, kind, ..Object::write(&schema, "creator", &reset, 1) };
        track_update(None, &mut new, &write);
        new["metadata"]["managedFields"][0]["fieldsV1"].take()
    };
    assert_eq!(
        created(
            "",
            "v1",
            "PersistentVolume",
            json!({
                "metadata": {"name": "v", "labels": {"a": "b"}},
                "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                    "csi": {"driver": "d", "volumeHandle": "h"}},
            })
        ),
        json!({
            "f:metadata": {"f:labels": {".": {}, "f:a": {}}},
            "f:spec": {"f:accessModes": {}, "f:capacity": {".": {}, "f:storage": {}},
                "f:csi": {".": {}, "f:driver": {}, "f:volumeHandle": {}}},
        }),
        "spec is a struct, csi a pointer, capacity a map"
    );
    assert_eq!(
        created(
            "",
            "v1",
            "Pod",
            json!({
                "metadata": {"name": "p"},
                "spec": {"containers": [{"name": "c", "resources": {}, "ports": [{"containerPort": 80, "protocol": "TCP"}]}]},
            })
        ),
        json!({"f:spec": {"f:containers": {r#"k:{"name":"c"}"#: {
            ".": {}, "f:name": {}, "f:resources": {},
            "f:ports": {".": {}, r#"k:{"containerPort":80,"protocol":"TCP"}"#: {
                ".": {}, "f:containerPort": {}, "f:protocol": {},
            }},
        }}}}),
        "containers is required, ports is not"
    );
    assert_eq!(
        created(
            "",
            "v1",
            "Event",
            json!({
                "metadata": {"name": "e"}, "involvedObject": {"kind": "Pod"}, "source": {"component": "c"},
                "eventTime": null, "reportingComponent": "", "message": "m",
            })
        ),
        json!({"f:involvedObject": {}, "f:message": {}, "f:source": {"f:component": {}}}),
        "what is empty in Go is owned by no one"
    );
}
