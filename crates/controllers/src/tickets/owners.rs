//! Whether the owners of tickets exist. The API server is asked once for each; after that, what is seen of all kinds tells when to ask again.

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;
use tether_crd::VolumeAttachment;
use tether_crd::attachment::Owner;
use tether_plan::tickets::OwnerSeen;

use crate::context::Context;
use crate::kinds::Sighting;
use crate::write::{WriteError, code};

/// Owners that are known to exist, by uid, with group and kind. There are no more of them than tickets.
#[derive(Default)]
pub(super) struct Owners(Mutex<HashMap<String, (String, String)>>);

impl Owners {
    /// The uids of owners that may be gone after what was seen.
    pub(super) fn doubtful_after(&self, sighting: &Sighting<'_>) -> Vec<String> {
        let mut known = self.0.lock();
        let doubtful: Vec<String> = match sighting {
            Sighting::Applied { .. } => Vec::new(),
            Sighting::Deleted { meta, .. } => meta.uid.iter().filter(|uid| known.contains_key(*uid)).cloned().collect(),
            Sighting::Relisted { resource, uids } => {
                let of_kind =
                    known.iter().filter(|(_, (group, kind))| *group == resource.group && *kind == resource.kind);
                of_kind.map(|(uid, _)| uid.clone()).filter(|uid| !uids.contains(uid.as_str())).collect()
            }
        };
        for uid in &doubtful {
            known.remove(uid);
        }
        doubtful
    }

    /// What is known of the owners of an attachment's tickets.
    pub(super) async fn look(
        &self,
        context: &Context,
        attachment: &VolumeAttachment,
    ) -> Result<BTreeMap<String, OwnerSeen>, WriteError> {
        let mut seen = BTreeMap::new();
        for owner in attachment.spec.attachment_tickets.values().filter_map(|ticket| ticket.owner.as_ref()) {
            let exists = self.0.lock().contains_key(&owner.uid);
            let state = if exists { OwnerSeen::Exists } else { self.ask(context, owner).await? };
            seen.insert(owner.uid.clone(), state);
        }
        Ok(seen)
    }

    async fn ask(&self, context: &Context, owner: &Owner) -> Result<OwnerSeen, WriteError> {
        let Some(kind) = context.kinds.find(&owner.api_version, &owner.kind) else { return Ok(OwnerSeen::Unknown) };
        // From before the question: a deletion that is seen after it removes the entry again.
        let place = (kind.resource.group.clone(), owner.kind.clone());
        self.0.lock().insert(owner.uid.clone(), place);
        let answer = context.kinds.api(&kind, &owner.namespace).get(&owner.name).await;
        let exists = match answer {
            Ok(object) => object.metadata.uid.as_deref() == Some(&owner.uid),
            Err(error) if code(&error) == Some(404) => false,
            Err(error) => {
                self.0.lock().remove(&owner.uid);
                return Err(WriteError::of(format!("get {} {}", owner.kind, owner.name), error));
            }
        };
        if exists {
            return Ok(OwnerSeen::Exists);
        }
        self.0.lock().remove(&owner.uid);
        Ok(OwnerSeen::Gone)
    }
}
