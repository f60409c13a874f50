//! Filling a volume with a snapshot of another one, and saying how far that is.

use std::collections::BTreeMap;

use tether_crd::Engine;
use tether_crd::engine::CloneProgress;
use tether_crd::volume::Frontend;
use tether_model::reason::Reason;
use tether_model::report::Rule;

use super::engine::{EngineChange, EngineProcess};
use super::{EngineObserved, ProcessState};
use crate::Plan;
use crate::clone::{COMPLETE, Source};
use crate::object::subject;

const FILL: Rule = Rule("engine-fill");

/// Begins to copy what the engine is to be filled with, unless that goes on or is done.
pub(super) fn follow(plan: &mut Plan<EngineChange>, observed: &EngineObserved<'_>, found: &EngineProcess) {
    let engine = observed.engine;
    let wanted = Source::parse(&engine.spec.requested_data_source);
    let Some(Source { volume, snapshot: Some(snapshot) }) = wanted else { return };
    let is_done =
        engine.status.clone_status.values().any(|told| told.snapshot_name == snapshot && told.state == COMPLETE);
    if found.process.state != ProcessState::Running || found.is_standby || observed.copy.is_some() || is_done {
        return;
    }
    // Whoever has the volume would see it change, and what they write could be overwritten.
    let shows = !engine.spec.disable_frontend && engine.spec.frontend != Frontend::None;
    if shows || !found.endpoint.is_empty() {
        let words = "The volume is shown; it is filled when it is attached without a frontend.";
        return plan.blocked(FILL, subject(engine), Reason::CopyIncomplete, words);
    }
    let words = format!("Snapshot {snapshot} of volume {volume} is copied into it.");
    plan.acts(FILL, subject(engine), Reason::VolumeCloneInitiated, words, EngineChange::Fill { volume, snapshot });
}

/// How far it is, by replica: an engine writes to all of them at once.
pub(super) fn told(engine: &Engine, copy: Option<&CloneProgress>) -> BTreeMap<String, CloneProgress> {
    if engine.spec.requested_data_source.is_empty() {
        return BTreeMap::new();
    }
    match copy {
        Some(copy) => {
            let addresses = engine.spec.replica_address_map.values();
            addresses.map(|address| (format!("tcp://{address}"), copy.clone())).collect()
        }
        None => engine.status.clone_status.clone(),
    }
}
