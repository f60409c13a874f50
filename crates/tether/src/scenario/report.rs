//! What came of scenarios: a line for each, and everything as JSON.

use std::fmt::Write as _;

use serde::Serialize;

use super::catalog::Scenario;
use super::guest::Told;
use super::watch::Place;
use crate::output;

/// What `tether explain` said at one point.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Explained {
    /// After which step.
    pub(crate) after: String,
    pub(crate) text: String,
}

/// What came of one scenario.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Verdict {
    pub(crate) id: String,
    pub(crate) title: String,
    /// Which of the accepted ends it was.
    pub(crate) outcome: String,
    /// What was not as it must be; none: it passed.
    pub(crate) problems: Vec<String>,
    /// Why it was not performed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) skipped: Option<String>,
    pub(crate) seconds: f64,
    /// The longest time that the guest waited while the volume was attached.
    pub(crate) longest_stall_ms: u64,
    /// Requests of the guest that were answered.
    pub(crate) acknowledged: u64,
    /// Versions of the volume's objects that were looked at.
    pub(crate) versions: u64,
    pub(crate) places: Vec<Place>,
    pub(crate) explained: Vec<Explained>,
}

impl Verdict {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        Self { id: scenario.id.to_owned(), title: scenario.title.to_owned(), ..Self::default() }
    }

    pub(super) fn guest(&mut self, told: &Told) {
        self.problems.extend(told.violations.iter().map(|violation| format!("data: {violation}")));
        self.longest_stall_ms = u64::try_from(told.longest_stall.as_millis()).unwrap_or(u64::MAX);
        self.acknowledged = told.acknowledged;
    }

    pub(super) fn explain_end(&mut self, explained: Option<Explained>) {
        self.explained.extend(explained);
    }

    pub(crate) fn word(&self) -> &'static str {
        match (&self.skipped, self.problems.is_empty()) {
            (Some(_), _) => "skipped",
            (None, true) => "passed",
            (None, false) => "FAILED",
        }
    }
}

/// Whether everything that was performed passed, and something was: what was only skipped shows nothing.
pub(crate) fn shown(verdicts: &[Verdict]) -> Result<(), String> {
    let count = |word: &str| verdicts.iter().filter(|verdict| verdict.word() == word).count();
    match (count("FAILED"), count("passed")) {
        (0, 0) => Err("nothing was performed, so nothing is shown".to_owned()),
        (0, _) => Ok(()),
        (failed, _) => Err(format!("{failed} of {} failed", verdicts.len())),
    }
}

/// The table at the end.
pub(crate) fn table(verdicts: &[Verdict]) -> String {
    let head = ["SCENARIO", "RESULT", "END", "TIME", "LONGEST STALL", "VERSIONS", "REQUESTS", "WHAT"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for verdict in verdicts {
        rows.push(vec![
            verdict.id.clone(),
            verdict.word().to_owned(),
            verdict.outcome.clone(),
            format!("{:.1} s", verdict.seconds),
            format!("{} ms", verdict.longest_stall_ms),
            verdict.versions.to_string(),
            verdict.acknowledged.to_string(),
            verdict.title.clone(),
        ]);
    }
    let mut text = output::columns(&rows);
    for verdict in verdicts {
        for problem in &verdict.problems {
            let _ = writeln!(text, "{}: {problem}", verdict.id);
        }
        if let Some(why) = &verdict.skipped {
            let _ = writeln!(text, "{}: SKIPPED: {why}", verdict.id);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_skips_everything_shows_nothing() {
        let verdict = |problems: &[&str], skipped: Option<&str>| Verdict {
            problems: problems.iter().map(|problem| (*problem).to_owned()).collect(),
            skipped: skipped.map(ToOwned::to_owned),
            ..Verdict::default()
        };
        let (passed, failed, skipped) = (verdict(&[], None), verdict(&["x"], None), verdict(&[], Some("no nodes")));
        assert_eq!(shown(&[passed.clone(), skipped.clone()]), Ok(()));
        assert_eq!(shown(&[passed, failed.clone(), skipped.clone()]), Err("1 of 3 failed".to_owned()));
        assert!(shown(&[skipped]).unwrap_err().contains("nothing was performed"));
        assert!(shown(&[]).is_err());
        assert!(shown(&[failed]).is_err());
    }
}
