//! When each ticket was first seen as it is. A ticket carries no time, and a status that says "since" needs one.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use parking_lot::Mutex;
use tether_crd::VolumeAttachment;

/// A ticket's generation, and when that was first seen.
type FirstSeen = (i64, Timestamp);

/// By volume, then by ticket. It is forgotten with the process, and then begins anew.
#[derive(Default)]
pub(super) struct Noticed(Mutex<HashMap<String, BTreeMap<String, FirstSeen>>>);

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
        let known = all.entry(volume.to_owned()).or_default();
        known.retain(|id, (generation, _)| tickets.get(id).is_some_and(|ticket| ticket.generation == *generation));
        for (id, ticket) in tickets {
            known.entry(id.clone()).or_insert((ticket.generation, now));
        }
        known.iter().map(|(id, (_, at))| (id.clone(), *at)).collect()
    }

    pub(super) fn forget(&self, volume: &str) {
        self.0.lock().remove(volume);
    }
}
