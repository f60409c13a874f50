//! Version 2: one document of everything.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::Resource;
use super::paths::{self, Operation, PATCH_TYPES, Parameter};
use super::schemas::{Definitions, Dialect};

/// The document of all resources; `server_version` is what `/version` says.
pub fn v2(resources: &[Resource], server_version: &str) -> Value {
    let mut definitions = Definitions::new(Dialect::V2);
    let mut all = Map::new();
    let groups: BTreeSet<(&str, &str)> = resources.iter().map(|r| (r.group.as_str(), r.version.as_str())).collect();
    for (group, version) in groups {
        let own: Vec<&Resource> = resources.iter().filter(|r| r.group == group && r.version == version).collect();
        for resource in &own {
            definitions.add(resource);
        }
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
    }
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": server_version},
        "paths": all,
        "definitions": definitions.finish(),
        "securityDefinitions": {"BearerToken": {
            "type": "apiKey", "name": "authorization", "in": "header",
            "description": "Bearer Token authentication"}},
        "security": [{"BearerToken": []}],
    })
}

fn parameter(parameter: &Parameter) -> Value {
    let mut out = json!({
        "name": parameter.name,
        "in": if parameter.in_path { "path" } else { "query" },
        "description": parameter.description,
        "type": parameter.ty,
        "uniqueItems": true,
    });
    if parameter.in_path {
        out["required"] = true.into();
    }
    out
}

fn operation(op: &Operation, definitions: &mut Definitions) -> Value {
    let mut out = paths::common(op);
    let consumes: &[&str] = if op.is_patch() { &PATCH_TYPES } else { &["*/*"] };
    out["consumes"] = consumes.to_vec().into();
    out["produces"] = json!(["application/json"]);
    out["schemes"] = json!(["https"]);
    let mut parameters: Vec<Value> = op.parameters.iter().map(parameter).collect();
    if let Some((definition, required)) = &op.body {
        let mut body = json!({"name": "body", "in": "body", "schema": definitions.refer(definition)});
        if *required {
            body["required"] = true.into();
        }
        parameters.insert(0, body);
    }
    if !parameters.is_empty() {
        out["parameters"] = parameters.into();
    }
    let (definition, codes) = &op.answer;
    let schema = definitions.refer(definition);
    let mut responses: Map<String, Value> =
        codes.iter().map(|(code, text)| ((*code).to_owned(), json!({"description": text, "schema": schema}))).collect();
    responses.insert("401".to_owned(), json!({"description": "Unauthorized"}));
    out["responses"] = responses.into();
    out
}
