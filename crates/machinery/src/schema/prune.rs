//! Unknown fields: dropping what the schema does not name, and saying which fields those were.

use serde_json::Value;

use super::Schema;

/// Unknown fields that are reported for one object; the rest are dropped in silence, as Kubernetes does.
const MAX_REPORTED: usize = 100;

/// Removes the fields that `schema` does not know. Returns their paths (`spec.foo`, `spec.list[0].bar`), sorted.
pub fn prune(value: &mut Value, schema: &Schema) -> Vec<String> {
    let mut walk = Walk::default();
    walk.prune(value, schema, false);
    walk.finish()
}

/// The paths that [`prune`] would remove.
pub fn unknown_fields(value: &Value, schema: &Schema) -> Vec<String> {
    prune(&mut value.clone(), schema)
}

#[derive(Default)]
struct Walk {
    path: String,
    unknown: Vec<String>,
}

impl Walk {
    fn finish(mut self) -> Vec<String> {
        self.unknown.sort();
        self.unknown.truncate(MAX_REPORTED);
        self.unknown
    }

    /// `preserved`: the value is an item of a list whose unknown content is kept.
    fn prune(&mut self, value: &mut Value, schema: &Schema, preserved: bool) {
        let schema = schema.resolve();
        let preserved = preserved || schema.preserve_unknown;
        match value {
            Value::Object(map) => map.retain(|name, field| {
                let length = self.path.len();
                self.push_name(name);
                let keep = if let Some(known) = schema.field(name) {
                    self.prune(field, known, false);
                    true
                } else {
                    if !preserved {
                        self.unknown.push(self.path.clone());
                    }
                    preserved
                };
                self.path.truncate(length);
                keep
            }),
            Value::Array(list) => {
                for (index, item) in list.iter_mut().enumerate() {
                    let length = self.path.len();
                    self.path.extend(["[", &index.to_string(), "]"]);
                    match &schema.items {
                        Some(items) => self.prune(item, items, preserved),
                        None if preserved => {}
                        None => self.prune(item, &NOTHING, false),
                    }
                    self.path.truncate(length);
                }
            }
            _ => {}
        }
    }

    fn push_name(&mut self, name: &str) {
        if !self.path.is_empty() {
            self.path.push('.');
        }
        self.path.push_str(name);
    }
}

/// What has no schema keeps no fields.
static NOTHING: std::sync::LazyLock<Schema> = std::sync::LazyLock::new(Schema::default);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::super::compile;
    use super::*;

    fn schema() -> Arc<Schema> {
        compile(&json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {
                "known": {"type": "string"},
                "list": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "integer"}}}},
                "map": {"type": "object", "additionalProperties":
                    {"type": "object", "properties": {"a": {"type": "integer"}}}},
                "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                    "properties": {"closed": {"type": "object", "properties": {"a": {"type": "integer"}}}}},
                "flags": {"type": "object", "additionalProperties": true},
                "object": {"type": "object", "x-kubernetes-embedded-resource": true,
                    "x-kubernetes-preserve-unknown-fields": true},
            }},
        }}))
        .unwrap()
    }

    #[test]
    fn unknown_fields_go_and_are_named() {
        let mut value = json!({
            "apiVersion": "g/v1", "kind": "K", "metadata": {"name": "x", "labels": {"a": "b"}, "extra": 1},
            "spec": {"known": "a", "foo": 1, "list": [{"a": 1}, {"a": 1, "bar": 2}],
                "map": {"k": {"a": 1, "b": 2}}, "open": {"any": {"thing": [{"x": 1}]}, "closed": {"a": 1, "b": 1}},
                "flags": {"a": true, "b": {"c": 1}},
                "object": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "nope": 1}, "spec": {}}},
            "other": {}});
        let unknown = prune(&mut value, &schema());
        assert_eq!(
            unknown,
            [
                "metadata.extra",
                "other",
                "spec.flags.b.c",
                "spec.foo",
                "spec.list[1].bar",
                "spec.map.k.b",
                "spec.object.metadata.nope",
                "spec.open.closed.b"
            ]
        );
        assert_eq!(
            value,
            json!({
                "apiVersion": "g/v1", "kind": "K", "metadata": {"name": "x", "labels": {"a": "b"}},
                "spec": {"known": "a", "list": [{"a": 1}, {"a": 1}], "map": {"k": {"a": 1}},
                    "open": {"any": {"thing": [{"x": 1}]}, "closed": {"a": 1}},
                    "flags": {"a": true, "b": {}},
                    "object": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {}}}})
        );
    }

    #[test]
    fn a_value_of_another_type_is_left_to_validation() {
        let mut value = json!({"spec": {"list": {"a": 1}, "known": {"x": 1}}});
        prune(&mut value, &schema());
        assert_eq!(value, json!({"spec": {"list": {}, "known": {}}}));
    }
}
