//! Claims of volumes that are in use: a pod is looked at again when one of them is to grow.
//!
//! The embedded API server lets a node watch the claims of its pods, one by one. Kubernetes lets it only read them: there
//! each is read once in a while, as a kubelet does. Which of the two it is, the first claim tells.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Client;
use kube::api::{Api, ListParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use parking_lot::Mutex;
use tether_plan::kubelet::volume::{Wanted, awaits_node};
use tokio_util::task::AbortOnDropHandle;

use super::Volumes;

/// Between two looks where a claim cannot be watched; a kubelet looks at its pods as often.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// The claims that are followed, by the pod's uid and the claim's namespace and name.
#[derive(Default)]
pub(super) struct Followed {
    tasks: Mutex<BTreeMap<(String, String, String), AbortOnDropHandle<()>>>,
    watching: Arc<Watching>,
}

impl Followed {
    /// Follows the claims of a pod, until [`Followed::forget`].
    pub fn follow(&self, client: &Client, volumes: &Weak<Volumes>, pod: &str, wanted: &[Wanted]) {
        let mut followed = self.tasks.lock();
        for (namespace, claim) in wanted.iter().map(|wanted| &wanted.claim) {
            let key = (pod.to_owned(), namespace.clone(), claim.clone());
            followed.entry(key).or_insert_with(|| {
                let api = Api::namespaced(client.clone(), namespace);
                let (volumes, pod) = (volumes.clone(), pod.to_owned());
                let tell = move || {
                    if let Some(volumes) = volumes.upgrade() {
                        volumes.tell([&pod]);
                    }
                };
                AbortOnDropHandle::new(tokio::spawn(follow(api, claim.clone(), self.watching.clone(), tell)))
            });
        }
    }

    pub fn forget(&self, pod: &str) {
        self.tasks.lock().retain(|(held, ..), _| held != pod);
    }
}

/// Whether the server lets a node watch claims, once that is known. It is the same for all of them, and as long as this
/// process lives.
struct Watching {
    known: OnceLock<bool>,
    /// How often a claim is looked at if not.
    look_again: Duration,
}

impl Default for Watching {
    fn default() -> Self {
        Self { known: OnceLock::new(), look_again: LOOK_AGAIN }
    }
}

impl Watching {
    /// Whether to watch this claim.
    async fn may(&self, api: &Api<PersistentVolumeClaim>, claim: &str) -> bool {
        if let Some(known) = self.known.get() {
            return *known;
        }
        match api.list(&ListParams::default().fields(&only(claim))).await {
            Err(kube::Error::Api(status)) if status.code == 403 => {}
            Ok(_) => return *self.known.get_or_init(|| true),
            // Not an answer to this question; a watcher has patience of its own.
            Err(_) => return true,
        }
        // The server may only not have seen yet whose claim it is; if it lets the node read it, it has.
        if api.get(claim).await.is_ok() && self.known.set(false).is_ok() {
            tracing::info!("nodes may read claims here and not watch them: each is looked at once a minute");
        }
        false
    }
}

fn only(claim: &str) -> String {
    format!("metadata.name={claim}")
}

/// Tells whenever the claim waits for the node.
async fn follow(api: Api<PersistentVolumeClaim>, claim: String, watching: Arc<Watching>, tell: impl Fn()) {
    loop {
        if watching.may(&api, &claim).await {
            watch(&api, &claim, &tell).await;
        }
        tokio::time::sleep(watching.look_again).await;
        match api.get_opt(&claim).await {
            Ok(Some(found)) if awaits_node(&found) => tell(),
            Ok(_) => {}
            // Whoever looks at the pod finds out.
            Err(_) => tell(),
        }
    }
}

/// Until the server refuses it.
async fn watch(api: &Api<PersistentVolumeClaim>, claim: &str, tell: &impl Fn()) {
    let config = watcher::Config::default().fields(&only(claim));
    let mut changes = pin!(watcher(api.clone(), config).default_backoff().applied_objects());
    while let Some(change) = changes.next().await {
        match change {
            Ok(claim) if !awaits_node(&claim) => {}
            Err(error) if is_forbidden(&error) => return,
            _ => tell(),
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    /// A server that lets claims be read only, as Kubernetes' does: what it was asked, and what claims are like.
    #[derive(Default)]
    struct ReadOnly {
        asked: Mutex<Vec<String>>,
        waits: Mutex<Vec<&'static str>>,
        /// Claims that it does not know yet to be this node's.
        unknown: Mutex<Vec<&'static str>>,
    }

    impl ReadOnly {
        fn client(self: &Arc<Self>) -> Client {
            let server = self.clone();
            let service = tower::service_fn(move |request: Request<Body>| {
                let answer = server.answer(&request);
                async move { Ok::<_, tower::BoxError>(answer) }
            });
            Client::new(service, "default")
        }

        fn answer(&self, request: &Request<Body>) -> Response<Body> {
            let (_, name) = request.uri().path().rsplit_once('/').unwrap();
            let is_list = name == "persistentvolumeclaims";
            self.asked.lock().push(if is_list { "list".to_owned() } else { format!("get {name}") });
            if is_list || self.unknown.lock().contains(&name) {
                let status = json!({ "kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden",
                                     "message": "can only get individual resources of this type" });
                return body(403, &status);
            }
            let waits = self.waits.lock().contains(&name);
            let conditions = json!([{ "type": "FileSystemResizePending", "status": "True" }]);
            let status = if waits { json!({ "conditions": conditions }) } else { json!({}) };
            body(
                200,
                &json!({ "kind": "PersistentVolumeClaim", "apiVersion": "v1", "metadata": { "name": name },
                               "spec": {}, "status": status }),
            )
        }
    }

    fn body(code: u16, value: &Value) -> Response<Body> {
        Response::builder().status(code).body(value.to_string().into_bytes().into()).unwrap()
    }

    fn start(
        server: &Arc<ReadOnly>,
        watching: &Arc<Watching>,
        claim: &str,
    ) -> (AbortOnDropHandle<()>, Arc<AtomicUsize>) {
        let told = Arc::new(AtomicUsize::new(0));
        let (api, counted) = (Api::namespaced(server.client(), "default"), told.clone());
        let tell = move || {
            counted.fetch_add(1, Ordering::Relaxed);
        };
        (AbortOnDropHandle::new(tokio::spawn(follow(api, claim.to_owned(), watching.clone(), tell))), told)
    }

    /// Short, so that many looks fit into a test.
    fn hasty() -> Arc<Watching> {
        Arc::new(Watching { look_again: Duration::from_millis(20), ..Watching::default() })
    }

    async fn until(what: &str, is_so: impl Fn() -> bool) {
        for _ in 0..2_000 {
            if is_so() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("never: {what}");
    }

    #[tokio::test]
    async fn where_claims_cannot_be_watched_that_is_found_out_once_and_they_are_read() {
        let (server, watching) = (Arc::new(ReadOnly::default()), hasty());
        let (_first, told_first) = start(&server, &watching, "first");
        until("the first is looked at", || server.asked.lock().len() >= 4).await;
        let (_second, told_second) = start(&server, &watching, "second");
        let reads = |name: &str| server.asked.lock().iter().filter(|asked| **asked == format!("get {name}")).count();
        until("both are looked at", || reads("first") >= 5 && reads("second") >= 3).await;
        assert_eq!(
            server.asked.lock().iter().filter(|asked| *asked == "list").count(),
            1,
            "what is refused is asked once"
        );
        assert_eq!((told_first.load(Ordering::Relaxed), told_second.load(Ordering::Relaxed)), (0, 0));
        server.waits.lock().push("second");
        until("it is told", || told_second.load(Ordering::Relaxed) > 0).await;
        assert_eq!(told_first.load(Ordering::Relaxed), 0);
    }

    /// A refusal that comes before the server has seen whose claim it is says nothing about watching.
    #[tokio::test]
    async fn a_claim_that_cannot_even_be_read_decides_nothing() {
        let (server, watching) = (Arc::new(ReadOnly::default()), hasty());
        server.unknown.lock().push("new");
        let (_task, told) = start(&server, &watching, "new");
        // Whoever looks at the pod finds out.
        until("it is told", || told.load(Ordering::Relaxed) > 0).await;
        assert_eq!(watching.known.get(), None);
    }
}
