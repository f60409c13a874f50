//! What all controllers share: the client, the clock, and one cache for each kind.

use std::sync::Arc;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    ConfigMap, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ServiceAccount,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};
use kube::Client;
use kube::api::Api;
use kube::runtime::watcher;
use tether_plan::pod::{claim_names, node_name};
use tether_plan::{attach_detach, binding, service_account};
use tokio::task::JoinSet;

use crate::cache::Cache;
use crate::clock::Clock;
use crate::kinds::Kinds;
use crate::longhorn::Longhorn;
use crate::publish::{Names, Publisher};

/// Where nodes keep the Leases that are their heartbeats.
pub(crate) const NODE_LEASES: &str = "kube-node-lease";

/// What all controllers share.
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) clock: Arc<dyn Clock>,
    identity: String,
    event_names: Arc<Names>,
    pub(crate) kinds: Arc<Kinds>,
    pub(crate) nodes: Arc<Cache<Node>>,
    pub(crate) node_leases: Arc<Cache<Lease>>,
    pub(crate) pods: Arc<Cache<Pod>>,
    pub(crate) namespaces: Arc<Cache<Namespace>>,
    pub(crate) budgets: Arc<Cache<PodDisruptionBudget>>,
    /// Only those named `default`.
    pub(crate) default_accounts: Arc<Cache<ServiceAccount>>,
    /// Only those named `kube-root-ca.crt`.
    pub(crate) root_cas: Arc<Cache<ConfigMap>>,
    pub(crate) volumes: Arc<Cache<PersistentVolume>>,
    pub(crate) claims: Arc<Cache<PersistentVolumeClaim>>,
    pub(crate) classes: Arc<Cache<StorageClass>>,
    pub(crate) csi_nodes: Arc<Cache<CSINode>>,
    pub(crate) csi_drivers: Arc<Cache<CSIDriver>>,
    pub(crate) capacities: Arc<Cache<CSIStorageCapacity>>,
    pub(crate) attachments: Arc<Cache<VolumeAttachment>>,
    /// The resources of volumes.
    pub(crate) longhorn: Longhorn,
    /// Whether the cluster has them.
    has_volumes: bool,
}

impl Context {
    pub(crate) fn new(client: Client, clock: Arc<dyn Clock>, identity: &str, has_volumes: bool) -> Arc<Self> {
        let kinds = Kinds::new(client.clone(), clock.clone());
        let context = Self {
            longhorn: Longhorn::new(&kinds),
            has_volumes,
            kinds,
            client,
            clock,
            identity: identity.to_owned(),
            event_names: Arc::default(),
            nodes: Cache::new(),
            node_leases: Cache::new(),
            pods: Cache::indexed(Some(pod_words)),
            namespaces: Cache::new(),
            budgets: Cache::whole(None),
            default_accounts: Cache::new(),
            root_cas: Cache::new(),
            volumes: Cache::indexed(Some(volume_words)),
            claims: Cache::new(),
            classes: Cache::new(),
            csi_nodes: Cache::new(),
            csi_drivers: Cache::new(),
            capacities: Cache::whole(None),
            attachments: Cache::indexed(Some(attachment_words)),
        };
        context.kinds.bridge(&context.nodes, false);
        context.kinds.bridge(&context.pods, true);
        context.kinds.bridge(&context.namespaces, false);
        context.kinds.bridge(&context.budgets, true);
        context.kinds.bridge(&context.volumes, false);
        context.kinds.bridge(&context.claims, true);
        context.kinds.bridge(&context.classes, false);
        context.kinds.bridge(&context.csi_nodes, false);
        context.kinds.bridge(&context.csi_drivers, false);
        context.kinds.bridge(&context.capacities, true);
        context.kinds.bridge(&context.attachments, false);
        Arc::new(context)
    }

    /// A publisher of events for one controller.
    pub(crate) fn publisher(&self, controller: &'static str) -> Publisher {
        let names = self.event_names.clone();
        Publisher::new(self.client.clone(), self.clock.clone(), controller, &self.identity, names)
    }

    /// Watches everything until the tasks are dropped. Listeners are to be there before.
    pub(crate) fn watch(&self, tasks: &mut JoinSet<()>) {
        let all = watcher::Config::default;
        let named = |name: &str| all().fields(&format!("metadata.name={name}"));
        let client = || self.client.clone();
        tasks.spawn(self.nodes.clone().run(Api::all(client()), all()));
        tasks.spawn(self.node_leases.clone().run(Api::namespaced(client(), NODE_LEASES), all()));
        tasks.spawn(self.pods.clone().run(Api::all(client()), all()));
        tasks.spawn(self.namespaces.clone().run(Api::all(client()), all()));
        tasks.spawn(self.budgets.clone().run(Api::all(client()), all()));
        let accounts = named(service_account::DEFAULT_ACCOUNT);
        tasks.spawn(self.default_accounts.clone().run(Api::all(client()), accounts));
        tasks.spawn(self.root_cas.clone().run(Api::all(client()), named(service_account::ROOT_CA_NAME)));
        tasks.spawn(self.volumes.clone().run(Api::all(client()), all()));
        tasks.spawn(self.claims.clone().run(Api::all(client()), all()));
        tasks.spawn(self.classes.clone().run(Api::all(client()), all()));
        tasks.spawn(self.csi_nodes.clone().run(Api::all(client()), all()));
        tasks.spawn(self.csi_drivers.clone().run(Api::all(client()), all()));
        tasks.spawn(self.capacities.clone().run(Api::all(client()), all()));
        tasks.spawn(self.attachments.clone().run(Api::all(client()), all()));
        if self.has_volumes {
            self.longhorn.watch(&self.client, tasks);
        }
        tasks.spawn(self.kinds.clone().run());
    }

    /// Returns once everything that exists was seen: nobody decides on half a picture.
    pub(crate) async fn ready(&self) {
        self.nodes.ready().await;
        self.node_leases.ready().await;
        self.pods.ready().await;
        self.namespaces.ready().await;
        self.budgets.ready().await;
        self.default_accounts.ready().await;
        self.root_cas.ready().await;
        self.volumes.ready().await;
        self.claims.ready().await;
        self.classes.ready().await;
        self.csi_nodes.ready().await;
        self.csi_drivers.ready().await;
        self.capacities.ready().await;
        self.attachments.ready().await;
        if self.has_volumes {
            self.longhorn.ready().await;
        }
        self.kinds.ready().await;
    }
}

/// Pods are looked up by their node and by the claims that they use.
fn pod_words(pod: &Pod) -> Vec<String> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let mut words: Vec<String> = claim_names(pod).into_iter().map(|claim| pods_of_claim(namespace, &claim)).collect();
    words.push(pods_of_node(node_name(pod)));
    words
}

/// The word for the pods of a node; those without one are under the empty name.
pub(crate) fn pods_of_node(node: &str) -> String {
    format!("node {node}")
}

/// The word for the pods that use a claim.
pub(crate) fn pods_of_claim(namespace: &str, claim: &str) -> String {
    format!("claim {namespace}/{claim}")
}

/// Volumes are looked up by the claim that they point to, and by what their driver calls them.
fn volume_words(volume: &PersistentVolume) -> Vec<String> {
    let part = |field: &Option<String>| field.clone().unwrap_or_default();
    let claim = binding::claim_ref(volume).map(|r| volumes_of_claim(&part(&r.namespace), &part(&r.name)));
    let csi = volume.spec.as_ref().and_then(|s| s.csi.as_ref());
    let handle = csi.map(|csi| volumes_of_handle(&attach_detach::csi_name(&csi.driver, &csi.volume_handle)));
    claim.into_iter().chain(handle).collect()
}

/// The word for the volumes that are one volume to their driver.
pub(crate) fn volumes_of_handle(csi_name: &str) -> String {
    format!("handle {csi_name}")
}

/// Attachments are looked up by their volume and by their node.
fn attachment_words(attachment: &VolumeAttachment) -> Vec<String> {
    let volume = attachment.spec.source.persistent_volume_name.as_deref().map(attachments_of_volume);
    volume.into_iter().chain([attachments_of_node(&attachment.spec.node_name)]).collect()
}

/// The word for the attachments of a volume.
pub(crate) fn attachments_of_volume(volume: &str) -> String {
    format!("volume {volume}")
}

/// The word for the attachments to a node.
pub(crate) fn attachments_of_node(node: &str) -> String {
    format!("node {node}")
}

/// The word for the volumes that point to a claim.
pub(crate) fn volumes_of_claim(namespace: &str, claim: &str) -> String {
    format!("claim {namespace}/{claim}")
}
