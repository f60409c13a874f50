//! Aggregated cluster roles show the rules that they gather. Decisions do not wait for it: they gather by themselves.

use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::auth::rbac::stale_aggregates;
use crate::bootstrap;
use crate::server::{Server, StoreObjects};
use crate::store::WatchQuery;

const CLUSTER_ROLES: &str = "clusterroles.rbac.authorization.k8s.io";

/// Writes back gathered rules whenever a cluster role changes, until cancelled.
pub async fn run(server: Server, cancel: CancellationToken) {
    let objects = StoreObjects::new(server.shared_store());
    loop {
        let from = server.store().revision();
        for (name, rules) in stale_aggregates(&objects) {
            let path = format!("/apis/rbac.authorization.k8s.io/v1/clusterroles/{name}");
            if let Err(error) = bootstrap::merge(&server, &path, &json!({"rules": rules})).await {
                tracing::warn!(%error, role = name, "the rules of an aggregated role could not be written");
            }
        }
        let query = WatchQuery { resource: CLUSTER_ROLES.to_owned(), namespace: None, from };
        let Ok(mut watch) = server.store().watch(query) else { return };
        tokio::select! {
            () = cancel.cancelled() => return,
            event = watch.next() => {
                if event.is_err() {
                    return;
                }
            }
        }
    }
}
