//! Server-side printing: objects as the rows of a `meta.k8s.io/v1` Table.
//!
//! A [`Printer`] knows the columns of one kind and how to fill them. kubectl prints the cells as they
//! come, so they are worded exactly as Kubernetes words them. Columns of priority 1 are part of every
//! answer; the client shows them with `-o wide` only.

mod builtin;
mod duration;
mod jsonpath;
mod pod;

use jiff::Timestamp;
use serde_json::{Value, json};

pub use duration::human as human_duration;
pub use jsonpath::{JsonPath, ParseError};

use crate::crd::PrinterColumn;
use crate::kinds::Kind;
use crate::kinds::edit::text;

/// How a row carries its object (`includeObject`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum IncludeObject {
    None,
    #[default]
    Metadata,
    Object,
}

impl IncludeObject {
    /// The query parameter; absent and empty mean metadata. `None` for a word that is not one of the three.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "None" => Some(Self::None),
            "" | "Metadata" => Some(Self::Metadata),
            "Object" => Some(Self::Object),
            _ => None,
        }
    }
}

/// What a request says about the table it wants.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub include: IncludeObject,
    /// Column definitions are sent with the first table of a watch only.
    pub headers: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { include: IncludeObject::default(), headers: true }
    }
}

/// A column as the client sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    pub name: String,
    /// `string`, `integer`, `number`, `boolean` or `date`.
    pub ty: String,
    pub format: String,
    pub description: String,
    /// 0 is always shown, more only when there is room.
    pub priority: i64,
}

impl Column {
    fn to_json(&self) -> Value {
        json!({
            "name": self.name, "type": self.ty, "format": self.format,
            "description": self.description, "priority": self.priority,
        })
    }
}

/// The cells of one object, and what the row says about it besides.
struct Row {
    cells: Vec<Value>,
    conditions: Vec<Value>,
}

impl Row {
    fn new(cells: Vec<Value>) -> Self {
        Self { cells, conditions: Vec::new() }
    }
}

enum Cells {
    Builtin(fn(&Value, Timestamp) -> Row),
    Custom(Vec<JsonPath>),
}

/// Prints the objects of one kind.
pub struct Printer {
    columns: Vec<Column>,
    cells: Cells,
}

impl Printer {
    /// The printer of a built-in kind.
    pub fn builtin(kind: &Kind) -> Self {
        let (columns, cells) = builtin::printer(kind);
        Self { columns, cells: Cells::Builtin(cells) }
    }

    /// The printer of a custom resource, from its version's `additionalPrinterColumns`; without any, the
    /// age is shown.
    pub fn custom(definitions: &[PrinterColumn]) -> Result<Self, ParseError> {
        let age = [PrinterColumn {
            name: "Age".to_owned(),
            ty: "date".to_owned(),
            json_path: ".metadata.creationTimestamp".to_owned(),
            description: builtin::AGE_DESCRIPTION.to_owned(),
            ..PrinterColumn::default()
        }];
        let definitions = if definitions.is_empty() { &age } else { definitions };
        let mut columns = vec![builtin::name_column()];
        let mut paths = Vec::new();
        for definition in definitions {
            let path = &definition.json_path;
            columns.push(Column {
                name: definition.name.clone(),
                ty: definition.ty.clone(),
                format: definition.format.clone(),
                description: match definition.description.as_str() {
                    "" => format!("Custom resource definition column (in JSONPath format): {path}"),
                    described => described.to_owned(),
                },
                priority: definition.priority,
            });
            paths.push(JsonPath::parse(path)?);
        }
        Ok(Self { columns, cells: Cells::Custom(paths) })
    }

    /// The printer of an `autoscaling/v1` Scale, which is what the scale subresource of any kind is.
    pub fn scale() -> Self {
        let column = |name: &str, ty: &str, json_path: &str, description: &str| PrinterColumn {
            name: name.to_owned(),
            ty: ty.to_owned(),
            json_path: json_path.to_owned(),
            description: description.to_owned(),
            ..PrinterColumn::default()
        };
        let columns = [
            column("Desired", "integer", ".spec.replicas", "Replicas that are wished for."),
            column("Available", "integer", ".status.replicas", "Replicas that there are."),
            column("Age", "date", ".metadata.creationTimestamp", builtin::AGE_DESCRIPTION),
        ];
        Self::custom(&columns).expect("the paths of these columns must parse")
    }

    /// The columns, the object's name first.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// A Table of `objects`. `metadata` is the list's (or for a single object its resourceVersion).
    pub fn table<'a>(
        &self,
        objects: impl IntoIterator<Item = &'a Value>,
        metadata: &Value,
        now: Timestamp,
        options: Options,
    ) -> Value {
        let columns = if options.headers { self.columns.iter().map(Column::to_json).collect() } else { Value::Null };
        let rows: Vec<Value> = objects.into_iter().map(|o| self.row(o, now, options.include)).collect();
        json!({
            "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
            "columnDefinitions": columns, "rows": rows,
        })
    }

    fn row(&self, object: &Value, now: Timestamp, include: IncludeObject) -> Value {
        let row = match &self.cells {
            Cells::Builtin(cells) => cells(object, now),
            Cells::Custom(paths) => self.custom_row(paths, object, now),
        };
        let shown = match include {
            IncludeObject::None => Value::Null,
            IncludeObject::Metadata => partial_metadata(object),
            IncludeObject::Object => object.clone(),
        };
        let mut json = json!({"cells": row.cells, "object": shown});
        if !row.conditions.is_empty() {
            json["conditions"] = row.conditions.into();
        }
        json
    }

    fn custom_row(&self, paths: &[JsonPath], object: &Value, now: Timestamp) -> Row {
        let name = Value::from(text(object, "/metadata/name"));
        let values =
            self.columns.iter().skip(1).zip(paths).map(|(column, path)| {
                path.first(object).map_or(Value::Null, |value| custom_cell(&column.ty, value, now))
            });
        Row::new(std::iter::once(name).chain(values).collect())
    }
}

/// An object reduced to its metadata, as `PartialObjectMetadata`.
pub fn partial_metadata(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": object.get("metadata").cloned().unwrap_or_else(|| json!({})),
    })
}

/// A value under a column of type `ty`; null where the two do not fit.
fn custom_cell(ty: &str, value: &Value, now: Timestamp) -> Value {
    match (ty, value) {
        ("string", value) => jsonpath::print(value).into(),
        ("integer", Value::Number(n)) => match n.as_i64() {
            Some(i) => i.into(),
            None => n.as_f64().map(|f| f as i64).into(),
        },
        ("number", Value::Number(n)) => n.as_f64().into(),
        ("boolean", Value::Bool(b)) => (*b).into(),
        ("date", Value::String(at)) if at.is_empty() || at == "null" => duration::UNKNOWN.into(),
        ("date", Value::String(at)) => match at.parse::<Timestamp>() {
            Ok(at) => duration::human(now.duration_since(at)).into(),
            Err(_) => "<invalid>".into(),
        },
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests;
