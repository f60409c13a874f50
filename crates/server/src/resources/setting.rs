//! Settings.

use kube::Client;
use kube::api::{Patch, PatchParams};
use serde_json::{Map, Value, json};
use tether_crd::Setting;
use tether_crd::settings::{ALL, default_value};

use super::{Links, all, api, one};
use crate::error::RequestError;

pub(crate) async fn list(client: &Client, links: &Links) -> Result<Vec<Value>, RequestError> {
    Ok(all::<Setting>(client, "").await?.iter().map(|setting| resource(links, setting)).collect())
}

pub(crate) async fn get(client: &Client, links: &Links, name: &str) -> Result<Value, RequestError> {
    Ok(resource(links, &one(client, "setting", name).await?))
}

pub(crate) async fn update(client: &Client, name: &str, body: &Map<String, Value>) -> Result<(), RequestError> {
    let Some(value) = body.get("value").and_then(Value::as_str) else {
        return Err(RequestError::Body("value: a text is needed".to_owned()));
    };
    one::<Setting>(client, "setting", name).await?;
    let patch = Patch::Merge(json!({"value": value}));
    api::<Setting>(client).patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

fn resource(links: &Links, setting: &Setting) -> Value {
    let name = setting.metadata.name.as_deref().unwrap_or_default();
    let description = ALL.iter().find(|(known, ..)| *known == name).map_or("", |(_, _, words)| words.trim());
    let default = default_value(name);
    let kind = match default {
        "true" | "false" => "bool",
        number if number.parse::<i64>().is_ok() => "int",
        _ => "string",
    };
    let definition = json!({
        "displayName": name, "description": description, "category": "general", "type": kind, "required": !default.is_empty(),
        "readOnly": false, "default": default, "options": [],
    });
    // Every setting is in force as soon as it is written.
    let fields = json!({"name": name, "value": setting.value, "applied": true, "definition": definition});
    links.member("setting", "settings", name, &[], fields)
}
