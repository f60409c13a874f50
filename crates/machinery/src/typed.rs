//! Values of the wrong type, which a typed server could not even decode.
//!
//! Values here are not typed, so the schema has to say what Go's decoder would have said.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::field::Path;
use crate::schema::{Schema, Type};

/// A value that cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("json: cannot unmarshal {found} into Go struct field {path} of type {expected}")]
    Type { path: String, found: &'static str, expected: &'static str },
    #[error("{path}: illegal base64 data: the value must be base64 encoded")]
    Base64 { path: String },
}

/// Deepest nesting that is looked at; Kubernetes' own types stay far below it.
const MAX_DEPTH: usize = 64;

/// The first value that has the wrong type, if there is one. Null is of every type; unknown fields are not looked at.
pub fn check(object: &Value, schema: &Schema) -> Result<(), DecodeError> {
    walk(object, schema, &Path::root(), 0)
}

fn walk(value: &Value, schema: &Schema, path: &Path, depth: usize) -> Result<(), DecodeError> {
    let schema = schema.resolve();
    if depth > MAX_DEPTH || schema.preserve_unknown {
        return Ok(());
    }
    check_type(value, schema, path)?;
    match value {
        Value::Object(map) => {
            for (key, item) in map {
                if let Some(inner) = schema.field(key) {
                    walk(item, inner, &path.child(key), depth + 1)?;
                }
            }
        }
        Value::Array(items) => {
            if let Some(inner) = &schema.items {
                for (i, item) in items.iter().enumerate() {
                    walk(item, inner, &path.index(i), depth + 1)?;
                }
            }
        }
        _ => {}
    }
    Ok(())
}

fn check_type(value: &Value, schema: &Schema, path: &Path) -> Result<(), DecodeError> {
    let wrong = |expected| {
        let found = match value {
            Value::Null => "null",
            Value::Bool(_) => "bool",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        Err(DecodeError::Type { path: path.to_string(), found, expected })
    };
    match (schema.ty, value) {
        (Type::String, Value::String(text)) => match schema.format.as_deref() {
            Some("byte") if STANDARD.decode(text).is_err() => Err(DecodeError::Base64 { path: path.to_string() }),
            _ => Ok(()),
        },
        (Type::Integer, Value::Number(n)) if n.is_i64() || n.is_u64() => Ok(()),
        (_, Value::Null)
        | (Type::Any, _)
        | (Type::Object, Value::Object(_))
        | (Type::Array, Value::Array(_))
        | (Type::Number, Value::Number(_))
        | (Type::Boolean, Value::Bool(_))
        | (Type::IntOrString, Value::String(_) | Value::Number(_)) => Ok(()),
        (Type::Object, _) => wrong("struct or map"),
        (Type::Array, _) => wrong("slice"),
        (Type::String, _) => wrong("string"),
        (Type::Integer, _) => wrong("int64"),
        (Type::Number, _) => wrong("float64"),
        (Type::Boolean, _) => wrong("bool"),
        (Type::IntOrString, _) => wrong("int or string"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn schema() -> Schema {
        let leaf = |ty| Arc::new(Schema { ty, ..Schema::default() });
        let list = Schema { ty: Type::Array, items: Some(leaf(Type::Integer)), ..Schema::default() };
        let bytes = Schema { ty: Type::String, format: Some("byte".to_owned()), ..Schema::default() };
        let properties = [("list", Arc::new(list)), ("count", leaf(Type::Integer)), ("data", Arc::new(bytes))];
        Schema {
            ty: Type::Object,
            properties: properties.into_iter().map(|(k, v)| (k.to_owned(), v)).collect(),
            ..Schema::default()
        }
    }

    #[test]
    fn wrong_types_name_the_field() {
        let e = check(&json!({"count": "three"}), &schema()).expect_err("wrong type");
        assert_eq!(e.to_string(), "json: cannot unmarshal string into Go struct field count of type int64");
        let e = check(&json!({"list": [1, 2.5]}), &schema()).expect_err("wrong type");
        assert!(e.to_string().contains("list[1]"), "{e}");
        let e = check(&json!({"data": "?"}), &schema()).expect_err("not base64");
        assert!(e.to_string().contains("base64"), "{e}");
    }
}
