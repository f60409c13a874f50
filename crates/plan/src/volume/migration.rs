//! A volume that moves while it is used: a second engine stands by on the target until the move is decided.
//!
//! ```text
//!                    spec.migrationNodeID = N              spec.nodeID = N
//!   e-0 serves on O ─────────────────────────► e-1 stands by on N ─────────────► e-1 active on N, e-0 deleted
//!                                                  │
//!                                                  └── migrationNodeID = "" ──► e-1 deleted, e-0 goes on
//! ```
//!
//! The engine that stands by has no epoch and reads through the one that serves, so that both may show a device without two
//! writers. What makes it the volume's engine is `active`: its agent promotes it, which fences the other. It serves with the
//! same replicas; they change hands with the engine.

use jiff::SignedDuration;
use tether_crd::engine::InstanceState;
use tether_crd::volume::Robustness;
use tether_crd::{Engine, labels, names};
use tether_model::reason::Reason;
use tether_model::report::Rule;

use super::create;
use super::draft::Draft;
use crate::object::{is_deleting, name};

const MIGRATION: Rule = Rule("volume-migration");

/// How long an engine that failed to stand by is left as it is before it is replaced by a new one.
const RETRY_PAUSE: SignedDuration = SignedDuration::from_secs(5);

pub(super) fn migrate(draft: &mut Draft<'_>) {
    let volume = draft.volume();
    if !volume.is_migratable() {
        return;
    }
    let target = volume.spec.migration_node_id.as_str();
    let is_attached = !volume.spec.node_id.is_empty() && !draft.status.current_node_id.is_empty();
    if !target.is_empty() && is_attached {
        stand_by(draft, target);
    } else if target.is_empty() && (draft.engines.len() > 1 || !draft.status.current_migration_node_id.is_empty()) {
        finish(draft);
    }
}

/// Engines beside the one that counts, and not on their way out.
fn extras(draft: &Draft<'_>) -> Vec<usize> {
    let current = draft.current();
    let alive = |index: &usize| *index != current && !is_deleting(&*draft.engines[*index]);
    (0..draft.engines.len()).filter(alive).collect()
}

/// Sees to it that one engine stands by on the target.
fn stand_by(draft: &mut Draft<'_>, target: &str) {
    if !matches!(draft.status.robustness, Robustness::Healthy | Robustness::Degraded) {
        let robustness = draft.status.robustness;
        let words = format!("Skip the migration processing since the volume current robustness is {robustness}");
        draft.blocked(MIGRATION, Reason::Migrating, words);
        return;
    }
    target.clone_into(&mut draft.status.current_migration_node_id);
    let (state, current) = (draft.engine_state(), name(draft.engine()).to_owned());
    if state != InstanceState::Running {
        let words = format!("Need to revert the migration since the current engine {current} is state {state}");
        revert(draft, &words);
        return;
    }
    match extras(draft).as_slice() {
        [] if draft.engines.len() > 1 => {
            draft.blocked(MIGRATION, Reason::EngineStopping, "An engine of an earlier attempt has not gone yet.");
        }
        [] => add(draft, target),
        [one] if draft.engines[*one].spec.node_id == target => follow(draft, *one, target),
        _ => revert(draft, "There is an engine on a node that the volume does not move to."),
    }
}

/// Makes the engine that stands by. It is told at once all that it needs.
fn add(draft: &mut Draft<'_>, target: &str) {
    let number = names::engine_number(name(draft.engine())).unwrap_or(0) + 1;
    let mut engine = create::engine(draft, number);
    engine.metadata.labels.get_or_insert_default().insert(labels::NODE.into(), target.into());
    engine.spec.active = false;
    engine.spec.desire_state = InstanceState::Running;
    tell(draft, &mut engine, target);
    let words = format!("Engine {} is made to stand by on node {target:?}.", name(&engine));
    draft.fires(MIGRATION, Reason::Migrating, words);
    draft.add_engine(engine);
}

/// What an engine that stands by has to know to take over.
fn tell(draft: &Draft<'_>, engine: &mut Engine, target: &str) {
    target.clone_into(&mut engine.spec.node_id);
    engine.spec.replica_address_map.clone_from(&draft.engine().spec.replica_address_map);
    engine.spec.disable_frontend = draft.volume().spec.disable_frontend;
    engine.spec.volume_size = draft.engine().spec.volume_size;
}

fn follow(draft: &mut Draft<'_>, index: usize, target: &str) {
    if draft.engines[index].status.current_state == InstanceState::Error {
        let made = draft.engines[index].metadata.creation_timestamp.as_ref().map(|time| time.0 + RETRY_PAUSE);
        match made.filter(|until| draft.now < *until) {
            Some(until) => {
                let words = format!("The engine on node {target:?} failed to stand by; another one is tried.");
                draft.waits(MIGRATION, Reason::Migrating, words, until);
            }
            None => revert(draft, "The migration engine failed."),
        }
        return;
    }
    let mut changed = draft.engines[index].clone();
    tell(draft, &mut changed, target);
    let runs = changed.status.current_state == InstanceState::Running;
    draft.engines[index] = changed;
    if runs {
        draft.rests(MIGRATION, Reason::Migrating, "Volume migration engine is ready");
    } else {
        draft.blocked(
            MIGRATION,
            Reason::EngineStarting,
            format!("The engine on node {target:?} does not stand by yet."),
        );
    }
}

/// Takes back what was done for the move; as long as it is wanted, it is tried again.
fn revert(draft: &mut Draft<'_>, why: &str) {
    for index in extras(draft) {
        draft.engines[index].delete();
    }
    draft.fires(MIGRATION, Reason::Migrating, format!("Cleaning up the migration engine to revert migration: {why}"));
}

/// The move is decided: one engine stays.
fn finish(draft: &mut Draft<'_>) {
    let volume = draft.volume();
    let (wanted, current) = (volume.spec.node_id.clone(), draft.status.current_node_id.clone());
    let was_migrating = !draft.status.current_migration_node_id.is_empty();
    if was_migrating && (wanted.is_empty() || current.is_empty()) {
        let note = "Volume migration failed unexpectedly; detach volume from extra node to resume";
        draft.fires(MIGRATION, Reason::MigrationFailed, note);
        draft.warn(Reason::MigrationFailed, note);
    }
    let winner = if wanted.is_empty() || wanted == current {
        draft.current()
    } else {
        let there = |index: &usize| {
            let engine = &draft.engines[*index];
            engine.spec.node_id == wanted && !is_deleting(&**engine)
        };
        let Some(winner) = (0..draft.engines.len()).find(there) else {
            draft.blocked(
                MIGRATION,
                Reason::MigrationFailed,
                format!("There is no engine on node {wanted:?} to switch to."),
            );
            return;
        };
        let words = format!("Volume migration complete switching current node id from {current} to {wanted}");
        draft.fires(MIGRATION, Reason::Attached, words);
        draft.status.current_node_id = wanted;
        winner
    };
    let name = name(&*draft.engines[winner]).to_owned();
    for (index, engine) in draft.engines.iter_mut().enumerate() {
        if index == winner {
            engine.spec.active = true;
        } else {
            engine.delete();
        }
    }
    for replica in &mut draft.replicas {
        replica.spec.engine_name.clone_from(&name);
    }
    draft.status.current_migration_node_id.clear();
}
