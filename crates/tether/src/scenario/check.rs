//! Whether a scenario ended in one of the ways that are accepted.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt as _;
use tether_crd::attachment::{SATISFIED, TicketType};
use tether_crd::volume::{Robustness, State};
use tether_crd::{Engine, Replica, VolumeAttachment, condition, names};

use super::catalog::Host::{self, N, O, T};
use super::lab::Lab;
use super::outcome::{DEGRADED, Kept, Outcome, Path};
use super::watch::{Place, Seen};

/// The objects that count before anything is done.
#[derive(Clone, Debug, Default)]
pub(super) struct Baseline {
    engine: String,
    /// Its number.
    number: Option<u32>,
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
        let engine = engines(seen).next();
        Self {
            engine: engine.map(uid).unwrap_or_default(),
            number: engine.and_then(|engine| names::engine_number(&engine.name_any())),
            replicas: replicas(seen).map(|replica| (replica.name_any(), uid(replica))).collect(),
            directories: replicas(seen).map(|replica| replica.spec.data_directory_name.clone()).collect(),
        }
    }
}

/// What keeps the present from being this outcome, as far as the volume and its objects go; empty: nothing does.
pub(super) fn differences(seen: &Seen, lab: &Lab, before: &Baseline, outcome: &Outcome) -> Vec<String> {
    let Some(volume) = &seen.volume else { return vec!["the volume does not exist".to_owned()] };
    let place = Place::of(volume);
    let mut wrong = paths(seen, lab, outcome);
    if place.state != outcome.state {
        wrong.push(format!("status.state is {}, not {}", place.state, outcome.state));
    }
    if !outcome.robustness.contains(&place.robustness) {
        wrong.push(format!("status.robustness is {}, not one of {:?}", place.robustness, outcome.robustness));
    }
    if outcome.told.contains(&DEGRADED) && !seen.places.iter().any(|p| p.robustness == Robustness::Degraded) {
        wrong.push("nobody has noticed yet that a replica is lost".to_owned());
    }
    wrong.extend(kept(seen, before, outcome, outcome.migrates()).err());
    wrong.extend(detached(seen, outcome).err());
    wrong.extend(tickets(seen, lab, outcome).err());
    wrong
}

/// The node ids of all versions.
fn paths(seen: &Seen, lab: &Lab, outcome: &Outcome) -> Vec<String> {
    type Field = fn(&Place) -> &String;
    let fields: [(&str, Field, Path); 4] = [
        ("spec.nodeID", |place| &place.node, outcome.node),
        ("status.currentNodeID", |place| &place.current, outcome.current),
        ("spec.migrationNodeID", |place| &place.migration, outcome.migration),
        ("status.currentMigrationNodeID", |place| &place.current_migration, outcome.migration),
    ];
    let mut wrong = Vec::new();
    for (what, field, wanted) in fields {
        let mut found: Vec<&str> = seen.places.iter().map(|place| field(place).as_str()).collect();
        found.dedup();
        let wanted: Vec<&str> = wanted.iter().map(|host| host.map_or("", |host| lab.node(host))).collect();
        if found != wanted {
            wrong.push(format!("{what} was {found:?}, one after the other, not {wanted:?}"));
        }
    }
    wrong
}

/// Whether engine and replicas are those that they must be.
pub(super) fn kept(seen: &Seen, before: &Baseline, outcome: &Outcome, migrates: bool) -> Result<(), String> {
    let all: Vec<&Engine> = engines(seen).collect();
    let [engine] = all.as_slice() else { return Err(format!("{} engines count", all.len())) };
    let extra = seen.engines.len() - 1;
    let twins = seen.replicas.values().filter(|replica| !replica.spec.active || !is_there(*replica)).count();
    let wanted = if migrates { (1, before.replicas.len()) } else { (0, 0) };
    if (extra, twins) != wanted {
        return Err(format!("{extra} engines and {twins} replicas do not count, instead of {wanted:?}"));
    }
    let (name, is_same) = (engine.name_any(), uid(*engine) == before.engine);
    let ahead = u32::from(outcome.engine == Kept::New);
    let is_numbered = names::engine_number(&name) == before.number.map(|number| number + ahead);
    if is_same != (outcome.engine == Kept::Same) || !is_numbered {
        let which = if is_same { "the same" } else { "another one" };
        return Err(format!("engine {name} is {which}; before: number {:?}", before.number));
    }
    let found: BTreeMap<String, String> = replicas(seen).map(|r| (r.name_any(), uid(r))).collect();
    let is_right = match outcome.replicas {
        Kept::Same => found == before.replicas,
        Kept::New => {
            let known = |name, uid| before.replicas.contains_key(name) || before.replicas.values().any(|u| u == uid);
            found.len() == before.replicas.len() && !found.iter().any(|(name, uid)| known(name, uid))
        }
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
    if count != outcome.detachments() {
        return Err(format!("the volume was detached {count} times, not {}", outcome.detachments()));
    }
    let strayed = seen.places.iter().find(|p| p.state != State::Attached || p.robustness == Robustness::Faulted);
    match strayed {
        Some(place) if outcome.detachments() == 0 => {
            Err(format!("the volume was {}, {} on the way", place.state, place.robustness))
        }
        _ => Ok(()),
    }
}

/// Where the ticket of each attachment wants the volume, whether it is satisfied, and what it is told.
pub(super) fn wishes(attachment: &VolumeAttachment) -> Vec<(String, bool, String)> {
    let tickets = attachment.spec.attachment_tickets.values();
    let wishes = tickets.filter(|ticket| ticket.kind == TicketType::Csi).map(|ticket| {
        let status = attachment.status.attachment_ticket_statuses.get(&ticket.id);
        let told = status.and_then(|status| condition::find(&status.conditions, SATISFIED));
        let words = told.map(|told| told.message.clone()).unwrap_or_default();
        (ticket.node_id.clone(), attachment.is_satisfied(&ticket.id), words)
    });
    wishes.collect()
}

fn tickets(seen: &Seen, lab: &Lab, outcome: &Outcome) -> Result<(), String> {
    let mut found: Vec<(String, bool)> =
        seen.attachment.iter().flat_map(wishes).map(|(node, satisfied, _)| (node, satisfied)).collect();
    let mut wanted: Vec<(String, bool)> =
        outcome.tickets.iter().map(|(host, satisfied)| (lab.node(*host).to_owned(), *satisfied)).collect();
    found.sort();
    wanted.sort();
    if found == wanted { Ok(()) } else { Err(format!("tickets (satisfied) are {found:?}, not {wanted:?}")) }
}

/// What was told about a volume.
pub(super) struct Told {
    /// Reasons and words of events.
    pub(super) events: Vec<(String, String)>,
    /// What the controllers logged; none: that cannot be read from here.
    pub(super) log: Option<String>,
}

impl Told {
    fn is_event(&self, wanted: &str) -> bool {
        self.events.iter().any(|(reason, _)| reason == wanted)
    }

    /// What is missing of an outcome, and what does not belong to it.
    pub(super) fn differs(&self, lab: &Lab, outcome: &Outcome) -> Vec<String> {
        let mut wrong = Vec::new();
        for (reason, wanted) in [
            ("MigrationFailed", outcome.failed),
            ("DetachedUnexpectedly", outcome.unexpected),
            ("Detached", outcome.detachments() > 0),
        ] {
            let told = self.is_event(reason);
            if told != wanted {
                wrong.push(format!("the event {reason} was {}", if told { "told" } else { "not told" }));
            }
        }
        let untold = outcome.told.iter().filter(|reason| !self.is_event(reason));
        wrong.extend(untold.map(|reason| format!("the event {reason} was not told")));
        let nodes = |words: &&str| named(words, |host| lab.node(host));
        if let Some(log) = &self.log {
            wrong.extend(unsaid_in_order(log, outcome.said.iter().map(nodes)));
        }
        // Without a log: not all words are events; those that are must not be wrong.
        let is_said = |words: &String| match &self.log {
            Some(log) => log.contains(words),
            None => self.events.iter().any(|(_, note)| note.contains(words)),
        };
        let unwanted = outcome.unsaid.iter().map(nodes).filter(is_said);
        wrong.extend(unwanted.map(|words| format!("somebody said {words:?}")));
        wrong
    }

    /// Whether people were told that the volume is whole again.
    pub(super) fn is_recovery_told(&self, outcome: &Outcome) -> bool {
        !outcome.told.contains(&DEGRADED) || self.is_event("Healthy")
    }
}

fn named<'a>(words: &str, node: impl Fn(Host) -> &'a str) -> String {
    [("{O}", O), ("{N}", N), ("{T}", T)]
        .iter()
        .fold(words.to_owned(), |text, (mark, host)| text.replace(mark, node(*host)))
}

/// Words that do not stand in the text after the ones before them.
fn unsaid_in_order(text: &str, said: impl Iterator<Item = String>) -> Option<String> {
    let mut rest = text;
    for words in said {
        let Some(at) = rest.find(&words) else {
            let order = if text.contains(&words) { ", or too early" } else { "" };
            return Some(format!("nobody said {words:?}{order}"));
        };
        rest = &rest[at + words.len()..];
    }
    None
}

/// Node ids that no version may have.
pub(super) fn strays(seen: &Seen, lab: &Lab) -> Vec<String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_must_fall_in_their_order() {
        let said = |words: &[&str]| {
            let named = |words: &&str| named(words, |host| if host == O { "node-1" } else { "node-2" });
            unsaid_in_order("waits; confirms for node-2; leaves node-1", words.iter().map(named))
        };
        assert_eq!(said(&["waits", "confirms for {N}", "leaves {O}"]), None);
        assert_eq!(said(&["confirms", "waits"]), Some("nobody said \"waits\", or too early".to_owned()));
        assert_eq!(said(&["confirms for {O}"]), Some("nobody said \"confirms for node-1\"".to_owned()));
    }
}
