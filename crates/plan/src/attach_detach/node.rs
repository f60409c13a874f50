//! The list of attached volumes in a node's status, written in one piece for all of its volumes.

use k8s_openapi::api::core::v1::{AttachedVolume, Node, Pod};
use tether_model::reason::Reason;
use tether_model::report::Rule;

use super::words;
use crate::Plan;
use crate::event::Event;
use crate::object::{Target, subject};

const LIST: Rule = Rule("list-attached-volumes");

/// A volume that is to be on the list.
#[derive(Clone, Debug)]
pub struct Listed<'a> {
    pub unique_name: String,
    /// As events name it.
    pub volume: &'a str,
    pub pods: Vec<&'a Pod>,
}

/// What the decision about a node's list looks at.
#[derive(Clone, Debug)]
pub struct NodeObserved<'a> {
    pub node: &'a Node,
    /// Volumes that are attached and may be mounted: wanted, or unwanted and still mounted.
    pub attached: Vec<Listed<'a>>,
    /// Volumes that must not be on the list: they are about to be taken away, or are not attached.
    pub barred: Vec<String>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeChange {
    /// Replace the list, if it still is what was seen.
    SetAttached { node: Target, seen: Vec<AttachedVolume>, wanted: Vec<AttachedVolume> },
}

/// Whether the node lists a volume as attached.
pub(crate) fn lists(node: &Node, unique: &str) -> bool {
    listed(node).iter().any(|volume| volume.name == unique)
}

/// Whether the node says that it uses a volume.
pub(crate) fn uses(node: &Node, unique: &str) -> bool {
    let used = node.status.as_ref().and_then(|s| s.volumes_in_use.as_deref()).unwrap_or_default();
    used.iter().any(|name| name == unique)
}

fn listed(node: &Node) -> &[AttachedVolume] {
    node.status.as_ref().and_then(|s| s.volumes_attached.as_deref()).unwrap_or_default()
}

/// Decides what the node's list has to be. Volumes of others (not of a CSI driver) stay.
pub fn decide_node(observed: &NodeObserved<'_>) -> Plan<NodeChange> {
    let mut plan = Plan::default();
    let seen = listed(observed.node);
    let mut wanted: Vec<AttachedVolume> =
        seen.iter().filter(|volume| !observed.barred.contains(&volume.name)).cloned().collect();
    for volume in &observed.attached {
        if wanted.iter().any(|held| held.name == volume.unique_name) {
            continue;
        }
        wanted.push(AttachedVolume { name: volume.unique_name.clone(), device_path: String::new() });
        let note = words::attach_succeeded(volume.volume);
        for pod in &volume.pods {
            plan.tells(Event::normal(*pod, Reason::SuccessfulAttachVolume, note.clone()));
        }
    }
    if wanted.as_slice() == seen {
        plan.rests(LIST, subject(observed.node), Reason::UpToDate, format!("It lists {} volumes.", seen.len()));
    } else {
        let words = format!("It lists {} volumes, and is to list {}.", seen.len(), wanted.len());
        let change = NodeChange::SetAttached { node: Target::of(observed.node), seen: seen.to_vec(), wanted };
        plan.acts(LIST, subject(observed.node), Reason::NodeListFollows, words, change);
    }
    plan
}
