//! One API server under load, and the namespaces that the load happens in.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use http::{Method, Request};
use kube::Client;
use serde_json::{Value, json};

use crate::client;

/// How long namespaces of an earlier run may take to go.
const GOING: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// A family of namespaces: `tether-bench-load-0`, `-1`, … Each test has its own, because what one leaves goes slowly.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Namespaces {
    pub family: &'static str,
    pub count: usize,
}

impl Namespaces {
    pub(crate) fn name(self, index: usize) -> String {
        format!("tether-bench-{}-{index}", self.family)
    }

    pub(crate) fn configmaps(self, index: usize) -> String {
        format!("/api/v1/namespaces/{}/configmaps", self.name(index))
    }
}

/// An API server by its kubeconfig.
pub(crate) struct Target {
    pub name: String,
    pub client: Client,
    path: std::path::PathBuf,
}

impl Target {
    pub(crate) async fn open(kubeconfig: &Path) -> Result<Self> {
        let client = client::from_file(kubeconfig, "tether-bench").await?;
        let version = client.apiserver_version().await.with_context(|| kubeconfig.display().to_string())?;
        Ok(Self { name: version.git_version, client, path: kubeconfig.to_owned() })
    }

    /// Another client with connections of its own, as another process would have.
    pub(crate) async fn another(&self) -> Result<Client> {
        client::from_file(&self.path, "tether-bench").await
    }

    /// Fresh namespaces; what an earlier run left is waited for while it goes.
    pub(crate) async fn create(&self, namespaces: Namespaces) -> Result<()> {
        let deadline = Instant::now() + GOING;
        for index in 0..namespaces.count {
            let name = namespaces.name(index);
            let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            loop {
                let (code, answer) = call(&self.client, Method::POST, "/api/v1/namespaces", Some(&object)).await?;
                if code != 409 {
                    expect(code, &answer)?;
                    break;
                }
                if Instant::now() > deadline {
                    bail!("namespace {name} exists; remove what an earlier run left: kubectl delete namespace {name}");
                }
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        }
        Ok(())
    }

    /// Removes the namespaces and what is in them. Without a controller that empties them they stay Terminating, so
    /// their content goes first.
    pub(crate) async fn remove(&self, namespaces: Namespaces) -> Result<()> {
        for index in 0..namespaces.count {
            call(&self.client, Method::DELETE, &namespaces.configmaps(index), None).await?;
            let path = format!("/api/v1/namespaces/{}", namespaces.name(index));
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
