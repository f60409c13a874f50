//! The end of a volume: everything that belongs to it goes, then the volume itself.

use tether_crd::engine::InstanceState;
use tether_crd::volume::State;
use tether_crd::{Engine, FINALIZER};
use tether_model::reason::Reason;
use tether_model::report::Rule;

use super::draft::Draft;
use super::run::why_it_stays;
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
    // An engine ends in order only while its replicas are there: they go after it.
    let ends =
        |engine: &Engine| engine.status.current_state != InstanceState::Stopped && !is_out_of_reach(draft, engine);
    if !draft.observed.engines.iter().any(|engine| ends(engine)) {
        for replica in &mut draft.replicas {
            replica.delete();
        }
    }
    let observed = draft.observed;
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
    let why: String = observed.engines.iter().map(|engine| why_it_stays(engine)).collect();
    if !why.is_empty() {
        draft.warn(Reason::DependentsRemain, format!("volume {volume} cannot be deleted yet.{why}"));
    }
    if !left.is_empty() {
        let words = format!("These have to go first: {}.{why}", left.join(", "));
        draft.blocked(DELETION, Reason::DependentsRemain, words);
    } else if has_finalizer(observed.volume, FINALIZER) {
        draft.fires(DELETION, Reason::DependentsGone, "Nothing of the volume is left.");
        draft.last.push(Change::RemoveFinalizer { kind: Kind::Volume, target: Target::of(observed.volume) });
    }
}

/// Whether nobody can end the engine, or needs to.
fn is_out_of_reach(draft: &Draft<'_>, engine: &Engine) -> bool {
    engine.spec.node_id.is_empty() || draft.is_down(&engine.spec.node_id)
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
