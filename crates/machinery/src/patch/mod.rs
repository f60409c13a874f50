//! What a patch makes of an object: JSON patch, JSON merge patch and strategic merge patch.
//!
//! All three take the object as the client sees it and return the patched one; defaulting, validation and
//! field ownership come after. Sizes are bounded here, because a small patch can ask for a large result.

mod json;
mod merge;

pub use json::{MAX_COPY_BYTES, MAX_OPERATIONS, json};
pub use merge::merge;

use serde_json::{Value, json};

use crate::status::ApiError;

/// How deep a patched object may nest. Readers of JSON stop at 128 levels, and an object is read inside
/// of lists and watch events, so what is stored keeps a distance.
pub const MAX_DEPTH: usize = 100;

/// The 422 that Kubernetes answers when a well-formed patch does not fit the object. It does not say why.
fn does_not_apply() -> ApiError {
    ApiError {
        code: 422,
        reason: "Invalid",
        message: "the server rejected our request due to an error in our request".to_owned(),
        details: json!({}),
    }
}

fn deeper_than(value: &Value, levels: usize) -> bool {
    let Some(below) = levels.checked_sub(1) else {
        return value.is_object() || value.is_array();
    };
    match value {
        Value::Object(map) => map.values().any(|v| deeper_than(v, below)),
        Value::Array(list) => list.iter().any(|v| deeper_than(v, below)),
        _ => false,
    }
}

#[cfg(test)]
pub(crate) use tests::any_json;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    /// Small JSON with few distinct names, so that random values meet each other.
    pub(crate) fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-2..3i64).prop_map(Value::from),
            "[a-c]{0,1}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-c]", inner, 0..4).prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }
}
