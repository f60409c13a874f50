//! A volume, its engines, and the nodes that its tickets name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node as KubernetesNode;
use tether_crd::settings::Settings;
use tether_crd::{Engine, NAMESPACE, Node, Volume, VolumeAttachment};
use tether_plan::tickets::{Observed, OwnerSeen};

use crate::context::Context;

/// What the caches hold.
pub(super) struct Snapshot {
    volume: Option<Arc<Volume>>,
    engines: Vec<Arc<Engine>>,
    nodes: BTreeMap<String, Arc<Node>>,
    cordoned: BTreeSet<String>,
    settings: Arc<Settings>,
}

pub(super) fn observe(context: &Context, attachment: &VolumeAttachment) -> Snapshot {
    let longhorn = &context.longhorn;
    let volume = longhorn.volumes.get(NAMESPACE, &attachment.spec.volume);
    let mut names: BTreeSet<&str> =
        attachment.spec.attachment_tickets.values().map(|ticket| ticket.node_id.as_str()).collect();
    names.extend(volume.iter().map(|volume| volume.status.current_migration_node_id.as_str()));
    names.remove("");
    let known = |name: &&str| longhorn.nodes.get(NAMESPACE, name).map(|node| ((*name).to_owned(), node));
    let cordoned = |name: &&&str| context.nodes.get("", name).is_some_and(|node| is_cordoned(&node));
    Snapshot {
        engines: longhorn.engines.find(&attachment.spec.volume),
        nodes: names.iter().filter_map(known).collect(),
        cordoned: names.iter().filter(cordoned).map(|name| (*name).to_owned()).collect(),
        settings: longhorn.settings(),
        volume,
    }
}

pub(super) fn is_cordoned(node: &KubernetesNode) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false)
}

impl Snapshot {
    pub(super) fn observed<'a>(
        &'a self,
        attachment: &'a VolumeAttachment,
        owners: &'a BTreeMap<String, OwnerSeen>,
        noticed: &'a BTreeMap<String, Timestamp>,
    ) -> Observed<'a> {
        Observed {
            attachment,
            volume: self.volume.as_deref(),
            engines: self.engines.iter().map(|engine| &**engine).collect(),
            nodes: self.nodes.iter().map(|(name, node)| (name.as_str(), &**node)).collect(),
            cordoned: self.cordoned.iter().map(String::as_str).collect(),
            owners: owners.iter().map(|(uid, seen)| (uid.as_str(), *seen)).collect(),
            noticed: noticed.iter().map(|(id, at)| (id.as_str(), *at)).collect(),
            settings: &self.settings,
        }
    }
}
