//! Version 3: one document for each group and version.

use serde_json::{Map, Value, json};

use super::Resource;
use super::paths::{self, Operation, PATCH_TYPES, Parameter};
use super::schemas::{Definitions, Dialect};

/// The document of a group and version; `resources` of other groups and versions are left out.
/// `server_version` is what `/version` says.
pub fn v3(group: &str, version: &str, resources: &[Resource], server_version: &str) -> Value {
    let own: Vec<&Resource> =
        resources.iter().filter(|resource| resource.group == group && resource.version == version).collect();
    let mut definitions = Definitions::new(Dialect::V3);
    for resource in &own {
        definitions.add(resource);
    }
    let mut all = Map::new();
    for path in paths::of_group(group, version, &own) {
        let mut item = Map::new();
        if !path.parameters.is_empty() {
            item.insert("parameters".to_owned(), path.parameters.iter().map(parameter).collect());
        }
        for op in &path.operations {
            item.insert(op.method.to_owned(), operation(op, &mut definitions));
        }
        all.insert(path.path, item.into());
    }
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": server_version},
        "paths": all,
        "components": {
            "schemas": definitions.finish(),
            "securitySchemes": {"BearerToken": {
                "type": "apiKey", "name": "authorization", "in": "header",
                "description": "Bearer Token authentication"}},
        },
    })
}

fn parameter(parameter: &Parameter) -> Value {
    let mut out = json!({
        "name": parameter.name,
        "in": if parameter.in_path { "path" } else { "query" },
        "description": parameter.description,
        "schema": {"type": parameter.ty, "uniqueItems": true},
    });
    if parameter.in_path {
        out["required"] = true.into();
    }
    out
}

fn operation(op: &Operation, definitions: &mut Definitions) -> Value {
    let mut out = paths::common(op);
    if !op.parameters.is_empty() {
        out["parameters"] = op.parameters.iter().map(parameter).collect();
    }
    if let Some((definition, required)) = &op.body {
        let schema = json!({"schema": definitions.refer(definition)});
        let types: &[&str] = if op.is_patch() { &PATCH_TYPES } else { &["*/*"] };
        let content: Map<String, Value> = types.iter().map(|ty| ((*ty).to_owned(), schema.clone())).collect();
        out["requestBody"] = json!({"content": content});
        if *required {
            out["requestBody"]["required"] = true.into();
        }
    }
    let (definition, codes) = &op.answer;
    let schema = definitions.refer(definition);
    let mut responses: Map<String, Value> = codes
        .iter()
        .map(|(code, text)| {
            let content = json!({"application/json": {"schema": schema}});
            ((*code).to_owned(), json!({"description": text, "content": content}))
        })
        .collect();
    responses.insert("401".to_owned(), json!({"description": "Unauthorized"}));
    out["responses"] = responses.into();
    out
}
