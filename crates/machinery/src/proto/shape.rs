//! What a round trip through Kubernetes' Go types leaves of a JSON object, and what it adds.

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::decode::{MICRO_FORMAT, SECOND_FORMAT};
use super::types::{Count, Field, Message, Shape, Special, Type, Types};
use crate::kinds::edit::is_zero;
use crate::quantity::Quantity;

pub(super) fn trim(types: &Types, message: &Message, object: &mut Map<String, Value>) {
    object.retain(|key, value| match message.by_name.get(key) {
        Some(field) => {
            trim_field(types, field, value);
            keeps(types, field, value)
        }
        None => true,
    });
}

/// Whether a field with this value survives.
fn keeps(types: &Types, field: &Field, value: &Value) -> bool {
    let raw = matches!(field.ty, Type::Message(id) if types.message(id).special == Some(Special::Json));
    match (field.count, value) {
        (_, Value::Null) => false,
        (Count::Many | Count::Map, value) => raw || !is_zero(value),
        (Count::One, value) => field.presence || field.shape == Shape::Always || !is_zero(value),
    }
}

fn trim_field(types: &Types, field: &Field, value: &mut Value) {
    let Type::Message(id) = field.ty else { return };
    let message = types.message(id);
    match (field.count, value) {
        (Count::One, value) => trim_value(types, message, value),
        (Count::Many, Value::Array(list)) => list.iter_mut().for_each(|v| trim_value(types, message, v)),
        (Count::Map, Value::Object(map)) => map.values_mut().for_each(|v| trim_value(types, message, v)),
        _ => {}
    }
}

fn trim_value(types: &Types, message: &Message, value: &mut Value) {
    match message.special {
        None => {
            if let Value::Object(map) = value {
                trim(types, message, map);
            }
        }
        Some(Special::Quantity) => {
            if let Ok(quantity) = Quantity::from_json(value) {
                *value = quantity.to_string().into();
            }
        }
        Some(Special::Time) => respell(value, SECOND_FORMAT),
        Some(Special::MicroTime) => respell(value, MICRO_FORMAT),
        Some(Special::SchemaOrArray | Special::SchemaOrBool | Special::SchemaOrStringArray) => {
            let schema = types.by_name("apiextensions.v1.JSONSchemaProps");
            let schema = schema.expect("the schema of schemas must be in the interface files");
            match value {
                Value::Array(list) => list.iter_mut().for_each(|v| trim_value(types, schema, v)),
                other => trim_value(types, schema, other),
            }
        }
        Some(Special::IntOrString | Special::Json | Special::Items) => {}
    }
}

/// Times are kept in UTC, without what is below their precision.
fn respell(value: &mut Value, format: &str) {
    if let Some(at) = value.as_str().and_then(|text| text.parse::<Timestamp>().ok()) {
        *value = at.strftime(format).to_string().into();
    }
}

pub(super) fn complete(types: &Types, message: &Message, object: &mut Map<String, Value>) {
    for field in message.by_name.values() {
        if matches!(field.shape, Shape::Always | Shape::Null) && !object.contains_key(&field.name) {
            let value = if field.shape == Shape::Null { Value::Null } else { zero(types, field) };
            object.insert(field.name.clone(), value);
        }
    }
    for (key, value) in object.iter_mut() {
        let Some(field) = message.by_name.get(key) else { continue };
        let Type::Message(id) = field.ty else { continue };
        let inner = types.message(id);
        if inner.special.is_some() {
            continue;
        }
        match (field.count, value) {
            (Count::One, Value::Object(map)) => complete(types, inner, map),
            (Count::Many, Value::Array(list)) => {
                list.iter_mut().filter_map(Value::as_object_mut).for_each(|map| complete(types, inner, map));
            }
            (Count::Map, Value::Object(maps)) => {
                maps.values_mut().filter_map(Value::as_object_mut).for_each(|map| complete(types, inner, map));
            }
            _ => {}
        }
    }
}

/// What Go writes for a field that was never set: structures are empty, lists, maps and times are null.
fn zero(types: &Types, field: &Field) -> Value {
    match (field.count, field.ty) {
        (Count::Many | Count::Map, _) => Value::Null,
        (Count::One, Type::Bool) => false.into(),
        (Count::One, Type::Int32 | Type::Int64 | Type::Double) => 0.into(),
        (Count::One, Type::String | Type::Bytes) => "".into(),
        (Count::One, Type::Message(id)) => match types.message(id).special {
            None => Value::Object(Map::new()),
            Some(Special::Quantity) => "0".into(),
            Some(Special::IntOrString) => 0.into(),
            Some(_) => Value::Null,
        },
    }
}
