//! Which volumes a change concerns, and what there is to know about one.

use std::sync::Arc;

use tether_crd::attachment::TicketType;
use tether_crd::{Engine, NAMESPACE, Replica, Volume, VolumeAttachment};
use tether_plan::object::{is_deleting, name};
use tether_plan::placement::{Hosts, Promised};
use tether_plan::volume::{Observed, Settings};

use super::cluster::Cluster;
use crate::cache::Seen;
use crate::context::Context;
use crate::longhorn::{UNSETTLED, on_node};
use crate::queue::Queue;

/// Puts into the queue what a change concerns, and keeps the picture of the cluster.
pub(super) fn subscribe(context: &Arc<Context>, queue: &Arc<Queue<String>>, cluster: &Arc<Cluster>) {
    let longhorn = &context.longhorn;
    let out = queue.clone();
    longhorn.volumes.subscribe(move |seen| out.add(name(seen.object()).to_owned()));
    let out = queue.clone();
    longhorn.attachments.subscribe(move |seen| {
        if concerns_the_volume(seen) {
            out.add(name(seen.object()).to_owned());
        }
    });
    let (out, held) = (queue.clone(), cluster.clone());
    longhorn.engines.subscribe(move |seen| {
        held.engine(seen.object(), matches!(seen, Seen::Deleted(_)));
        out.add(seen.object().spec.volume_name.clone());
    });
    let (out, held) = (queue.clone(), cluster.clone());
    longhorn.replicas.subscribe(move |seen| {
        held.replica(seen.object(), matches!(seen, Seen::Deleted(_)));
        out.add(seen.object().spec.volume_name.clone());
    });
    let (weak, out, held) = (Arc::downgrade(context), queue.clone(), cluster.clone());
    longhorn.nodes.subscribe(move |seen| {
        if held.node(seen.object(), matches!(seen, Seen::Deleted(_))) {
            node_changed(weak.upgrade().as_deref(), &out, &held, name(seen.object()));
        }
    });
    let (weak, out, held) = (Arc::downgrade(context), queue.clone(), cluster.clone());
    longhorn.instance_managers.subscribe(move |seen| {
        if held.manager(seen.object(), matches!(seen, Seen::Deleted(_))) {
            node_changed(weak.upgrade().as_deref(), &out, &held, &seen.object().spec.node_id);
        }
    });
    let (weak, out, held) = (Arc::downgrade(context), queue.clone(), cluster.clone());
    longhorn.settings.subscribe(move |_| {
        let Some(context) = weak.upgrade() else { return };
        held.set_settings(Settings::of(&context.longhorn.settings()));
        context.longhorn.volumes.names().into_iter().for_each(|volume| out.add(volume));
    });
}

/// Tickets are another's business, but for our own; that the attachment exists is ours.
fn concerns_the_volume(seen: &Seen<'_, VolumeAttachment>) -> bool {
    let ours = |attachment: &VolumeAttachment| {
        let mut tickets = attachment.spec.attachment_tickets.values();
        is_deleting(attachment) || tickets.any(|ticket| ticket.kind == TicketType::Expansion)
    };
    match seen {
        Seen::Applied { old: Some(old), new } => ours(old) || ours(new),
        Seen::Applied { old: None, .. } | Seen::Deleted(_) => true,
    }
}

/// Volumes that have something there, and those that wait for a place or a replica.
fn node_changed(context: Option<&Context>, queue: &Queue<String>, cluster: &Cluster, node: &str) {
    for volume in cluster.volumes_on(node) {
        queue.add(volume);
    }
    let Some(context) = context else { return };
    let volumes = &context.longhorn.volumes;
    for volume in volumes.names_under(UNSETTLED).into_iter().chain(volumes.names_under(&on_node(node))) {
        queue.add(volume);
    }
}

/// A volume and what belongs to it.
pub(super) struct View {
    pub(super) volume: Arc<Volume>,
    pub(super) attachment: Option<Arc<VolumeAttachment>>,
    pub(super) engines: Vec<Arc<Engine>>,
    pub(super) replicas: Vec<Arc<Replica>>,
}

impl View {
    /// `None` if the volume is gone.
    pub(super) fn of(context: &Context, volume: &str) -> Option<Self> {
        let longhorn = &context.longhorn;
        Some(Self {
            volume: longhorn.volumes.get(NAMESPACE, volume)?,
            attachment: longhorn.attachments.get(NAMESPACE, volume),
            engines: longhorn.engines.find(volume),
            replicas: longhorn.replicas.find(volume),
        })
    }

    pub(super) fn observed<'a>(
        &'a self,
        hosts: &'a Hosts,
        promised: &'a Promised,
        settings: &'a Settings,
        seed: u64,
    ) -> Observed<'a> {
        Observed {
            volume: &self.volume,
            attachment: self.attachment.as_deref(),
            engines: self.engines.iter().map(AsRef::as_ref).collect(),
            replicas: self.replicas.iter().map(AsRef::as_ref).collect(),
            hosts,
            promised,
            settings,
            seed,
        }
    }
}
