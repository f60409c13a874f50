//! The objects that calls look at, and waiting for them to change.

use std::sync::Arc;
use std::time::Duration;

use kube::api::Api;
use kube::runtime::watcher;
use kube::{Client, ResourceExt as _};
use tether_controllers::cache::{Cache, Seen};
use tether_crd::settings::{STORAGE_MINIMAL_AVAILABLE_PERCENTAGE, STORAGE_OVER_PROVISIONING_PERCENTAGE, Settings};
use tether_crd::{Engine, NAMESPACE, Node, Setting, Snapshot, Volume, VolumeAttachment};
use tether_plan::placement::room::offers;
use tether_plan::volume;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Options;
use crate::provisioner::capacity::News;

/// One cache for each kind, and a count of changes.
#[derive(Clone)]
pub(super) struct View {
    pub(super) volumes: Arc<Cache<Volume>>,
    pub(super) attachments: Arc<Cache<VolumeAttachment>>,
    /// By their volume.
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
            engines: Cache::whole(Some(|engine| vec![engine.spec.volume_name.clone()])),
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
        let engines = self.engines.find(volume);
        let shows = |engine: &&Arc<Engine>| {
            engine.status.current_state == tether_crd::engine::InstanceState::Running
                && engine.spec.node_id == node
                && !engine.status.endpoint.is_empty()
        };
        engines.iter().find(shows).cloned()
    }

    /// The settings in force.
    pub(super) fn settings(&self) -> Settings {
        settings_of(&self.settings)
    }

    /// Tells when room for replicas comes or goes, and on which node.
    pub(super) fn room_news(&self) -> Arc<News> {
        let news = Arc::<News>::default();
        let (settings, told) = (self.settings.clone(), news.clone());
        self.nodes.subscribe(move |seen| {
            let policy = volume::Settings::of(&settings_of(&settings)).placement;
            let is_same = match seen {
                Seen::Applied { old: Some(old), new } => {
                    old.status.zone == new.status.zone && offers(old, &policy) == offers(new, &policy)
                }
                _ => false,
            };
            if !is_same {
                told.tell(&seen.object().name_any());
            }
        });
        let told = news.clone();
        self.settings.subscribe(move |seen| {
            let name = seen.object().name_any();
            if [STORAGE_OVER_PROVISIONING_PERCENTAGE, STORAGE_MINIMAL_AVAILABLE_PERCENTAGE].contains(&name.as_str()) {
                told.tell_everywhere();
            }
        });
        news
    }
}

fn settings_of(cache: &Cache<Setting>) -> Settings {
    Settings::of(cache.list().iter().map(AsRef::as_ref))
}
