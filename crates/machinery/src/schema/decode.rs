//! Reading an object of a built-in kind the way Go reads it into a struct.
//!
//! Kubernetes does not validate built-in kinds against a schema: it decodes them. Values of another type
//! are refused in the words of Go's decoder, fields that are null are as if they were not there, values of maps
//! that are null are empty, and quantities come out in their canonical form. Unknown fields are [`super::prune`]'s business.

use serde_json::Value;

use super::{Schema, Type};
use crate::quantity::Quantity;

/// Decodes `value` in place. The error is that of the decoder: `json: cannot unmarshal string into Go struct
/// field PodSpec.spec.hostNetwork of type bool`.
pub fn decode(value: &mut Value, schema: &Schema) -> Result<(), String> {
    decode_as(value, schema, Words::Json)
}

/// [`decode`] in the words that a strategic merge patch is answered with: Kubernetes then has values in its hands
/// and no text. `cannot convert int64 to string`.
pub fn decode_merged(value: &mut Value, schema: &Schema) -> Result<(), String> {
    decode_as(value, schema, Words::Values)
}

fn decode_as(value: &mut Value, schema: &Schema, words: Words) -> Result<(), String> {
    if value.is_object() {
        return Decoder { words, owner: "", fields: Vec::new() }.node(value, schema);
    }
    let what = format!("json: cannot unmarshal {} into Go value of type {}", shown(value), go_type(schema));
    Err(what)
}

/// Which of Kubernetes' decoders speaks.
#[derive(Clone, Copy)]
enum Words {
    Json,
    Values,
}

struct Decoder<'a> {
    words: Words,
    /// The type that the innermost field belongs to.
    owner: &'a str,
    /// Fields on the way; Go leaves out the positions in lists and the keys of maps.
    fields: Vec<&'a str>,
}

impl<'a> Decoder<'a> {
    fn node(&mut self, value: &mut Value, schema: &'a Schema) -> Result<(), String> {
        self.scalar(value, schema)?;
        let schema = schema.resolve();
        match value {
            Value::Object(map) => {
                let in_map = |name: &str| !schema.properties.contains_key(name) && schema.additional.is_some();
                map.retain(|name, field| !field.is_null() || in_map(name));
                let around = self.owner;
                self.owner = short_name(schema).unwrap_or(around);
                for (name, field) in map.iter_mut() {
                    if let Some((name, known)) = schema.properties.get_key_value(name) {
                        let depth = self.fields.len();
                        self.fields.extend(inlined(self.owner, name));
                        self.fields.push(name);
                        self.node(field, known)?;
                        self.fields.truncate(depth);
                    } else if let Some(values) = &schema.additional {
                        if field.is_null() {
                            *field = zero(values);
                        }
                        self.node(field, values)?;
                    }
                }
                self.owner = around;
            }
            Value::Array(list) => {
                let Some(items) = &schema.items else { return Ok(()) };
                for item in list {
                    if item.is_null() {
                        *item = zero(items);
                    }
                    self.node(item, items)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Is the value of the kind that the field takes?
    fn scalar(&self, value: &mut Value, schema: &Schema) -> Result<(), String> {
        let definition = short_name(schema).unwrap_or_default();
        match schema.ty {
            Type::Object if !value.is_object() => return self.mismatch(&shown(value), value, schema),
            Type::Array if !value.is_array() => return self.mismatch(&shown(value), value, schema),
            Type::Boolean if !value.is_boolean() => return self.mismatch(&shown(value), value, schema),
            Type::Number if !value.is_number() => return self.mismatch(&shown(value), value, schema),
            Type::String => {
                let Some(text) = value.as_str() else { return self.mismatch(&shown(value), value, schema) };
                match (definition, schema.format.as_deref()) {
                    ("Time", _) => timestamp(text, "2006-01-02T15:04:05Z07:00")?,
                    ("MicroTime", _) => timestamp(text, "2006-01-02T15:04:05.000000Z07:00")?,
                    (_, Some("byte")) => bytes(text)?,
                    _ => {}
                }
            }
            Type::Integer => {
                let Some(number) = value.as_i64().filter(|_| !value.is_f64()) else {
                    return self.mismatch(&exact(value), value, schema);
                };
                if schema.format.as_deref() == Some("int32") && i32::try_from(number).is_err() {
                    return self.mismatch(&format!("number {number}"), value, schema);
                }
            }
            Type::IntOrString if definition == "Quantity" => {
                let quantity = Quantity::from_json(value).map_err(|e| e.to_string())?;
                *value = quantity.to_string().into();
            }
            Type::Any if definition == "JSONSchemaPropsOrBool" && !value.is_boolean() && !value.is_object() => {
                return Err("boolean or JSON schema expected".to_owned());
            }
            Type::IntOrString => match value {
                Value::String(_) => {}
                Value::Number(n) if n.as_i64().is_some_and(|n| i32::try_from(n).is_ok()) => {}
                _ => return self.mismatch(&exact(value), value, schema),
            },
            _ => {}
        }
        Ok(())
    }

    fn mismatch(&self, got: &str, value: &Value, schema: &Schema) -> Result<(), String> {
        if let (Words::Values, Some(error)) = (self.words, value_mismatch(value, schema)) {
            return Err(error);
        }
        let field = self.fields.join(".");
        let ty = go_type(schema);
        Err(format!("json: cannot unmarshal {got} into Go struct field {}.{field} of type {ty}", self.owner))
    }
}

/// What the decoder of values says; `None` for types that read text even then.
fn value_mismatch(value: &Value, schema: &Schema) -> Option<String> {
    let source = match value {
        Value::Null => return None,
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "slice",
        Value::Object(_) => "map",
    };
    let wanted = go_type(schema);
    Some(match (schema.ty, source) {
        (Type::IntOrString | Type::Any, _) => return None,
        (Type::String, _) if matches!(short_name(schema), Some("Time" | "MicroTime")) => return None,
        (Type::Object, _) if schema.additional.is_some() => format!("cannot restore map from {source}"),
        (Type::Object, _) => format!("cannot restore struct from: {source}"),
        (Type::Array, _) => format!("cannot restore slice from {source}"),
        (Type::String, "int64") | (Type::Integer, "float64" | "int64") => {
            format!("cannot convert {source} to {wanted}")
        }
        _ => format!("unrecognized type: {wanted}"),
    })
}

/// The struct that Go embeds to give a type this field; it is part of the path of errors.
fn inlined(owner: &str, field: &str) -> Option<&'static str> {
    match (owner, field) {
        ("Volume", "name") => None,
        ("Volume", _) => Some("VolumeSource"),
        ("Probe", "exec" | "grpc" | "httpGet" | "tcpSocket") => Some("ProbeHandler"),
        ("EphemeralContainer", field) if field != "targetContainerName" => Some("EphemeralContainerCommon"),
        _ => None,
    }
}

fn short_name(schema: &Schema) -> Option<&str> {
    schema.definition.as_deref().and_then(|name| name.rsplit('.').next())
}

fn shown(value: &Value) -> String {
    let name = match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    name.to_owned()
}

/// As [`shown`], with the digits of a number that does not fit.
fn exact(value: &Value) -> String {
    if value.is_number() { format!("number {value}") } else { shown(value) }
}

/// The name of the Go type, as far as a schema tells.
fn go_type(schema: &Schema) -> String {
    if let Some(name) = schema.definition.as_deref() {
        let mut parts = name.rsplit('.');
        let short = parts.next().unwrap_or(name);
        return match (short, parts.next()) {
            ("Quantity", _) => "resource.Quantity".to_owned(),
            ("IntOrString", _) => "int32".to_owned(),
            ("Time" | "MicroTime", _) => "string".to_owned(),
            (short, Some(package)) => format!("{package}.{short}"),
            (short, None) => short.to_owned(),
        };
    }
    match schema.ty {
        Type::String if schema.format.as_deref() == Some("byte") => "[]uint8".to_owned(),
        Type::String => "string".to_owned(),
        Type::Integer => schema.format.clone().unwrap_or_else(|| "int64".to_owned()),
        Type::Number => "float64".to_owned(),
        Type::Boolean => "bool".to_owned(),
        Type::IntOrString => "int32".to_owned(),
        Type::Array => format!("[]{}", schema.items.as_deref().map_or_else(|| "interface {}".to_owned(), go_type)),
        Type::Object => match &schema.additional {
            Some(values) if short_name(values) == Some("Quantity") => "v1.ResourceList".to_owned(),
            Some(values) => format!("map[string]{}", go_type(values)),
            None => "map[string]interface {}".to_owned(),
        },
        Type::Any => "interface {}".to_owned(),
    }
}

/// What Go has where a list says null.
fn zero(schema: &Schema) -> Value {
    match schema.ty {
        Type::Object => Value::Object(serde_json::Map::new()),
        Type::Array => Value::Array(Vec::new()),
        Type::String => "".into(),
        Type::Integer | Type::Number | Type::IntOrString => 0.into(),
        Type::Boolean => false.into(),
        Type::Any => Value::Null,
    }
}

/// A time in one of the two layouts of the API: with as many digits behind the second as one likes, or with six.
fn timestamp(text: &str, layout: &str) -> Result<(), String> {
    let wrong =
        |rest: &str, part: &str| Err(format!("parsing time {text:?} as {layout:?}: cannot parse {rest:?} as {part:?}"));
    let whole = text.len() >= 20 && text.as_bytes()[10] == b'T' && text.parse::<jiff::Timestamp>().is_ok();
    if !whole {
        return wrong(text, "2006");
    }
    let micros = |rest: &str| {
        let digits = rest.bytes().skip(1).take_while(u8::is_ascii_digit).count();
        rest.starts_with('.') && digits == 6
    };
    match text.get(19..) {
        Some(rest) if layout.contains('.') && !micros(rest) => wrong(rest, ".000000"),
        _ => Ok(()),
    }
}

/// Is the text base64? Counts as Go does where it is not; line breaks are skipped.
fn bytes(text: &str) -> Result<(), String> {
    let illegal = |at: usize| Err(format!("illegal base64 data at input byte {at}"));
    let symbols: Vec<(usize, u8)> = text.bytes().enumerate().filter(|(_, b)| !matches!(b, b'\r' | b'\n')).collect();
    let mut at = 0;
    while at < symbols.len() {
        let quantum = &symbols[at..symbols.len().min(at + 4)];
        for (i, (offset, symbol)) in quantum.iter().enumerate() {
            match symbol {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'+' | b'/' => {}
                b'=' if i >= 2 => return padding(&symbols, at + i, i, text.len()).map_or(Ok(()), illegal),
                _ => return illegal(*offset),
            }
        }
        if quantum.len() < 4 {
            return illegal(text.len() - quantum.len());
        }
        at += 4;
    }
    Ok(())
}

/// What is wrong with the end of a text that starts its padding at `at`, the symbol `i` of its four.
fn padding(symbols: &[(usize, u8)], at: usize, i: usize, length: usize) -> Option<usize> {
    let mut end = at + 1;
    if i == 2 {
        match symbols.get(end) {
            None => return Some(length),
            Some((_, b'=')) => end += 1,
            Some((offset, _)) => return Some(offset - 1),
        }
    }
    symbols.get(end).map(|(offset, _)| *offset)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::builtin;

    fn decoded(kind: &str, mut value: Value) -> Result<Value, String> {
        let schema = builtin::schema("", "v1", kind).unwrap();
        decode(&mut value, &schema).map(|()| value)
    }

    #[test]
    fn nulls_vanish_and_quantities_are_canonical() {
        let pod = json!({"metadata": {"name": "a", "creationTimestamp": null},
            "spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": 0.5, "memory": "1024Mi"}}}]}});
        assert_eq!(
            decoded("Pod", pod).unwrap(),
            json!({"metadata": {"name": "a"},
                "spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}}}]}})
        );
    }

    #[test]
    fn errors_are_those_of_the_decoder() {
        for (kind, value, want) in [
            (
                "Pod",
                json!({"spec": {"hostNetwork": "yes"}}),
                "json: cannot unmarshal string into Go struct field PodSpec.spec.hostNetwork of type bool",
            ),
            (
                "Pod",
                json!({"spec": {"containers": [{"ports": [{"containerPort": 3_000_000_000_i64}]}]}}),
                "json: cannot unmarshal number 3000000000 into Go struct field ContainerPort.spec.containers.ports.containerPort of type int32",
            ),
            (
                "Pod",
                json!({"spec": {"containers": {}}}),
                "json: cannot unmarshal object into Go struct field PodSpec.spec.containers of type []v1.Container",
            ),
            (
                "ConfigMap",
                json!({"metadata": {"labels": {"a": 1}}}),
                "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string",
            ),
            (
                "ConfigMap",
                json!({"data": []}),
                "json: cannot unmarshal array into Go struct field ConfigMap.data of type map[string]string",
            ),
            ("Secret", json!({"data": {"a": "!"}}), "illegal base64 data at input byte 0"),
            ("Secret", json!({"data": {"a": "YWI"}}), "illegal base64 data at input byte 0"),
            ("Secret", json!({"data": {"a": "YWI=x"}}), "illegal base64 data at input byte 4"),
            ("Secret", json!({"data": {"a": "YQ="}}), "illegal base64 data at input byte 3"),
            (
                "Pod",
                json!({"spec": {"volumes": [{"emptyDir": "x"}]}}),
                "json: cannot unmarshal string into Go struct field Volume.spec.volumes.VolumeSource.emptyDir of type v1.EmptyDirVolumeSource",
            ),
            (
                "PersistentVolume",
                json!({"spec": {"capacity": {"storage": "1Zi"}}}),
                "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
            ),
            (
                "Namespace",
                json!({"metadata": {"creationTimestamp": "x"}}),
                "parsing time \"x\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"x\" as \"2006\"",
            ),
            ("Namespace", json!([]), "json: cannot unmarshal array into Go value of type v1.Namespace"),
        ] {
            assert_eq!(decoded(kind, value.clone()).unwrap_err(), want, "{value}");
        }
    }

    #[test]
    fn a_null_in_a_map_is_an_empty_value() {
        let map =
            decoded("ConfigMap", json!({"metadata": {"labels": {"a": null}}, "data": {"b": null}, "immutable": null}));
        assert_eq!(map.unwrap(), json!({"metadata": {"labels": {"a": ""}}, "data": {"b": ""}}));
    }

    #[test]
    fn merged_values_have_other_words() {
        for (kind, value, want) in [
            ("ConfigMap", json!({"data": {"a": 7}}), "cannot convert int64 to string"),
            ("ConfigMap", json!({"data": {"a": [1]}}), "unrecognized type: string"),
            ("ConfigMap", json!({"data": []}), "cannot restore map from slice"),
            ("Pod", json!({"spec": "x"}), "cannot restore struct from: string"),
            ("Pod", json!({"spec": {"containers": {}}}), "cannot restore slice from map"),
            ("Pod", json!({"spec": {"hostNetwork": "yes"}}), "unrecognized type: bool"),
        ] {
            let mut merged = value.clone();
            let schema = builtin::schema("", "v1", kind).unwrap();
            assert_eq!(decode_merged(&mut merged, &schema).unwrap_err(), want, "{value}");
        }
    }

    #[test]
    fn moments_of_leases_have_six_digits() {
        let schema = builtin::schema("coordination.k8s.io", "v1", "Lease").unwrap();
        let lease = |at: &str| decode(&mut json!({"spec": {"renewTime": at}}), &schema);
        assert_eq!(lease("2024-01-01T00:00:00.000000Z"), Ok(()));
        assert_eq!(
            lease("2024-01-01T00:00:00Z").unwrap_err(),
            "parsing time \"2024-01-01T00:00:00Z\" as \"2006-01-02T15:04:05.000000Z07:00\": cannot parse \"Z\" as \".000000\""
        );
    }

    #[test]
    fn a_definition_holds_schemas_of_any_depth() {
        let schema = builtin::schema("apiextensions.k8s.io", "v1", "CustomResourceDefinition").unwrap();
        let mut crd = json!({"spec": {"versions": [{"schema": {"openAPIV3Schema": {"properties": {"a": {
            "additionalProperties": true, "default": {"any": [null]}, "items": {"maxLength": "x"}}}}}}]}});
        assert_eq!(
            decode(&mut crd, &schema).unwrap_err(),
            "json: cannot unmarshal string into Go struct field JSONSchemaProps.spec.versions.schema.openAPIV3Schema.properties.items.maxLength of type int64"
        );
        let mut crd = json!({"spec": {"versions": [{"schema": {"openAPIV3Schema": {"properties": {"a": {
            "default": {"any": 1}, "nope": 1, "items": {"deep": 1}}}}}}]}});
        assert_eq!(
            super::super::prune(&mut crd, &schema),
            [
                "spec.versions[0].schema.openAPIV3Schema.properties.a.items.deep",
                "spec.versions[0].schema.openAPIV3Schema.properties.a.nope",
            ]
        );
    }
}
