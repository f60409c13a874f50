//! OpenAPI documents as protobuf: the messages of gnostic's `openapi.v2` and `openapi.v3`.
//!
//! The messages mirror the JSON, so that one walk over the JSON writes both: a table says which field of
//! a message a JSON name goes to, and as what. What a table does not name is left out.

use serde_json::Value;

use super::wire::Writer;

/// A version 2 document as `openapi.v2.Document`.
pub fn v2(document: &Value) -> Vec<u8> {
    encode(document, &v2::DOCUMENT)
}

/// A version 3 document as `openapi.v3.Document`.
pub fn v3(document: &Value) -> Vec<u8> {
    encode(document, &v3::DOCUMENT)
}

fn encode(document: &Value, message: &Message) -> Vec<u8> {
    let mut writer = Writer::default();
    write(document, message, &mut writer);
    writer.finish()
}

/// One message: where its JSON names go, and where `x-…` names go.
struct Message {
    fields: &'static [(&'static str, u32, As)],
    extensions: u32,
}

/// How a JSON value becomes a field.
#[derive(Clone, Copy)]
enum As {
    Text,
    Flag,
    Double,
    Int,
    Texts,
    /// Anything, as YAML (which JSON is).
    Any,
    Anys,
    /// A default value of version 3: a number, a truth value or a text. Others have no place.
    Scalar,
    One(&'static Message),
    Many(&'static Message),
    /// A message inside others that only choose: their field numbers, outermost first.
    Inside(&'static [u32], &'static Message),
    ManyInside(&'static [u32], &'static Message),
    /// A map becomes a message with a repeated field of names and values; each value may stand inside a choice.
    Map(u32, &'static [u32], &'static Message),
    /// A list of texts inside a message of its own (`type` of version 2).
    TextsInside,
    /// Requirements of security: maps of names to lists of texts.
    Security,
    /// A schema or a truth value, in either version.
    SchemaOrFlag2,
    SchemaOrFlag3,
    /// Parameters of version 2: what they become depends on where they are.
    Parameters,
    /// Version 3: a schema, or a reference to one.
    Schema3,
    Schemas3,
    /// Version 3: a map of schemas or references.
    Schemas3Map,
    /// Version 3: the one schema of a list, in a message that could hold several.
    Items3,
}

fn write(value: &Value, message: &Message, out: &mut Writer) {
    let Some(map) = value.as_object() else { return };
    for (name, number, kind) in message.fields {
        if let Some(value) = map.get(*name) {
            field(value, *number, *kind, out);
        }
    }
    for (name, value) in map.iter().filter(|(name, _)| name.starts_with("x-")) {
        out.message(message.extensions, |out| {
            out.text(1, name);
            any(value, 2, out);
        });
    }
}

fn field(value: &Value, number: u32, kind: As, out: &mut Writer) {
    let list = || value.as_array().into_iter().flatten();
    match kind {
        As::Text => out.text(number, value.as_str().unwrap_or_default()),
        As::Flag => out.flag(number, value.as_bool().unwrap_or_default()),
        As::Double => out.double(number, value.as_f64().unwrap_or_default()),
        As::Int => out.int(number, value.as_i64().unwrap_or_default()),
        As::Texts => list().filter_map(Value::as_str).for_each(|text| out.element(number, text)),
        As::TextsInside => out.message(number, |out| out.element(1, value.as_str().unwrap_or_default())),
        As::Any => any(value, number, out),
        As::Anys => list().for_each(|value| any(value, number, out)),
        As::Scalar => scalar(value, number, out),
        As::One(message) => out.message(number, |out| write(value, message, out)),
        As::Many(message) => list().for_each(|value| out.message(number, |out| write(value, message, out))),
        As::Inside(choice, message) => inside(value, number, choice, message, out),
        As::ManyInside(choice, message) => list().for_each(|value| inside(value, number, choice, message, out)),
        As::Map(inner, choice, message) => out.message(number, |out| {
            for (name, value) in value.as_object().into_iter().flatten().filter(|(name, _)| !name.starts_with("x-")) {
                out.message(inner, |out| {
                    out.text(1, name);
                    inside(value, 2, choice, message, out);
                });
            }
        }),
        As::Security => list().for_each(|value| out.message(number, |out| security(value, out))),
        As::SchemaOrFlag2 => out.message(number, |out| match value {
            Value::Bool(flag) => out.set_flag(2, *flag),
            _ => out.message(1, |out| write(value, &v2::SCHEMA, out)),
        }),
        As::SchemaOrFlag3 => out.message(number, |out| match value {
            Value::Bool(flag) => out.set_flag(2, *flag),
            _ => schema_or_reference(value, 1, out),
        }),
        As::Items3 => out.message(number, |out| schema_or_reference(value, 1, out)),
        As::Parameters => list().for_each(|value| v2::parameter(value, number, out)),
        As::Schema3 => schema_or_reference(value, number, out),
        As::Schemas3 => list().for_each(|value| schema_or_reference(value, number, out)),
        As::Schemas3Map => out.message(number, |out| {
            for (name, value) in value.as_object().into_iter().flatten() {
                out.message(1, |out| {
                    out.text(1, name);
                    schema_or_reference(value, 2, out);
                });
            }
        }),
    }
}

fn inside(value: &Value, number: u32, choice: &[u32], message: &Message, out: &mut Writer) {
    out.message(number, |out| match choice.split_first() {
        Some((first, rest)) => inside(value, *first, rest, message, out),
        None => write(value, message, out),
    });
}

fn any(value: &Value, number: u32, out: &mut Writer) {
    out.message(number, |out| out.text(2, &value.to_string()));
}

fn scalar(value: &Value, number: u32, out: &mut Writer) {
    match value {
        Value::Number(n) => out.message(number, |out| out.set_double(1, n.as_f64().unwrap_or_default())),
        Value::Bool(flag) => out.message(number, |out| out.set_flag(2, *flag)),
        Value::String(text) => out.message(number, |out| out.element(3, text)),
        _ => {}
    }
}

fn security(value: &Value, out: &mut Writer) {
    for (name, scopes) in value.as_object().into_iter().flatten() {
        out.message(1, |out| {
            out.text(1, name);
            out.message(2, |out| field(scopes, 1, As::Texts, out));
        });
    }
}

fn schema_or_reference(value: &Value, number: u32, out: &mut Writer) {
    out.message(number, |out| match value.get("$ref") {
        Some(_) => out.message(2, |out| write(value, &v3::REFERENCE, out)),
        None => out.message(1, |out| write(value, &v3::SCHEMA, out)),
    });
}

/// The messages of `openapi.v2` that documents of Kubernetes use.
mod v2 {
    use super::{As, Message, Value, Writer};

    pub(super) static DOCUMENT: Message = Message {
        fields: &[
            ("swagger", 1, As::Text),
            ("info", 2, As::One(&INFO)),
            ("consumes", 6, As::Texts),
            ("produces", 7, As::Texts),
            ("paths", 8, As::Map(2, &[], &PATH_ITEM)),
            ("definitions", 9, As::Map(1, &[], &SCHEMA)),
            ("security", 12, As::Security),
            ("securityDefinitions", 13, As::Map(1, &[2], &API_KEY)),
        ],
        extensions: 16,
    };

    static INFO: Message = Message {
        fields: &[("title", 1, As::Text), ("version", 2, As::Text), ("description", 3, As::Text)],
        extensions: 7,
    };

    static PATH_ITEM: Message = Message {
        fields: &[
            ("get", 2, As::One(&OPERATION)),
            ("put", 3, As::One(&OPERATION)),
            ("post", 4, As::One(&OPERATION)),
            ("delete", 5, As::One(&OPERATION)),
            ("patch", 8, As::One(&OPERATION)),
            ("parameters", 9, As::Parameters),
        ],
        extensions: 10,
    };

    static OPERATION: Message = Message {
        fields: &[
            ("tags", 1, As::Texts),
            ("description", 3, As::Text),
            ("operationId", 5, As::Text),
            ("produces", 6, As::Texts),
            ("consumes", 7, As::Texts),
            ("parameters", 8, As::Parameters),
            ("responses", 9, As::Map(1, &[1], &RESPONSE)),
            ("schemes", 10, As::Texts),
            ("deprecated", 11, As::Flag),
        ],
        extensions: 13,
    };

    static RESPONSE: Message =
        Message { fields: &[("description", 1, As::Text), ("schema", 2, As::Inside(&[1], &SCHEMA))], extensions: 5 };

    pub(super) static SCHEMA: Message = Message {
        fields: &[
            ("$ref", 1, As::Text),
            ("format", 2, As::Text),
            ("title", 3, As::Text),
            ("description", 4, As::Text),
            ("default", 5, As::Any),
            ("multipleOf", 6, As::Double),
            ("maximum", 7, As::Double),
            ("exclusiveMaximum", 8, As::Flag),
            ("minimum", 9, As::Double),
            ("exclusiveMinimum", 10, As::Flag),
            ("maxLength", 11, As::Int),
            ("minLength", 12, As::Int),
            ("pattern", 13, As::Text),
            ("maxItems", 14, As::Int),
            ("minItems", 15, As::Int),
            ("uniqueItems", 16, As::Flag),
            ("maxProperties", 17, As::Int),
            ("minProperties", 18, As::Int),
            ("required", 19, As::Texts),
            ("enum", 20, As::Anys),
            ("additionalProperties", 21, As::SchemaOrFlag2),
            ("type", 22, As::TextsInside),
            ("items", 23, As::Inside(&[1], &SCHEMA)),
            ("allOf", 24, As::Many(&SCHEMA)),
            ("properties", 25, As::Map(1, &[], &SCHEMA)),
            ("example", 30, As::Any),
        ],
        extensions: 31,
    };

    static API_KEY: Message = Message {
        fields: &[("type", 1, As::Text), ("name", 2, As::Text), ("in", 3, As::Text), ("description", 4, As::Text)],
        extensions: 5,
    };

    static BODY_PARAMETER: Message = Message {
        fields: &[
            ("description", 1, As::Text),
            ("name", 2, As::Text),
            ("in", 3, As::Text),
            ("required", 4, As::Flag),
            ("schema", 5, As::One(&SCHEMA)),
        ],
        extensions: 6,
    };

    static QUERY_PARAMETER: Message = Message {
        fields: &[
            ("required", 1, As::Flag),
            ("in", 2, As::Text),
            ("description", 3, As::Text),
            ("name", 4, As::Text),
            ("type", 6, As::Text),
            ("format", 7, As::Text),
            ("uniqueItems", 20, As::Flag),
        ],
        extensions: 23,
    };

    static PATH_PARAMETER: Message = Message {
        fields: &[
            ("required", 1, As::Flag),
            ("in", 2, As::Text),
            ("description", 3, As::Text),
            ("name", 4, As::Text),
            ("type", 5, As::Text),
            ("format", 6, As::Text),
            ("uniqueItems", 19, As::Flag),
        ],
        extensions: 22,
    };

    /// ParametersItem, Parameter, then a body, or something in the query or the path.
    pub(super) fn parameter(value: &Value, number: u32, out: &mut Writer) {
        let (choice, message): (&[u32], &Message) = match value["in"].as_str() {
            Some("body") => (&[1, 1], &BODY_PARAMETER),
            Some("path") => (&[1, 2, 4], &PATH_PARAMETER),
            _ => (&[1, 2, 3], &QUERY_PARAMETER),
        };
        super::inside(value, number, choice, message, out);
    }
}

/// The messages of `openapi.v3` that documents of Kubernetes use.
mod v3 {
    use super::{As, Message};

    pub(super) static DOCUMENT: Message = Message {
        fields: &[
            ("openapi", 1, As::Text),
            ("info", 2, As::One(&INFO)),
            ("paths", 4, As::Map(1, &[], &PATH_ITEM)),
            ("components", 5, As::One(&COMPONENTS)),
        ],
        extensions: 9,
    };

    static INFO: Message = Message {
        fields: &[("title", 1, As::Text), ("description", 2, As::Text), ("version", 6, As::Text)],
        extensions: 7,
    };

    static COMPONENTS: Message = Message {
        fields: &[("schemas", 1, As::Schemas3Map), ("securitySchemes", 7, As::Map(1, &[1], &SECURITY_SCHEME))],
        extensions: 10,
    };

    static SECURITY_SCHEME: Message = Message {
        fields: &[("type", 1, As::Text), ("description", 2, As::Text), ("name", 3, As::Text), ("in", 4, As::Text)],
        extensions: 9,
    };

    static PATH_ITEM: Message = Message {
        fields: &[
            ("description", 3, As::Text),
            ("get", 4, As::One(&OPERATION)),
            ("put", 5, As::One(&OPERATION)),
            ("post", 6, As::One(&OPERATION)),
            ("delete", 7, As::One(&OPERATION)),
            ("patch", 10, As::One(&OPERATION)),
            ("parameters", 13, As::ManyInside(&[1], &PARAMETER)),
        ],
        extensions: 14,
    };

    static OPERATION: Message = Message {
        fields: &[
            ("tags", 1, As::Texts),
            ("description", 3, As::Text),
            ("operationId", 5, As::Text),
            ("parameters", 6, As::ManyInside(&[1], &PARAMETER)),
            ("requestBody", 7, As::Inside(&[1], &REQUEST_BODY)),
            ("responses", 8, As::Map(2, &[1], &RESPONSE)),
            ("deprecated", 10, As::Flag),
        ],
        extensions: 13,
    };

    static PARAMETER: Message = Message {
        fields: &[
            ("name", 1, As::Text),
            ("in", 2, As::Text),
            ("description", 3, As::Text),
            ("required", 4, As::Flag),
            ("schema", 10, As::Schema3),
        ],
        extensions: 14,
    };

    static REQUEST_BODY: Message = Message {
        fields: &[
            ("description", 1, As::Text),
            ("content", 2, As::Map(1, &[], &MEDIA_TYPE)),
            ("required", 3, As::Flag),
        ],
        extensions: 4,
    };

    static RESPONSE: Message = Message {
        fields: &[("description", 1, As::Text), ("content", 3, As::Map(1, &[], &MEDIA_TYPE))],
        extensions: 5,
    };

    static MEDIA_TYPE: Message = Message { fields: &[("schema", 1, As::Schema3)], extensions: 5 };

    pub(super) static REFERENCE: Message =
        Message { fields: &[("$ref", 1, As::Text), ("description", 3, As::Text)], extensions: 15 };

    pub(super) static SCHEMA: Message = Message {
        fields: &[
            ("nullable", 1, As::Flag),
            ("example", 7, As::Any),
            ("title", 9, As::Text),
            ("multipleOf", 10, As::Double),
            ("maximum", 11, As::Double),
            ("exclusiveMaximum", 12, As::Flag),
            ("minimum", 13, As::Double),
            ("exclusiveMinimum", 14, As::Flag),
            ("maxLength", 15, As::Int),
            ("minLength", 16, As::Int),
            ("pattern", 17, As::Text),
            ("maxItems", 18, As::Int),
            ("minItems", 19, As::Int),
            ("uniqueItems", 20, As::Flag),
            ("maxProperties", 21, As::Int),
            ("minProperties", 22, As::Int),
            ("required", 23, As::Texts),
            ("enum", 24, As::Anys),
            ("type", 25, As::Text),
            ("allOf", 26, As::Schemas3),
            ("oneOf", 27, As::Schemas3),
            ("anyOf", 28, As::Schemas3),
            ("not", 29, As::One(&SCHEMA)),
            ("items", 30, As::Items3),
            ("properties", 31, As::Schemas3Map),
            ("additionalProperties", 32, As::SchemaOrFlag3),
            ("default", 33, As::Scalar),
            ("description", 34, As::Text),
            ("format", 35, As::Text),
        ],
        extensions: 36,
    };
}
