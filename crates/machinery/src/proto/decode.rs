//! From bytes to JSON.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::types::{Count, Field, Message, Shape, Special, Type, Types};
use super::wire::{Raw, Reader};
use super::{DecodeError, MAGIC, MAX_BODY_BYTES, MAX_DEPTH, MAX_VALUES};
use crate::kinds::edit::is_zero;
use crate::quantity::Quantity;

/// Decodes a body of type [`super::MEDIA_TYPE`] into the JSON object that it stands for.
pub fn decode(body: &[u8]) -> Result<Value, DecodeError> {
    if body.len() > MAX_BODY_BYTES {
        return Err(DecodeError::TooLarge(body.len()));
    }
    let envelope = Envelope::read(body.strip_prefix(MAGIC).ok_or(DecodeError::NotProtobuf)?)?;
    if !envelope.content_encoding.is_empty() {
        return Err(DecodeError::Encoding(envelope.content_encoding.to_owned()));
    }
    let types = Types::get();
    let unknown_kind =
        || DecodeError::UnknownKind { api_version: envelope.api_version.to_owned(), kind: envelope.kind.to_owned() };
    let message = types.by_kind(envelope.api_version, envelope.kind).ok_or_else(unknown_kind)?;
    let mut object = Map::new();
    Decoder { types, values: 0 }.message(message, envelope.raw, 0, &mut object)?;
    object.insert("apiVersion".to_owned(), envelope.api_version.into());
    object.insert("kind".to_owned(), envelope.kind.into());
    Ok(Value::Object(object))
}

/// `runtime.Unknown`: which kind, and its bytes.
#[derive(Default)]
struct Envelope<'a> {
    api_version: &'a str,
    kind: &'a str,
    raw: &'a [u8],
    content_encoding: &'a str,
}

impl<'a> Envelope<'a> {
    fn read(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut envelope = Self::default();
        let mut reader = Reader::new(bytes);
        while let Some((number, raw)) = reader.next()? {
            match (number, raw) {
                (1, Raw::Bytes(type_meta)) => {
                    let mut reader = Reader::new(type_meta);
                    while let Some((number, raw)) = reader.next()? {
                        match (number, raw) {
                            (1, Raw::Bytes(bytes)) => envelope.api_version = utf8("apiVersion", bytes)?,
                            (2, Raw::Bytes(bytes)) => envelope.kind = utf8("kind", bytes)?,
                            _ => {}
                        }
                    }
                }
                (2, Raw::Bytes(bytes)) => envelope.raw = bytes,
                (3, Raw::Bytes(bytes)) => envelope.content_encoding = utf8("contentEncoding", bytes)?,
                _ => {}
            }
        }
        Ok(envelope)
    }
}

fn utf8<'a>(field: &str, bytes: &'a [u8]) -> Result<&'a str, DecodeError> {
    std::str::from_utf8(bytes).map_err(|_| wrong(field, "not valid UTF-8"))
}

fn wrong(field: &str, problem: &(impl ToString + ?Sized)) -> DecodeError {
    DecodeError::Field { field: field.to_owned(), problem: problem.to_string() }
}

struct Decoder<'t> {
    types: &'t Types,
    values: usize,
}

impl Decoder<'_> {
    /// Adds the fields in `bytes` to `object`. A message may come in several pieces; later ones win.
    fn message(
        &mut self,
        message: &Message,
        bytes: &[u8],
        depth: usize,
        object: &mut Map<String, Value>,
    ) -> Result<(), DecodeError> {
        if depth > MAX_DEPTH {
            return Err(DecodeError::TooDeep);
        }
        let mut reader = Reader::new(bytes);
        while let Some((number, raw)) = reader.next()? {
            if let Some(field) = message.by_number.get(&number) {
                match field.count {
                    Count::One => self.single(field, raw, depth, object)?,
                    Count::Many => self.element(field, raw, depth, object)?,
                    Count::Map => self.entry(field, raw, depth, object)?,
                }
            }
        }
        Ok(())
    }

    fn count(&mut self) -> Result<(), DecodeError> {
        self.values += 1;
        if self.values > MAX_VALUES { Err(DecodeError::TooMany) } else { Ok(()) }
    }

    fn single(
        &mut self,
        field: &Field,
        raw: Raw<'_>,
        depth: usize,
        object: &mut Map<String, Value>,
    ) -> Result<(), DecodeError> {
        if let (Type::Message(id), Raw::Bytes(bytes)) = (field.ty, raw) {
            let inner = self.types.message(id);
            if field.shape == Shape::Inline {
                return self.message(inner, bytes, depth + 1, object);
            }
            if inner.special.is_none() {
                self.count()?;
                let mut nested = match object.remove(&field.name) {
                    Some(Value::Object(before)) => before,
                    _ => Map::new(),
                };
                self.message(inner, bytes, depth + 1, &mut nested)?;
                object.insert(field.name.clone(), Value::Object(nested));
                return Ok(());
            }
        }
        let value = self.value(field, raw, depth)?;
        if value.is_null() || (!field.presence && field.shape != Shape::Always && is_zero(&value)) {
            object.remove(&field.name);
        } else {
            object.insert(field.name.clone(), value);
        }
        Ok(())
    }

    /// One element of a list; numbers may come packed.
    fn element(
        &mut self,
        field: &Field,
        raw: Raw<'_>,
        depth: usize,
        object: &mut Map<String, Value>,
    ) -> Result<(), DecodeError> {
        let mut elements = Vec::new();
        match (field.ty, raw) {
            (Type::Bool | Type::Int32 | Type::Int64, Raw::Bytes(packed)) => {
                let mut reader = Reader::new(packed);
                while !reader.is_empty() {
                    let number = Raw::Varint(reader.varint()?);
                    elements.push(self.value(field, number, depth)?);
                }
            }
            _ => elements.push(self.value(field, raw, depth)?),
        }
        if let Value::Array(list) = object.entry(field.name.as_str()).or_insert_with(|| Value::Array(Vec::new())) {
            list.append(&mut elements);
        }
        Ok(())
    }

    /// One entry of a map: a message of key and value.
    fn entry(
        &mut self,
        field: &Field,
        raw: Raw<'_>,
        depth: usize,
        object: &mut Map<String, Value>,
    ) -> Result<(), DecodeError> {
        let Raw::Bytes(bytes) = raw else { return Err(wrong(&field.name, "not a map")) };
        let mut key = "";
        let mut value = None;
        let mut reader = Reader::new(bytes);
        while let Some((number, raw)) = reader.next()? {
            match (number, raw) {
                (1, Raw::Bytes(bytes)) => key = utf8(&field.name, bytes)?,
                (2, raw) => value = Some(self.value(field, raw, depth)?),
                _ => {}
            }
        }
        let value = match value {
            Some(value) => value,
            None => self.empty(field, depth)?,
        };
        if let Value::Object(map) = object.entry(field.name.as_str()).or_insert_with(|| Value::Object(Map::new())) {
            map.insert(key.to_owned(), value);
        }
        Ok(())
    }

    /// The value of a map entry that was left out.
    fn empty(&mut self, field: &Field, depth: usize) -> Result<Value, DecodeError> {
        match field.ty {
            Type::Message(_) | Type::String | Type::Bytes => self.value(field, Raw::Bytes(&[]), depth),
            Type::Double => self.value(field, Raw::Fixed64(0), depth),
            _ => self.value(field, Raw::Varint(0), depth),
        }
    }

    fn value(&mut self, field: &Field, raw: Raw<'_>, depth: usize) -> Result<Value, DecodeError> {
        self.count()?;
        Ok(match (field.ty, raw) {
            (Type::Bool, Raw::Varint(n)) => (n != 0).into(),
            (Type::Int32, Raw::Varint(n)) => (n as i32).into(),
            (Type::Int64, Raw::Varint(n)) => (n as i64).into(),
            (Type::Double, Raw::Fixed64(bits)) => double(f64::from_bits(bits)),
            (Type::String, Raw::Bytes(bytes)) => utf8(&field.name, bytes)?.into(),
            (Type::Bytes, Raw::Bytes(bytes)) => STANDARD.encode(bytes).into(),
            (Type::Message(id), Raw::Bytes(bytes)) => {
                let message = self.types.message(id);
                if let Some(special) = message.special {
                    self.special(special, message, field, bytes, depth + 1)?
                } else {
                    let mut nested = Map::new();
                    self.message(message, bytes, depth + 1, &mut nested)?;
                    Value::Object(nested)
                }
            }
            _ => return Err(wrong(&field.name, "wire type does not fit")),
        })
    }

    fn special(
        &mut self,
        special: Special,
        message: &Message,
        field: &Field,
        bytes: &[u8],
        depth: usize,
    ) -> Result<Value, DecodeError> {
        match special {
            Special::Time => time(field, bytes, false),
            Special::MicroTime => time(field, bytes, true),
            Special::Json => json(field, bytes),
            _ => {
                let mut parts = Map::new();
                self.message(message, bytes, depth, &mut parts)?;
                assemble(special, field, parts)
            }
        }
    }
}

/// Go prints whole floats without a point; not-a-number has no JSON.
fn double(f: f64) -> Value {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if f.fract() == 0.0 && f.abs() < EXACT { (f as i64).into() } else { f.into() }
}

/// Seconds and nanoseconds since 1970. Nothing at all is "no time", which is null.
fn time(field: &Field, bytes: &[u8], micro: bool) -> Result<Value, DecodeError> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let (mut seconds, mut nanos) = (0_i64, 0_i32);
    let mut reader = Reader::new(bytes);
    while let Some((number, raw)) = reader.next()? {
        match (number, raw) {
            (1, Raw::Varint(n)) => seconds = n as i64,
            (2, Raw::Varint(n)) => nanos = n as i32,
            _ => {}
        }
    }
    let nanos = if micro { nanos } else { 0 };
    let at = Timestamp::new(seconds, nanos).map_err(|e| wrong(&field.name, &e))?;
    let format = if micro { MICRO_FORMAT } else { SECOND_FORMAT };
    Ok(at.strftime(format).to_string().into())
}

pub(super) const SECOND_FORMAT: &str = "%Y-%m-%dT%H:%M:%SZ";
pub(super) const MICRO_FORMAT: &str = "%Y-%m-%dT%H:%M:%S.%6fZ";

/// JSON text in field 1.
fn json(field: &Field, bytes: &[u8]) -> Result<Value, DecodeError> {
    let mut text: &[u8] = &[];
    let mut reader = Reader::new(bytes);
    while let Some((number, raw)) = reader.next()? {
        if let (1, Raw::Bytes(bytes)) = (number, raw) {
            text = bytes;
        }
    }
    if text.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(text).map_err(|e| wrong(&field.name, &e))
}

/// Makes one value of the fields of a message that is not an object in JSON.
fn assemble(special: Special, field: &Field, mut parts: Map<String, Value>) -> Result<Value, DecodeError> {
    let mut take = |name: &str| parts.remove(name).unwrap_or_default();
    Ok(match special {
        Special::Quantity => match take("string").as_str().unwrap_or_default() {
            "" => "0".into(),
            text => Quantity::parse(text).map_err(|e| wrong(&field.name, &e))?.to_string().into(),
        },
        Special::IntOrString => match take("type").as_i64() {
            Some(1) => take("strVal").as_str().unwrap_or_default().into(),
            _ => take("intVal").as_i64().unwrap_or_default().into(),
        },
        Special::Items => match take("items") {
            Value::Null => Value::Array(Vec::new()),
            items => items,
        },
        Special::SchemaOrArray => match take("jSONSchemas") {
            Value::Null => take("schema"),
            schemas => schemas,
        },
        Special::SchemaOrBool => match take("schema") {
            Value::Null => take("allows").as_bool().unwrap_or_default().into(),
            schema => schema,
        },
        Special::SchemaOrStringArray => match take("property") {
            Value::Null => take("schema"),
            names => names,
        },
        Special::Time | Special::MicroTime | Special::Json => Value::Null,
    })
}
