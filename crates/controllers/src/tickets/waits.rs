//! What a migration waits for is logged once, when it begins to wait: people look for it there.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tether_model::report::{Report, Verdict};

/// Rules whose waiting matters to whoever moves a volume.
const RULES: [&str; 2] = ["migration", "attach"];

/// What was said last, by volume.
#[derive(Default)]
pub(super) struct Waits {
    said: Mutex<BTreeMap<String, String>>,
}

impl Waits {
    pub(super) fn say(&self, controller: &'static str, volume: &str, report: &Report) {
        let waits = report.findings.iter().find(|finding| {
            finding.verdict == Verdict::Blocked && RULES.contains(&finding.rule.0) && finding.reason.is_of_migration()
        });
        let mut said = self.said.lock();
        let Some(finding) = waits else {
            said.remove(volume);
            return;
        };
        if said.get(volume) != Some(&finding.words) {
            tracing::info!(controller, "{finding}");
            said.insert(volume.to_owned(), finding.words.clone());
        }
    }

    pub(super) fn forget(&self, volume: &str) {
        self.said.lock().remove(volume);
    }
}
