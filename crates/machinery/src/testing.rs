//! What several test modules need: schemas from JSON, and random JSON.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::Value;

use crate::schema::Schema;

/// A schema from OpenAPI.
pub(crate) fn schema(openapi: &Value) -> Arc<Schema> {
    crate::schema::compile(openapi).expect("a test's schema must compile")
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
