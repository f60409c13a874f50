//! An expression: parsed, checked against a schema, evaluated on an object.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::json;
use tether_machinery::schema;
use tether_machinery::schema::cel;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let known = schema::compile(&json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "n": {"type": "integer"}, "s": {"type": "string"}, "d": {"type": "number"},
        "l": {"type": "array", "items": {"type": "string"}},
        "m": {"type": "object", "additionalProperties": {"type": "integer"}},
        "t": {"type": "string", "format": "date-time"}},
        "x-kubernetes-validations": [{"rule": text, "messageExpression": text}]}}}))
    .expect("the schema must compile");
    let spec = &known.properties["spec"];
    let object =
        json!({"spec": {"n": 1, "s": "abc", "d": 1.5, "l": ["a", "b"], "m": {"k": 1}, "t": "2024-01-01T00:00:00Z"}});
    let checked = cel::check(&spec.rules[0], spec, false);
    if checked.rule_error.is_none() {
        let _ = cel::validate(&object, Some(&json!({"spec": {"n": 2}})), &known);
    }
});
