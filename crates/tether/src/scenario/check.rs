//! Whether a scenario ended in one of the ways that are accepted.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt as _;
use tether_crd::volume::{Robustness, State};
use tether_crd::{Engine, Replica};

use super::catalog::{Kept, Outcome};
use super::lab::Lab;
use super::watch::{Place, Seen};

/// The objects that count before anything is done.
#[derive(Clone, Debug, Default)]
pub(super) struct Baseline {
    engine: String,
    /// Uids by name.
    replicas: BTreeMap<String, String>,
    directories: BTreeSet<String>,
}

fn is_there<K: kube::Resource>(object: &K) -> bool {
    object.meta().deletion_timestamp.is_none()
}

fn engines(seen: &Seen) -> impl Iterator<Item = &Engine> {
    seen.engines.values().filter(|engine| engine.spec.active && is_there(*engine))
}

fn replicas(seen: &Seen) -> impl Iterator<Item = &Replica> {
    seen.replicas.values().filter(|replica| replica.spec.active && is_there(*replica))
}

fn uid<K: kube::Resource>(object: &K) -> String {
    object.meta().uid.clone().unwrap_or_default()
}

impl Baseline {
    pub(super) fn of(seen: &Seen) -> Self {
        Self {
            engine: engines(seen).next().map(uid).unwrap_or_default(),
            replicas: replicas(seen).map(|replica| (replica.name_any(), uid(replica))).collect(),
            directories: replicas(seen).map(|replica| replica.spec.data_directory_name.clone()).collect(),
        }
    }
}

/// What keeps the present from being this outcome, as far as the volume and its objects go; empty: nothing does.
pub(super) fn differences(seen: &Seen, lab: &Lab, before: &Baseline, outcome: &Outcome) -> Vec<String> {
    let mut wrong = Vec::new();
    let Some(volume) = &seen.volume else { return vec!["the volume does not exist".to_owned()] };
    let place = Place::of(volume);
    let name = |host: Option<super::catalog::Host>| host.map(|host| lab.node(host)).unwrap_or_default();
    let mut compare = |what: &str, found: &str, wanted: &str| {
        if found != wanted {
            wrong.push(format!("{what} is {found:?}, not {wanted:?}"));
        }
    };
    compare("spec.nodeID", &place.node, name(outcome.node));
    compare("status.currentNodeID", &place.current, name(outcome.current));
    compare("status.state", place.state.as_str(), outcome.state.as_str());
    let target = if outcome.migrating { lab.node(super::catalog::Host::N) } else { "" };
    compare("spec.migrationNodeID", &place.migration, target);
    compare("status.currentMigrationNodeID", &place.current_migration, target);
    if let Err(why) = kept(seen, before, outcome) {
        wrong.push(why);
    }
    if let Err(why) = detached(seen, outcome) {
        wrong.push(why);
    }
    wrong
}

fn kept(seen: &Seen, before: &Baseline, outcome: &Outcome) -> Result<(), String> {
    let all: Vec<&Engine> = engines(seen).collect();
    let [engine] = all.as_slice() else { return Err(format!("{} engines count", all.len())) };
    let extra = seen.engines.len() - 1;
    let twins = seen.replicas.values().filter(|replica| !replica.spec.active || !is_there(*replica)).count();
    if !outcome.migrating && (extra, twins) != (0, 0) {
        return Err(format!("{extra} engines and {twins} replicas of the migration are left"));
    }
    let is_same = uid(*engine) == before.engine;
    if is_same != (outcome.engine == Kept::Same) {
        return Err(format!("engine {} is {}", engine.name_any(), if is_same { "the same" } else { "another one" }));
    }
    let found: BTreeMap<String, String> = replicas(seen).map(|r| (r.name_any(), uid(r))).collect();
    let is_right = match outcome.replicas {
        Kept::Same => found == before.replicas,
        Kept::New => !found.is_empty() && found.keys().all(|name| !before.replicas.contains_key(name)),
    };
    if !is_right {
        let names = |map: &BTreeMap<String, String>| map.keys().cloned().collect::<Vec<_>>().join(", ");
        return Err(format!("replicas are {}; before: {}", names(&found), names(&before.replicas)));
    }
    let directories: BTreeSet<String> = replicas(seen).map(|r| r.spec.data_directory_name.clone()).collect();
    if directories != before.directories {
        return Err(format!("replicas are in {directories:?}, not in {:?}", before.directories));
    }
    Ok(())
}

fn detached(seen: &Seen, outcome: &Outcome) -> Result<(), String> {
    let entered = |pair: &&[Place]| pair[0].state != State::Detached && pair[1].state == State::Detached;
    let count = seen.places.windows(2).filter(entered).count();
    if count != outcome.detached {
        return Err(format!("the volume was detached {count} times, not {}", outcome.detached));
    }
    let strayed = seen.places.iter().find(|p| p.state != State::Attached || p.robustness == Robustness::Faulted);
    match strayed {
        Some(place) if outcome.detached == 0 => {
            Err(format!("the volume was {}, {} on the way", place.state, place.robustness))
        }
        _ => Ok(()),
    }
}

/// Whether everything was told that belongs to an outcome, and nothing that does not.
pub(super) fn untold(outcome: &Outcome, events: &[(String, String)], log: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for (reason, wanted) in [("MigrationFailed", outcome.failed), ("DetachedUnexpectedly", outcome.unexpected)] {
        let told = events.iter().any(|(found, _)| found == reason);
        if told != wanted {
            wrong.push(format!("the event {reason} was {}", if told { "told" } else { "not told" }));
        }
    }
    for words in outcome.said {
        if !log.contains(words) && !events.iter().any(|(_, note)| note.contains(words)) {
            wrong.push(format!("nobody said {words:?}"));
        }
    }
    wrong
}

/// Node ids that no version may have.
pub(super) fn strays(seen: &Seen, lab: &Lab) -> Vec<String> {
    use super::catalog::Host::{N, O};
    let (old, new) = (lab.node(O), lab.node(N));
    let mut wrong = Vec::new();
    for place in &seen.places {
        let here = [&place.node, &place.current].into_iter().all(|node| ["", old, new].contains(&node.as_str()));
        let there = [&place.migration, &place.current_migration].into_iter().all(|n| ["", new].contains(&n.as_str()));
        if !here || !there {
            wrong.push(format!("a version of the volume has node ids that it must not have: {place:?}"));
        }
    }
    wrong.extend(seen.violations.iter().cloned());
    wrong
}
