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
//! writers. What makes it the volume's engine is `active`: its agent promotes it, which fences the other. Its first write
//! does the same before anybody has decided ([`Draft::promoted`]); the volume then is where the record says, and the
//! engine that was fenced is stopped, so that it can start again if the move is taken back.
//!
//! Each replica has a twin: a second object, of the second engine, for the same directory and the same process. Twins
//! say what the others say, failures included, so that whichever set stays after the decision is complete, and nothing
//! is copied. The name in the record is the directory's, and does not change.

use jiff::SignedDuration;
use tether_crd::engine::InstanceState;
use tether_crd::replica::ReplicaSpec;
use tether_crd::volume::{Robustness, Words};
use tether_crd::{Engine, labels, names};
use tether_model::reason::Reason;
use tether_model::report::Rule;

use super::draft::Draft;
use super::{create, run};
use crate::object::{is_deleting, name};

const MIGRATION: Rule = Rule("volume-migration");

/// How long an engine that failed to stand by is left as it is before it is replaced by a new one.
const RETRY_PAUSE: SignedDuration = SignedDuration::from_secs(5);

/// A move that was decided: one engine stays. First of all, since everything after it asks which engine counts.
pub(super) fn decided(draft: &mut Draft<'_>) {
    let volume = draft.volume();
    let is_over = volume.spec.migration_node_id.is_empty();
    if volume.is_migratable() && is_over && (draft.engines.len() > 1 || volume.is_migrating()) {
        finish(draft);
    }
}

/// A move that is under way: sees to it that an engine stands by on the target.
pub(super) fn migrate(draft: &mut Draft<'_>) {
    let volume = draft.volume();
    if !volume.is_migratable() {
        return;
    }
    let target = volume.spec.migration_node_id.as_str();
    let is_attached = !volume.spec.node_id.is_empty() && !draft.status.current_node_id.is_empty();
    if !target.is_empty() && is_attached {
        stand_by(draft, target);
    }
    dismiss(draft);
}

/// Engines beside the one that counts, and not on their way out.
fn extras(draft: &Draft<'_>) -> Vec<usize> {
    let current = draft.current();
    (0..draft.engines.len()).filter(|index| *index != current && !draft.engines[*index].is_leaving()).collect()
}

fn stand_by(draft: &mut Draft<'_>, target: &str) {
    if !matches!(draft.status.robustness, Robustness::Healthy | Robustness::Degraded) {
        let robustness = draft.status.robustness;
        let words = format!("Skip the migration processing since the volume current robustness is {robustness}");
        draft.blocked(MIGRATION, Reason::Migrating, words);
        return;
    }
    target.clone_into(&mut draft.status.current_migration_node_id);
    if draft.promoted().is_some() {
        took_over(draft, target);
        return;
    }
    if draft.is_being_taken_over() {
        draft.blocked(MIGRATION, Reason::MigrationPromoted, "The engine that stands by is taking the volume over.");
        return;
    }
    let (state, current) = (draft.engine_state(), name(draft.engine()).to_owned());
    if state != InstanceState::Running {
        let words = format!("Need to revert the migration since the current engine {current} is state {state}");
        revert(draft, &words);
        return;
    }
    match extras(draft).as_slice() {
        [] => add(draft, target),
        [one] if draft.engines[*one].spec.node_id == target => follow(draft, *one, target),
        _ => revert(draft, "There is an engine on a node that the volume does not move to."),
    }
}

/// The target has written: it holds the volume already, whatever is decided.
fn took_over(draft: &mut Draft<'_>, target: &str) {
    let words = format!("Node {target:?} has written and thereby taken the volume over; the other node is fenced.");
    let source = draft.current();
    if draft.engines[source].spec.desire_state == InstanceState::Running {
        let (volume, from) = (draft.name(), draft.engines[source].spec.node_id.clone());
        draft.engines[source].spec.desire_state = InstanceState::Stopped;
        draft.fires(MIGRATION, Reason::MigrationPromoted, words);
        let note = format!("volume {volume} was written on {target} before its migration from {from} was confirmed");
        draft.warn(Reason::MigrationPromoted, note);
    } else {
        draft.rests(MIGRATION, Reason::MigrationPromoted, words);
    }
    for extra in extras(draft) {
        inform(draft, extra, target);
    }
}

/// Makes the engine that stands by. It is told at once all that it needs.
fn add(draft: &mut Draft<'_>, target: &str) {
    if draft.engines.len() > 1 {
        draft.blocked(MIGRATION, Reason::EngineStopping, "An engine of an earlier attempt has not gone yet.");
        return;
    }
    if let Some(standby) = draft.record().and_then(|record| record.standby.clone()) {
        let words =
            format!("The record still names engine {standby} as standby, which is gone; it is taken out first.");
        draft.blocked(MIGRATION, Reason::Migrating, words);
        return;
    }
    let number = names::engine_number(name(draft.engine())).unwrap_or(0) + 1;
    let mut engine = create::engine(draft, number);
    engine.metadata.labels.get_or_insert_default().insert(labels::NODE.into(), target.into());
    target.clone_into(&mut engine.spec.node_id);
    engine.spec.active = false;
    engine.spec.desire_state = InstanceState::Running;
    let words = format!("Engine {} is made to stand by on node {target:?}.", name(&engine));
    draft.fires(MIGRATION, Reason::Migrating, words);
    draft.add_engine(engine);
    inform(draft, draft.engines.len() - 1, target);
}

/// Tells an engine that stands by what it has to know to take over, and its replicas what the others are told.
fn inform(draft: &mut Draft<'_>, index: usize, target: &str) {
    let standby = name(&*draft.engines[index]).to_owned();
    mirror(draft, &standby);
    drop_orphans(draft, &standby);
    let addresses = addresses(draft, &standby);
    let (size, disable_frontend) = (draft.engine().spec.volume_size, draft.volume().spec.disable_frontend);
    let source = source(draft.engine());
    let engine: &mut Engine = &mut draft.engines[index];
    target.clone_into(&mut engine.spec.node_id);
    engine.spec.replica_address_map = addresses;
    engine.spec.disable_frontend = disable_frontend;
    engine.spec.volume_size = size;
    if let Some(source) = source {
        engine.spec.migration_source = source;
    }
}

/// Where the engine that serves lets others read through it.
fn source(engine: &Engine) -> Option<String> {
    let status = &engine.status;
    (!status.ip.is_empty() && status.port != 0).then(|| run::address(&status.ip, status.port))
}

/// Gives each replica of the engine that counts a twin of the one that stands by, and makes them alike.
fn mirror(draft: &mut Draft<'_>, standby: &str) {
    let current = name(draft.engine()).to_owned();
    for index in 0..draft.replicas.len() {
        let replica = &draft.replicas[index];
        if replica.spec.engine_name != current || !replica.is_scheduled() || replica.is_leaving() {
            continue;
        }
        let spec = ReplicaSpec { engine_name: standby.to_owned(), active: false, ..replica.spec.clone() };
        let twin = draft.replicas.iter().position(|other| {
            !other.is_leaving() && other.spec.engine_name == standby && is_same_copy(&other.spec, &spec)
        });
        if let Some(twin) = twin {
            draft.replicas[twin].spec = spec;
        } else {
            let made = create::twin(draft, spec);
            draft.add_replica(made);
        }
    }
}

/// Twins of replicas that go, go with them.
fn drop_orphans(draft: &mut Draft<'_>, standby: &str) {
    for index in 0..draft.replicas.len() {
        let twin = &draft.replicas[index];
        let has_other = draft.replicas.iter().any(|other| {
            other.spec.engine_name != standby && !other.is_leaving() && is_same_copy(&other.spec, &twin.spec)
        });
        if twin.spec.engine_name == standby && !twin.spec.active && !has_other {
            draft.replicas[index].delete();
        }
    }
}

/// Whether two objects stand for one directory, and thus for one process.
fn is_same_copy(one: &ReplicaSpec, other: &ReplicaSpec) -> bool {
    one.data_directory_name == other.data_directory_name && one.disk_id == other.disk_id
}

/// Where the twins' processes are: they are the others' processes.
fn addresses(draft: &Draft<'_>, standby: &str) -> Words {
    let held = &draft.engine().spec.replica_address_map;
    let mut map = Words::new();
    for twin in &draft.replicas {
        if twin.spec.engine_name != standby || twin.is_leaving() || !twin.spec.failed_at.is_empty() {
            continue;
        }
        let others = draft.replicas.iter();
        let mut others = others.filter(|r| r.spec.engine_name != standby && is_same_copy(&r.spec, &twin.spec));
        if let Some(address) = others.find_map(|other| held.get(name(&**other))) {
            map.insert(name(&**twin).to_owned(), address.clone());
        }
    }
    map
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
    inform(draft, index, target);
    if draft.engines[index].status.current_state == InstanceState::Running {
        draft.rests(MIGRATION, Reason::Migrating, "Volume migration engine is ready");
    } else {
        let words = format!("The engine on node {target:?} does not stand by yet.");
        draft.blocked(MIGRATION, Reason::EngineStarting, words);
    }
}

/// Takes back what was done for the move; as long as it is wanted, it is tried again.
fn revert(draft: &mut Draft<'_>, why: &str) {
    for index in extras(draft) {
        draft.engines[index].delete();
    }
    draft.fires(MIGRATION, Reason::Migrating, format!("Cleaning up the migration engine to revert migration: {why}"));
}

/// The move is decided: one engine stays, with its replicas.
fn finish(draft: &mut Draft<'_>) {
    let volume = draft.volume();
    let (wanted, current) = (volume.spec.node_id.clone(), draft.status.current_node_id.clone());
    let was_migrating = !draft.status.current_migration_node_id.is_empty();
    if was_migrating && (wanted.is_empty() || current.is_empty()) {
        let note = "Volume migration failed unexpectedly; detach volume from extra node to resume";
        draft.fires(MIGRATION, Reason::MigrationFailed, note);
        draft.warn(Reason::MigrationFailed, note);
    }
    let winner = if !was_migrating || wanted.is_empty() || current.is_empty() || wanted == current {
        draft.current()
    } else {
        let there = |index: &usize| {
            let engine = &draft.engines[*index];
            engine.spec.node_id == wanted && !is_deleting(&**engine)
        };
        let Some(winner) = (0..draft.engines.len()).find(there) else {
            // The one that stood by died just before it was to take over: the next one takes over at once.
            let words = format!("There is no engine on node {wanted:?} to switch to.");
            draft.blocked(MIGRATION, Reason::Migrating, words);
            add(draft, &wanted);
            return;
        };
        let words = format!("Volume migration complete switching current node id from {current} to {wanted}");
        draft.fires(MIGRATION, Reason::Attached, words);
        draft.status.current_node_id = wanted;
        winner
    };
    keep(draft, winner);
    draft.status.current_migration_node_id.clear();
}

/// One engine and its replicas stay, the others go. No data goes with a replica whose twin stays.
fn keep(draft: &mut Draft<'_>, winner: usize) {
    let name = name(&*draft.engines[winner]).to_owned();
    if !draft.engines[winner].spec.active {
        // What became of replicas since it was last told.
        mirror(draft, &name);
    }
    for (index, engine) in draft.engines.iter_mut().enumerate() {
        if index == winner {
            engine.spec.active = true;
            engine.spec.migration_source.clear();
        } else {
            engine.delete();
        }
    }
    for index in 0..draft.replicas.len() {
        let replica = &draft.replicas[index];
        let has_twin = draft.replicas.iter().any(|other| {
            other.spec.engine_name == name && !other.is_leaving() && is_same_copy(&other.spec, &replica.spec)
        });
        if replica.spec.engine_name != name && has_twin {
            draft.replicas[index].delete();
            continue;
        }
        let spec = &mut draft.replicas[index].spec;
        (spec.engine_name, spec.active) = (name.clone(), true);
    }
}

/// An engine that the record names as standby, and that is not to be: without this it could take over later, when it, or
/// its node, is back. The engine that serves takes it out of the record.
fn dismiss(draft: &mut Draft<'_>) {
    let Some(standby) = draft.record().and_then(|record| record.standby.clone()) else { return };
    let may_be_it = |index: &usize| {
        let uid = &draft.engines[*index].status.uuid;
        uid.is_empty() || *uid == standby
    };
    let current = draft.engine();
    if extras(draft).iter().any(may_be_it)
        || draft.engine_state() != InstanceState::Running
        || current.spec.dismissed_standby == standby
    {
        return;
    }
    let words = format!("Engine {standby} must not take the volume over any more.");
    draft.fires(MIGRATION, Reason::StandbyDismissed, words);
    draft.engine_mut().spec.dismissed_standby = standby;
}
