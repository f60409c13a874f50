//! One API server under load, and the namespaces that the load happens in.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use http::{Method, Request};
use kube::Client;
use serde_json::{Value, json};

use crate::client;

/// Namespaces are `tether-bench-0`, `-1`, …
const NAMESPACE: &str = "tether-bench";

/// An API server by its kubeconfig.
pub(crate) struct Target {
    pub name: String,
    pub client: Client,
    path: std::path::PathBuf,
}

impl Target {
    pub(crate) async fn open(kubeconfig: &Path) -> Result<Self> {
        let client = client::from_file(kubeconfig).await?;
        let version = client.apiserver_version().await.with_context(|| kubeconfig.display().to_string())?;
        Ok(Self { name: version.git_version, client, path: kubeconfig.to_owned() })
    }

    /// Another client with connections of its own, as another process would have.
    pub(crate) async fn another(&self) -> Result<Client> {
        client::from_file(&self.path).await
    }

    pub(crate) fn namespace(index: usize) -> String {
        format!("{NAMESPACE}-{index}")
    }

    pub(crate) fn configmaps(index: usize) -> String {
        format!("/api/v1/namespaces/{}/configmaps", Self::namespace(index))
    }

    /// Fresh namespaces.
    pub(crate) async fn reset(&self, namespaces: usize) -> Result<()> {
        for index in 0..namespaces {
            let name = Self::namespace(index);
            let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            let (code, answer) = call(&self.client, Method::POST, "/api/v1/namespaces", Some(&object)).await?;
            if code == 409 {
                bail!(
                    "namespace {name} exists already; remove what an earlier run left: kubectl delete namespace {name}"
                );
            }
            expect(code, &answer)?;
        }
        Ok(())
    }

    /// Removes the namespaces and what is in them. Without a controller that empties them they stay Terminating, so
    /// their content goes first.
    pub(crate) async fn remove(&self, namespaces: usize) -> Result<()> {
        for index in 0..namespaces {
            call(&self.client, Method::DELETE, &Self::configmaps(index), None).await?;
            let path = format!("/api/v1/namespaces/{}", Self::namespace(index));
            let (code, answer) = call(&self.client, Method::DELETE, &path, None).await?;
            expect(code, &answer)?;
        }
        Ok(())
    }
}

/// One request; code and body.
pub(crate) async fn call(client: &Client, method: Method, path: &str, body: Option<&Value>) -> Result<(u16, Value)> {
    let bytes = body.map(ToString::to_string).unwrap_or_default().into_bytes();
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json").body(bytes)?;
    let response = client.send(request.map(Into::into)).await?;
    let code = response.status().as_u16();
    let bytes = response.into_body().collect_bytes().await?;
    Ok((code, serde_json::from_slice(&bytes).unwrap_or_default()))
}

pub(crate) fn expect(code: u16, answer: &Value) -> Result<()> {
    if code >= 300 {
        bail!("the server answered {code}: {}", answer["message"].as_str().unwrap_or("no message"));
    }
    Ok(())
}

/// A ConfigMap of `size` bytes; `mark` finds its way to whoever watches.
pub(crate) fn configmap(name: &str, size: usize, mark: u128) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name},
        "data": {"mark": format!("@{mark}@"), "payload": "x".repeat(size)},
    })
}
