//! One call at a time for a volume: a second one is told to come back, as the interface allows.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tonic::Status;

/// What is being worked on.
#[derive(Clone, Default)]
pub(super) struct Busy(Arc<Mutex<BTreeSet<String>>>);

/// Frees its key when dropped.
pub(super) struct Claim {
    busy: Busy,
    key: String,
}

impl Busy {
    pub(super) fn claim(&self, key: impl Into<String>) -> Result<Claim, Status> {
        let key = key.into();
        if !self.0.lock().insert(key.clone()) {
            return Err(Status::aborted(format!("an operation on {key} is under way")));
        }
        Ok(Claim { busy: self.clone(), key })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.busy.0.lock().remove(&self.key);
    }
}
