//! The pods of this node: each is looked at when it or one of its processes changes, and `plan::kubelet` decides.

mod apply;
mod sources;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::Api;
use kube::runtime::events::{Recorder, Reporter};
use kube::runtime::watcher;
use parking_lot::Mutex;
use tether_controllers::cache::{Cache, Seen, key};
use tether_controllers::clock::SystemClock;
use tether_controllers::queue::Queue;
use tether_controllers::worker::{Reconcile, log, work_many};
use tether_controllers::write::WriteError;
use tether_plan::kubelet::{self, Change, LaunchError, Observed, Obstacle, Sources, Unmounted};
use tether_plan::object::uid;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::container::runner::Runner;
use crate::container::{Shown, View};
use crate::volumes::{Parts, Volumes, local};
use crate::{AgentError, Options, server};

/// Pods that are worked on at the same time.
const CONCURRENT_PODS: usize = 16;
/// Looks at one pod in a row: what is started is looked at at once, and a pod has a bounded number of containers that
/// start one after the other. More than this is a bug that must not spin.
const MAX_LOOKS: usize = 64;

/// What is worked on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Pod {
        namespace: String,
        name: String,
    },
    /// What pods left behind that do not exist any more.
    Rest,
}

/// The kubelet of this node, as far as pods are concerned.
pub(crate) struct Pods {
    client: Client,
    recorder: Recorder,
    address: String,
    known: Arc<Cache<Pod>>,
    runner: Arc<Runner>,
    volumes: Arc<Volumes>,
    /// The node's directory.
    root: PathBuf,
    mounts_unavailable: Option<String>,
    /// Uids of pods that are being worked on: what is left of one is not touched meanwhile.
    busy: Mutex<BTreeSet<String>>,
    queue: Arc<Queue<Key>>,
}

/// Runs every pod bound to this node until `cancel`. Their processes go on without us.
/// `listener`: where the node's HTTP API is to be served.
pub(crate) async fn run(
    client: Client,
    options: &Options,
    listener: Option<server::Listener>,
    cancel: &CancellationToken,
) -> Result<(), AgentError> {
    let queue = Queue::new(Arc::new(SystemClock::default()));
    let pods: Arc<Cache<Pod>> = Cache::whole(Some(|pod| vec![uid(pod).to_owned()]));
    pods.subscribe({
        let queue = queue.clone();
        move |seen| match seen {
            Seen::Applied { new, .. } => queue.add(key_of(new)),
            Seen::Deleted(_) => queue.add(Key::Rest),
        }
    });
    pods.subscribe_lists({
        let queue = queue.clone();
        move |_| queue.add(Key::Rest)
    });
    let look = {
        let (queue, pods) = (queue.clone(), pods.clone());
        move |uid: &str| match pods.find(uid).first() {
            Some(pod) => queue.add(key_of(pod)),
            None => queue.add(Key::Rest),
        }
    };
    let dir = options.data_dir.join("pods");
    let (env, host_env) = (options.container_env.clone(), options.host_env.clone());
    let runner = Runner::new(dir, env, host_env, options.mounts_unavailable.is_none(), look.clone());
    let reporter = Reporter { controller: "kubelet".into(), instance: Some(options.name.clone()) };
    let recorder = Recorder::new(client.clone(), reporter);
    let parts = Parts {
        client: client.clone(),
        recorder: recorder.clone(),
        node: options.name.clone(),
        root: options.data_dir.clone(),
        queue: Queue::new(Arc::new(SystemClock::default())),
    };
    let volumes = Volumes::new(parts, look).map_err(AgentError::Volumes)?;
    let kubelet = Pods {
        recorder,
        address: options.address.to_string(),
        known: pods.clone(),
        runner,
        volumes: volumes.clone(),
        root: options.data_dir.clone(),
        mounts_unavailable: options.mounts_unavailable.clone(),
        busy: Mutex::default(),
        queue: queue.clone(),
        client: client.clone(),
    };
    if let Some(listener) = listener {
        let (name, root) = (options.name.clone(), options.data_dir.clone());
        let commands = Arc::new(Semaphore::new(server::MAX_COMMANDS));
        let node = Arc::new(server::Node { client: client.clone(), name, pods: pods.clone(), root, commands });
        let cancel = cancel.clone();
        tokio::spawn(async move { server::serve(listener, node, &cancel).await });
    }
    let mine = watcher::Config::default().fields(&format!("spec.nodeName={}", options.name));
    tokio::select! {
        () = pods.clone().run(Api::all(client), mine) => {}
        () = volumes.clone().run() => {}
        () = async {
            tokio::join!(pods.ready(), volumes.ready());
            work_many(Arc::new(kubelet), queue, CONCURRENT_PODS).await;
        } => {}
        () = cancel.cancelled() => {}
    }
    Ok(())
}

fn key_of(pod: &Pod) -> Key {
    let (namespace, name) = key(pod);
    Key::Pod { namespace, name }
}

/// A pod that is being worked on.
struct Busy<'a>(&'a Pods, String);

impl<'a> Busy<'a> {
    fn new(pods: &'a Pods, uid: &str) -> Self {
        pods.busy.lock().insert(uid.to_owned());
        Self(pods, uid.to_owned())
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.busy.lock().remove(&self.1);
        // It may have gone meanwhile, and been left alone.
        if self.0.known.find(&self.1).is_empty() {
            self.0.queue.add(Key::Rest);
        }
    }
}

impl Reconcile for Pods {
    type Key = Key;
    const NAME: &'static str = "kubelet";

    async fn reconcile(&self, key: &Key) -> Result<Option<Timestamp>, WriteError> {
        let Key::Pod { namespace, name } = key else { return self.remove_rest() };
        for _ in 0..MAX_LOOKS {
            let Some(pod) = self.known.get(namespace, name) else { return Ok(None) };
            let _busy = Busy::new(self, uid(&*pod));
            let (observed, sources) = self.observe(&pod).await?;
            let now = Timestamp::now();
            let plan = kubelet::decide(&observed, now);
            log(Self::NAME, &plan);
            let started = plan.changes.iter().any(|change| matches!(change, Change::Start { .. }));
            let wake_at = plan.wake_at();
            self.apply(&observed, &sources, plan.changes).await?;
            self.publish(&plan.events).await;
            if !started {
                return Ok(wake_at);
            }
        }
        Err(unfinished(format!("pod {namespace}/{name}")))
    }
}

impl Pods {
    async fn observe<'a>(&'a self, pod: &'a Arc<Pod>) -> Result<(Observed<'a>, Sources), WriteError> {
        let runs = self.runner.observe(uid(&**pod)).map_err(failed)?;
        let read = |error| WriteError::of("read what a pod needs", error);
        let needs = kubelet::needs_volumes(pod, &runs);
        let unmounted = match (needs, &self.mounts_unavailable) {
            (true, None) => self.volumes.unmounted(pod).await.map_err(read)?,
            (true, Some(why)) => self.unmountable(pod, why).await.map_err(read)?,
            (false, _) => {
                self.volumes.release(uid(&**pod));
                Vec::new()
            }
        };
        let starting = needs && !kubelet::is_alive(&runs);
        let mut unmounted = unmounted;
        if starting && self.mounts_unavailable.is_none() {
            unmounted.extend(self.volumes.make_local(pod).await);
        }
        let has_process = pod.spec.iter().flat_map(|spec| &spec.containers).any(kubelet::is_process);
        let sources = match has_process && !tether_plan::object::is_deleting(&**pod) {
            true => sources::read(&self.client, pod).await.map_err(read)?,
            false => Sources::default(),
        };
        let unready = self.unready(pod, &sources);
        let mounted = self.volumes.left(uid(&**pod));
        Ok((Observed { pod, unmounted, mounted, address: &self.address, runs, unready }, sources))
    }

    /// The volumes of a pod that a node without mounts cannot give it.
    async fn unmountable(&self, pod: &Pod, why: &str) -> kube::Result<Vec<Unmounted>> {
        let (wanted, mut stuck) = self.volumes.resolve(pod).await?;
        stuck.extend(wanted.into_iter().map(|wanted| Unmounted {
            volume: wanted.volume,
            why: format!("this node can mount nothing: {why}"),
            obstacle: Obstacle::Claim,
        }));
        Ok(stuck)
    }

    /// Containers whose environment cannot be put together.
    fn unready(&self, pod: &Pod, sources: &Sources) -> BTreeMap<String, String> {
        let spec = pod.spec.iter();
        let containers = spec.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
        let error = |error: LaunchError| error.to_string();
        let processes = containers.filter(|container| kubelet::is_process(container));
        let checked = processes.filter_map(|container| {
            let why = kubelet::launch(pod, container, &self.address, sources).err().map(error)?;
            Some((container.name.clone(), why))
        });
        checked.collect()
    }

    /// Ends what pods left that do not exist any more: processes first, then volumes, then files.
    fn remove_rest(&self) -> Result<Option<Timestamp>, WriteError> {
        for uid in self.runner.pods().map_err(failed)? {
            if !self.known.find(&uid).is_empty() || self.busy.lock().contains(&uid) {
                continue;
            }
            // Told again when its processes have ended, and when its volumes are gone.
            if self.runner.end(&uid).map_err(failed)? {
                self.volumes.release(&uid);
                if self.volumes.left(&uid).is_empty() {
                    local::remove(&self.root, &uid).map_err(failed)?;
                }
            }
        }
        Ok(None)
    }

    /// What a container sees of its pod's volumes.
    fn view(&self, pod: &Pod, launch: &kubelet::Launch) -> View {
        let drivers = self.volumes.targets(uid(pod));
        let volumes = || pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let source = |name: &str| {
            let local =
                || volumes().find(|volume| volume.name == name).and_then(|v| local::path(&self.root, uid(pod), v));
            drivers.get(name).cloned().or_else(local)
        };
        let shown = launch.mounts.iter().filter_map(|mount| {
            Some(Shown {
                source: source(&mount.volume)?,
                sub_path: mount.sub_path.clone(),
                path: mount.path.clone().into(),
                read_only: mount.read_only,
            })
        });
        View { shown: shown.collect(), hidden: self.root.clone(), all_devices: launch.all_devices }
    }
}

/// A failure of this host, not of the API server: tried again like any other.
fn failed(error: impl std::error::Error + Send + Sync + 'static) -> WriteError {
    WriteError::Refused {
        operation: "run containers".to_owned(),
        source: Box::new(kube::Error::Service(Box::new(error))),
    }
}

fn unfinished(operation: String) -> WriteError {
    WriteError::Unfinished { operation }
}
