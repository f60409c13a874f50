//! Which volumes' snapshots a change concerns, and what there is to know about them.

use std::sync::Arc;

use tether_crd::attachment::TicketType;
use tether_crd::{Engine, NAMESPACE, Snapshot, Volume, VolumeAttachment};
use tether_plan::object::{is_deleting, name};
use tether_plan::snapshot::{Observed, VOLUME_HEAD};

use crate::cache::Seen;
use crate::context::Context;
use crate::queue::Queue;

/// Puts into the queue the volumes whose snapshots a change concerns.
pub(super) fn subscribe(context: &Arc<Context>, queue: &Arc<Queue<String>>) {
    let longhorn = &context.longhorn;
    let out = queue.clone();
    longhorn.snapshots.subscribe(move |seen| out.add(seen.object().spec.volume.clone()));
    let (out, snapshots) = (queue.clone(), Arc::downgrade(&longhorn.snapshots));
    longhorn.engines.subscribe(move |seen| {
        let volume = &seen.object().spec.volume_name;
        let has_some = snapshots.upgrade().is_some_and(|snapshots| snapshots.finds(volume));
        // Most volumes have none, and nothing to be shown.
        if has_some || shows_some(seen.object()) {
            out.add(volume.clone());
        }
    });
    let (out, snapshots) = (queue.clone(), Arc::downgrade(&longhorn.snapshots));
    let concerned = move |volume: &str| snapshots.upgrade().is_some_and(|all| all.finds(volume));
    let is_concerned = concerned.clone();
    longhorn.volumes.subscribe(move |seen| {
        let volume = name(seen.object());
        if matters(seen) && is_concerned(volume) {
            out.add(volume.to_owned());
        }
    });
    let out = queue.clone();
    longhorn.attachments.subscribe(move |seen| {
        let attachment = seen.object();
        let ours = || attachment.spec.attachment_tickets.values().any(|ticket| ticket.kind == TicketType::Snapshot);
        let is_new = matches!(seen, Seen::Applied { old: None, .. });
        if (is_new || ours()) && concerned(&attachment.spec.volume) {
            out.add(attachment.spec.volume.clone());
        }
    });
}

fn shows_some(engine: &Engine) -> bool {
    engine.status.snapshots.keys().any(|snapshot| snapshot != VOLUME_HEAD)
}

/// Of a volume, where it is and whether it goes matter; of its health nothing does.
fn matters(seen: &Seen<'_, Volume>) -> bool {
    let part = |volume: &Volume| {
        let (spec, status) = (&volume.spec, &volume.status);
        (spec.node_id.clone(), spec.migration_node_id.clone(), status.owner_id.clone(), is_deleting(volume))
    };
    match seen {
        Seen::Applied { old: Some(old), new } => part(old) != part(new),
        Seen::Applied { old: None, .. } | Seen::Deleted(_) => true,
    }
}

/// A volume with its snapshots.
pub(super) struct View {
    volume: Option<Arc<Volume>>,
    attachment: Option<Arc<VolumeAttachment>>,
    engines: Vec<Arc<Engine>>,
    pub(super) snapshots: Vec<Arc<Snapshot>>,
}

impl View {
    pub(super) fn of(context: &Context, volume: &str) -> Self {
        let longhorn = &context.longhorn;
        Self {
            volume: longhorn.volumes.get(NAMESPACE, volume),
            attachment: longhorn.attachments.get(NAMESPACE, volume),
            engines: longhorn.engines.find(volume),
            snapshots: longhorn.snapshots.find(volume),
        }
    }

    pub(super) fn observed(&self) -> Observed<'_> {
        Observed {
            volume: self.volume.as_deref(),
            attachment: self.attachment.as_deref(),
            engines: self.engines.iter().map(AsRef::as_ref).collect(),
            snapshots: self.snapshots.iter().map(AsRef::as_ref).collect(),
        }
    }

    /// The snapshot that a change is for.
    pub(super) fn snapshot(&self, uid: &str) -> Option<&Snapshot> {
        let held = self.snapshots.iter().find(|snapshot| snapshot.metadata.uid.as_deref() == Some(uid));
        held.map(AsRef::as_ref)
    }
}
