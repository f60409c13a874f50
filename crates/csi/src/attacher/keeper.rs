//! Attachments as this process wrote them, until its watch has caught up.
//!
//! Without it, an attachment that is looked at right after it was written would be seen as it was before, and a volume would
//! be published twice.

use std::collections::HashMap;
use std::sync::Arc;

use kube::ResourceExt;
use parking_lot::Mutex;

use super::lean::Attachment;

/// The last writes, by name.
#[derive(Default)]
pub(super) struct Keeper(Mutex<HashMap<String, Arc<Attachment>>>);

impl Keeper {
    /// The attachment as it was written, if that is newer than what `cached` is.
    pub(super) fn newest(
        &self,
        name: &str,
        cached: impl FnOnce() -> Option<Arc<Attachment>>,
    ) -> Option<Arc<Attachment>> {
        let kept = self.0.lock().get(name).cloned();
        kept.or_else(cached)
    }

    /// Keeps a written attachment, unless the watch has seen it already.
    pub(super) fn keep(&self, written: Attachment, cached: impl FnOnce() -> Option<Arc<Attachment>>) {
        let mut kept = self.0.lock();
        // The cache tells its listeners after it changed: what it does not have now, `seen` will hear of after this.
        if cached().is_some_and(|cached| !is_newer(&cached, &written)) {
            return;
        }
        kept.insert(written.name_any(), Arc::new(written));
    }

    /// The watch saw this.
    pub(super) fn seen(&self, seen: &Attachment) {
        let mut kept = self.0.lock();
        if kept.get(&seen.name_any()).is_some_and(|written| !is_newer(seen, written)) {
            kept.remove(&seen.name_any());
        }
    }

    pub(super) fn gone(&self, gone: &Attachment) {
        self.0.lock().remove(&gone.name_any());
    }
}

/// Whether `written` is newer than `seen`. Versions of one kind are numbers that grow.
fn is_newer(seen: &Attachment, written: &Attachment) -> bool {
    let number = |va: &Attachment| va.resource_version().and_then(|v| v.parse::<u64>().ok());
    match (number(seen), number(written)) {
        (Some(seen), Some(written)) => written > seen,
        _ => false,
    }
}
