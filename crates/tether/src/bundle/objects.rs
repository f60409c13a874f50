//! Every object of every kind that the server can list, as YAML, without secrets.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::ApiResource;
use kube::discovery::{Discovery, verbs};
use serde_json::{Value, json};

use super::scrub;
use crate::client;

/// Objects per request.
const PAGE: u32 = 500;
/// For all of them together: whoever asks for help does not want to wait for a server that hangs.
const LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Collected {
    /// Path below `objects/`, and text.
    pub(super) files: Vec<(String, String)>,
    pub(super) missing: Vec<String>,
}

pub(super) async fn collect(kubeconfig: &Path) -> Result<Collected> {
    tokio::time::timeout(LIMIT, collect_all(kubeconfig)).await.context("the API server takes too long")?
}

async fn collect_all(kubeconfig: &Path) -> Result<Collected> {
    let client = client::from_file(kubeconfig, "tether-support-bundle").await?;
    let discovery = Discovery::new(client.clone()).run().await.context("the API server does not answer")?;
    let mut collected = Collected::default();
    for group in discovery.groups() {
        for (resource, capabilities) in group.recommended_resources() {
            if !capabilities.supports_operation(verbs::LIST) {
                continue;
            }
            let folder = if group.name().is_empty() { "core" } else { group.name() };
            let path = format!("{folder}/{}.yaml", resource.plural);
            match list(&client, &resource).await {
                Ok(list) => collected.files.push((path, serde_yaml_ng::to_string(&list)?)),
                Err(error) => collected.missing.push(format!("objects/{path}: {error:#}")),
            }
        }
    }
    Ok(collected)
}

async fn list(client: &kube::Client, resource: &ApiResource) -> Result<Value> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), resource);
    let mut items = Vec::new();
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = api.list(&params).await?;
        for mut item in page.items {
            // Items of a list do not say what they are.
            item.types.get_or_insert(kube::core::TypeMeta {
                api_version: resource.api_version.clone(),
                kind: resource.kind.clone(),
            });
            let mut item = serde_json::to_value(item)?;
            scrub::object(&mut item);
            items.push(item);
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = ListParams::default().limit(PAGE).continue_token(&token),
            None => return Ok(json!({"apiVersion": "v1", "kind": "List", "items": items})),
        }
    }
}
