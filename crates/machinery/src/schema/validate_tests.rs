//! Values against schemas, in the words of Kubernetes.

use serde_json::json;

use super::super::compile;
use super::*;

fn check(property: &Value, value: &Value) -> Vec<String> {
    let schema = compile(&json!({"type": "object", "properties": {"spec": {"type": "object",
        "properties": {"x": property}}}}))
    .unwrap();
    validate(&json!({"spec": {"x": value}}), &schema).iter().map(ToString::to_string).collect()
}

#[test]
fn good_values_pass() {
    for (schema, value) in [
        (json!({"type": "integer"}), json!(1.0)),
        (json!({"type": "number"}), json!(1)),
        (json!({"type": "string", "nullable": true}), json!(null)),
        (json!({"x-kubernetes-int-or-string": true}), json!("50%")),
        (json!({"x-kubernetes-int-or-string": true}), json!(5)),
        (json!({"type": "string", "enum": ["a", "b"]}), json!("b")),
        (json!({"type": "integer", "enum": [1, 2]}), json!(2)),
        (json!({"type": "string", "format": "made-up"}), json!("x")),
        (json!({"x-kubernetes-preserve-unknown-fields": true}), json!({"a": [1, null]})),
        (json!({"type": "integer", "minimum": 0, "exclusiveMinimum": true, "multipleOf": 5}), json!(10)),
    ] {
        assert_eq!(check(&schema, &value), Vec::<String>::new(), "{schema} {value}");
    }
}

#[test]
fn messages_are_those_of_kubernetes() {
    for (schema, value, want) in [
        (
            json!({"type": "integer", "minimum": 0}),
            json!(-1),
            "spec.x: Invalid value: -1: spec.x in body should be greater than or equal to 0",
        ),
        (
            json!({"type": "integer", "maximum": 3, "exclusiveMaximum": true}),
            json!(3),
            "spec.x: Invalid value: 3: spec.x in body should be less than 3",
        ),
        (
            json!({"type": "number", "maximum": 2.5}),
            json!(2.75),
            "spec.x: Invalid value: 2.75: spec.x in body should be less than or equal to 2.5",
        ),
        (
            json!({"type": "integer", "multipleOf": 5}),
            json!(7),
            "spec.x: Invalid value: 7: spec.x in body should be a multiple of 5",
        ),
        (
            json!({"type": "integer"}),
            json!(1.5),
            "spec.x: Invalid value: \"number\": spec.x in body must be of type integer: \"number\"",
        ),
        (
            json!({"type": "integer"}),
            json!("1"),
            "spec.x: Invalid value: \"string\": spec.x in body must be of type integer: \"string\"",
        ),
        (
            json!({"type": "string"}),
            json!(null),
            "spec.x: Invalid value: \"null\": spec.x in body must be of type string: \"null\"",
        ),
        (
            json!({"type": "string"}),
            json!({}),
            "spec.x: Invalid value: \"object\": spec.x in body must be of type string: \"object\"",
        ),
        (
            json!({"x-kubernetes-int-or-string": true}),
            json!(true),
            "spec.x: Invalid value: \"boolean\": spec.x in body must be of type integer,string: \"boolean\"",
        ),
        (
            json!({"type": "string", "format": "date-time"}),
            json!("now"),
            "spec.x: Invalid value: \"now\": spec.x in body must be of type date-time: \"now\"",
        ),
        (
            json!({"type": "string", "format": "date"}),
            json!(1),
            "spec.x: Invalid value: \"int64\": spec.x in body must be of type date: \"int64\"",
        ),
        (json!({"type": "string", "maxLength": 2}), json!("abc"), "spec.x: Too long: may not be more than 2 bytes"),
        (
            json!({"type": "string", "minLength": 2}),
            json!("ä"),
            "spec.x: Invalid value: \"ä\": spec.x in body should be at least 2 chars long",
        ),
        (
            json!({"type": "string", "pattern": "^a+$"}),
            json!("b"),
            "spec.x: Invalid value: \"b\": spec.x in body should match '^a+$'",
        ),
        (
            json!({"type": "string", "enum": ["b", "a"]}),
            json!("c"),
            "spec.x: Unsupported value: \"c\": supported values: \"b\", \"a\"",
        ),
        (
            json!({"type": "array", "items": {"type": "string"}, "maxItems": 1}),
            json!(["a", "b"]),
            "spec.x: Too many: 2: must have at most 1 item",
        ),
        (
            json!({"type": "array", "items": {"type": "string"}, "minItems": 1}),
            json!([]),
            "spec.x: Invalid value: 0: spec.x in body should have at least 1 items",
        ),
        (
            json!({"type": "array", "items": {"type": "integer"}}),
            json!([1, "a"]),
            "spec.x[1]: Invalid value: \"string\": spec.x[1] in body must be of type integer: \"string\"",
        ),
        (
            json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}}),
            json!({}),
            "spec.x.a: Required value",
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "integer"}}),
            json!({"k": "v"}),
            "spec.x.k: Invalid value: \"string\": spec.x.k in body must be of type integer: \"string\"",
        ),
        (
            json!({"type": "object", "minProperties": 1}),
            json!({}),
            "spec.x: Invalid value: 0: spec.x in body should have at least 1 properties",
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 1}),
            json!({"a": "1", "b": "2"}),
            "spec.x: Too many: 2: must have at most 1 item",
        ),
        (
            json!({"type": "object", "additionalProperties": false}),
            json!({"a": 1}),
            "spec.x: Invalid value: \"a\": spec.x.a in body is a forbidden property",
        ),
        (
            json!({"type": "string", "not": {"enum": ["a"]}}),
            json!("a"),
            "<nil>: Invalid value: \"\": \"spec.x\" must not validate the schema (not)",
        ),
    ] {
        assert_eq!(check(&schema, &value), [want], "{schema} {value}");
    }
}

#[test]
fn alternatives_explain_themselves() {
    let one_of = json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}]});
    assert_eq!(check(&one_of, &json!({"a": ""})), Vec::<String>::new());
    assert_eq!(
        check(&one_of, &json!({})),
        [
            "<nil>: Invalid value: \"\": \"spec.x\" must validate one and only one schema (oneOf). Found none valid",
            "spec.x.a: Required value",
        ]
    );
    assert_eq!(
        check(&one_of, &json!({"a": "", "b": ""})),
        [
            "<nil>: Invalid value: \"\": \"spec.x\" must validate one and only one schema (oneOf). Found 2 valid alternatives"
        ]
    );
    let any_of = json!({"type": "integer", "anyOf": [{"maximum": 1}, {"minimum": 5}]});
    assert_eq!(
        check(&any_of, &json!(3)),
        [
            "<nil>: Invalid value: \"\": \"spec.x\" must validate at least one schema (anyOf)",
            "spec.x: Invalid value: 3: spec.x in body should be less than or equal to 1",
        ]
    );
    let all_of = json!({"type": "integer", "allOf": [{"maximum": 1}, {"minimum": 5}]});
    assert_eq!(
        check(&all_of, &json!(3)),
        [
            "spec.x: Invalid value: 3: spec.x in body should be less than or equal to 1",
            "spec.x: Invalid value: 3: spec.x in body should be greater than or equal to 5",
            "<nil>: Invalid value: \"\": \"spec.x\" must validate all the schemas (allOf). None validated",
        ]
    );
}

#[test]
fn the_root_is_named_without_a_dot() {
    let schema = compile(&json!({"type": "object", "required": ["spec"],
        "properties": {"spec": {"type": "object"}, "n": {"type": "integer"}}}))
    .unwrap();
    let errors: Vec<String> = validate(&json!({"n": "x"}), &schema).iter().map(ToString::to_string).collect();
    assert_eq!(
        errors,
        ["n: Invalid value: \"string\": n in body must be of type integer: \"string\"", "spec: Required value"]
    );
}

#[test]
fn an_update_is_not_blamed_for_what_it_did_not_touch() {
    let schema = compile(&json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "a": {"type": "integer", "maximum": 5}, "b": {"type": "integer", "maximum": 5},
        "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["n"],
            "items": {"type": "object", "required": ["n"], "properties": {
                "n": {"type": "string"}, "v": {"type": "integer", "maximum": 5}}}},
        "free": {"type": "array", "items": {"type": "integer", "maximum": 5}},
    }}}}))
    .unwrap();
    let old = json!({"spec": {"a": 9, "b": 1, "list": [{"n": "x", "v": 9}, {"n": "y", "v": 1}], "free": [9]}});
    let update = |spec: Value| -> Vec<String> {
        validate_update(&json!({"spec": spec}), &old, &schema).iter().map(|e| e.path.to_string()).collect()
    };
    assert_eq!(update(old["spec"].clone()), Vec::<String>::new());
    assert_eq!(update(json!({"a": 9, "b": 2})), Vec::<String>::new());
    assert_eq!(update(json!({"a": 8, "b": 2})), ["spec.a"]);
    assert_eq!(update(json!({"b": 2, "list": [{"n": "y", "v": 9}, {"n": "x", "v": 9}]})), ["spec.list[0].v"]);
    assert_eq!(update(json!({"b": 2, "free": [9, 9]})), ["spec.free[0]", "spec.free[1]"]);
}

#[test]
fn the_status_subresource_looks_at_the_status_alone() {
    let schema = compile(&json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {"a": {"type": "integer"}}},
        "status": {"type": "object", "properties": {"b": {"type": "integer"}}}}}))
    .unwrap();
    let errors = validate_status_update(&json!({"spec": {"a": "x"}, "status": {"b": "x"}}), &json!({}), &schema);
    assert_eq!(
        errors.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["status.b: Invalid value: \"string\": b in body must be of type integer: \"string\""]
    );
}
