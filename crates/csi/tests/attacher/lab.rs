//! An API server that can refuse, a driver that does as told, and an attacher in between.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::api::{Api, DeleteParams, PostParams};
use kube::client::Body;
use kube::runtime::wait::await_condition;
use kube::{Client, Resource};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tether_apiserver::Server;
use tether_apiserver::auth::User;
use tether_csi::attacher::{self, Ended, Settings};
use tether_csi::connect::{Address, connect};
use tether_csi::fake::{Driver, Profile};
use tether_csi::lanes::Backoff;
use tether_csi::metrics::Metrics;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

pub(crate) const DRIVER: &str = "csi.test";
pub(crate) const FINALIZER: &str = "external-attacher/csi-test";
const PATIENCE: Duration = Duration::from_secs(60);

/// The writes of the attacher, and which of them are refused.
#[derive(Default)]
pub(crate) struct Gate {
    writes: Vec<String>,
    refusals: Vec<Refusal>,
}

struct Refusal {
    what: String,
    left: usize,
    code: u16,
    reason: &'static str,
}

pub(crate) struct Lab {
    /// Nobody stands in this one's way.
    pub(crate) client: Client,
    pub(crate) driver: Driver,
    pub(crate) metrics: Metrics,
    pub(crate) settings: Settings,
    gated: Client,
    gate: Arc<Mutex<Gate>>,
    dir: tempfile::TempDir,
    driver_stop: CancellationToken,
    tasks: JoinSet<()>,
}

/// An attacher that runs.
pub(crate) struct Running {
    /// Kept, so that it is not cancelled.
    _stop: CancellationToken,
    pub(crate) ended: JoinHandle<Result<(), Ended>>,
}

impl Running {
    /// As if the process were killed.
    pub(crate) async fn kill(self) {
        self.ended.abort();
        let _ = self.ended.await;
    }
}

impl Lab {
    pub(crate) async fn new(profile: Profile) -> Self {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
        let server = Server::ephemeral().await;
        let client = server.client(User::new("admin", ["system:masters"]));
        let gate = Arc::new(Mutex::new(Gate::default()));
        let gated = gated(client.clone(), gate.clone());
        let dir = tempfile::tempdir().unwrap();
        let driver = Driver::new(profile);
        let settings = Settings {
            timeout: Duration::from_secs(5),
            backoff: Backoff { first: SignedDuration::from_millis(10), longest: SignedDuration::from_millis(200) },
            reconcile_every: SignedDuration::from_millis(50),
            ..Settings::default()
        };
        let (metrics, driver_stop) = (Metrics::default(), CancellationToken::new());
        let mut lab = Self { client, driver, metrics, settings, gated, gate, dir, driver_stop, tasks: JoinSet::new() };
        lab.start_driver();
        lab
    }

    /// A lab with a driver that publishes, a node, and an attacher.
    pub(crate) async fn running() -> (Self, Running) {
        let lab = Self::new(Profile::new(DRIVER)).await;
        lab.register("node-1", "id-1").await;
        let running = lab.attacher().await;
        (lab, running)
    }

    pub(crate) fn start_driver(&mut self) {
        let listener = std::os::unix::net::UnixListener::bind(self.dir.path().join("csi.sock")).unwrap();
        let (driver, stop) = (self.driver.clone(), self.driver_stop.clone());
        self.tasks.spawn(async move { driver.serve(listener, stop).await.unwrap() });
    }

    /// The driver's process ends.
    pub(crate) async fn stop_driver(&mut self) {
        self.tasks.shutdown().await;
    }

    pub(crate) async fn attacher(&self) -> Running {
        let connection = connect(&Address(self.dir.path().join("csi.sock"))).await.unwrap();
        let stop = CancellationToken::new();
        let (client, settings, metrics) = (self.gated.clone(), self.settings.clone(), self.metrics.clone());
        let token = stop.clone();
        let ended = tokio::spawn(async move { attacher::run(client, connection, settings, &metrics, token).await });
        Running { _stop: stop, ended }
    }

    /// The next `times` writes that contain `what` are forbidden.
    pub(crate) fn refuse(&self, what: &str, times: usize) {
        self.gate.lock().refusals.push(Refusal { what: what.into(), left: times, code: 403, reason: "Forbidden" });
    }

    /// The next write that contains `what` finds nothing.
    pub(crate) fn lose(&self, what: &str) {
        self.gate.lock().refusals.push(Refusal { what: what.into(), left: 1, code: 404, reason: "NotFound" });
    }

    /// The attacher's writes since the last time this was called: `PATCH volumeattachments/va/status`.
    pub(crate) fn take_writes(&self) -> Vec<String> {
        std::mem::take(&mut self.gate.lock().writes)
    }

    pub(crate) fn attachments(&self) -> Api<VolumeAttachment> {
        Api::all(self.client.clone())
    }

    pub(crate) fn volumes(&self) -> Api<PersistentVolume> {
        Api::all(self.client.clone())
    }

    /// A node that has the driver.
    pub(crate) async fn register(&self, node: &str, id: &str) {
        let drivers = json!([{ "name": DRIVER, "nodeID": id, "topologyKeys": [] }]);
        let api: Api<CSINode> = Api::all(self.client.clone());
        create(&api, json!({ "metadata": { "name": node }, "spec": { "drivers": drivers } })).await;
    }

    /// A volume of the driver, changed as the test wants it.
    pub(crate) async fn volume(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut volume = json!({ "metadata": { "name": name }, "spec": spec(name) });
        change(&mut volume);
        create(&self.volumes(), volume).await;
    }

    /// An attachment of a volume to `node-1`.
    pub(crate) async fn attach(&self, name: &str, volume: &str) {
        self.attach_from(name, json!({ "persistentVolumeName": volume })).await;
    }

    pub(crate) async fn attach_from(&self, name: &str, source: Value) {
        let spec = json!({ "attacher": DRIVER, "nodeName": "node-1", "source": source });
        create(&self.attachments(), json!({ "metadata": { "name": name }, "spec": spec })).await;
    }

    pub(crate) async fn until_attached(&self, name: &str) -> VolumeAttachment {
        until(&self.attachments(), name, "attached", |va| va.status.as_ref().is_some_and(|s| s.attached)).await
    }

    /// Waits for an attach error that contains `text`.
    pub(crate) async fn until_attach_error(&self, name: &str, text: &str) -> VolumeAttachment {
        until(&self.attachments(), name, text, |va| attach_error(va).is_some_and(|e| e.contains(text))).await
    }

    pub(crate) async fn until_detach_error(&self, name: &str, text: &str) -> VolumeAttachment {
        let error = |va: &VolumeAttachment| va.status.as_ref()?.detach_error.as_ref()?.message.clone();
        until(&self.attachments(), name, text, |va| error(va).is_some_and(|e| e.contains(text))).await
    }

    pub(crate) async fn delete(&self, name: &str) {
        self.attachments().delete(name, &DeleteParams::default()).await.unwrap();
    }
}

pub(crate) fn attach_error(va: &VolumeAttachment) -> Option<String> {
    va.status.as_ref()?.attach_error.as_ref()?.message.clone()
}

/// The specification of a volume of the driver.
pub(crate) fn spec(handle: &str) -> Value {
    json!({
        "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Gi" },
        "csi": { "driver": DRIVER, "volumeHandle": format!("handle-{handle}"), "fsType": "ext4" },
    })
}

/// A client that notes writes and can refuse them.
fn gated(client: Client, gate: Arc<Mutex<Gate>>) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, gate) = (client.clone(), gate.clone());
        async move {
            let path = request.uri().path();
            let short = path.rsplit_once("/v1/").map_or(path, |(_, rest)| rest).to_owned();
            let line = format!("{} {short}", request.method());
            if request.method() != http::Method::GET {
                let mut gate = gate.lock();
                gate.writes.push(line.clone());
                let refusal = gate.refusals.iter_mut().find(|held| held.left > 0 && line.contains(&held.what));
                if let Some(refusal) = refusal {
                    refusal.left -= 1;
                    return Ok(refusal.answer());
                }
            }
            client.send(request).await
        }
    });
    Client::new(service, "default")
}

impl Refusal {
    fn answer(&self) -> Response<Body> {
        let status = json!({ "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": self.code,
                             "reason": self.reason, "message": "mock error" });
        Response::builder()
            .status(self.code)
            .header("content-type", "application/json")
            .body(status.to_string().into_bytes().into())
            .unwrap()
    }
}

pub(crate) async fn create<K>(api: &Api<K>, mut object: Value) -> K
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + serde::Serialize + Debug,
{
    object["apiVersion"] = json!(K::api_version(&()));
    object["kind"] = json!(K::kind(&()));
    let object: K = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap()
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

/// Waits for something that nothing tells of.
pub(crate) async fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, waiting).await.is_ok(), "never: {what}");
}

pub(crate) fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}
