//! What the agents of all nodes would do, without a process: every Engine and Replica becomes what is wanted at once.
//!
//! The writes are those of an agent: one status for each change of an instance, and the volume's record when an engine
//! starts, which is compared and replaced as an engine does it.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::runtime::watcher;
use kube::{Client, ResourceExt as _};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tether_crd::engine::{InstanceState, ReplicaMode};
use tether_crd::volume::Record;
use tether_crd::{Engine, FINALIZER, Replica, Volume};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::{make, objects};

/// How often nodes say that they are alive; Kubernetes' own.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// The version of the record's format.
const RECORD_VERSION: u64 = 1;
/// Another engine or a controller may write the same volume at the same time.
const RECORD_TRIES: usize = 20;
const PORT: i64 = 10_000;

/// All agents. They end when this is dropped.
pub(super) struct Agents {
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

struct Shared {
    client: Client,
    lost: Mutex<HashSet<String>>,
    /// The member of each replica.
    members: Mutex<HashMap<String, String>>,
    /// What was last done for each object, so that the echo of a write is not answered again.
    done: Mutex<HashMap<String, String>>,
}

impl Agents {
    pub(super) fn start(client: &Client, nodes: usize) -> Self {
        let shared = Arc::new(Shared {
            client: client.clone(),
            lost: Mutex::default(),
            members: Mutex::default(),
            done: Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(beat(shared.clone(), nodes));
        tasks.spawn(watch::<Engine, _>(shared.clone(), engine));
        tasks.spawn(watch::<Replica, _>(shared.clone(), replica));
        tasks.spawn(watch::<Pod, _>(shared.clone(), pod));
        Self { shared, _tasks: tasks }
    }

    pub(super) fn lose(&self, node: usize) {
        self.shared.lost.lock().insert(make::node_name(node));
    }

    /// Engines elsewhere find out that the replicas of a lost node do not answer, and go on without them.
    pub(super) async fn miss(&self, node: usize) -> Result<()> {
        let (shared, lost) = (&self.shared, make::node_name(node));
        let replicas = objects::<Replica>(&shared.client).list(&ListParams::default()).await?;
        let gone: HashMap<String, String> = replicas
            .items
            .into_iter()
            .filter(|replica| replica.spec.node_id == lost)
            .map(|replica| (replica.name_any(), replica.spec.data_directory_name))
            .collect();
        let engines = objects::<Engine>(&shared.client);
        for engine in engines.list(&ListParams::default()).await? {
            let mut modes = engine.status.replica_mode_map.clone();
            let missed = modes.iter_mut().find(|(name, _)| gone.contains_key(*name));
            let Some((name, mode)) = missed.filter(|_| engine.spec.node_id != lost) else { continue };
            *mode = ReplicaMode::Error;
            let member = gone[name].clone();
            change(shared, &engine.spec.volume_name, |record| record.in_sync.retain(|held| *held != member)).await?;
            set(&engines, &engine.name_any(), json!({"replicaModeMap": modes})).await?;
        }
        Ok(())
    }

    /// The agent is there again, and looks at everything that is meant for it.
    pub(super) async fn bring_back(&self, node: usize) -> Result<()> {
        self.shared.lost.lock().remove(&make::node_name(node));
        for found in objects::<Replica>(&self.shared.client).list(&ListParams::default()).await? {
            replica(self.shared.clone(), found).await?;
        }
        for found in objects::<Engine>(&self.shared.client).list(&ListParams::default()).await? {
            engine(self.shared.clone(), found).await?;
        }
        Ok(())
    }
}

impl Shared {
    /// Whether an agent is there, and has something new to do.
    fn is_news(&self, node: &str, object: String, wanted: String) -> bool {
        if !node.starts_with("fleet-") || self.lost.lock().contains(node) {
            return false;
        }
        self.done.lock().insert(object, wanted.clone()).is_none_or(|before| before != wanted)
    }
}

async fn beat(shared: Arc<Shared>, nodes: usize) {
    let mut ticks = tokio::time::interval(HEARTBEAT);
    loop {
        ticks.tick().await;
        for name in (0..nodes).map(make::node_name) {
            if !shared.lost.lock().contains(&name)
                && let Err(error) = make::heartbeat(&shared.client, &name).await
            {
                tracing::warn!(%error, name, "heartbeat");
            }
        }
    }
}

async fn watch<K, F>(shared: Arc<Shared>, act: fn(Arc<Shared>, K) -> F)
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned
        + Send
        + 'static,
    F: Future<Output = Result<()>> + Send + 'static,
{
    // One object after the other, so that what is said of it last is what it became last; many objects side by side.
    let mut workers = JoinSet::new();
    let lanes: Vec<mpsc::UnboundedSender<K>> = (0..make::AT_ONCE)
        .map(|_| {
            let (sender, mut objects) = mpsc::unbounded_channel::<K>();
            let shared = shared.clone();
            workers.spawn(async move {
                while let Some(object) = objects.recv().await {
                    let name = object.name_any();
                    if let Err(error) = act(shared.clone(), object).await {
                        tracing::warn!(error = format!("{error:#}"), name, "an agent of the fleet failed");
                    }
                }
            });
            sender
        })
        .collect();
    let mut events = Box::pin(watcher(objects::<K>(&shared.client), watcher::Config::default()));
    while let Some(event) = events.next().await {
        let object = match event {
            Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => object,
            Ok(_) => continue,
            Err(error) => {
                tracing::warn!(%error, "watch of the fleet");
                continue;
            }
        };
        let mut hasher = DefaultHasher::new();
        object.name_any().hash(&mut hasher);
        let lane = &lanes[(hasher.finish() % lanes.len() as u64) as usize];
        lane.send(object).expect("a lane must stay open as long as this runs");
    }
}

async fn replica(shared: Arc<Shared>, replica: Replica) -> Result<()> {
    let (name, node) = (replica.name_any(), &replica.spec.node_id);
    shared.members.lock().insert(name.clone(), replica.spec.data_directory_name.clone());
    let deleted = replica.metadata.deletion_timestamp.is_some();
    let wanted = format!("{deleted} {}", replica.spec.desire_state);
    if !shared.is_news(node, name.clone(), wanted) {
        return Ok(());
    }
    let api = objects::<Replica>(&shared.client);
    if deleted {
        return finish(&api, &name, replica.metadata.finalizers.as_ref()).await;
    }
    let state = replica.spec.desire_state;
    if replica.status.current_state != state {
        set(&api, &name, instance(node, state)).await?;
    }
    Ok(())
}

async fn engine(shared: Arc<Shared>, engine: Engine) -> Result<()> {
    let (name, node) = (engine.name_any(), &engine.spec.node_id);
    let deleted = engine.metadata.deletion_timestamp.is_some();
    // An engine that is to stop has no node any more: the one that runs it is in its status.
    let node = if node.is_empty() { &engine.status.owner_id } else { node };
    let map = &engine.spec.replica_address_map;
    let wanted = format!("{deleted} {} {node} {map:?}", engine.spec.desire_state);
    if !shared.is_news(node, name.clone(), wanted) {
        return Ok(());
    }
    let api = objects::<Engine>(&shared.client);
    if deleted {
        return finish(&api, &name, engine.metadata.finalizers.as_ref()).await;
    }
    let state = engine.spec.desire_state;
    let mut status = instance(node, state);
    if state == InstanceState::Running {
        let members: Vec<String> = {
            let known = shared.members.lock();
            map.keys().filter_map(|name| known.get(name).cloned()).collect()
        };
        if engine.status.current_state == InstanceState::Running {
            // What it is given later has been brought up to date when it counts.
            let add = |record: &mut Record| {
                let new: Vec<_> = members.iter().filter(|member| !record.in_sync.contains(*member)).cloned().collect();
                record.in_sync.extend(new);
            };
            change(&shared, &engine.spec.volume_name, add).await?;
        } else {
            take_over(&shared, &engine.spec.volume_name, &members).await?;
        }
        let modes: HashMap<&String, &str> = map.keys().map(|name| (name, "RW")).collect();
        let more = json!({
            "currentSize": engine.spec.volume_size, "endpoint": format!("/dev/longhorn/{}", engine.spec.volume_name),
            "currentReplicaAddressMap": map, "replicaModeMap": modes,
        });
        merge(&mut status, more);
    } else {
        merge(&mut status, json!({"endpoint": "", "replicaModeMap": null, "currentReplicaAddressMap": null}));
    }
    set(&api, &name, status).await
}

/// What an engine does before it serves: the next epoch, in the record.
async fn take_over(shared: &Shared, volume: &str, members: &[String]) -> Result<()> {
    let change_record = |record: &mut Record| {
        record.epoch += 1;
        record.previous = record.holder.take();
        record.holder = Some(uuid::Uuid::new_v4().to_string());
        // It goes on without those that it cannot reach, and says so before it serves.
        record.in_sync.retain(|held| members.contains(held));
        if record.in_sync.is_empty() {
            record.in_sync = members.to_vec();
        }
    };
    change(shared, volume, change_record).await
}

/// Changes a record by compare and replace, as an engine does.
async fn change(shared: &Shared, volume: &str, change: impl Fn(&mut Record)) -> Result<()> {
    let volumes = objects::<Volume>(&shared.client);
    for _ in 0..RECORD_TRIES {
        let old = volumes.get(volume).await?.status.record;
        let mut new = old.clone().unwrap_or_else(|| Record { version: RECORD_VERSION, ..Record::default() });
        change(&mut new);
        if old.as_ref() == Some(&new) {
            return Ok(());
        }
        new.generation += 1;
        let test = json!({"op": "test", "path": "/status/record", "value": old});
        let set = json!({"op": "add", "path": "/status/record", "value": new});
        let steps = if old.is_some() { vec![test, set] } else { vec![set] };
        let path = format!("{}/{volume}/status", volumes.resource_url());
        let request = http::Request::patch(path).header("content-type", "application/json-patch+json");
        match shared.client.request::<Value>(request.body(serde_json::to_vec(&steps)?)?).await {
            Err(kube::Error::Api(status)) if [409, 422].contains(&status.code) => {}
            other => return other.map(drop).context("record"),
        }
    }
    anyhow::bail!("the record of {volume} could not be changed in {RECORD_TRIES} tries")
}

/// The pod of an instance manager, which runs as soon as it is there, and is gone as soon as it is to go.
async fn pod(shared: Arc<Shared>, pod: Pod) -> Result<()> {
    let name = pod.name_any();
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
    let deleted = pod.metadata.deletion_timestamp.is_some();
    let wanted = format!("{deleted} {:?}", pod.metadata.uid);
    if !shared.is_news(&node, format!("pod {name}"), wanted) {
        return Ok(());
    }
    let api = objects::<Pod>(&shared.client);
    if deleted {
        let now = DeleteParams::default().grace_period(0);
        return match api.delete(&name, &now).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            other => other.map(drop).with_context(|| format!("end of pod {name}")),
        };
    }
    let address = address_of(&node);
    let container = json!({
        "name": "instance-manager", "image": "tether", "imageID": "", "restartCount": 0, "ready": true, "started": true,
    });
    set(
        &api,
        &name,
        json!({
            "phase": "Running", "podIP": address, "hostIP": address, "containerStatuses": [container],
            "conditions": [{"type": "Ready", "status": "True"}],
        }),
    )
    .await
}

fn address_of(node: &str) -> String {
    make::address(node.trim_start_matches("fleet-").parse().unwrap_or(0))
}

fn instance(node: &str, state: InstanceState) -> Value {
    let runs = state == InstanceState::Running;
    let address = if runs { address_of(node) } else { String::new() };
    json!({
        "currentState": state, "started": runs, "starting": false, "ownerID": node,
        "instanceManagerName": if runs { make::manager_name(node) } else { String::new() },
        "ip": address, "storageIP": address, "port": if runs { PORT } else { 0 },
    })
}

fn merge(status: &mut Value, more: Value) {
    if let (Some(status), Value::Object(more)) = (status.as_object_mut(), more) {
        status.extend(more);
    }
}

async fn set<K>(api: &kube::Api<K>, name: &str, status: Value) -> Result<()>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let patch = Patch::Merge(json!({"status": status}));
    match api.patch_status(name, &PatchParams::default(), &patch).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        other => other.map(drop).with_context(|| format!("status of {name}")),
    }
}

/// Nothing of a deleted instance is left on its node.
async fn finish<K>(api: &kube::Api<K>, name: &str, finalizers: Option<&Vec<String>>) -> Result<()>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let rest: Vec<&String> = finalizers.into_iter().flatten().filter(|finalizer| *finalizer != FINALIZER).collect();
    let patch = Patch::Merge(json!({"metadata": {"finalizers": rest}}));
    match api.patch(name, &PatchParams::default(), &patch).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        other => other.map(drop).with_context(|| format!("finalizer of {name}")),
    }
}
