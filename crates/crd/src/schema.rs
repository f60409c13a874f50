//! The schema of a type, as a structural OpenAPI v3 schema of a custom resource definition.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::IntString;

/// What a value of this type looks like in JSON.
pub trait Schema {
    /// A structural schema.
    fn schema() -> Value;
}

impl Schema for bool {
    fn schema() -> Value {
        json!({"type": "boolean"})
    }
}

impl Schema for i32 {
    fn schema() -> Value {
        json!({"type": "integer", "format": "int32"})
    }
}

impl Schema for i64 {
    fn schema() -> Value {
        json!({"type": "integer", "format": "int64"})
    }
}

impl Schema for u64 {
    fn schema() -> Value {
        // OpenAPI has no unsigned format; what is counted here stays far below 2^63.
        json!({"type": "integer", "format": "int64", "minimum": 0})
    }
}

impl Schema for String {
    fn schema() -> Value {
        json!({"type": "string"})
    }
}

impl Schema for IntString {
    fn schema() -> Value {
        json!({"type": "string", "pattern": "^(-?[0-9]+)?$"})
    }
}

impl<T: Schema> Schema for Option<T> {
    fn schema() -> Value {
        T::schema()
    }
}

impl<T: Schema> Schema for Vec<T> {
    fn schema() -> Value {
        json!({"type": "array", "nullable": true, "items": T::schema()})
    }
}

impl<T: Schema> Schema for BTreeMap<String, T> {
    fn schema() -> Value {
        json!({"type": "object", "nullable": true, "additionalProperties": T::schema()})
    }
}

/// `schema` with the words of a doc comment.
pub(crate) fn described(mut schema: Value, doc: &str) -> Value {
    schema["description"] = doc.trim().into();
    schema
}

/// How a field is called in JSON: as it says, or its Rust name in camel case.
pub(crate) fn wire_name(field: &str, said: Option<&str>) -> String {
    if let Some(said) = said {
        return said.to_owned();
    }
    let mut words = field.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |name, word| {
        let (head, tail) = word.split_at(word.len().min(1));
        name + &head.to_uppercase() + tail
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_called_as_it_says_or_in_camel_case() {
        assert_eq!(wire_name("number_of_replicas", None), "numberOfReplicas");
        assert_eq!(wire_name("size", None), "size");
        assert_eq!(wire_name("node_id", Some("nodeID")), "nodeID");
    }
}
