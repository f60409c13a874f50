//! What must hold for any writes to an object.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::tests::Object;
use super::{FieldSet, track_update};
use crate::testing::any_json;

/// Any spec. Where ownership must decide everything there are no empty lists, which no one owns, and no
/// explicit nulls, which leave maps as they are: then `least` is 1.
fn any_spec(least: usize) -> impl Strategy<Value = Value> {
    let text = || "[x-z]";
    let set =
        prop::collection::btree_set("[a-d]", least..4).prop_map(|s| s.into_iter().collect::<Vec<_>>()).prop_shuffle();
    let ports =
        prop::collection::btree_map((1..3i64, prop::option::of("(TCP|UDP)")), "[p-r]", least..3).prop_map(|ports| {
            let mut seen = std::collections::BTreeSet::new();
            let port = |((port, protocol), name): ((i64, Option<String>), String)| {
                let unique = seen.insert((port, protocol.clone().unwrap_or_else(|| "TCP".to_owned())));
                let mut port = json!({"containerPort": port, "name": name});
                if let Some(protocol) = protocol {
                    port["protocol"] = protocol.into();
                }
                unique.then_some(port)
            };
            ports.into_iter().filter_map(port).collect::<Vec<Value>>()
        });
    let free = if least == 0 {
        any_json().prop_filter("object", Value::is_object).boxed()
    } else {
        prop::collection::btree_map("[a-c]", prop::collection::btree_map("[a-c]", text(), 0..3), 0..3)
            .prop_map(|map| json!(map))
            .boxed()
    };
    let containers =
        prop::collection::btree_map("[a-c]", (prop::option::of(text()), prop::option::of(ports)), least..3)
            .prop_map(|containers| {
                let container = |(name, (image, ports)): (String, (Option<String>, Option<Vec<Value>>))| {
                    without_nulls(json!({"name": name, "image": image, "ports": ports}))
                };
                containers.into_iter().map(container).collect::<Vec<Value>>()
            })
            .prop_shuffle();
    (
        prop::option::of(0..3i64),
        prop::option::of(prop::collection::btree_map("[a-c]", text(), 0..3)),
        prop::option::of(prop::collection::btree_map("[a-c]", text(), 0..3)),
        prop::option::of(set),
        prop::option::of(containers),
        prop::option::of(free),
    )
        .prop_map(|(replicas, settings, atomic, set, containers, free)| {
            without_nulls(json!({
                "replicas": replicas, "settings": settings, "atomicMap": atomic, "set": set,
                "containers": containers, "free": free,
            }))
        })
}

fn without_nulls(mut object: Value) -> Value {
    object.as_object_mut().unwrap().retain(|_, v| !v.is_null());
    object
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn applying_again_changes_nothing(specs in prop::collection::vec((0..3u8, any_spec(0)), 1..5)) {
        let mut object = Object::none();
        for (manager, spec) in &specs {
            object = if *manager == 2 { object.update("updater", spec.clone()) } else { object.force(&format!("m{manager}"), spec.clone()) };
        }
        // An object that no one owns anything of is tracked from its next apply on, so someone owns something.
        let mut spec = specs.last().unwrap().1.clone();
        spec["paused"] = true.into();
        object = object.force("m0", spec.clone());
        let before = object.live.clone();
        prop_assert!(!object.try_apply("m0", &Object::config(&spec), false).unwrap());
        prop_assert_eq!(object.live, before);
    }

    #[test]
    fn what_is_applied_is_there_and_owned(first in any_spec(0), second in any_spec(0)) {
        let object = Object::none().apply("one", first).force("two", second.clone());
        let ty = super::Ty::Object(&object.schema);
        let config = Object::config(&second);
        let applied = super::fields_of(&config, ty).unwrap().difference(&super::UNOWNED);
        let entry = object.entries().iter().find(|e| e["manager"] == "two").cloned().unwrap_or_default();
        prop_assert_eq!(FieldSet::decode(&entry["fieldsV1"]).unwrap(), applied);
        let merged = super::merge::merge(object.live.as_ref().unwrap(), &config, ty).unwrap();
        prop_assert!(super::compare(object.live.as_ref().unwrap(), &merged, ty).unwrap().is_same());
    }

    #[test]
    fn letting_go_of_everything_leaves_what_others_own(first in any_spec(1), second in any_spec(1)) {
        let together = Object::none().apply("one", first).force("two", second.clone()).force("one", json!({}));
        let alone = Object::none().apply("two", second);
        let ty = super::Ty::Object(&alone.schema);
        let changes = super::compare(alone.live.as_ref().unwrap(), together.live.as_ref().unwrap(), ty).unwrap();
        // The order of elements may differ; fields and values may not.
        let changes = changes.without(&FieldSet::of_fields(&[&["metadata"]]));
        prop_assert!(changes.is_same(), "{:?}", changes);
        prop_assert_eq!(together.owners(), alone.owners());
    }

    #[test]
    fn any_objects_are_tracked_and_applied_without_panic(live in any_json(), new in any_json(), config in any_json(), entries in any_json()) {
        let mut object = Object::none();
        let mut start = Object::config(&live);
        start["metadata"]["managedFields"] = json!([{"manager": "m", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": entries}}]);
        object.live = Some(start.clone());
        object.replace("two", Object::config(&new));
        object.live = Some(start);
        let _ = object.try_apply("three", &Object::config(&config), true);
        let _ = object.try_apply("three", &config, true);
        let mut odd = new.clone();
        let reset = FieldSet::new();
        track_update(Some(&live), &mut odd, &Object::write(&object.schema, "x", &reset, 1));
    }
}
