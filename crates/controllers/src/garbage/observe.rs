//! The graph of owners, kept up to date by everything that is seen.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use tether_plan::garbage::{Graph, Observed, Owner, Uid};

use crate::kinds::Sighting;

/// What is known of owners and dependents.
#[derive(Default)]
pub(super) struct Owners {
    graph: Mutex<Graph>,
    /// Objects with an owner that was not seen, though it may exist; they are looked at again when a kind is listed.
    unseen_owner: Mutex<BTreeSet<Uid>>,
}

impl Owners {
    /// Takes in a sighting; returns the uids of those that are to be decided about.
    pub(super) fn saw(&self, sighting: &Sighting<'_>) -> BTreeSet<Uid> {
        let mut graph = self.graph.lock();
        match sighting {
            Sighting::Applied { resource, meta } => graph.apply(resource, meta),
            Sighting::Deleted { meta, .. } => graph.remove(&meta.uid.as_deref().unwrap_or_default().into()),
            Sighting::Relisted { resource, uids } => {
                let mut touched = graph.relisted(resource, uids);
                touched.append(&mut self.unseen_owner.lock());
                touched
            }
        }
    }

    /// Decides about an object on what is known, and on the API server's answers.
    pub(super) fn look<T>(
        &self,
        uid: &Uid,
        answers: &[(String, Owner)],
        decide: impl FnOnce(&Observed) -> T,
    ) -> Option<T> {
        let graph = self.graph.lock();
        let mut observed = graph.observe(uid)?;
        for (state, owner) in observed.owners.iter_mut().zip(&observed.object.owners) {
            let answer = answers.iter().find(|(uid, _)| *uid == owner.uid);
            if let (Owner::Unknown, Some((_, answer))) = (*state, answer) {
                *state = *answer;
            }
        }
        Some(decide(&observed))
    }

    /// Whether an object with this uid lives in another namespace.
    pub(super) fn is_elsewhere(&self, uid: &str, namespace: &str) -> bool {
        self.graph.lock().is_elsewhere(uid, namespace)
    }

    pub(super) fn look_again_when_listed(&self, uid: &Uid) {
        self.unseen_owner.lock().insert(uid.clone());
    }
}
