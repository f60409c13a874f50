//! From JSON to bytes, as Kubernetes' Go clients write them. The server answers in JSON; this is for whoever
//! plays such a client.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::MAGIC;
use super::types::{Count, Field, Id, Message, Shape, Special, Type, Types};

/// The body that a Go client would send for `object`; `None` if its kind is not built in. Fields that are
/// not known, or have values of another type, are left out.
pub fn encode(object: &Value) -> Option<Vec<u8>> {
    let (api_version, kind) = (object.get("apiVersion")?.as_str()?, object.get("kind")?.as_str()?);
    let types = Types::get();
    let message = types.by_kind(api_version, kind)?;
    let mut type_meta = Vec::new();
    put_bytes(&mut type_meta, 1, api_version.as_bytes());
    put_bytes(&mut type_meta, 2, kind.as_bytes());
    let mut body = MAGIC.to_vec();
    put_bytes(&mut body, 1, &type_meta);
    put_bytes(&mut body, 2, &encode_message(types, message, object.as_object()?));
    put_bytes(&mut body, 3, b"");
    put_bytes(&mut body, 4, b"");
    Some(body)
}

fn encode_message(types: &Types, message: &Message, object: &Map<String, Value>) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, field) in &message.by_number {
        if let (Type::Message(id), Shape::Inline) = (field.ty, field.shape) {
            put_bytes(&mut out, *number, &encode_message(types, types.message(id), object));
            continue;
        }
        let value = object.get(&field.name).unwrap_or(&Value::Null);
        match (field.count, value) {
            (Count::One, value) => put_single(types, &mut out, *number, field, value),
            (Count::Many, Value::Array(list)) => {
                for element in list {
                    put_value(types, &mut out, *number, field.ty, element);
                }
            }
            (Count::Map, Value::Object(map)) => {
                for (key, value) in map {
                    let mut entry = Vec::new();
                    put_bytes(&mut entry, 1, key.as_bytes());
                    put_value(types, &mut entry, 2, field.ty, value);
                    put_bytes(&mut out, *number, &entry);
                }
            }
            _ => {}
        }
    }
    out
}

/// Go writes plain fields whatever they hold, and pointers where they are set.
fn put_single(types: &Types, out: &mut Vec<u8>, number: u32, field: &Field, value: &Value) {
    match (field.ty, value) {
        (Type::Message(_), Value::Null) if field.shape == Shape::Always => put_bytes(out, number, b""),
        (Type::Message(_) | Type::Bytes, Value::Null) => {}
        (_, Value::Null) if field.presence => {}
        (Type::Bool | Type::Int32 | Type::Int64, Value::Null) => put_varint_field(out, number, 0),
        (Type::String, Value::Null) => put_bytes(out, number, b""),
        (ty, value) => put_value(types, out, number, ty, value),
    }
}

fn put_value(types: &Types, out: &mut Vec<u8>, number: u32, ty: Type, value: &Value) {
    match (ty, value) {
        (Type::Bool, Value::Bool(b)) => put_varint_field(out, number, u64::from(*b)),
        (Type::Int32 | Type::Int64, Value::Number(n)) => {
            put_varint_field(out, number, n.as_i64().unwrap_or_default() as u64);
        }
        (Type::Double, Value::Number(n)) => {
            put_varint(out, u64::from(number) << 3 | 1);
            out.extend(n.as_f64().unwrap_or_default().to_le_bytes());
        }
        (Type::String, Value::String(text)) => put_bytes(out, number, text.as_bytes()),
        (Type::Bytes, Value::String(text)) => put_bytes(out, number, &STANDARD.decode(text).unwrap_or_default()),
        (Type::Message(id), value) => put_bytes(out, number, &encode_value(types, id, value)),
        _ => {}
    }
}

fn encode_value(types: &Types, id: Id, value: &Value) -> Vec<u8> {
    let message = types.message(id);
    let mut out = Vec::new();
    let mut put = |number: u32, value: &Value| {
        if let Some(field) = message.by_number.get(&number) {
            put_value(types, &mut out, number, field.ty, value);
        }
    };
    match (message.special, value) {
        (None, Value::Object(map)) => return encode_message(types, message, map),
        (None, _) | (Some(_), Value::Null) => {}
        (Some(Special::Time | Special::MicroTime), value) => {
            if let Some(at) = value.as_str().and_then(|text| text.parse::<Timestamp>().ok()) {
                put(1, &at.as_second().into());
                put(2, &at.subsec_nanosecond().into());
            }
        }
        (Some(Special::IntOrString), Value::String(_)) => {
            put(1, &1.into());
            put(2, &0.into());
            put(3, value);
        }
        (Some(Special::IntOrString), value) => {
            put(1, &0.into());
            put(2, value);
            put(3, &"".into());
        }
        (Some(Special::Json), value) => put_bytes(&mut out, 1, value.to_string().as_bytes()),
        (Some(Special::Items), value) => value.as_array().into_iter().flatten().for_each(|v| put(1, v)),
        (Some(Special::SchemaOrArray | Special::SchemaOrStringArray), Value::Array(list)) => {
            for v in list {
                put(2, v);
            }
        }
        (Some(Special::SchemaOrBool), Value::Bool(_)) => put(1, value),
        (Some(Special::SchemaOrBool), value) => {
            put(1, &true.into());
            put(2, value);
        }
        (Some(Special::Quantity | Special::SchemaOrArray | Special::SchemaOrStringArray), value) => put(1, value),
    }
    out
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_varint_field(out: &mut Vec<u8>, number: u32, value: u64) {
    put_varint(out, u64::from(number) << 3);
    put_varint(out, value);
}

fn put_bytes(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    put_varint(out, u64::from(number) << 3 | 2);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}
