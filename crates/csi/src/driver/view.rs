//! The objects that calls look at, and waiting for them to change.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::api::Api;
use kube::runtime::watcher;
use tether_controllers::cache::Cache;
use tether_crd::{Engine, NAMESPACE, Node, Setting, Snapshot, Volume, VolumeAttachment};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Options;

/// One cache for each kind, and a count of changes.
#[derive(Clone)]
pub(super) struct View {
    pub(super) volumes: Arc<Cache<Volume>>,
    pub(super) attachments: Arc<Cache<VolumeAttachment>>,
    pub(super) engines: Arc<Cache<Engine>>,
    pub(super) nodes: Arc<Cache<Node>>,
    pub(super) settings: Arc<Cache<Setting>>,
    pub(super) snapshots: Arc<Cache<Snapshot>>,
    changed: watch::Sender<u64>,
    is_listed: watch::Sender<bool>,
}

impl View {
    /// Watches until `stop` what the halves look at: the node half only volumes, and engines of its node.
    pub(super) fn start(client: &Client, options: &Options, stop: &CancellationToken) -> Self {
        let view = Self {
            volumes: Cache::whole(None),
            attachments: Cache::whole(None),
            engines: Cache::whole(None),
            nodes: Cache::whole(None),
            settings: Cache::whole(None),
            snapshots: Cache::whole(None),
            changed: watch::Sender::new(0),
            is_listed: watch::Sender::new(false),
        };
        let everything = watcher::Config::default;
        let engines = match (&options.node, options.controller) {
            (Some(node), false) => everything().labels(&format!("{}={node}", tether_crd::labels::NODE)),
            _ => everything(),
        };
        macro_rules! follow {
            ($($cache:ident: $config:expr),+) => {$(
                let changed = view.changed.clone();
                view.$cache.subscribe(move |_| changed.send_modify(|count| *count += 1));
                let api = Api::namespaced(client.clone(), NAMESPACE);
                let running = view.$cache.clone().run(api, $config);
                tokio::spawn(stop.clone().run_until_cancelled_owned(running));
            )+};
        }
        follow!(volumes: everything(), engines: engines);
        if options.controller {
            follow!(attachments: everything(), nodes: everything(), settings: everything(), snapshots: everything());
        }
        let (listed, controller) = (view.clone(), options.controller);
        tokio::spawn(stop.clone().run_until_cancelled_owned(async move {
            listed.volumes.ready().await;
            listed.engines.ready().await;
            if controller {
                listed.attachments.ready().await;
                listed.nodes.ready().await;
                listed.settings.ready().await;
                listed.snapshots.ready().await;
            }
            listed.is_listed.send_replace(true);
        }));
        view
    }

    pub(super) fn is_ready(&self) -> bool {
        *self.is_listed.borrow()
    }

    /// Returns once everything was listed.
    pub(super) async fn ready(&self) {
        // The sender lives in `self`.
        let _ = self.is_listed.subscribe().wait_for(|listed| *listed).await;
    }

    /// Looks whenever something changes until there is an answer; `None` if there is none in time.
    pub(super) async fn until<T>(&self, patience: Duration, look: impl Fn() -> Option<T>) -> Option<T> {
        let mut changed = self.changed.subscribe();
        let looking = async {
            loop {
                changed.mark_unchanged();
                if let Some(found) = look() {
                    return found;
                }
                if changed.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::time::timeout(patience, looking).await.ok()
    }

    pub(super) fn volume(&self, id: &str) -> Option<Arc<Volume>> {
        self.volumes.get(NAMESPACE, id)
    }

    pub(super) fn attachment(&self, id: &str) -> Option<Arc<VolumeAttachment>> {
        self.attachments.get(NAMESPACE, id)
    }

    pub(super) fn snapshot(&self, name: &str) -> Option<Arc<Snapshot>> {
        self.snapshots.get(NAMESPACE, name)
    }

    /// The engine that shows the volume on a node.
    pub(super) fn engine_on(&self, volume: &str, node: &str) -> Option<Arc<Engine>> {
        let engines = self.engines.list();
        let shows = |engine: &&Arc<Engine>| {
            engine.spec.volume_name == volume
                && engine.status.current_state == tether_crd::engine::InstanceState::Running
                && engine.spec.node_id == node
                && !engine.status.endpoint.is_empty()
        };
        engines.iter().find(shows).cloned()
    }

    /// The value of a setting, or its default.
    pub(super) fn setting(&self, name: &str) -> String {
        let default =
            || tether_crd::settings::ALL.iter().find(|(known, ..)| *known == name).map(|(_, value, _)| *value);
        let held = self.settings.get(NAMESPACE, name).map(|setting| setting.value.clone());
        held.unwrap_or_else(|| default().unwrap_or_default().to_owned())
    }
}
