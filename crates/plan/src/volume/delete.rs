//! The end of a volume: everything that belongs to it goes, then the volume itself.

use tether_crd::FINALIZER;
use tether_crd::engine::InstanceState;
use tether_crd::volume::State;
use tether_model::reason::Reason;
use tether_model::report::Rule;

use super::draft::Draft;
use super::{Change, Kind};
use crate::object::{Target, has_finalizer, is_deleting, name};

const DELETION: Rule = Rule("volume-deletion");

pub(super) fn delete(draft: &mut Draft<'_>) {
    let volume = draft.name();
    if draft.status.state != State::Deleting {
        draft.set_state(State::Deleting);
        draft.tell(Reason::Delete, format!("Deleting volume {volume}"));
    }
    for engine in &mut draft.engines {
        engine.delete();
    }
    // An engine that ends in order flushes its replicas; without them it would wait for ever.
    let observed = draft.observed;
    let runs = |engine: &&&tether_crd::Engine| {
        let node = &engine.spec.node_id;
        engine.status.current_state != InstanceState::Stopped && !node.is_empty() && !draft.is_down(node)
    };
    if observed.engines.iter().find(runs).is_none() {
        for replica in &mut draft.replicas {
            replica.delete();
        }
    }
    if let Some(attachment) = observed.attachment {
        let target = Target::of(attachment);
        if !is_deleting(attachment) {
            draft.last.push(Change::Delete { kind: Kind::Attachment, target });
        } else if has_finalizer(attachment, FINALIZER) {
            draft.last.push(Change::RemoveFinalizer { kind: Kind::Attachment, target });
        }
    }
    let_go(draft);
    let mut left: Vec<&str> = observed.engines.iter().map(|engine| name(*engine)).collect();
    left.extend(observed.replicas.iter().map(|replica| name(*replica)));
    if !left.is_empty() {
        draft.blocked(DELETION, Reason::DependentsRemain, format!("These have to go first: {}.", left.join(", ")));
    } else if has_finalizer(observed.volume, FINALIZER) {
        draft.fires(DELETION, Reason::DependentsGone, "Nothing of the volume is left.");
        draft.last.push(Change::RemoveFinalizer { kind: Kind::Volume, target: Target::of(observed.volume) });
    }
}

/// Engines and replicas that no agent can end: those that are on no node, or on one that does not answer.
fn let_go(draft: &mut Draft<'_>) {
    let observed = draft.observed;
    let abandoned = |node: &str| node.is_empty() || draft.is_down(node);
    let mut gone = Vec::new();
    for engine in &observed.engines {
        if is_deleting(*engine) && has_finalizer(*engine, FINALIZER) && abandoned(&engine.spec.node_id) {
            gone.push(Change::RemoveFinalizer { kind: Kind::Engine, target: Target::of(*engine) });
        }
    }
    for replica in &observed.replicas {
        if is_deleting(*replica) && has_finalizer(*replica, FINALIZER) && abandoned(&replica.spec.node_id) {
            gone.push(Change::RemoveFinalizer { kind: Kind::Replica, target: Target::of(*replica) });
        }
    }
    draft.last.append(&mut gone);
}
