//! The scale of a custom object: its numbers as an `autoscaling/v1` Scale, and back.

use serde_json::{Map, Value, json};

use super::{Scale, object};

impl Scale {
    /// The Scale of `object`. The error says which number cannot be found.
    pub fn read(&self, object: &Value) -> Result<Value, String> {
        let number = |path: &str| object::at(object, path).ok().flatten().and_then(Value::as_i64);
        let Some(replicas) = number(&self.spec_path) else {
            return Err(format!("the spec replicas field {:?} does not exist", self.spec_path));
        };
        let mut metadata = Map::new();
        for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
            if let Some(value) = object["metadata"].get(field) {
                metadata.insert(field.to_owned(), value.clone());
            }
        }
        let mut scale = json!({
            "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata,
            "spec": {"replicas": replicas},
            "status": {"replicas": number(&self.status_path).unwrap_or(0)},
        });
        let selector = self.selector_path.as_ref().and_then(|path| object::at(object, path).ok().flatten());
        if let Some(selector) = selector.and_then(Value::as_str) {
            scale["status"]["selector"] = selector.into();
        }
        Ok(scale)
    }

    /// Writes the wished number of a Scale into `object`; structures on the way that are missing are made.
    pub fn write(&self, object: &mut Value, scale: &Value) {
        let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0);
        let mut at = object;
        for part in self.spec_path.split('.').filter(|part| !part.is_empty()) {
            if !at.is_object() {
                *at = Value::Object(Map::new());
            }
            at = &mut at[part];
        }
        *at = replicas.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crew() -> Scale {
        Scale {
            spec_path: ".spec.crew.wanted".to_owned(),
            status_path: ".status.crew".to_owned(),
            selector_path: Some(".status.selector".to_owned()),
        }
    }

    #[test]
    fn a_scale_shows_the_numbers_of_its_object() {
        let ship = json!({"metadata": {"name": "a", "labels": {}}, "spec": {"crew": {"wanted": 3}}, "status": {"crew": 2, "selector": "x=y"}});
        let scale = crew().read(&ship).unwrap();
        assert_eq!(scale["metadata"], json!({"name": "a"}));
        assert_eq!(scale["spec"], json!({"replicas": 3}));
        assert_eq!(scale["status"], json!({"replicas": 2, "selector": "x=y"}));
        let why = crew().read(&json!({"spec": []})).unwrap_err();
        assert_eq!(why, "the spec replicas field \".spec.crew.wanted\" does not exist");
    }

    #[test]
    fn a_number_is_written_where_it_belongs() {
        for mut ship in [json!({"spec": {"crew": {"wanted": 3}}}), json!({}), json!({"spec": "odd"})] {
            crew().write(&mut ship, &json!({"spec": {"replicas": 7}}));
            assert_eq!(ship["spec"], json!({"crew": {"wanted": 7}}));
        }
    }
}
