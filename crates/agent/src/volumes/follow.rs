//! Claims of volumes that are in use: a pod is looked at again when one of them is to grow.
//!
//! The embedded API server lets a node watch the claims of its pods, one by one. Kubernetes lets it only read them: there
//! the pod is looked at once in a while, as a kubelet does.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Weak;
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Client;
use kube::api::Api;
use kube::runtime::{WatchStreamExt as _, watcher};
use parking_lot::Mutex;
use tether_plan::kubelet::volume::{Wanted, awaits_node};
use tokio_util::task::AbortOnDropHandle;

use super::Volumes;

/// Between two looks where a claim cannot be watched; a kubelet looks at its pods as often.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// The claims that are followed, by the pod's uid and the claim's namespace and name.
#[derive(Default)]
pub(super) struct Followed(Mutex<BTreeMap<(String, String, String), AbortOnDropHandle<()>>>);

impl Followed {
    /// Follows the claims of a pod, until [`Followed::forget`].
    pub fn follow(&self, client: &Client, volumes: &Weak<Volumes>, pod: &str, wanted: &[Wanted]) {
        let mut followed = self.0.lock();
        for (namespace, claim) in wanted.iter().map(|wanted| &wanted.claim) {
            let key = (pod.to_owned(), namespace.clone(), claim.clone());
            followed.entry(key).or_insert_with(|| {
                let api = Api::namespaced(client.clone(), namespace);
                let task = follow(api, claim.clone(), volumes.clone(), pod.to_owned());
                AbortOnDropHandle::new(tokio::spawn(task))
            });
        }
    }

    pub fn forget(&self, pod: &str) {
        self.0.lock().retain(|(held, ..), _| held != pod);
    }
}

/// Tells of the pod whenever its claim waits for the node.
async fn follow(api: Api<PersistentVolumeClaim>, claim: String, volumes: Weak<Volumes>, pod: String) {
    let config = watcher::Config::default().fields(&format!("metadata.name={claim}"));
    let mut changes = pin!(watcher(api, config).default_backoff().applied_objects());
    while let Some(change) = changes.next().await {
        let tell = match change {
            Ok(claim) => awaits_node(&claim),
            Err(error) => {
                if is_forbidden(&error) {
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
                true
            }
        };
        let Some(volumes) = volumes.upgrade() else { return };
        if tell {
            volumes.tell([&pod]);
        }
    }
}

fn is_forbidden(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(kube::Error::Api(status))
    | watcher::Error::WatchStartFailed(kube::Error::Api(status))) = error
    else {
        return false;
    };
    status.code == 403
}
