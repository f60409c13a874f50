//! Where the two volumes of a copy have to be, and the tickets that keep them there.

use tether_crd::Volume;
use tether_crd::engine::ReplicaMode;
use tether_model::reason::Reason;

use super::{ANY, Change, Look, TICKET, is_own_ticket, ticket_id, wish};
use crate::Plan;
use crate::object::{Target, is_deleting, name};

/// Whether instances can be started on the node.
fn is_usable(look: &Look<'_>, node: &str) -> bool {
    let observed = look.observed;
    observed.nodes.get(node).is_some_and(|node| node.is_ready()) && observed.running_managers.contains(node)
}

/// The node where the copy is made: it holds a replica of the source that has every acknowledged write. Where the clone
/// is already is best, then where the source is, then the first by name.
pub(super) fn copy_node(look: &Look<'_>) -> Option<String> {
    let engine = look.observed.source_engines.iter().find(|engine| engine.spec.active && !is_deleting(**engine))?;
    let modes = &engine.status.replica_mode_map;
    let good = look
        .observed
        .source_replicas
        .iter()
        .filter(|replica| modes.get(name(**replica)) == Some(&ReplicaMode::ReadWrite) && !is_deleting(**replica));
    let mut nodes: Vec<&str> =
        good.map(|replica| replica.spec.node_id.as_str()).filter(|n| is_usable(look, n)).collect();
    let (here, there) = (&look.observed.volume.spec.node_id, &engine.spec.node_id);
    // Policy is order: false comes first.
    nodes.sort_by_key(|node| (*node != here.as_str(), *node != there.as_str(), *node));
    nodes.first().map(|node| (*node).to_owned())
}

/// The clone's own ticket: for a node, or none any more.
pub(super) fn ticket(plan: &mut Plan<Change>, look: &Look<'_>, node: Option<&str>) {
    let clone = look.observed.volume;
    let Some(attachment) = look.observed.attachment.filter(|attachment| !is_deleting(*attachment)) else { return };
    let id = ticket_id(clone);
    let held = attachment.spec.attachment_tickets.get(&id);
    let wanted = match (node, held) {
        (Some(node), held) if held.is_none_or(|held| held.node_id != node || !is_own_ticket(clone, held)) => {
            Some(Box::new(wish(clone, node, "true")))
        }
        (None, Some(_)) => None,
        _ => return,
    };
    let words = match node {
        Some(node) => format!("The clone is filled on node {node}, and not shown to anybody meanwhile."),
        None => "The clone is not held any more.".to_owned(),
    };
    let change = Change::SetTicket { attachment: Target::of(attachment), id, ticket: wanted };
    plan.acts(TICKET, look.about(), Reason::VolumeCloneInitiated, words, change);
}

/// The source has to be attached somewhere; where it is, it stays.
pub(super) fn source_ticket(plan: &mut Plan<Change>, look: &Look<'_>, source: &Volume) {
    let Some(attachment) = look.observed.source_attachment.filter(|attachment| !is_deleting(*attachment)) else {
        return;
    };
    let nodes = [source.spec.node_id.as_str(), source.status.owner_id.as_str()];
    let Some(node) = nodes.into_iter().find(|node| !node.is_empty()) else {
        let words = "The source has no node to be attached to.";
        return plan.blocked(TICKET, look.about(), Reason::VolumeCloneWaits, words);
    };
    let clone = look.observed.volume;
    let id = ticket_id(clone);
    if attachment.spec.attachment_tickets.get(&id).is_some_and(|held| held.node_id == node) {
        return;
    }
    let words = format!("The source is wanted on node {node}.");
    let ticket = Some(Box::new(wish(clone, node, ANY)));
    let change = Change::SetTicket { attachment: Target::of(attachment), id, ticket };
    plan.acts(TICKET, look.about(), Reason::VolumeCloneWaits, words, change);
}

pub(super) fn remove_source_ticket(plan: &mut Plan<Change>, look: &Look<'_>) {
    let Some(attachment) = look.observed.source_attachment else { return };
    let id = ticket_id(look.observed.volume);
    if attachment.spec.attachment_tickets.contains_key(&id) {
        let change = Change::SetTicket { attachment: Target::of(attachment), id, ticket: None };
        plan.acts(TICKET, look.about(), Reason::UpToDate, "The source is not needed any more.", change);
    }
}
