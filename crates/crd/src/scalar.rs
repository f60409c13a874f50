//! Values below an object: numbers that travel as strings, what is left out, and what null means.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A 64-bit number that is a string in JSON: many readers of JSON have no integers of that size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IntString(pub i64);

impl From<i64> for IntString {
    fn from(number: i64) -> Self {
        Self(number)
    }
}

impl fmt::Display for IntString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for IntString {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for IntString {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberOrText)
    }
}

struct NumberOrText;

impl Visitor<'_> for NumberOrText {
    type Value = IntString;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number, or one as a string")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<IntString, E> {
        Ok(IntString(number))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<IntString, E> {
        number.try_into().map(IntString).map_err(|_| E::custom(format!("{number} is too large")))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<IntString, E> {
        if text.is_empty() {
            return Ok(IntString(0));
        }
        text.parse().map(IntString).map_err(|_| E::custom(format!("{text:?} is not a whole number")))
    }
}

/// A text that is not one of the words of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownWord {
    word: String,
    known: Vec<&'static str>,
}

impl UnknownWord {
    pub(crate) fn new(word: &str, known: impl Iterator<Item = &'static str>) -> Self {
        Self { word: word.to_owned(), known: known.filter(|word| !word.is_empty()).collect() }
    }
}

impl fmt::Display for UnknownWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not one of {}", self.word, self.known.join(", "))
    }
}

impl std::error::Error for UnknownWord {}

/// Null is how a Go client writes an empty list or map; here it means the default.
pub(crate) fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Whether a value is left out when its object is written. Only an absent option is.
pub(crate) trait Omit {
    fn omit(&self) -> bool {
        false
    }
}

impl Omit for bool {}
impl Omit for i32 {}
impl Omit for i64 {}
impl Omit for u64 {}
impl Omit for String {}
impl Omit for IntString {}
impl<T> Omit for Vec<T> {}
impl<T> Omit for BTreeMap<String, T> {}

impl<T> Omit for Option<T> {
    fn omit(&self) -> bool {
        self.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_written_as_a_string_and_read_as_either() {
        assert_eq!(serde_json::to_string(&IntString(1 << 40)).expect("a number"), r#""1099511627776""#);
        for text in [r#""7""#, "7"] {
            assert_eq!(serde_json::from_str::<IntString>(text).expect(text), IntString(7));
        }
        assert_eq!(serde_json::from_str::<IntString>(r#""""#).expect("nothing"), IntString(0));
        assert!(serde_json::from_str::<IntString>("9223372036854775808").is_err());
        assert!(
            serde_json::from_str::<IntString>("1.5").is_err() && serde_json::from_str::<IntString>("true").is_err()
        );
        assert_eq!(serde_json::from_str::<IntString>("-7").expect("a number"), IntString(-7));
        let error = serde_json::from_str::<IntString>(r#""7Gi""#).expect_err("not a number").to_string();
        assert!(error.contains(r#""7Gi" is not a whole number"#), "{error}");
    }
}
