//! The storage of this node: its disks, and the engines and replicas in its instance manager.
//!
//! ```text
//!   Engine, Replica objects ──► plan::instance ──gRPC──► instance manager
//!        ▲                                                    │ stream of changes
//!        └───────────── status, once for each change ◄────────┘
//! ```
//!
//! - [`node`]: the Longhorn Node of this node, and its disks.
//! - [`manager`]: the connection to the instance manager, and what it tells.
//! - [`view`]: what is known to run.
//! - [`engines`], [`replicas`]: one folder of work for each kind; [`snapshots`] and [`copy`] are parts of the first.

mod copy;
mod disks;
mod engines;
mod manager;
mod node;
mod replicas;
mod snapshots;
mod view;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::Api;
use kube::runtime::watcher;
use parking_lot::Mutex;
use tether_controllers::cache::Cache;
use tether_controllers::clock::SystemClock;
use tether_controllers::queue::Queue;
use tether_controllers::worker::{work, work_many};
use tether_controllers::write::WriteError;
use tether_crd::{Engine, NAMESPACE, Node, Replica, Setting, Snapshot, labels, names};
use tether_engine::device::place::Place;
use tether_plan::instance_manager::IMAGE;
use tether_plan::object::name;
use tokio_util::sync::CancellationToken;

use self::manager::Link;
use self::view::View;
use crate::Options;

/// Instances that are worked on at the same time.
const CONCURRENT_INSTANCES: usize = 16;

/// Where things of this node's storage are.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The socket of the instance manager.
    pub socket: PathBuf,
    /// The disk that a new node gets.
    pub default_disk: PathBuf,
    /// Devices of engines; `None` where there can be none.
    pub devices: Option<Place>,
}

/// What everything here shares.
pub(crate) struct Shared {
    client: Client,
    node: String,
    /// Of the instance manager's object.
    manager_name: String,
    layout: Layout,
    view: Mutex<View>,
    link: Link,
    /// What came of the last attempt to start an instance, by name.
    start_errors: Mutex<BTreeMap<String, String>>,
    /// Why engines did not end when they were last told to, by name.
    stop_errors: Mutex<BTreeMap<String, String>>,
}

impl Shared {
    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// The key that engine and replicas of a volume prove to each other.
    async fn key(&self, volume: &str) -> Result<Vec<u8>, WriteError> {
        let secrets: Api<Secret> = self.api();
        let secret = names::data_key_secret(volume);
        let found =
            secrets.get(&secret).await.map_err(|error| WriteError::of(format!("read Secret {secret}"), error))?;
        let key = found.data.and_then(|mut data| data.remove(names::DATA_KEY)).map(|value| value.0);
        key.ok_or_else(|| WriteError::Unfinished { operation: format!("Secret {secret} has no key") })
    }
}

/// Looks after the node's storage until `cancel`.
pub(crate) async fn run(client: Client, options: &Options, cancel: &CancellationToken) {
    let Some(layout) = options.storage.clone() else { return };
    let clock = Arc::new(SystemClock::default());
    let engines: Arc<Cache<Engine>> = Cache::whole(None);
    let replicas: Arc<Cache<Replica>> = Cache::whole(Some(|replica| vec![replicas::instance(replica).to_owned()]));
    let snapshots: Arc<Cache<Snapshot>> = Cache::whole(Some(|snapshot| vec![snapshot.spec.volume.clone()]));
    let nodes: Arc<Cache<Node>> = Cache::whole(None);
    let settings: Arc<Cache<Setting>> = Cache::whole(None);
    let (engine_queue, replica_queue) = (Queue::<String>::new(clock.clone()), Queue::<String>::new(clock.clone()));
    let node_queue = Queue::<()>::new(clock);
    let shared = Arc::new(Shared {
        client: client.clone(),
        node: options.name.clone(),
        manager_name: names::instance_manager(&options.name, IMAGE, "v1"),
        link: Link::new(layout.socket.clone()),
        layout,
        view: Mutex::default(),
        start_errors: Mutex::default(),
        stop_errors: Mutex::default(),
    });
    let hear = engine_queue.clone();
    engines.subscribe(move |seen| hear.add(name(seen.object()).to_owned()));
    let (hear, space) = (replica_queue.clone(), node_queue.clone());
    let twins = Arc::downgrade(&replicas);
    replicas.subscribe(move |seen| {
        hear.add(name(seen.object()).to_owned());
        // What is wanted of one concerns whoever shares its process.
        let same = twins.upgrade().map(|twins| twins.find(replicas::instance(seen.object()))).unwrap_or_default();
        for replica in &same {
            hear.add(name(&**replica).to_owned());
        }
        space.add(());
    });
    let (hear, held) = (engine_queue.clone(), engines.clone());
    snapshots.subscribe(move |seen| {
        let of_volume = |engine: &&Arc<Engine>| engine.spec.volume_name == seen.object().spec.volume;
        held.list().iter().filter(of_volume).for_each(|engine| hear.add(name(&**engine).to_owned()));
    });
    let hear = node_queue.clone();
    nodes.subscribe(move |_| hear.add(()));
    let hear = node_queue.clone();
    settings.subscribe(move |_| hear.add(()));
    let told = {
        let (engines, queue, replicas) = (engine_queue.clone(), replica_queue.clone(), replicas.clone());
        // An instance is looked at by its own worker; that it is none of the other's is found out at once.
        move |instance: &str| {
            engines.add(instance.to_owned());
            replicas.find(instance).iter().for_each(|replica| queue.add(name(&**replica).to_owned()));
        }
    };
    let mine = watcher::Config::default().labels(&format!("{}={}", labels::NODE, options.name));
    let own = watcher::Config::default().fields(&format!("metadata.name={}", options.name));
    let disks = node::Disks::new(shared.clone(), nodes.clone(), replicas.clone(), settings.clone());
    let engine_work = engines::Engines::new(
        shared.clone(),
        engines.clone(),
        replicas.clone(),
        snapshots.clone(),
        engine_queue.clone(),
    );
    let replica_work = replicas::Replicas::new(shared.clone(), replicas.clone());
    tokio::select! {
        () = engines.clone().run(shared.api(), mine.clone()) => {}
        () = snapshots.clone().run(shared.api(), mine.clone()) => {}
        () = replicas.clone().run(shared.api(), mine) => {}
        () = nodes.clone().run(shared.api(), own) => {}
        () = settings.clone().run(shared.api(), watcher::Config::default()) => {}
        () = manager::follow(&shared, told, [&engine_queue, &replica_queue], (&engines, &replicas)) => {}
        () = async {
            tokio::join!(engines.ready(), replicas.ready(), snapshots.ready(), nodes.ready(), settings.ready());
            // Devices of engines that were taken away while no agent was here.
            let devices = shared.layout.devices.iter().flat_map(|place| crate::container::files::names(&place.run));
            devices.flatten().for_each(|volume| engine_queue.add(names::engine(&volume, 0)));
            tokio::join!(
                work_many(engine_work, engine_queue.clone(), CONCURRENT_INSTANCES),
                work_many(replica_work, replica_queue.clone(), CONCURRENT_INSTANCES),
                work(disks, node_queue.clone()),
            );
        } => {}
        () = cancel.cancelled() => {}
    }
}
