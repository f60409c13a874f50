//! The shapes in which objects leave the server: whole, as a table for people, or as metadata only.

use http::{Response, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};
use tether_machinery::status::ApiError;
use tether_machinery::table::{self, IncludeObject, Printer};

use super::Context;
use super::list::{Page, list_meta};
use crate::resource::Resource;
use crate::response::{self, Body, View};

/// What a table carries besides its cells.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    pub table: table::Options,
    pub now: Timestamp,
}

impl Options {
    pub(super) fn parse(cx: &Context<'_>) -> Result<Self, ApiError> {
        let text = cx.query.get("includeObject").unwrap_or_default();
        let include = IncludeObject::parse(text).ok_or_else(|| {
            let allowed = "supported values: \"Metadata\", \"None\", \"Object\"";
            ApiError::bad_request(format!("includeObject: Unsupported value: {text:?}: {allowed}"))
        })?;
        Ok(Self { table: table::Options { include, headers: true }, now: cx.server.now() })
    }
}

/// One object in the shape that the request asks for.
pub(super) fn object(cx: &Context<'_>, status: StatusCode, object: Value) -> Result<Response<Body>, ApiError> {
    let shown = match cx.accepted.view {
        View::Object => object,
        other if cx.info.subresource == "scale" => one(&Printer::scale(), other, &Options::parse(cx)?, &object),
        other => one(&cx.resource.printer, other, &Options::parse(cx)?, &object),
    };
    render(cx, status, &shown)
}

/// One object as a table or as metadata.
pub(super) fn one(printer: &Printer, view: View, options: &Options, object: &Value) -> Value {
    match view {
        View::Object => object.clone(),
        View::Metadata => table::partial_metadata(object),
        View::Table => {
            let meta = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
            printer.table([object], &meta, options.now, options.table)
        }
    }
}

/// A page in the shape that the request asks for.
pub(super) fn list(cx: &Context<'_>, page: &Page) -> Result<Response<Body>, ApiError> {
    let meta = list_meta(page);
    let mut objects: Vec<Value> = page.entries.iter().map(|entry| cx.resource.read(entry)).collect();
    let shown = match cx.accepted.view {
        View::Object => {
            if !cx.resource.is_custom() {
                objects.iter_mut().filter_map(Value::as_object_mut).for_each(|item| {
                    item.remove("apiVersion");
                    item.remove("kind");
                });
            }
            let (kind, api_version) = (&cx.resource.list_kind, cx.resource.api_version());
            json!({"kind": kind, "apiVersion": api_version, "metadata": meta, "items": objects})
        }
        View::Metadata => json!({
            "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": meta,
            "items": objects.iter().map(table::partial_metadata).collect::<Vec<_>>(),
        }),
        View::Table => {
            let options = Options::parse(cx)?;
            cx.resource.printer.table(&objects, &meta, options.now, options.table)
        }
    };
    render(cx, StatusCode::OK, &shown)
}

/// A table with one empty row, for a bookmark.
pub(super) fn bookmark_table(resource: &Resource, metadata: &Value) -> Value {
    let object = json!({"kind": resource.kind, "apiVersion": resource.api_version(), "metadata": metadata});
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": [],
        "rows": [{"cells": [], "object": table::partial_metadata(&object)}],
    })
}

fn render(cx: &Context<'_>, status: StatusCode, value: &Value) -> Result<Response<Body>, ApiError> {
    if !cx.accepted.yaml {
        return Ok(response::json(status, value));
    }
    let text = serde_yaml_ng::to_string(value).map_err(ApiError::internal)?;
    let mut response = response::document("application/yaml", text);
    *response.status_mut() = status;
    Ok(response)
}
