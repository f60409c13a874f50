//! What several test modules need: schemas from JSON, and random JSON.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::Value;

use crate::schema::{ListType, PatchMeta, Schema, Type};

/// A schema from OpenAPI; an unnamed type is an object if it has fields.
pub(crate) fn schema(openapi: &Value) -> Schema {
    let text = |name: &str| openapi[name].as_str().map(str::to_owned);
    let texts = |name: &str| -> Vec<String> {
        openapi[name].as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
    };
    let strategy = text("x-kubernetes-patch-strategy").unwrap_or_default();
    Schema {
        ty: match openapi["type"].as_str() {
            Some("object") => Type::Object,
            Some("array") => Type::Array,
            Some("string") => Type::String,
            Some("integer") => Type::Integer,
            Some("number") => Type::Number,
            Some("boolean") => Type::Boolean,
            _ => Type::Any,
        },
        properties: openapi["properties"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, field)| (name.clone(), Arc::new(schema(field))))
            .collect(),
        additional: openapi.get("additionalProperties").map(|v| Arc::new(schema(v))),
        items: openapi.get("items").map(|v| Arc::new(schema(v))),
        default: openapi.get("default").cloned(),
        preserve_unknown: openapi["x-kubernetes-preserve-unknown-fields"] == Value::Bool(true),
        list: match openapi["x-kubernetes-list-type"].as_str() {
            Some("set") => ListType::Set,
            Some("map") => ListType::Map(texts("x-kubernetes-list-map-keys")),
            _ => ListType::Atomic,
        },
        atomic_map: openapi["x-kubernetes-map-type"] == "atomic",
        patch: PatchMeta {
            merge: strategy.contains("merge"),
            retain_keys: strategy.contains("retainKeys"),
            merge_key: text("x-kubernetes-patch-merge-key"),
        },
        ..Schema::default()
    }
}

/// A scalar of few distinct values, so that random values meet each other.
pub(crate) fn any_scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-2..3i64).prop_map(Value::from),
        "[a-c]{0,1}".prop_map(Value::from),
    ]
}

/// Small JSON with few distinct names.
pub(crate) fn any_json() -> impl Strategy<Value = Value> {
    any_scalar().prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-c]", inner, 0..4).prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}
