//! A cluster in memory with two storage nodes, and the driver on a socket.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kube::Client;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tether_apiserver::Server;
use tether_apiserver::auth::User;
use tether_crd::engine::InstanceState;
use tether_crd::{Engine, InstanceManager, NAMESPACE, Node, Replica, Snapshot, Volume};
use tether_csi::connect::{Address, Connection, connect};
use tether_csi::driver::{Driver, Options};
use tether_csi::proto::controller_client::ControllerClient;
use tether_csi::proto::identity_client::IdentityClient;
use tether_csi::proto::node_client::NodeClient;
use tether_csi::proto::volume_capability::access_mode::Mode;
use tether_csi::proto::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use tether_csi::proto::{CapacityRange, CreateVolumeRequest, VolumeCapability};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

/// How often the pretended agents look; real ones are told.
const LOOK: Duration = Duration::from_millis(5);
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Lab {
    pub(crate) client: Client,
    pub(crate) identity: IdentityClient<Channel>,
    pub(crate) controller: ControllerClient<Channel>,
    pub(crate) node: NodeClient<Channel>,
    pub(crate) dir: tempfile::TempDir,
    /// What engines show volumes as.
    pub(crate) endpoint: Arc<Mutex<String>>,
    pub(crate) driver: Driver,
    /// While it is set, no agent does anything.
    pub(crate) agents_rest: Arc<AtomicBool>,
    stop: CancellationToken,
    _connection: Connection,
    _tasks: JoinSet<()>,
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Lab {
    /// The driver serves both halves, as `node-1`.
    pub(crate) async fn new() -> Self {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
        let server = Server::ephemeral().await;
        tether_apiserver::install(&server, &tether_crd::install::objects()).await.unwrap();
        let client = server.client(User::new("admin", ["system:masters"]));
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        let endpoint = Arc::new(Mutex::new("/dev/none".to_owned()));
        for node in ["node-1", "node-2"] {
            add_storage_node(&client, node).await;
        }
        let agents_rest = Arc::new(AtomicBool::new(false));
        let (agents, shown, rest) = (client.clone(), endpoint.clone(), agents_rest.clone());
        tasks.spawn(async move {
            loop {
                tokio::time::sleep(LOOK).await;
                if rest.load(Ordering::Relaxed) {
                    continue;
                }
                let endpoint = shown.lock().clone();
                carry_out(&agents, &endpoint).await;
            }
        });
        let user = User::new("system:kube-controller-manager", ["system:authenticated"]);
        let options = tether_controllers::Options {
            attach_detach: Some(tether_plan::attach_detach::Settings::default()),
            ..Default::default()
        };
        let running = tether_controllers::run(server.client(user), options, stop.clone());
        tasks.spawn(async { running.await.unwrap() });

        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("csi.sock");
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let options = Options { controller: true, node: Some("node-1".into()) };
        let driver = Driver::new(client.clone(), options, &stop);
        let (serving, token) = (driver.clone(), stop.clone());
        tasks.spawn(async move { serving.serve(listener, token).await.unwrap() });
        let connection = connect(&Address(socket)).await.unwrap();
        let channel = || connection.channel.clone();
        Self {
            identity: IdentityClient::new(channel()),
            controller: ControllerClient::new(channel()),
            node: NodeClient::new(channel()),
            client,
            dir,
            endpoint,
            driver,
            agents_rest,
            stop,
            _connection: connection,
            _tasks: tasks,
        }
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }
}

pub(crate) fn mount(fs_type: &str) -> VolumeCapability {
    capability(AccessType::Mount(MountVolume { fs_type: fs_type.into(), ..Default::default() }), Mode::SingleNodeWriter)
}

pub(crate) fn block(mode: Mode) -> VolumeCapability {
    capability(AccessType::Block(BlockVolume {}), mode)
}

pub(crate) fn capability(access_type: AccessType, mode: Mode) -> VolumeCapability {
    VolumeCapability { access_type: Some(access_type), access_mode: Some(AccessMode { mode: mode.into() }) }
}

pub(crate) fn a_volume(name: &str, capability: VolumeCapability) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.into(),
        capacity_range: Some(CapacityRange { required_bytes: 64 << 20, limit_bytes: 0 }),
        volume_capabilities: vec![capability],
        parameters: [("numberOfReplicas".to_owned(), "2".to_owned())].into(),
        ..Default::default()
    }
}

/// Makes an object, which need not say of which kind it is.
pub(crate) async fn make<K>(api: &Api<K>, mut object: Value)
where
    K: kube::Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + serde::Serialize + std::fmt::Debug,
{
    object["apiVersion"] = json!(K::api_version(&()));
    object["kind"] = json!(K::kind(&()));
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
}

/// Waits until the object is as wanted; `None` is an object that is not there.
pub(crate) async fn until<K>(api: &Api<K>, name: &str, what: &str, wanted: impl Fn(Option<&K>) -> bool) -> Option<K>
where
    K: kube::Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + Sync + 'static,
{
    let waiting = await_condition(api.clone(), name, |object: Option<&K>| wanted(object));
    let waited = tokio::time::timeout(PATIENCE, Box::pin(waiting)).await;
    let found = api.get_opt(name).await;
    waited.unwrap_or_else(|_| panic!("{name} never became {what}: {found:?}")).unwrap()
}

async fn add_storage_node(client: &Client, name: &str) {
    let disk = json!({ "path": "/var/lib/longhorn", "allowScheduling": true, "diskType": "filesystem" });
    let spec = json!({ "name": name, "allowScheduling": true, "disks": { "default": disk } });
    let api: Api<Node> = Api::namespaced(client.clone(), NAMESPACE);
    make(&api, json!({ "metadata": { "name": name }, "spec": spec })).await;
    let yes = json!([{ "type": "Ready", "status": "True" }, { "type": "Schedulable", "status": "True" }]);
    let disk = json!({ "diskUUID": format!("disk-{name}"), "storageAvailable": 90_i64 << 30,
                       "storageMaximum": 100_i64 << 30, "conditions": yes });
    say(&api, name, json!({ "conditions": yes, "diskStatus": { "default": disk } })).await;
    let manager = format!("instance-manager-{name}");
    let api: Api<InstanceManager> = Api::namespaced(client.clone(), NAMESPACE);
    make(&api, json!({ "metadata": { "name": manager }, "spec": { "nodeID": name } })).await;
    say(&api, &manager, json!({ "currentState": "running" })).await;
}

/// Failures are somebody else's change; the next look sees it.
async fn say<K>(api: &Api<K>, name: &str, status: Value)
where
    K: kube::Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let _ = api.patch_status(name, &PatchParams::default(), &Patch::Merge(json!({ "status": status }))).await;
}

/// Plays the agents of all nodes once: what is to run runs, what is to stop stops, what is deleted goes.
async fn carry_out(client: &Client, endpoint: &str) {
    let replicas: Api<Replica> = Api::namespaced(client.clone(), NAMESPACE);
    let Ok(all) = replicas.list(&ListParams::default()).await else { return };
    for replica in &all.items {
        let name = replica.metadata.name.as_deref().unwrap();
        let (wanted, state) = (replica.spec.desire_state, replica.status.current_state);
        if replica.metadata.deletion_timestamp.is_some() {
            let_go(&replicas, name).await;
        } else if wanted == InstanceState::Running && state == InstanceState::Stopped {
            say(
                &replicas,
                name,
                json!({ "currentState": "running", "started": true, "ip": "127.0.0.1", "port": 10_000 }),
            )
            .await;
        } else if wanted == InstanceState::Stopped && state != InstanceState::Stopped {
            say(&replicas, name, json!({ "currentState": "stopped", "started": false, "ip": "", "port": 0 })).await;
        }
    }
    let engines: Api<Engine> = Api::namespaced(client.clone(), NAMESPACE);
    let Ok(found) = engines.list(&ListParams::default()).await else { return };
    for engine in &found.items {
        carry_out_engine(client, &engines, engine, &all.items, endpoint).await;
    }
    for engine in found.items.iter().filter(|engine| engine.status.current_state == InstanceState::Running) {
        carry_out_snapshots(client, &engines, engine).await;
    }
}

/// An engine has what was handed to its node, and fills itself at once.
async fn carry_out_snapshots(client: &Client, engines: &Api<Engine>, engine: &Engine) {
    let name = engine.metadata.name.as_deref().unwrap();
    let snapshots: Api<Snapshot> = Api::namespaced(client.clone(), NAMESPACE);
    let Ok(all) = snapshots.list(&ListParams::default().labels("longhornnode")).await else { return };
    let mut listed = serde_json::Map::new();
    if !engine.status.snapshots.contains_key("volume-head") {
        listed.insert("volume-head".into(), json!({ "name": "volume-head" }));
    }
    for snapshot in all.items.iter().filter(|snapshot| snapshot.spec.volume == engine.spec.volume_name) {
        let called = snapshot.metadata.name.clone().unwrap();
        let is_there = engine.status.snapshots.contains_key(&called);
        match (snapshot.metadata.deletion_timestamp.is_some(), is_there) {
            (true, true) => drop(listed.insert(called, Value::Null)),
            (false, false) => {
                let info = json!({ "name": called, "created": "2026-01-02T03:04:05Z", "size": "4096" });
                listed.insert(called, info);
            }
            _ => {}
        }
    }
    if !listed.is_empty() {
        say(engines, name, json!({ "snapshots": listed })).await;
    }
    let source = &engine.spec.requested_data_source;
    if !source.is_empty() && engine.status.clone_status.is_empty() {
        let snapshot = source.rsplit('/').next().unwrap_or_default();
        let told = json!({ "tcp://127.0.0.1:10000": { "state": "complete", "snapshotName": snapshot } });
        say(engines, name, json!({ "cloneStatus": told })).await;
    }
}

async fn carry_out_engine(
    client: &Client,
    engines: &Api<Engine>,
    engine: &Engine,
    replicas: &[Replica],
    endpoint: &str,
) {
    let name = engine.metadata.name.as_deref().unwrap();
    let is_running = engine.status.current_state == InstanceState::Running;
    if engine.metadata.deletion_timestamp.is_some() {
        return let_go(engines, name).await;
    }
    if engine.spec.desire_state == InstanceState::Stopped {
        if engine.status.current_state != InstanceState::Stopped {
            say(
                engines,
                name,
                json!({ "currentState": "stopped", "started": false, "endpoint": "", "replicaModeMap": null }),
            )
            .await;
        }
        return;
    }
    let map = &engine.spec.replica_address_map;
    let is_grown = engine.status.current_size == engine.spec.volume_size;
    if is_running && engine.status.current_replica_address_map == *map && is_grown {
        return;
    }
    let volumes: Api<Volume> = Api::namespaced(client.clone(), NAMESPACE);
    let Ok(volume) = volumes.get(&engine.spec.volume_name).await else { return };
    let member = |replica: &&Replica| map.contains_key(replica.metadata.name.as_deref().unwrap());
    let members: Vec<&str> = replicas.iter().filter(member).map(|r| r.spec.data_directory_name.as_str()).collect();
    let old = volume.status.record.clone().unwrap_or_default();
    let record = json!({ "version": 1, "epoch": old.epoch + u64::from(!is_running), "generation": old.generation + 1,
                         "holder": name, "inSync": members });
    say(&volumes, &engine.spec.volume_name, json!({ "record": record })).await;
    let modes: serde_json::Map<_, _> = map.keys().map(|replica| (replica.clone(), json!("RW"))).collect();
    let status = json!({
        "currentState": "running", "started": true, "ip": "127.0.0.1", "port": 20_000, "endpoint": endpoint,
        "currentSize": engine.spec.volume_size, "currentReplicaAddressMap": map, "replicaModeMap": modes, "uuid": name,
    });
    say(engines, name, status).await;
}

async fn let_go<K>(api: &Api<K>, name: &str)
where
    K: kube::Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let body = json!({ "metadata": { "finalizers": [] } });
    let _ = api.patch(name, &PatchParams::default(), &Patch::Merge(body)).await;
}
