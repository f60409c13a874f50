//! The provisioner between an API server, in process, and a scripted driver on a socket.

// Test code fails by panicking; the helpers outside of #[test] functions do too.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Client, Resource};
use serde_json::{Value, json};
use tether_apiserver::Server;
use tether_apiserver::auth::User;
use tether_csi::connect::{Address, connect};
use tether_csi::fake::{Answer, Asked, Call, Driver, Profile};
use tether_csi::lanes::Backoff;
use tether_csi::metrics::Metrics;
use tether_csi::provisioner;
use tether_plan::binding::{PROVISIONED_BY, SELECTED_NODE};
use tether_plan::provisioner::FINALIZER;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::Code;

const DRIVER: &str = "csi.test";
const ZONE: &str = "csi.test/place";
const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than failures are waited for here: whoever is to try again has by then.
const A_WHILE: Duration = Duration::from_millis(400);

struct Lab {
    client: Client,
    driver: Driver,
    _dir: tempfile::TempDir,
    _tasks: JoinSet<()>,
}

impl Lab {
    /// Two nodes that have the driver, and a class whose volumes wait for their first consumer.
    async fn new() -> Self {
        let server = Server::ephemeral().await;
        let client = server.client(User::new("admin", ["system:masters"]));
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("csi.sock");
        let (driver, mut tasks) = (Driver::new(Profile::provisions(DRIVER)), JoinSet::new());
        let (serving, listener) = (driver.clone(), std::os::unix::net::UnixListener::bind(&socket).unwrap());
        tasks.spawn(async move { serving.serve(listener, CancellationToken::new()).await.unwrap() });
        for name in ["node-1", "node-2"] {
            make(&Api::<Node>::all(client.clone()), json!({ "metadata": { "name": name, "labels": { ZONE: name } } }))
                .await;
            let drivers = json!([{ "name": DRIVER, "nodeID": name, "topologyKeys": [ZONE] }]);
            let node = json!({ "metadata": { "name": name }, "spec": { "drivers": drivers } });
            make(&Api::<CSINode>::all(client.clone()), node).await;
        }
        let class = json!({ "metadata": { "name": "late" }, "provisioner": DRIVER, "reclaimPolicy": "Delete",
                            "volumeBindingMode": "WaitForFirstConsumer" });
        make(&Api::<StorageClass>::all(client.clone()), class).await;
        let mut settings = provisioner::Settings::default();
        settings.common.backoff =
            Backoff { first: SignedDuration::from_millis(10), longest: SignedDuration::from_millis(100) };
        let (watching, connection) = (client.clone(), connect(&Address(socket)).await.unwrap());
        tasks.spawn(async move {
            provisioner::run(watching, connection, settings, &Metrics::default(), CancellationToken::new())
                .await
                .unwrap();
        });
        Self { client, driver, _dir: dir, _tasks: tasks }
    }

    fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), "default")
    }

    fn volumes(&self) -> Api<PersistentVolume> {
        Api::all(self.client.clone())
    }

    /// A claim for which the scheduler has chosen a node; the name of its volume.
    async fn claim(&self, name: &str, node: &str) -> String {
        let annotations = json!({ SELECTED_NODE: node, "volume.kubernetes.io/storage-provisioner": DRIVER });
        let spec = json!({ "accessModes": ["ReadWriteOnce"], "storageClassName": "late",
                           "resources": { "requests": { "storage": "1Gi" } } });
        let object = json!({ "metadata": { "name": name, "annotations": annotations }, "spec": spec });
        let claim = make(&self.claims(), object).await;
        format!("pvc-{}", claim.metadata.uid.unwrap())
    }

    /// Where volumes were asked for since the last time this was called.
    fn places(&self) -> Vec<String> {
        let place = |asked| {
            let Asked::Create(request) = asked else { return None };
            Some(request.accessibility_requirements?.preferred.first()?.segments[ZONE].clone())
        };
        self.driver.take_asked().into_iter().filter_map(place).collect()
    }

    async fn reasons(&self) -> Vec<String> {
        let events = Api::<Event>::all(self.client.clone()).list(&ListParams::default()).await.unwrap();
        events.items.into_iter().filter_map(|event| event.reason).collect()
    }
}

async fn make<K>(api: &Api<K>, mut object: Value) -> K
where
    K: Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + serde::Serialize + std::fmt::Debug,
{
    object["apiVersion"] = json!(K::api_version(&()));
    object["kind"] = json!(K::kind(&()));
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap()
}

async fn until<K>(api: &Api<K>, name: &str, what: &str, wanted: impl Fn(Option<&K>) -> bool)
where
    K: Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + Sync + 'static,
{
    let waiting = await_condition(api.clone(), name, |object: Option<&K>| wanted(object));
    let waited = tokio::time::timeout(PATIENCE, Box::pin(waiting)).await;
    assert!(waited.is_ok(), "{name} never became {what}: {:?}", api.get_opt(name).await);
}

fn selected(claim: Option<&PersistentVolumeClaim>) -> Option<&str> {
    claim?.metadata.annotations.as_ref()?.get(SELECTED_NODE).map(String::as_str)
}

/// There is no room where the scheduler put the pod: it chooses again, and nobody asks the driver until it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_without_room_goes_back_to_the_scheduler() {
    let lab = Lab::new().await;
    lab.driver.answer(Call::Create, Answer::Fail(Code::ResourceExhausted, "node-1 is full".into()));
    let volume = lab.claim("data", "node-1").await;
    let claims = lab.claims();
    until(&claims, "data", "given back", |claim| claim.is_some() && selected(claim).is_none()).await;
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(lab.places(), ["node-1"], "asked once, and not again");
    assert!(lab.reasons().await.contains(&"ProvisioningFailed".to_owned()));
    assert!(lab.volumes().get_opt(&volume).await.unwrap().is_none());

    let other = json!({ "metadata": { "annotations": { SELECTED_NODE: "node-2" } } });
    claims.patch("data", &PatchParams::default(), &Patch::Merge(other)).await.unwrap();
    until(&lab.volumes(), &volume, "there", |volume| volume.is_some()).await;
    assert_eq!(lab.places(), ["node-2"]);
}

/// Any other error says nothing about the place: the same is asked again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_fails_otherwise_keeps_its_node() {
    let lab = Lab::new().await;
    lab.driver.answer(Call::Create, Answer::Fail(Code::Internal, "out of order".into()));
    let volume = lab.claim("data", "node-1").await;
    until(&lab.volumes(), &volume, "there", |volume| volume.is_some()).await;
    assert_eq!(lab.places(), ["node-1", "node-1"]);
    assert_eq!(selected(Some(&lab.claims().get("data").await.unwrap())), Some("node-1"));
}

/// While the driver deletes, somebody else lets go of the volume's object: that is no failure, and nothing is done twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_others_let_go_of_at_the_same_time_is_deleted_once() {
    const OTHER: &str = "example.com/held";
    let lab = Lab::new().await;
    lab.driver.answer(Call::Delete, Answer::Delay(A_WHILE));
    let metadata =
        json!({ "name": "old", "annotations": { PROVISIONED_BY: DRIVER }, "finalizers": [OTHER, FINALIZER] });
    let spec = json!({ "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Gi" },
                       "persistentVolumeReclaimPolicy": "Delete", "storageClassName": "late",
                       "csi": { "driver": DRIVER, "volumeHandle": "handle-old" } });
    make(&lab.volumes(), json!({ "metadata": metadata, "spec": spec })).await;
    let released = json!({ "status": { "phase": "Released" } });
    lab.volumes().patch_status("old", &PatchParams::default(), &Patch::Merge(released)).await.unwrap();
    while lab.driver.take_asked().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let held = lab.volumes().get("old").await.unwrap().metadata.finalizers.unwrap();
    let kept: Vec<_> = held.into_iter().filter(|finalizer| finalizer != OTHER).collect();
    let body = json!({ "metadata": { "finalizers": kept } });
    lab.volumes().patch("old", &PatchParams::default(), &Patch::Merge(body)).await.unwrap();
    let is_let_go = |volume: Option<&PersistentVolume>| {
        let finalizers = volume.and_then(|volume| volume.metadata.finalizers.as_ref());
        !finalizers.is_some_and(|all| all.iter().any(|held| held == FINALIZER))
    };
    until(&lab.volumes(), "old", "let go", is_let_go).await;
    assert_eq!(lab.driver.take_asked(), [], "the driver was asked once");
    assert_eq!(lab.reasons().await, [] as [&str; 0], "nothing failed");
}
