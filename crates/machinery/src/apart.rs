//! A stored object read with its `managedFields` left as text. They are half of many an object, and most requests do not look at
//! them.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

const METADATA: &str = "metadata";
const MANAGED_FIELDS: &str = "managedFields";

/// The object without its `managedFields`, and those as they are written. `None` if the text is no JSON object.
pub fn read(text: &str) -> Option<(Value, Option<&str>)> {
    let mut parser = serde_json::Deserializer::from_str(text);
    let mut managers = None;
    let object = Fields(Place::Object, &mut managers).deserialize(&mut parser).ok()?;
    parser.end().ok()?;
    Some((object, managers))
}

/// The object with `managedFields` that were read, or made, apart from it.
pub fn put_back(object: &mut Value, managers: Option<&str>) {
    let Some(metadata) = object.get_mut(METADATA).and_then(Value::as_object_mut) else { return };
    match managers.and_then(|text| serde_json::from_str(text).ok()) {
        Some(managers) => metadata.insert(MANAGED_FIELDS.to_owned(), managers),
        None => metadata.remove(MANAGED_FIELDS),
    };
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Object,
    Metadata,
}

struct Fields<'a, 'de>(Place, &'a mut Option<&'de str>);

impl<'de> DeserializeSeed<'de> for Fields<'_, 'de> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Fields<'_, 'de> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let Self(place, managers) = self;
        let mut fields = Map::new();
        while let Some(name) = access.next_key::<String>()? {
            let value = match (place, name.as_str()) {
                (Place::Object, METADATA) => access.next_value_seed(Fields(Place::Metadata, managers))?,
                (Place::Metadata, MANAGED_FIELDS) => {
                    *managers = Some(access.next_value::<&RawValue>()?.get());
                    continue;
                }
                _ => access.next_value()?,
            };
            fields.insert(name, value);
        }
        Ok(Value::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_managers_of_the_object_itself_are_apart() {
        let managers = json!([{"manager": "m\"", "fieldsV1": {"f:a": {}}}]);
        let with = json!({"kind": "K", "managedFields": 1, "spec": {"managedFields": [2], "metadata": {"managedFields": 3}},
            "metadata": {"name": "x", "labels": {"managedFields": "l"}, "managedFields": managers}});
        let mut without = with.clone();
        without["metadata"].as_object_mut().unwrap().remove("managedFields");

        let text = with.to_string();
        let (mut object, apart) = read(&text).unwrap();
        assert_eq!((&object, apart), (&without, Some(managers.to_string().as_str())));
        put_back(&mut object, apart);
        assert_eq!(object, with);

        let text = without.to_string();
        let (mut object, apart) = read(&text).unwrap();
        assert_eq!((&object, apart), (&without, None));
        put_back(&mut object, apart);
        assert_eq!(object, without);
    }

    #[test]
    fn what_is_no_object_is_not_read() {
        for odd in ["", "[]", "1", "{", "{\"a\":1}x", "{\"metadata\":[]}", "{\"metadata\":{\"managedFields\":}}"] {
            assert_eq!(read(odd), None, "{odd}");
        }
    }
}
