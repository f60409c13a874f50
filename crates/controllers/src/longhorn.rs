//! The caches of the resources of volumes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kube::Client;
use kube::api::Api;
use kube::runtime::watcher;
use parking_lot::Mutex;
use tether_crd::settings::Settings;
use tether_crd::volume::{Robustness, conditions};
use tether_crd::{
    Engine, InstanceManager, NAMESPACE, Node, Replica, Setting, Snapshot, Volume, VolumeAttachment, condition,
};
use tether_plan::object::is_deleting;
use tokio::task::JoinSet;

use crate::cache::Cache;
use crate::kinds::Kinds;

/// One cache for each kind of `longhorn.io`; all objects are in one namespace.
pub(crate) struct Longhorn {
    /// Those to which a node matters that changes: [`UNSETTLED`], and [`on_node`] for those that are wanted there.
    pub(crate) volumes: Arc<Cache<Volume>>,
    /// By what their tickets name: [`tickets_of_owner`], [`tickets_on_node`].
    pub(crate) attachments: Arc<Cache<VolumeAttachment>>,
    /// By volume and by node: [`on_node`].
    pub(crate) engines: Arc<Cache<Engine>>,
    /// By volume and by node: [`on_node`].
    pub(crate) replicas: Arc<Cache<Replica>>,
    /// By volume.
    pub(crate) snapshots: Arc<Cache<Snapshot>>,
    pub(crate) nodes: Arc<Cache<Node>>,
    /// By node: [`on_node`].
    pub(crate) instance_managers: Arc<Cache<InstanceManager>>,
    pub(crate) settings: Arc<Cache<Setting>>,
    known: Arc<Known>,
}

/// The settings as they were put together last: every decision about tickets asks for all of them, and they hardly change.
#[derive(Default)]
struct Known {
    /// How often a setting changed.
    changes: AtomicU64,
    settings: Mutex<Option<(u64, Arc<Settings>)>>,
}

impl Longhorn {
    pub(crate) fn new(kinds: &Arc<Kinds>) -> Self {
        let longhorn = Self {
            volumes: Cache::packed(Some(volume_words)),
            attachments: Cache::packed(Some(ticket_words)),
            engines: Cache::packed(Some(|engine| vec![engine.spec.volume_name.clone(), on_node(&engine.spec.node_id)])),
            replicas: Cache::packed(Some(|replica| {
                vec![replica.spec.volume_name.clone(), on_node(&replica.spec.node_id)]
            })),
            snapshots: Cache::packed(Some(|snapshot| vec![snapshot.spec.volume.clone()])),
            nodes: Cache::whole(None),
            instance_managers: Cache::whole(Some(|manager| vec![on_node(&manager.spec.node_id)])),
            settings: Cache::whole(None),
            known: Arc::default(),
        };
        let known = longhorn.known.clone();
        longhorn.settings.subscribe(move |_| {
            known.changes.fetch_add(1, Ordering::SeqCst);
        });
        kinds.bridge(&longhorn.volumes, true);
        kinds.bridge(&longhorn.attachments, true);
        kinds.bridge(&longhorn.engines, true);
        kinds.bridge(&longhorn.replicas, true);
        kinds.bridge(&longhorn.snapshots, true);
        kinds.bridge(&longhorn.nodes, true);
        kinds.bridge(&longhorn.instance_managers, true);
        kinds.bridge(&longhorn.settings, true);
        longhorn
    }

    pub(crate) fn watch(&self, client: &Client, tasks: &mut JoinSet<()>) {
        let all = watcher::Config::default;
        let client = || client.clone();
        tasks.spawn(self.volumes.clone().run(Api::namespaced(client(), NAMESPACE), all()));
        tasks.spawn(self.attachments.clone().run(Api::namespaced(client(), NAMESPACE), all()));
        tasks.spawn(self.engines.clone().run(Api::namespaced(client(), NAMESPACE), all()));
        tasks.spawn(self.replicas.clone().run(Api::namespaced(client(), NAMESPACE), all()));
        tasks.spawn(self.snapshots.clone().run(Api::namespaced(client(), NAMESPACE), all()));
        tasks.spawn(self.nodes.clone().run(Api::namespaced(client(), NAMESPACE), all()));
        tasks.spawn(self.instance_managers.clone().run(Api::namespaced(client(), NAMESPACE), all()));
        tasks.spawn(self.settings.clone().run(Api::namespaced(client(), NAMESPACE), all()));
    }

    pub(crate) async fn ready(&self) {
        self.volumes.ready().await;
        self.attachments.ready().await;
        self.engines.ready().await;
        self.replicas.ready().await;
        self.snapshots.ready().await;
        self.nodes.ready().await;
        self.instance_managers.ready().await;
        self.settings.ready().await;
    }

    /// The settings as they are.
    pub(crate) fn settings(&self) -> Arc<Settings> {
        // Read before the objects: what changes meanwhile makes this look count as old.
        let changes = self.known.changes.load(Ordering::SeqCst);
        let mut known = self.known.settings.lock();
        if let Some((as_of, settings)) = &*known
            && *as_of == changes
        {
            return settings.clone();
        }
        let settings = Arc::new(Settings::of(self.settings.list().iter().map(|setting| &**setting)));
        *known = Some((changes, settings.clone()));
        settings
    }
}

/// The word for volumes that wait for a place or a replica, or go: any node that changes may be what they wait for.
pub(crate) const UNSETTLED: &str = "unsettled";

fn volume_words(volume: &Volume) -> Vec<String> {
    let is_unsettled = [Robustness::Degraded, Robustness::Faulted].contains(&volume.status.robustness)
        || volume.condition(conditions::SCHEDULED) != condition::TRUE
        || is_deleting(volume);
    let unsettled = is_unsettled.then(|| UNSETTLED.to_owned());
    let wanted = Some(&volume.spec.node_id).filter(|node| !node.is_empty());
    unsettled.into_iter().chain(wanted.map(|node| on_node(node))).collect()
}

/// Attachments are looked up by the nodes that their tickets name and by the owners of their tickets.
fn ticket_words(attachment: &VolumeAttachment) -> Vec<String> {
    let tickets = || attachment.spec.attachment_tickets.values();
    let owners = tickets().filter_map(|ticket| ticket.owner.as_ref()).map(|owner| tickets_of_owner(&owner.uid));
    owners.chain(tickets().map(|ticket| tickets_on_node(&ticket.node_id))).collect()
}

/// The word for engines, replicas and instance managers of a node. No volume has such a name.
pub(crate) fn on_node(node: &str) -> String {
    format!("node {node}")
}

/// The word for the attachments with a ticket of an owner.
pub(crate) fn tickets_of_owner(uid: &str) -> String {
    format!("owner {uid}")
}

/// The word for the attachments with a ticket for a node.
pub(crate) fn tickets_on_node(node: &str) -> String {
    format!("node {node}")
}
