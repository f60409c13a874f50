//! Which clones a change concerns, and what there is to know about one and its source.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tether_crd::instance_manager::InstanceManagerState;
use tether_crd::volume::CloneState;
use tether_crd::{Engine, InstanceManager, NAMESPACE, Node, Replica, Snapshot, Volume, VolumeAttachment};
use tether_plan::clone::{Observed, Source};
use tether_plan::object::name;

use crate::cache::Seen;
use crate::context::Context;
use crate::queue::Queue;

/// The clones that are not complete, by their source: few at any time.
#[derive(Default)]
pub(super) struct Unfinished(Mutex<BTreeMap<String, BTreeSet<String>>>);

impl Unfinished {
    fn seen(&self, volume: &Volume, gone: bool) {
        let Some(source) = Source::of(volume) else { return };
        let finished = gone || volume.status.clone_status.state == CloneState::Completed;
        let mut all = self.0.lock();
        let clones = all.entry(source.volume.clone()).or_default();
        if finished {
            clones.remove(name(volume))
        } else {
            clones.insert(name(volume).to_owned())
        };
        if clones.is_empty() {
            all.remove(&source.volume);
        }
    }

    /// The clones that a change of a volume concerns: those of it, and itself.
    fn concerned(&self, volume: &str) -> Vec<String> {
        let all = self.0.lock();
        let of_it = all.get(volume).into_iter().flatten();
        let itself = all.values().flatten().filter(|clone| *clone == volume);
        of_it.chain(itself).cloned().collect()
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().values().flatten().cloned().collect()
    }
}

/// Puts into the queue the clones that a change concerns.
pub(super) fn subscribe(context: &Arc<Context>, queue: &Arc<Queue<String>>, unfinished: &Arc<Unfinished>) {
    let longhorn = &context.longhorn;
    let hear = |queue: &Arc<Queue<String>>| {
        let (queue, unfinished) = (queue.clone(), unfinished.clone());
        move |volume: &str| unfinished.concerned(volume).into_iter().for_each(|clone| queue.add(clone))
    };
    let (out, held, told) = (queue.clone(), unfinished.clone(), hear(queue));
    longhorn.volumes.subscribe(move |seen| {
        let volume = seen.object();
        held.seen(volume, matches!(seen, Seen::Deleted(_)));
        told(name(volume));
        // What a clone has to give back when it is complete.
        if Source::of(volume).is_some() {
            out.add(name(volume).to_owned());
        }
    });
    let told = hear(queue);
    longhorn.attachments.subscribe(move |seen| told(&seen.object().spec.volume));
    let told = hear(queue);
    longhorn.engines.subscribe(move |seen| told(&seen.object().spec.volume_name));
    let told = hear(queue);
    longhorn.snapshots.subscribe(move |seen| told(&seen.object().spec.volume));
    let (out, held) = (queue.clone(), unfinished.clone());
    longhorn.instance_managers.subscribe(move |_| held.all().into_iter().for_each(|clone| out.add(clone)));
}

/// A clone and its source.
pub(super) struct View {
    volume: Arc<Volume>,
    attachment: Option<Arc<VolumeAttachment>>,
    engines: Vec<Arc<Engine>>,
    source: Option<Arc<Volume>>,
    source_attachment: Option<Arc<VolumeAttachment>>,
    source_engines: Vec<Arc<Engine>>,
    source_replicas: Vec<Arc<Replica>>,
    source_snapshots: Vec<Arc<Snapshot>>,
    nodes: Vec<Arc<Node>>,
    managers: Vec<Arc<InstanceManager>>,
}

impl View {
    /// `None` if there is no such clone.
    pub(super) fn of(context: &Context, volume: &str) -> Option<Self> {
        let longhorn = &context.longhorn;
        let held = longhorn.volumes.get(NAMESPACE, volume)?;
        let source = Source::of(&held)?.volume;
        Some(Self {
            volume: held,
            attachment: longhorn.attachments.get(NAMESPACE, volume),
            engines: longhorn.engines.find(volume),
            source: longhorn.volumes.get(NAMESPACE, &source),
            source_attachment: longhorn.attachments.get(NAMESPACE, &source),
            source_engines: longhorn.engines.find(&source),
            source_replicas: longhorn.replicas.find(&source),
            source_snapshots: longhorn.snapshots.find(&source),
            nodes: longhorn.nodes.list(),
            managers: longhorn.instance_managers.list(),
        })
    }

    pub(super) fn observed(&self) -> Observed<'_> {
        let running = |manager: &&Arc<InstanceManager>| manager.status.current_state == InstanceManagerState::Running;
        Observed {
            volume: &self.volume,
            attachment: self.attachment.as_deref(),
            engines: self.engines.iter().map(AsRef::as_ref).collect(),
            source: self.source.as_deref(),
            source_attachment: self.source_attachment.as_deref(),
            source_engines: self.source_engines.iter().map(AsRef::as_ref).collect(),
            source_replicas: self.source_replicas.iter().map(AsRef::as_ref).collect(),
            source_snapshots: self.source_snapshots.iter().map(AsRef::as_ref).collect(),
            nodes: self.nodes.iter().map(|node| (name(&**node), node.as_ref())).collect(),
            running_managers: self
                .managers
                .iter()
                .filter(running)
                .map(|manager| manager.spec.node_id.as_str())
                .collect(),
        }
    }
}
