//! How long attachments take, phase by phase, from what is seen of their objects.
//!
//! ```text
//!  ticket ──decide──► volume is wanted there ──replicas──► engine is told to start ──engine──► it serves ──tell──► ticket satisfied
//! ```

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use parking_lot::Mutex;
use tether_crd::engine::InstanceState;
use tether_crd::{Engine, VolumeAttachment};

/// A phase of an attachment, and the seconds that it took.
pub type Took = (&'static str, f64);

/// The phase that is the sum of all.
const TOTAL: &str = "total";

/// Volumes with tickets that wait. There are no more of them than tickets.
#[derive(Default)]
pub struct Phases(Mutex<HashMap<String, Waiting>>);

#[derive(Default)]
struct Waiting {
    /// Tickets that are not satisfied: their generation, and when that was first seen.
    tickets: BTreeMap<String, (i64, Timestamp)>,
    /// When the volume was last wanted somewhere else than before.
    decided: Option<Timestamp>,
    /// When the engine was last told to run.
    replicas: Option<Timestamp>,
    /// When the engine last began to.
    engine: Option<Timestamp>,
}

impl Waiting {
    /// The phases of a ticket that was put in at `since` and is satisfied `now`. One that a volume was there for already has
    /// nothing but a total.
    fn took(&self, since: Timestamp, now: Timestamp) -> Vec<Took> {
        let seconds = |from: Timestamp, to: Timestamp| from.duration_until(to).as_secs_f64();
        let mut took = vec![(TOTAL, seconds(since, now))];
        if let (Some(decided), Some(replicas), Some(engine)) = (self.decided, self.replicas, self.engine)
            && since <= decided
            && decided <= replicas
            && replicas <= engine
        {
            took.push(("decide", seconds(since, decided)));
            took.push(("replicas", seconds(decided, replicas)));
            took.push(("engine", seconds(replicas, engine)));
            took.push(("tell", seconds(engine, now)));
        }
        took
    }
}

impl Phases {
    /// Notes the tickets of a volume; returns what those took that are satisfied now and were not before.
    pub fn tickets(&self, attachment: &VolumeAttachment, now: Timestamp) -> Vec<Took> {
        let mut all = self.0.lock();
        let volume = &attachment.spec.volume;
        let tickets = &attachment.spec.attachment_tickets;
        let is_satisfied = |id: &str, generation: i64| {
            let status = attachment.status.attachment_ticket_statuses.get(id);
            status.is_some_and(|status| status.satisfied && status.generation == generation)
        };
        let mut took = Vec::new();
        if let Some(waiting) = all.get_mut(volume) {
            let before = std::mem::take(&mut waiting.tickets);
            for (id, (generation, since)) in before {
                match tickets.get(&id) {
                    Some(ticket) if ticket.generation != generation => {}
                    Some(_) if is_satisfied(&id, generation) => took.extend(waiting.took(since, now)),
                    Some(_) => drop(waiting.tickets.insert(id, (generation, since))),
                    None => {}
                }
            }
        }
        for ticket in tickets.values().filter(|ticket| !is_satisfied(&ticket.id, ticket.generation)) {
            let waiting = all.entry(volume.clone()).or_default();
            waiting.tickets.entry(ticket.id.clone()).or_insert((ticket.generation, now));
        }
        if all.get(volume).is_some_and(|waiting| waiting.tickets.is_empty()) {
            all.remove(volume);
        }
        took
    }

    /// The volume is wanted somewhere else than before.
    pub fn decided(&self, volume: &str, now: Timestamp) {
        if let Some(waiting) = self.0.lock().get_mut(volume) {
            waiting.decided = Some(now);
        }
    }

    /// Notes what became of an engine.
    pub fn engine(&self, old: Option<&Engine>, new: &Engine, now: Timestamp) {
        let mut all = self.0.lock();
        let Some(waiting) = all.get_mut(&new.spec.volume_name) else { return };
        let became = |is: InstanceState, was: Option<InstanceState>| {
            is == InstanceState::Running && was != Some(InstanceState::Running)
        };
        if became(new.spec.desire_state, old.map(|old| old.spec.desire_state)) {
            waiting.replicas = Some(now);
        }
        if became(new.status.current_state, old.map(|old| old.status.current_state)) {
            waiting.engine = Some(now);
        }
    }

    /// Nothing more is heard of the volume.
    pub fn forget(&self, volume: &str) {
        self.0.lock().remove(volume);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millisecond(ms).unwrap()
    }

    fn attachment(generation: i64, satisfied: bool) -> VolumeAttachment {
        let ticket = json!({"id": "t", "type": "longhorn-api", "nodeID": "a", "generation": generation});
        let status = json!({"id": "t", "satisfied": satisfied, "generation": generation});
        serde_json::from_value(json!({
            "metadata": {"name": "v1"}, "spec": {"volume": "v1", "attachmentTickets": {"t": ticket}},
            "status": {"attachmentTicketStatuses": {"t": status}},
        }))
        .unwrap()
    }

    fn engine(desired: InstanceState, current: InstanceState) -> Engine {
        let mut engine = Engine::default();
        engine.spec.volume_name = "v1".into();
        engine.spec.desire_state = desired;
        engine.status.current_state = current;
        engine
    }

    #[test]
    fn phases_add_up_to_the_whole() {
        use InstanceState::{Running, Stopped};
        let phases = Phases::default();
        assert_eq!(phases.tickets(&attachment(1, false), at(0)), []);
        phases.decided("v1", at(10));
        let (stopped, told, runs) = (engine(Stopped, Stopped), engine(Running, Stopped), engine(Running, Running));
        phases.engine(Some(&stopped), &told, at(40));
        phases.engine(Some(&told), &runs, at(90));
        let took = phases.tickets(&attachment(1, true), at(100));
        assert_eq!(took, [("total", 0.1), ("decide", 0.01), ("replicas", 0.03), ("engine", 0.05), ("tell", 0.01)]);
        assert!(phases.0.lock().is_empty(), "nothing is kept of what is done");
        assert_eq!(phases.tickets(&attachment(1, true), at(200)), [], "and it is not told twice");
    }

    #[test]
    fn a_ticket_that_changes_starts_anew_and_one_for_a_volume_that_is_there_has_no_phases() {
        let phases = Phases::default();
        phases.tickets(&attachment(1, false), at(0));
        phases.tickets(&attachment(2, false), at(50));
        assert_eq!(phases.tickets(&attachment(2, true), at(60)), [("total", 0.01)]);
    }
}
