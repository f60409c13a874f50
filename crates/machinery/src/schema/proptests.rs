//! What holds for every schema and every value: pruning and defaulting settle at once, and leave what validates.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const NAMES: [&str; 4] = ["a", "b", "c", "metadata"];

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3_i64..3).prop_map(Value::from),
        "[a-c]{0,2}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map(prop::sample::select(&NAMES[..]), inner, 0..4)
                .prop_map(|map| map.into_iter().map(|(k, v)| (k.to_owned(), v)).collect::<Value>()),
        ]
    })
}

/// A structural schema, with defaults that fit.
fn any_schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!({"type": "string"})),
        Just(json!({"type": "string", "default": "x", "maxLength": 2})),
        Just(json!({"type": "integer", "default": 1, "nullable": true})),
        Just(json!({"type": "boolean"})),
        Just(json!({"x-kubernetes-int-or-string": true})),
        Just(json!({"x-kubernetes-preserve-unknown-fields": true})),
        Just(json!({"type": "object", "additionalProperties": true})),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let properties = prop::collection::btree_map(prop::sample::select(&NAMES[..3]), inner.clone(), 0..4);
        prop_oneof![
            inner.clone().prop_map(|items| json!({"type": "array", "items": items})),
            inner.prop_map(|values| json!({"type": "object", "additionalProperties": values})),
            (properties.clone(), any::<bool>()).prop_map(|(properties, preserve)| {
                let mut schema = json!({"type": "object", "properties": properties});
                if preserve {
                    schema["x-kubernetes-preserve-unknown-fields"] = true.into();
                }
                schema
            }),
            properties.prop_map(|properties| json!({"type": "object", "default": {}, "properties": properties})),
        ]
    })
}

fn object_schema() -> impl Strategy<Value = Value> {
    any_schema().prop_map(|spec| json!({"type": "object", "properties": {"a": spec}}))
}

proptest! {
    #[test]
    fn pruning_settles_at_once(schema in object_schema(), mut value in any_value()) {
        let schema = compile(&schema).unwrap();
        let reported = unknown_fields(&value, &schema);
        prop_assert_eq!(&prune(&mut value, &schema), &reported);
        let once = value.clone();
        prop_assert_eq!(prune(&mut value, &schema), Vec::<String>::new());
        prop_assert_eq!(value, once);
    }

    #[test]
    fn defaulting_settles_at_once(schema in object_schema(), mut value in any_value()) {
        let schema = compile(&schema).unwrap();
        apply_defaults(&mut value, &schema);
        let once = value.clone();
        apply_defaults(&mut value, &schema);
        prop_assert_eq!(value, once);
    }

    #[test]
    fn an_update_that_changes_nothing_is_fine(schema in object_schema(), value in any_value()) {
        let schema = compile(&schema).unwrap();
        prop_assert_eq!(validate_update(&value, &value, &schema), []);
    }

    #[test]
    fn defaults_and_pruning_make_nothing_worse(schema in object_schema(), value in any_value()) {
        let schema = compile(&schema).unwrap();
        if validate(&value, &schema).is_empty() {
            let mut value = value;
            prune(&mut value, &schema);
            apply_defaults(&mut value, &schema);
            prop_assert_eq!(validate(&value, &schema), []);
        }
    }

    #[test]
    fn any_json_is_a_schema_or_an_error(value in any_value()) {
        let _ = compile(&json!({"type": "object", "properties": value}));
    }
}
