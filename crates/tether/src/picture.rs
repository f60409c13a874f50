//! A volume and everything that decisions about it look at, as the API server has it now.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Node as KubernetesNode;
use kube::api::{Api, ListParams};
use kube::{Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tether_crd::settings::Settings;
use tether_crd::{Engine, InstanceManager, NAMESPACE, Node, Replica, Setting, Volume, VolumeAttachment, labels};
use tether_plan::explain::{Explanation, explain};
use tether_plan::placement::{Host, Hosts, Promised};
use tether_plan::{node, tickets, volume};

/// The objects of one kind in the namespace of volumes.
pub(crate) fn api<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(client: &Client) -> Api<K> {
    Api::namespaced(client.clone(), NAMESPACE)
}

/// A volume and what it depends on.
pub(crate) struct Picture {
    pub(crate) volume: Volume,
    pub(crate) attachment: Option<VolumeAttachment>,
    pub(crate) engines: Vec<Engine>,
    pub(crate) replicas: Vec<Replica>,
    nodes: Vec<Node>,
    hosts: Hosts,
    promised: Promised,
    settings: Settings,
    cordoned: BTreeSet<String>,
}

impl Picture {
    /// `None` if there is no such volume.
    pub(crate) async fn load(client: &Client, name: &str) -> Result<Option<Self>> {
        let Some(volume) = api::<Volume>(client).get_opt(name).await.context("the API server does not answer")? else {
            return Ok(None);
        };
        let own = ListParams::default().labels(&format!("{}={name}", labels::VOLUME));
        let all = ListParams::default();
        let nodes: Vec<Node> = list(&api(client), &all).await?;
        let managers: Vec<InstanceManager> = list(&api(client), &all).await?;
        let settings: Vec<Setting> = list(&api(client), &all).await?;
        let kubernetes: Vec<KubernetesNode> = list(&Api::all(client.clone()), &all).await?;
        let manager = |node: &Node| managers.iter().find(|manager| manager.spec.node_id == node.name_any());
        let disks = nodes.iter().flat_map(|node| node.status.disk_status.values());
        Ok(Some(Self {
            attachment: api::<VolumeAttachment>(client).get_opt(name).await?,
            engines: list(&api(client), &own).await?,
            replicas: list(&api(client), &own).await?,
            hosts: nodes.iter().map(|node| (node.name_any(), Host::of(node, manager(node)))).collect(),
            promised: disks.map(|disk| (disk.disk_uuid.clone(), disk.storage_scheduled)).collect(),
            settings: Settings::of(&settings),
            cordoned: kubernetes
                .iter()
                .filter(|n| node::is_unschedulable(n))
                .map(kube::ResourceExt::name_any)
                .collect(),
            nodes,
            volume,
        }))
    }

    /// Why the volume is as it is.
    pub(crate) fn explain(&self, now: Timestamp) -> Explanation {
        let settings = volume::Settings::of(&self.settings);
        let observed = volume::Observed {
            volume: &self.volume,
            attachment: self.attachment.as_ref(),
            engines: self.engines.iter().collect(),
            replicas: self.replicas.iter().collect(),
            hosts: &self.hosts,
            promised: &self.promised,
            settings: &settings,
            // Nothing that is decided here is made.
            seed: 0,
        };
        let nodes: BTreeMap<String, &Node> = self.nodes.iter().map(|node| (node.name_any(), node)).collect();
        let wishes = self.attachment.as_ref().map(|attachment| tickets::Observed {
            attachment,
            volume: Some(&self.volume),
            engines: self.engines.iter().collect(),
            nodes: nodes.iter().map(|(name, node)| (name.as_str(), *node)).collect(),
            cordoned: self.cordoned.iter().map(String::as_str).collect(),
            owners: BTreeMap::new(),
            noticed: BTreeMap::new(),
            settings: &self.settings,
        });
        explain(&observed, wishes.as_ref(), now)
    }

    /// Where the volume is found on its node.
    pub(crate) fn endpoint(&self) -> &str {
        let serving = self.engines.iter().find(|engine| engine.is_available_on(&self.volume.status.current_node_id));
        serving.map(|engine| engine.status.endpoint.as_str()).unwrap_or_default()
    }
}

async fn list<K>(api: &Api<K>, params: &ListParams) -> Result<Vec<K>>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    Ok(api.list(params).await.with_context(|| format!("list {}", api.resource_url()))?.items)
}
