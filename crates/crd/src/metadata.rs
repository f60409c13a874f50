//! Metadata without the notes on who wrote which field. They are half of an object's text, nobody here reads them, and a
//! write that leaves them out leaves them as they are: so they are skipped where objects are read, which is for every change
//! that a controller hears of.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::value::StrDeserializer;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize as _, forward_to_deserialize_any};

const SKIPPED: &str = "managedFields";

/// Reads metadata, but for the notes.
pub(crate) fn without_managers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    ObjectMeta::deserialize(Lean(deserializer))
}

/// Something that hides the notes from whoever reads through it.
struct Lean<T>(T);

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Lean<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_map(Lean(visitor))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Lean<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(Lean(map))
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Lean<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        let mut seed = Some(seed);
        loop {
            match self.0.next_key_seed(Name(&mut seed))? {
                None => return Ok(None),
                Some(Some(name)) => return Ok(Some(name)),
                Some(None) => {
                    self.0.next_value::<IgnoredAny>()?;
                }
            }
        }
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.0.next_value_seed(seed)
    }
}

/// A name for whoever reads; `None` if it is hidden, and then the reader's seed is still there for the next one.
struct Name<'a, K>(&'a mut Option<K>);

impl<'de, K: DeserializeSeed<'de>> DeserializeSeed<'de> for Name<'_, K> {
    type Value = Option<K::Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de, K: DeserializeSeed<'de>> Visitor<'de> for Name<'_, K> {
    type Value = Option<K::Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        if name == SKIPPED {
            return Ok(None);
        }
        let seed = self.0.take().expect("a seed must be there: it is used once");
        seed.deserialize(StrDeserializer::<E>::new(name)).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Volume;

    #[test]
    fn everything_is_read_but_who_wrote_what() {
        let object = json!({
            "metadata": {
                "annotations": {"managedFields": "stays"}, "creationTimestamp": "2026-01-02T03:04:05Z", "finalizers": ["f"],
                "generation": 3, "labels": {"a": "b"}, "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}],
                "name": "v1", "namespace": "ns", "ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "o", "uid": "u"}],
                "resourceVersion": "7", "uid": "id", "unknown": {"managedFields": 1},
            },
            "spec": {"nodeID": "a"},
        });
        let mut expected: ObjectMeta = serde_json::from_value(object["metadata"].clone()).unwrap();
        assert!(expected.managed_fields.take().is_some());
        let from_text: Volume = serde_json::from_str(&object.to_string()).unwrap();
        let from_value: Volume = serde_json::from_value(object).unwrap();
        assert_eq!(from_text.metadata, expected);
        assert_eq!(from_value, from_text);
        assert_eq!(from_text.spec.node_id, "a");
    }

    #[test]
    fn what_is_no_metadata_is_refused() {
        for wrong in ["{\"metadata\": 1}", "{\"metadata\": {\"name\": 1}}", "{\"metadata\": []}"] {
            assert!(serde_json::from_str::<Volume>(wrong).is_err(), "{wrong}");
        }
        assert!(serde_json::from_str::<Volume>("{}").is_ok());
    }
}
