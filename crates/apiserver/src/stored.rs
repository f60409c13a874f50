//! An object as the text that is stored, with a gap for the revision: that is known only when the store has assigned it, on
//! a thread that everybody waits for. So all but the revision is written before.

use bytes::Bytes;
use serde_json::{Map, Value};

/// Where the revision goes.
const METADATA: &str = "metadata";
const REVISION: &str = "resourceVersion";
/// Text that may come from elsewhere.
const MANAGERS: &str = "managedFields";

/// The text around the revision.
pub(crate) struct Stored {
    text: Vec<u8>,
    gap: usize,
}

impl Stored {
    /// The text of `object`, whatever it says its revision to be; with `managers`, if they are not in the object.
    pub(crate) fn of(mut object: Value, managers: Option<&str>) -> Self {
        object[METADATA][REVISION] = Value::String(String::new());
        if managers.is_some() {
            // Takes its place among the other fields.
            object[METADATA][MANAGERS] = Value::Null;
        }
        let mut stored = Self { text: Vec::with_capacity(4096), gap: 0 };
        let fields = object.as_object().expect("an object must be one: it has metadata");
        stored.map(fields, |stored, name, value| match value {
            Value::Object(metadata) if name == METADATA => stored.map(metadata, |stored, name, value| {
                if name == REVISION {
                    stored.text.push(b'"');
                    stored.gap = stored.text.len();
                    stored.text.push(b'"');
                } else if let Some(managers) = managers.filter(|_| name == MANAGERS) {
                    stored.text.extend_from_slice(managers.as_bytes());
                } else {
                    stored.value(value);
                }
            }),
            value => stored.value(value),
        });
        stored
    }

    /// The whole text.
    pub(crate) fn at(&self, revision: u64) -> Bytes {
        let revision = revision.to_string();
        let (before, after) = self.text.split_at(self.gap);
        let mut text = Vec::with_capacity(self.text.len() + revision.len());
        text.extend_from_slice(before);
        text.extend_from_slice(revision.as_bytes());
        text.extend_from_slice(after);
        text.into()
    }

    fn map(&mut self, fields: &Map<String, Value>, mut field: impl FnMut(&mut Self, &str, &Value)) {
        self.text.push(b'{');
        for (index, (name, value)) in fields.iter().enumerate() {
            if index > 0 {
                self.text.push(b',');
            }
            serde_json::to_writer(&mut self.text, name).expect("a name must serialise");
            self.text.push(b':');
            field(self, name, value);
        }
        self.text.push(b'}');
    }

    fn value(&mut self, value: &Value) {
        serde_json::to_writer(&mut self.text, value).expect("a JSON value must serialise");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_text_is_that_of_the_object_with_its_revision() {
        let objects = [
            json!({"metadata": {}}),
            json!({"apiVersion": "v1", "kind": "A\"b", "metadata": {"annotations": {"resourceVersion": "x"},
                "name": "n", "resourceVersion": "7", "uid": "u"}, "spec": {"metadata": {"resourceVersion": "s"}, "l": [1, 2.5, null]}}),
            json!({"data": {"ü": "\u{1}\n"}, "metadata": {"z": true}}),
        ];
        for object in objects {
            for revision in [0, 42, u64::MAX] {
                let mut expected = object.clone();
                expected["metadata"]["resourceVersion"] = revision.to_string().into();
                assert_eq!(Stored::of(object.clone(), None).at(revision), expected.to_string());
                let managers = json!([{"manager": "m"}]);
                expected["metadata"]["managedFields"] = managers.clone();
                assert_eq!(Stored::of(object.clone(), Some(&managers.to_string())).at(revision), expected.to_string());
            }
        }
    }
}
