//! When each ticket was first seen as it is. A ticket carries no time, and a status that says "since" needs one.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use parking_lot::Mutex;
use tether_crd::VolumeAttachment;

/// A ticket that waits or is followed, its generation, and when that was first seen.
struct FirstSeen {
    ticket: Box<str>,
    generation: i64,
    at: Timestamp,
}

/// By volume. It is forgotten with the process, and then begins anew.
#[derive(Default)]
pub(super) struct Noticed(Mutex<HashMap<Box<str>, Box<[FirstSeen]>>>);

impl Noticed {
    /// When the tickets were first seen; those that are new are seen now.
    pub(super) fn note(
        &self,
        volume: &str,
        attachment: &VolumeAttachment,
        now: Timestamp,
    ) -> BTreeMap<String, Timestamp> {
        let mut all = self.0.lock();
        let tickets = &attachment.spec.attachment_tickets;
        if tickets.is_empty() {
            all.remove(volume);
            return BTreeMap::new();
        }
        let known = all.get(volume).map(AsRef::as_ref).unwrap_or_default();
        let since = |id: &str, generation: i64| {
            let held = known.iter().find(|held| *held.ticket == *id && held.generation == generation);
            held.map_or(now, |held| held.at)
        };
        let times: BTreeMap<String, Timestamp> =
            tickets.iter().map(|(id, ticket)| (id.clone(), since(id, ticket.generation))).collect();
        let is_known = known.len() == tickets.len()
            && known.iter().all(|held| tickets.get(&*held.ticket).is_some_and(|t| t.generation == held.generation));
        if !is_known {
            let held = tickets.iter().map(|(id, ticket)| FirstSeen {
                ticket: id.as_str().into(),
                generation: ticket.generation,
                at: times[id],
            });
            let held = held.collect();
            all.insert(volume.into(), held);
        }
        times
    }

    pub(super) fn forget(&self, volume: &str) {
        self.0.lock().remove(volume);
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use tether_crd::attachment::Ticket;

    use super::*;

    fn attachment(tickets: &[(&str, i64)]) -> VolumeAttachment {
        let mut attachment = VolumeAttachment::default();
        let ticket = |(id, generation): &(&str, i64)| {
            ((*id).to_owned(), Ticket { id: (*id).into(), generation: *generation, ..Ticket::default() })
        };
        attachment.spec.attachment_tickets = tickets.iter().map(ticket).collect();
        attachment
    }

    #[test]
    fn a_ticket_is_noticed_once_for_each_of_its_generations() {
        let (noticed, start) = (Noticed::default(), Timestamp::UNIX_EPOCH);
        let seen = |at: i64, tickets: &[(&str, i64)]| {
            let times = noticed.note("v1", &attachment(tickets), start + SignedDuration::from_secs(at));
            times.into_iter().map(|(id, at)| (id, at.as_second())).collect::<Vec<_>>()
        };
        assert_eq!(seen(1, &[("a", 1)]), [("a".to_owned(), 1)]);
        assert_eq!(seen(2, &[("a", 1), ("b", 1)]), [("a".to_owned(), 1), ("b".to_owned(), 2)]);
        assert_eq!(seen(3, &[("a", 2), ("b", 1)]), [("a".to_owned(), 3), ("b".to_owned(), 2)]);
        assert_eq!(seen(4, &[("b", 1)]), [("b".to_owned(), 2)]);
        assert_eq!(seen(5, &[]), []);
        assert_eq!(seen(6, &[("b", 1)]), [("b".to_owned(), 6)]);
        noticed.forget("v1");
        assert_eq!(seen(7, &[("b", 1)]), [("b".to_owned(), 7)]);
    }
}
