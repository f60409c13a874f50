//! What a patch makes of an object: JSON patch, JSON merge patch and strategic merge patch.
//!
//! All three take the object as the client sees it and return the patched one; defaulting, validation and
//! field ownership come after. Sizes are bounded here, because a small patch can ask for a large result.

mod json;
mod merge;
mod strategic;

pub use json::{MAX_COPY_BYTES, MAX_OPERATIONS, MAX_SHIFTED_ELEMENTS, json};
pub use merge::merge;
pub use strategic::strategic;

use serde_json::{Value, json};

use crate::status::ApiError;

/// How deep a patched object may nest. Readers of JSON stop at 128 levels, and an object is read inside
/// of lists and watch events, so what is stored keeps a distance.
pub const MAX_DEPTH: usize = 100;

/// The 422 that Kubernetes answers when a well-formed patch does not fit the object. It does not say why.
fn does_not_apply() -> ApiError {
    ApiError::new(422, "Invalid", "the server rejected our request due to an error in our request", json!({}))
}

/// An error that Kubernetes answers with no reason and therefore with status 500, although the client is at
/// fault: kubectl prints `Error from server: ` and the message, and so it does here.
pub(crate) fn plain_error(message: impl Into<String>) -> ApiError {
    ApiError::new(500, "", message, Value::Null)
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
