//! Whether an applied configuration fits its schema, as far as merging depends on it.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::{Map, Value};

use super::element::PathElement;
use super::set::FieldPath;
use super::types::{Atom, Fields, List, Ty};
use crate::schema::{Schema, Type};

/// What is wrong, and where; printed as Kubernetes prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Misfits(Vec<String>);

impl fmt::Display for Misfits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [one] => f.write_str(one),
            many => {
                f.write_str("errors:")?;
                many.iter().try_for_each(|e| write!(f, "\n  {e}"))
            }
        }
    }
}

impl std::error::Error for Misfits {}

/// Checks `config`: every field is declared, values have their type, no element of a list occurs twice.
pub(super) fn validate(config: &Value, ty: Ty<'_>) -> Result<(), Misfits> {
    let mut walk = Walk { path: Vec::new(), errors: Vec::new() };
    walk.value(config, ty, false);
    if walk.errors.is_empty() { Ok(()) } else { Err(Misfits(walk.errors)) }
}

struct Walk {
    path: Vec<PathElement>,
    errors: Vec<String>,
}

impl Walk {
    fn error(&mut self, what: impl fmt::Display) {
        let path = FieldPath(self.path.clone()).to_string();
        self.errors.push(if path.is_empty() { what.to_string() } else { format!("{path}: {what}") });
    }

    /// `open`: an enclosing object keeps unknown fields, and so do the ones below.
    fn value(&mut self, value: &Value, ty: Ty<'_>, open: bool) {
        let schema = match ty {
            Ty::Known(schema) | Ty::Object(schema) => Some(schema),
            Ty::Deduced | Ty::Opaque => None,
        };
        let open = open || schema.is_some_and(|schema| schema.preserve_unknown);
        match (ty.atom(value), value) {
            (_, Value::Null) => {}
            (Atom::Scalar, _) => self.scalar(value, schema),
            (Atom::Map(fields), Value::Object(map)) => self.map(map, fields, open),
            (Atom::Map(_), other) => self.error(format_args!("expected map, got &{{{other}}}")),
            (Atom::List(list), Value::Array(items)) => self.list(items, list, schema, open),
            (Atom::List(_), other) => self.error(format_args!("expected list, got &{{{other}}}")),
        }
    }

    fn map(&mut self, map: &Map<String, Value>, fields: Fields<'_>, open: bool) {
        for (name, value) in map {
            let field = fields.field(name);
            self.path.push(PathElement::Field(name.clone()));
            if field.allowed || open {
                self.value(value, field.ty, open);
                self.path.pop();
            } else {
                self.error("field not declared in schema");
                self.path.pop();
                return;
            }
        }
    }

    fn list(&mut self, items: &[Value], list: List<'_>, schema: Option<&Schema>, open: bool) {
        let Some((keys, ty)) = list.parts() else {
            let Some(item_schema) = schema.and_then(|schema| schema.items.as_deref()) else { return };
            for (i, item) in items.iter().enumerate() {
                self.path.push(PathElement::Index(i as i64));
                self.value(item, Ty::Known(item_schema), open);
                self.path.pop();
            }
            return;
        };
        let mut seen = BTreeSet::new();
        for (i, item) in items.iter().enumerate() {
            let element = match keys.element(item) {
                Ok(element) => element,
                Err(e) => return self.error(format_args!("element {i}: {e}")),
            };
            if !seen.insert(element.clone()) {
                self.error(format_args!("duplicate entries for key {element}"));
            }
            self.path.push(element);
            self.value(item, ty, open);
            self.path.pop();
        }
    }

    fn scalar(&mut self, value: &Value, schema: Option<&Schema>) {
        let ty = schema.map_or(Type::Any, |schema| schema.ty);
        // Formats other than bytes stand for other Go types, which read from several JSON types.
        let plain = schema.and_then(|schema| schema.format.as_deref()).is_none_or(|format| format == "byte");
        match ty {
            Type::Integer | Type::Number if !value.is_number() => {
                self.error(format_args!("expected numeric (int or float), got {}", go_type(value)));
            }
            Type::String if plain && !value.is_string() => {
                self.error(format_args!("expected string, got &value.valueUnstructured{{Value:{value}}}"));
            }
            Type::Boolean if !value.is_boolean() => {
                self.error(format_args!("expected boolean, got &{{{}}}", go_text(value)));
            }
            _ if value.is_object() || value.is_array() => {
                self.error(format_args!("expected any scalar, got &{{{}}}", go_text(value)));
            }
            _ => {}
        }
    }
}

fn go_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}
