//! Signs of life: a lease, renewed often and cheaply, and the node's status, written when it changes.

use std::path::Path;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::Options;
use crate::host::Available;
use crate::node::{Description, owner};

const LEASE_NAMESPACE: &str = "kube-node-lease";
/// A lease is renewed four times while it lasts, as a kubelet does: three renewals may be lost.
const RENEWALS: u32 = 4;
/// How often the status is looked at, and how long it may go unwritten although nothing changes.
const STATUS_CHECK: Duration = Duration::from_secs(10);
const STATUS_REPORT: SignedDuration = SignedDuration::from_mins(5);
/// A request that takes longer than this has missed its turn.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// After a failure the next attempt comes sooner than the next turn.
const RETRY: Duration = Duration::from_secs(1);

/// Renews the node's lease until `cancel`.
pub(crate) async fn keep_lease(client: &Client, options: &Options, node: Node, cancel: &CancellationToken) {
    let (name, lasts) = (options.name.as_str(), options.lease_duration);
    let leases: Api<Lease> = Api::namespaced(client.clone(), LEASE_NAMESPACE);
    let mut last = None;
    loop {
        let renewed = within_timeout(renew(&leases, name, lasts, &node, last.take())).await;
        let pause = match renewed {
            Ok(lease) => {
                last = Some(lease);
                lasts / RENEWALS
            }
            Err(error) => {
                tracing::warn!(%error, "cannot renew the node's lease");
                RETRY
            }
        };
        if pause_or_cancel(pause, cancel).await {
            return;
        }
    }
}

/// Renews `last`; without it, whatever lease the server has, or a new one.
async fn renew(
    leases: &Api<Lease>,
    name: &str,
    lasts: Duration,
    node: &Node,
    last: Option<Lease>,
) -> kube::Result<Lease> {
    let found = match last {
        Some(lease) => Some(lease),
        None => leases.get_opt(name).await?,
    };
    let spec = LeaseSpec {
        holder_identity: Some(name.to_owned()),
        lease_duration_seconds: i32::try_from(lasts.as_secs().max(1)).ok(),
        renew_time: Some(MicroTime(Timestamp::now())),
        ..Default::default()
    };
    if let Some(lease) = found {
        return leases.replace(name, &PostParams::default(), &Lease { spec: Some(spec), ..lease }).await;
    }
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(LEASE_NAMESPACE.to_owned()),
        owner_references: Some(vec![owner(node)]),
        ..Default::default()
    };
    leases.create(&PostParams::default(), &Lease { metadata, spec: Some(spec) }).await
}

/// Writes the node's status when it changes, and from time to time, until `cancel`. Calls `ready` after the first
/// write that was acknowledged.
pub(crate) async fn keep_status(
    client: &Client,
    node: &Description,
    data_dir: &Path,
    ready: impl FnOnce(),
    cancel: &CancellationToken,
) {
    let nodes: Api<Node> = Api::all(client.clone());
    let mut ready = Some(ready);
    let mut last_report = None;
    loop {
        let pause = match within_timeout(report(&nodes, node, data_dir, &mut last_report)).await {
            Ok(()) => {
                if let Some(ready) = ready.take() {
                    ready();
                }
                STATUS_CHECK
            }
            Err(error) => {
                tracing::warn!(%error, "cannot report the node's status");
                RETRY
            }
        };
        if pause_or_cancel(pause, cancel).await {
            return;
        }
    }
}

async fn report(
    nodes: &Api<Node>,
    node: &Description,
    data_dir: &Path,
    last_report: &mut Option<Timestamp>,
) -> kube::Result<()> {
    let available = Available::read(data_dir).inspect_err(|error| tracing::warn!(%error, "free space is unknown")).ok();
    let old = nodes.get(&node.name).await?.status.unwrap_or_default();
    let now = Timestamp::now();
    let new = node.status(available, old.conditions.as_deref().unwrap_or_default(), now);
    let due = last_report.is_none_or(|last| now.duration_since(last) >= STATUS_REPORT);
    if !due && !differs(&old, &new) {
        return Ok(());
    }
    // A strategic patch merges conditions by type: those of other writers stay.
    let patch = Patch::Strategic(json!({"status": new}));
    nodes.patch_status(&node.name, &PatchParams::default(), &patch).await?;
    *last_report = Some(now);
    Ok(())
}

/// Whether the server's status lacks something of ours, apart from the time of the heartbeat.
fn differs(old: &NodeStatus, new: &NodeStatus) -> bool {
    let timeless = |condition: &NodeCondition| NodeCondition { last_heartbeat_time: None, ..condition.clone() };
    let known: Vec<_> = old.conditions.iter().flatten().map(timeless).collect();
    let told = new.conditions.iter().flatten().all(|condition| known.contains(&timeless(condition)));
    !told
        || old.addresses != new.addresses
        || old.capacity != new.capacity
        || old.allocatable != new.allocatable
        || old.node_info != new.node_info
        || old.daemon_endpoints != new.daemon_endpoints
}

async fn within_timeout<T>(request: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
        Ok(done) => done,
        Err(elapsed) => Err(kube::Error::Service(Box::new(elapsed))),
    }
}

/// Waits; true if it was cancelled meanwhile.
async fn pause_or_cancel(pause: Duration, cancel: &CancellationToken) -> bool {
    tokio::time::timeout(pause, cancel.cancelled()).await.is_ok()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn status(conditions: &[(&str, &str, i64)]) -> NodeStatus {
        let time = |second: i64| Some(Time(Timestamp::from_second(second).unwrap()));
        let condition = |(kind, status, heartbeat): &(&str, &str, i64)| NodeCondition {
            type_: (*kind).into(),
            status: (*status).into(),
            last_heartbeat_time: time(*heartbeat),
            last_transition_time: time(0),
            ..Default::default()
        };
        NodeStatus { conditions: Some(conditions.iter().map(condition).collect()), ..Default::default() }
    }

    #[test]
    fn only_news_are_written() {
        let ours = status(&[("Ready", "True", 60)]);
        assert!(!differs(&status(&[("Ready", "True", 0)]), &ours), "a heartbeat is no news");
        assert!(!differs(&status(&[("Ready", "True", 0), ("NetworkUnavailable", "False", 0)]), &ours));
        assert!(differs(&status(&[("Ready", "Unknown", 0)]), &ours), "the node was given up, and is here");
        assert!(differs(&status(&[]), &ours));
    }
}
