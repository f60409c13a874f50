//! Reading JSON bodies: bounded, and with an eye on fields that occur twice.
//!
//! JSON says nothing about an object that names a field twice. Kubernetes takes the last one and tells the
//! client about it, so the parser has to notice while it reads.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::json_syntax;

/// Bytes of one request body, as in Kubernetes.
pub const MAX_BODY_BYTES: usize = 3 * 1024 * 1024;
/// Values inside values; what serde_json allows. Objects are walked recursively everywhere after this.
pub const MAX_DEPTH: usize = 127;
/// Duplicate fields that are reported for one body; the rest are as wrong but not news.
const MAX_REPORTED: usize = 100;

/// Why a body is not an object that could be looked at.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ParseError {
    #[error("limit is {max} bytes, got {actual}")]
    TooLarge { max: usize, actual: usize },
    #[error("json: exceeded max depth")]
    TooDeep,
    #[error("{0}")]
    Syntax(String),
}

/// Parses a body. Returns the value, in which the last of several fields of one name wins, and the paths
/// of the fields that occur more than once (`spec.x`, `spec.list[0].y`), in the order in which they do.
///
/// Numbers come out as Go would store them: whole numbers are integers however they were written.
pub fn parse_strict(bytes: &[u8]) -> Result<(Value, Vec<String>), ParseError> {
    if bytes.len() > MAX_BODY_BYTES {
        return Err(ParseError::TooLarge { max: MAX_BODY_BYTES, actual: bytes.len() });
    }
    let mut reader = Reader::default();
    let mut parser = serde_json::Deserializer::from_slice(bytes);
    let value = Node(&mut reader).deserialize(&mut parser).and_then(|value| parser.end().map(|()| value));
    match value {
        Ok(value) => Ok((value, reader.duplicates)),
        Err(e) if e.to_string().starts_with("recursion limit exceeded") => Err(ParseError::TooDeep),
        Err(e) => Err(ParseError::Syntax(json_syntax::mistake(bytes).unwrap_or_else(|| e.to_string()))),
    }
}

/// [`parse_strict`] for a document in another format that can be read as JSON. Its size and depth are bounded by
/// whoever made the deserializer.
pub fn read_strict<'de, D: Deserializer<'de>>(document: D) -> Result<(Value, Vec<String>), D::Error> {
    let mut reader = Reader::default();
    let value = Node(&mut reader).deserialize(document)?;
    Ok((value, reader.duplicates))
}

/// What Go's JSON decoder calls a value.
pub fn go_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// `duplicate field "spec.x"`: what a client is told, as a warning or as part of an error.
pub fn duplicate_field(path: &str) -> String {
    format!("duplicate field {path:?}")
}

/// `unknown field "spec.x"`: what a client is told, as a warning or as part of an error.
pub fn unknown_field(path: &str) -> String {
    format!("unknown field {path:?}")
}

/// The message of the 400 that strict field validation answers with; `complaints` are texts of
/// [`duplicate_field`] and [`unknown_field`].
pub fn strict_decoding_error(complaints: &[String]) -> String {
    format!("strict decoding error: {}", complaints.join(", "))
}

#[derive(Default)]
struct Reader {
    path: String,
    duplicates: Vec<String>,
}

impl Reader {
    fn within<T>(&mut self, suffix: fmt::Arguments<'_>, read: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        fmt::Write::write_fmt(&mut self.path, suffix).expect("writing to a String must succeed");
        let result = read(self);
        self.path.truncate(length);
        result
    }

    fn report(&mut self) {
        if self.duplicates.len() < MAX_REPORTED && !self.duplicates.contains(&self.path) {
            self.duplicates.push(self.path.clone());
        }
    }
}

struct Node<'a>(&'a mut Reader);

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(i64::try_from(value).map_or_else(|_| number(value as f64), Value::from))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(number(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let index = list.len();
            match self.0.within(format_args!("[{index}]"), |reader| access.next_element_seed(Node(reader)))? {
                Some(item) => list.push(item),
                None => return Ok(Value::Array(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = access.next_key::<String>()? {
            let dot = if self.0.path.is_empty() { "" } else { "." };
            let value = self.0.within(format_args!("{dot}{name}"), |reader| {
                if map.contains_key(&name) {
                    reader.report();
                }
                access.next_value_seed(Node(reader))
            })?;
            map.insert(name, value);
        }
        Ok(Value::Object(map))
    }
}

/// A float that is a whole number is stored as one: Go prints it without a fraction.
fn number(value: f64) -> Value {
    /// Above this, neighbouring floats are more than one apart and the digits mean nothing.
    const MAX_EXACT: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() <= MAX_EXACT {
        return Value::from(value as i64);
    }
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_last_of_two_fields_wins_and_is_reported() {
        let body = br#"{"a": 1, "a": 2, "b": {"c": 1, "c": {"d": [], "d": 0}}, "l": [{}, {"x": 1, "x": 1, "x": 1}]}"#;
        let (value, duplicates) = parse_strict(body).unwrap();
        assert_eq!(value, json!({"a": 2, "b": {"c": {"d": 0}}, "l": [{}, {"x": 1}]}));
        assert_eq!(duplicates, ["a", "b.c", "b.c.d", "l[1].x"]);
        assert_eq!(duplicate_field("b.c"), "duplicate field \"b.c\"");
    }

    #[test]
    fn complaints_read_as_those_of_kubernetes() {
        let complaints = [duplicate_field("spec.a"), unknown_field("spec.foo")];
        assert_eq!(
            strict_decoding_error(&complaints),
            "strict decoding error: duplicate field \"spec.a\", unknown field \"spec.foo\""
        );
    }

    #[test]
    fn numbers_are_stored_as_go_stores_them() {
        let (value, _) = parse_strict(b"[1.0, 1.5, -3e2, 18446744073709551615, 9223372036854775807, 1e300]").unwrap();
        assert_eq!(value, json!([1, 1.5, -300, 18_446_744_073_709_551_615_f64, i64::MAX, 1e300]));
    }

    #[test]
    fn bodies_are_bounded() {
        let deep = |n: usize| ["[".repeat(n), "]".repeat(n)].concat();
        assert!(parse_strict(deep(MAX_DEPTH).as_bytes()).is_ok());
        assert_eq!(parse_strict(deep(MAX_DEPTH + 1).as_bytes()), Err(ParseError::TooDeep));
        let large = vec![b' '; MAX_BODY_BYTES + 1];
        assert!(matches!(parse_strict(&large), Err(ParseError::TooLarge { .. })));
        for bad in ["", "{", "{}x", "nul", "{\"a\":}", "\"\\ud800\"", "[1,]", "1e999"] {
            assert!(matches!(parse_strict(bad.as_bytes()), Err(ParseError::Syntax(_))), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_upset_the_parser(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_strict(&bytes);
        }

        #[test]
        fn nearly_json_does_not_either(text in r#"[{}\[\]",:0-9eE.+\-truefalsn \\u]{0,80}"#) {
            let _ = parse_strict(text.as_bytes());
        }
    }
}
