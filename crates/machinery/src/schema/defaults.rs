//! Defaults: fields that are missing get the value that the schema names.

use serde_json::Value;

use super::Schema;

/// Fills in defaults, at every level that exists or is created by a default. A null where the schema
/// allows none counts as missing: it is replaced by the default, or dropped if there is none.
pub fn apply_defaults(value: &mut Value, schema: &Schema) {
    let schema = schema.resolve();
    match value {
        Value::Object(map) => {
            map.retain(|name, field| match schema.field(name) {
                Some(known) => !(field.is_null() && !known.nullable && known.default.is_none()),
                None => true,
            });
            for (name, property) in &schema.properties {
                let Some(default) = &property.default else { continue };
                let missing = map.get(name).is_none_or(|field| field.is_null() && !property.nullable);
                if missing {
                    map.insert(name.clone(), default.clone());
                }
            }
            for (name, field) in map.iter_mut() {
                if let Some(known) = schema.field(name) {
                    replace_null(field, known);
                    apply_defaults(field, known);
                }
            }
        }
        Value::Array(list) => {
            let Some(items) = &schema.items else { return };
            for item in list {
                replace_null(item, items);
                apply_defaults(item, items);
            }
        }
        _ => {}
    }
}

fn replace_null(value: &mut Value, schema: &Schema) {
    if value.is_null()
        && !schema.nullable
        && let Some(default) = &schema.default
    {
        *value = default.clone();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::compile;
    use super::*;

    #[test]
    fn defaults_fill_what_is_missing() {
        let schema = compile(&json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "size": {"type": "integer", "default": 3},
            "optional": {"type": "string", "nullable": true, "default": "x"},
            "strict": {"type": "string"},
            "nested": {"type": "object", "default": {}, "properties": {"deep": {"type": "boolean", "default": true}}},
            "absent": {"type": "object", "properties": {"deep": {"type": "boolean", "default": true}}},
            "list": {"type": "array", "items": {"type": "object", "properties": {"p": {"type": "string", "default": "TCP"}}}},
            "numbers": {"type": "array", "items": {"type": "integer", "default": 7}},
            "map": {"type": "object", "additionalProperties": {"type": "integer", "default": 9}},
        }}}}))
        .unwrap();
        let cases = [
            (json!({}), json!({"size": 3, "optional": "x", "nested": {"deep": true}})),
            (
                json!({"size": null, "optional": null, "strict": null}),
                json!({"size": 3, "optional": null, "nested": {"deep": true}}),
            ),
            (
                json!({"size": 1, "optional": "y", "nested": {"deep": false}, "list": [{}, {"p": "UDP"}]}),
                json!({"size": 1, "optional": "y", "nested": {"deep": false}, "list": [{"p": "TCP"}, {"p": "UDP"}]}),
            ),
            (
                json!({"size": 1, "optional": "", "nested": {}, "numbers": [null, 1], "map": {"a": null, "b": 2}}),
                json!({"size": 1, "optional": "", "nested": {"deep": true}, "numbers": [7, 1], "map": {"a": 9, "b": 2}}),
            ),
        ];
        for (given, want) in cases {
            let mut value = json!({"spec": given});
            apply_defaults(&mut value, &schema);
            assert_eq!(value, json!({"spec": want}));
        }
    }
}
