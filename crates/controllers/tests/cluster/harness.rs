//! A cluster in memory: API server, controllers, a clock that runs and can be moved forward.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, ServiceAccount};
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tether_apiserver::Server;
use tether_apiserver::auth::User;
use tether_controllers::Options;
use tether_controllers::clock::{Clock, ManualClock};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How long a test waits for what must happen before it gives up.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often the clock moves by itself, and by how much: retries and coalescing need time to pass.
const TICK: Duration = Duration::from_millis(5);

/// A running cluster; it ends when dropped.
pub(crate) struct Cluster {
    pub(crate) server: Server,
    pub(crate) client: Client,
    pub(crate) clock: ManualClock,
    pub(crate) stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        let mut cluster = Self::without_controllers().await;
        cluster.run_controllers(|_| {});
        // Pods need it, and the controllers make it.
        until(&cluster.in_default::<ServiceAccount>(), "default", "there", |_| true).await;
        cluster
    }

    pub(crate) async fn without_controllers() -> Self {
        // What the controllers say is shown with a failing test, as far as RUST_LOG asks for it.
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
        let clock = ManualClock::new(Timestamp::from_second(1_800_000_000).unwrap());
        let time = clock.clone();
        let server = Server::ephemeral_at(Arc::new(move || time.now()), Vec::new()).await;
        tether_apiserver::install(&server, &tether_crd::install::objects()).await.expect("a cluster for volumes");
        let client = server.client(User::new("admin", ["system:masters"]));
        let mut tasks = JoinSet::new();
        tasks.spawn({
            let clock = clock.clone();
            async move {
                loop {
                    tokio::time::sleep(TICK).await;
                    clock.advance(SignedDuration::try_from(TICK).unwrap());
                }
            }
        });
        Self { server, client, clock, stop: CancellationToken::new(), tasks }
    }

    /// Starts the controllers, with the rights that they have in a cluster.
    pub(crate) fn run_controllers(&mut self, set: impl FnOnce(&mut Options)) -> CancellationToken {
        let user = User::new("system:kube-controller-manager", ["system:authenticated"]);
        let mut options =
            Options { clock: Arc::new(self.clock.clone()), root_ca: Some("PEM".into()), ..Options::default() };
        set(&mut options);
        let stop = self.stop.child_token();
        let running = tether_controllers::run(self.server.client(user), options, stop.clone());
        self.tasks.spawn(async { running.await.unwrap() });
        stop
    }

    /// Runs something beside the cluster, as long as the cluster runs.
    pub(crate) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    pub(crate) fn all<K: Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    pub(crate) fn in_default<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), "default")
    }

    /// A node that is Ready and has a fresh Lease.
    pub(crate) async fn add_node(&self, name: &str) -> Node {
        let labels = json!({ "kubernetes.io/hostname": name });
        let node = json!({ "metadata": { "name": name, "labels": labels } });
        create(&self.all::<Node>(), node).await;
        self.beat(name).await;
        let status = json!({ "status": {
            "allocatable": { "cpu": "4", "memory": "8Gi", "pods": "10" },
            "capacity": { "cpu": "4", "memory": "8Gi", "pods": "10" },
        } });
        patch_status(&self.all::<Node>(), name, status).await;
        self.post_ready(name, "True").await
    }

    /// The node posts its status.
    pub(crate) async fn post_ready(&self, name: &str, ready: &str) -> Node {
        let now = self.clock.now().to_string();
        let condition = |kind: &str, status: &str| {
            json!({ "type": kind, "status": status, "reason": "Kubelet", "message": "",
                    "lastHeartbeatTime": now, "lastTransitionTime": now })
        };
        let conditions = json!([
            condition("MemoryPressure", "False"),
            condition("DiskPressure", "False"),
            condition("PIDPressure", "False"),
            condition("Ready", ready),
        ]);
        patch_status(&self.all::<Node>(), name, json!({ "status": { "conditions": conditions } })).await
    }

    /// The node renews its Lease.
    pub(crate) async fn beat(&self, node: &str) {
        use k8s_openapi::api::coordination::v1::Lease;
        let api: Api<Lease> = Api::namespaced(self.client.clone(), "kube-node-lease");
        let now = format!("{:.6}", self.clock.now());
        let spec = json!({ "holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": now });
        if api.get_opt(node).await.unwrap().is_some() {
            let patch = Patch::Merge(json!({ "spec": spec }));
            api.patch(node, &PatchParams::default(), &patch).await.unwrap();
        } else {
            create(&api, json!({ "metadata": { "name": node }, "spec": spec })).await;
        }
    }

    /// Time passes, and the nodes that are alive go on renewing their Leases.
    pub(crate) async fn pass(&self, seconds: i64, alive: &[&str]) {
        for _ in 0..seconds.div_euclid(10) {
            self.clock.advance(SignedDuration::from_secs(10));
            for node in alive {
                self.beat(node).await;
            }
        }
        self.clock.advance(SignedDuration::from_secs(seconds.rem_euclid(10)));
    }

    /// Waits for an event with this reason about an object of this name; returns what it says.
    pub(crate) async fn event(&self, reason: &str, about: &str) -> String {
        let api: Api<Event> = self.all();
        let found = async {
            loop {
                let events = api.list(&ListParams::default()).await.unwrap();
                let told = |e: &&Event| {
                    let name = e.regarding.as_ref().and_then(|r| r.name.as_deref());
                    e.reason.as_deref() == Some(reason) && name == Some(about)
                };
                if let Some(event) = events.items.iter().find(told) {
                    return event.note.clone().unwrap_or_default();
                }
                tokio::time::sleep(TICK).await;
            }
        };
        let found = tokio::time::timeout(PATIENCE, found).await;
        found.unwrap_or_else(|_| panic!("no event {reason} about {about}"))
    }
}

/// Lets everything that is on its way arrive: no write for a while of real time.
pub(crate) async fn settled(cluster: &Cluster) -> u64 {
    let mut revision = cluster.server.store().revision();
    let mut quiet = 0;
    while quiet < 40 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let now = cluster.server.store().revision();
        quiet = if now == revision { quiet + 1 } else { 0 };
        revision = now;
    }
    revision
}

/// Creates an object from JSON.
pub(crate) async fn create<K>(api: &Api<K>, object: Value) -> K
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + serde::Serialize + Debug,
{
    let mut object = object;
    object["apiVersion"] = json!(K::api_version(&()));
    object["kind"] = json!(K::kind(&()));
    let object: K = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap()
}

pub(crate) async fn patch<K>(api: &Api<K>, name: &str, body: Value) -> K
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    api.patch(name, &PatchParams::default(), &Patch::Merge(body)).await.unwrap()
}

pub(crate) async fn patch_status<K>(api: &Api<K>, name: &str, body: Value) -> K
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(body)).await.unwrap()
}

pub(crate) async fn delete<K>(api: &Api<K>, name: &str, params: DeleteParams)
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    api.delete(name, &params).await.unwrap();
}

/// Waits until the object is as wanted.
pub(crate) async fn until<K>(api: &Api<K>, name: &str, what: &str, wanted: impl Fn(&K) -> bool) -> K
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let waiting = await_condition(api.clone(), name, |object: Option<&K>| object.is_some_and(&wanted));
    let waited = tokio::time::timeout(PATIENCE, Box::pin(waiting)).await;
    let found = api.get_opt(name).await;
    waited.unwrap_or_else(|_| panic!("{name} never became {what}: {found:?}")).unwrap().unwrap()
}

/// Waits until the object is gone.
pub(crate) async fn until_gone<K>(api: &Api<K>, name: &str)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let waiting = await_condition(api.clone(), name, |object: Option<&K>| object.is_none());
    let waited = tokio::time::timeout(PATIENCE, Box::pin(waiting)).await;
    assert!(waited.is_ok(), "{name} never went: {:?}", api.get_opt(name).await);
}

/// A pod with one container.
pub(crate) fn pod(name: &str) -> Value {
    json!({ "metadata": { "name": name }, "spec": { "containers": [{ "name": "main", "image": "none" }] } })
}

/// A ConfigMap, owned or not.
pub(crate) fn owned(name: &str, owners: &Value) -> Value {
    json!({ "metadata": { "name": name, "ownerReferences": owners } })
}
