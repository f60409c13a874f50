//! Kubelet's volume manager: volumes of CSI drivers for the pods of this node, and what pods bring along themselves.
//!
//! ```text
//!   pods ──want, release──► held volumes ──► plan::kubelet::volume ──one step──► driver's socket, Node object
//!     ▲                        │ records on disk, written before each call
//!     └── told of every change ┘
//! ```
//!
//! After a restart the records say what may be there. All of it counts as unknown: what a pod still wants is staged and
//! published again, which changes nothing where it is there; the rest is undone once it is known that its pod is gone.
//!
//! - [`held`]: what is known of each volume.
//! - [`steps`]: one step for one volume, carried out.
//! - [`report`]: the node's list of volumes in use.
//! - [`records`]: what is written on disk.
//! - [`calls`]: calls to drivers.
//! - [`claims`]: from a pod to the volumes that it wants.
//! - [`local`]: volumes without a driver: directories, ConfigMaps, Secrets, tokens.
//! - [`ownership`]: the group that files of a volume get.
//! - [`registration`]: drivers of this node.

mod calls;
mod claims;
mod follow;
mod held;
pub(crate) mod local;
mod ownership;
mod records;
mod registration;
mod report;
mod steps;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::Client;
use kube::api::Api;
use kube::runtime::events::Recorder;
use kube::runtime::watcher;
use parking_lot::Mutex;
use tether_controllers::cache::Cache;
use tether_controllers::queue::Queue;
use tether_controllers::worker::{Reconcile, log, work_many};
use tether_controllers::write::WriteError;
use tether_plan::attach_detach::is_attachable;
use tether_plan::kubelet::volume::{Wanted, decide};
use tether_plan::kubelet::{Obstacle, Unmounted};
use tether_plan::object::uid;

use self::follow::Followed;
use self::held::{Held, State};
use self::report::Report;

/// Volumes that are worked on at the same time.
const CONCURRENT_VOLUMES: usize = 16;
/// Steps in a row for one volume: each brings it nearer to where it has to be, so that more than this is a bug.
const MAX_STEPS: usize = 64;

/// Called with the uid of a pod when something of its volumes changed.
type Changed = Box<dyn Fn(&str) + Send + Sync>;

/// The volumes of this node.
pub(crate) struct Volumes {
    client: Client,
    recorder: Recorder,
    node: String,
    /// The node's directory.
    root: PathBuf,
    own: Arc<Cache<Node>>,
    drivers: Arc<Cache<CSIDriver>>,
    state: Mutex<State>,
    report: Report,
    followed: Followed,
    /// This value, for tasks that must not keep it.
    this: Weak<Self>,
    queue: Arc<Queue<String>>,
    changed: Changed,
}

/// What [`Volumes`] is made of.
pub(crate) struct Parts {
    pub client: Client,
    pub recorder: Recorder,
    pub node: String,
    pub root: PathBuf,
    pub queue: Arc<Queue<String>>,
}

impl Volumes {
    /// Reads what an earlier agent left.
    pub fn new(parts: Parts, changed: impl Fn(&str) + Send + Sync + 'static) -> io::Result<Arc<Self>> {
        let Parts { client, recorder, node, root, queue } = parts;
        let state = State::found(&root, records::scan(&root)?);
        for name in state.volumes.keys() {
            queue.add(name.clone());
        }
        Ok(Arc::new_cyclic(|this| Self {
            this: this.clone(),
            followed: Followed::default(),
            own: Cache::whole(None),
            drivers: Cache::whole(None),
            state: Mutex::new(state),
            report: Report::default(),
            changed: Box::new(changed),
            client,
            recorder,
            node,
            root,
            queue,
        }))
    }

    /// Works until dropped.
    pub async fn run(self: Arc<Self>) {
        let volumes = Arc::downgrade(&self);
        self.own.subscribe(move |_| {
            if let Some(volumes) = volumes.upgrade() {
                volumes.look_at_all();
            }
        });
        let own = watcher::Config::default().fields(&format!("metadata.name={}", self.node));
        tokio::join!(
            self.own.clone().run(Api::all(self.client.clone()), own),
            self.drivers.clone().run(Api::all(self.client.clone()), watcher::Config::default()),
            async {
                self.ready().await;
                work_many(self.clone(), self.queue.clone(), CONCURRENT_VOLUMES).await;
            }
        );
    }

    /// Returns once this node and the drivers of the cluster are known.
    pub async fn ready(&self) {
        tokio::join!(self.own.ready(), self.drivers.ready());
    }

    /// This node, as it was last seen.
    fn own_node(&self) -> Option<Arc<Node>> {
        self.own.get("", &self.node)
    }

    fn look_at_all(&self) {
        let state = self.state.lock();
        let waiting = state.volumes.iter().filter(|(_, held)| held.waits_for_attachment());
        waiting.for_each(|(name, _)| self.queue.add(name.clone()));
    }

    /// A pod wants these volumes, until [`Volumes::release`].
    pub fn want(&self, pod: &Arc<Pod>, wanted: Vec<Wanted>) {
        let mut state = self.state.lock();
        let state = &mut *state;
        for wanted in wanted {
            let name = wanted.unique_name();
            let held = state.volumes.entry(name.clone()).or_insert_with(|| Held::new(&self.root, &wanted));
            if held.want(pod, wanted) {
                self.queue.add(name);
            }
        }
        if state.unsure.remove(uid(&**pod)) {
            state.volumes.keys().for_each(|name| self.queue.add(name.clone()));
        }
    }

    /// A pod needs its volumes no more: nothing of it runs.
    pub fn release(&self, pod: &str) {
        self.followed.forget(pod);
        let mut state = self.state.lock();
        let state = &mut *state;
        state.unsure.remove(pod);
        for (name, held) in &mut state.volumes {
            if held.users.remove(pod).is_some() || held.published.contains_key(pod) {
                self.queue.add(name.clone());
            }
        }
    }

    /// The volumes of drivers that something is left of for a pod.
    pub fn left(&self, pod: &str) -> Vec<String> {
        let state = self.state.lock();
        let left = state.volumes.values().filter(|held| held.published.contains_key(pod));
        left.map(|held| held.volume.clone()).collect()
    }

    /// Why these volumes are not mounted for the pod; nothing if they are.
    fn obstacles(&self, pod: &str, wanted: &[Wanted]) -> Vec<Unmounted> {
        let state = self.state.lock();
        let obstacle = |wanted: &Wanted| {
            let why = state.volumes.get(&wanted.unique_name())?.obstacle(pod)?;
            Some(Unmounted { volume: wanted.volume.clone(), why, obstacle: Obstacle::Progress })
        };
        wanted.iter().filter_map(obstacle).collect()
    }

    /// Where each volume of a driver is for a pod, by the name that the pod has for it.
    pub fn targets(&self, pod: &str) -> BTreeMap<String, PathBuf> {
        let state = self.state.lock();
        let of = |held: &Held| Some((held.users.get(pod)?.wanted.volume.clone(), held.places.target(pod)));
        state.volumes.values().filter_map(of).collect()
    }

    fn attachable(&self, driver: &str) -> bool {
        is_attachable(self.drivers.get("", driver).as_deref())
    }

    /// The socket of a driver.
    fn socket(&self, driver: &str) -> PathBuf {
        registration::socket(&self.root, driver)
    }

    fn tell(&self, pods: impl IntoIterator<Item = impl AsRef<str>>) {
        pods.into_iter().for_each(|pod| (self.changed)(pod.as_ref()));
    }
}

/// The directory of a pod, below the node's.
pub(crate) fn pod_dir(root: &Path, pod: &str) -> PathBuf {
    records::pod_dir(root, pod)
}

pub(crate) use self::registration::serve_driver;

impl Reconcile for Volumes {
    type Key = String;
    const NAME: &'static str = "volume-manager";

    async fn reconcile(&self, name: &String) -> Result<Option<Timestamp>, WriteError> {
        let mut confirmed = false;
        for _ in 0..MAX_STEPS {
            let now = Timestamp::now();
            let plan = {
                let state = self.state.lock();
                let Some(held) = state.volumes.get(name) else { return Ok(None) };
                let attachment = self.attachment(held, name, confirmed);
                decide(&held.observed(name, &state.unsure, attachment), now)
            };
            log(Self::NAME, &plan);
            let wake_at = plan.wake_at();
            let Some(step) = plan.changes.into_iter().next() else { return Ok(wake_at) };
            confirmed = self.step(name, step).await?;
        }
        Err(WriteError::Unfinished { operation: format!("volume {name}") })
    }
}
