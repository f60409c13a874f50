//! What the supervisor says at a Node about its agent while the agent cannot.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use crate::client;

/// The agent will be back soon and then says so itself; what takes longer than this is not worth saying.
const LIMIT: Duration = Duration::from_secs(5);

/// Sets the condition AgentRunning of the node to False. The Ready condition is left to Kubernetes' own rule (a
/// lease that is not renewed): an agent that is back within a second has harmed nobody.
pub(super) async fn agent_down(kubeconfig: PathBuf, node: String, message: String) {
    let told = tokio::time::timeout(LIMIT, tell(kubeconfig, &node, message)).await;
    match told {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!("cannot set the condition of {node}: {error:#}"),
        Err(_) => tracing::warn!("cannot set the condition of {node} within {LIMIT:?}"),
    }
}

async fn tell(kubeconfig: PathBuf, node: &str, message: String) -> Result<()> {
    let nodes: Api<Node> = Api::all(client::from_file(&kubeconfig, "tether-up").await?);
    let now = Some(Time(Timestamp::now()));
    let condition = NodeCondition {
        type_: "AgentRunning".into(),
        status: "False".into(),
        reason: Some("AgentExited".into()),
        message: Some(message),
        last_heartbeat_time: now.clone(),
        last_transition_time: now,
    };
    let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
    nodes.patch_status(node, &PatchParams::default(), &patch).await?;
    Ok(())
}
