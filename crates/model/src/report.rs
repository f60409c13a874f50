//! The report of a decision: one finding for each rule that was looked at, whether it fired or not.
//!
//! A finding is the single source of every text that a person will read about a decision. Because a rule that
//! did *not* fire is also there, "why is nothing happening?" has an answer, and because a rule that waits says
//! until when, the report also tells a shell when to decide again ([`Report::wake_at`]).

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::reason::Reason;

/// A rule, by its stable name in kebab-case: `orphaned-pods`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Rule(pub &'static str);

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0)
    }
}

/// What a finding is about, as a person would name it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Subject {
    pub kind: String,
    /// Empty for what belongs to no namespace.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    pub name: String,
}

impl Subject {
    pub fn new(kind: impl Into<String>, namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { kind: kind.into(), namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "" => write!(f, "{} {}", self.kind, self.name),
            namespace => write!(f, "{} {namespace}/{}", self.kind, self.name),
        }
    }
}

/// What came of looking at a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "lowercase")]
pub enum Verdict {
    /// It fired; what it changes is in the plan.
    Acts,
    /// It cannot tell yet; what it must know is in the plan.
    Asks,
    /// It will fire at a known time if nothing changes until then.
    Waits { until: Timestamp },
    /// It would fire, but something else has to change first; the words say what.
    Blocked,
    /// It was looked at, and there is nothing for it to do.
    Rests,
}

impl Verdict {
    /// One word, in lower case.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Acts => "acts",
            Self::Asks => "asks",
            Self::Waits { .. } => "waits",
            Self::Blocked => "blocked",
            Self::Rests => "rests",
        }
    }
}

/// One rule, looked at once, for one object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub rule: Rule,
    pub subject: Subject,
    #[serde(flatten)]
    pub verdict: Verdict,
    pub reason: Reason,
    /// One or two sentences for a person, of this object.
    pub words: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, subject, verdict, reason, words } = self;
        write!(f, "{:<7} {rule}: {subject}: {reason}: {words}", verdict.word())?;
        if let Verdict::Waits { until } = verdict {
            write!(f, " (until {until})")?;
        }
        Ok(())
    }
}

/// What a decision looked at, in the order in which it looked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Report {
    pub findings: Vec<Finding>,
}

impl Report {
    /// The earliest moment at which deciding again, on the same observation, may come out differently.
    pub fn wake_at(&self) -> Option<Timestamp> {
        let untils = self.findings.iter().filter_map(|finding| match finding.verdict {
            Verdict::Waits { until } => Some(until),
            _ => None,
        });
        untils.min()
    }

    /// The findings of one object.
    pub fn about<'a>(&'a self, subject: &'a Subject) -> impl Iterator<Item = &'a Finding> {
        self.findings.iter().filter(move |finding| finding.subject == *subject)
    }
}

/// One line for each finding.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            writeln!(f, "{finding}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(verdict: Verdict) -> Finding {
        Finding {
            rule: Rule("orphaned-pods"),
            subject: Subject::new("Pod", "default", "web"),
            verdict,
            reason: Reason::NodeNotSeen,
            words: "Node \"n1\" is not known.".into(),
        }
    }

    #[test]
    fn a_report_wakes_at_the_earliest_wait() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let waits = |second| finding(Verdict::Waits { until: at(second) });
        let report = Report { findings: vec![waits(30), finding(Verdict::Rests), waits(20)] };
        assert_eq!(report.wake_at(), Some(at(20)));
        assert_eq!(Report::default().wake_at(), None);
    }

    #[test]
    fn a_finding_reads_as_a_line_and_as_json() {
        let finding = finding(Verdict::Waits { until: Timestamp::UNIX_EPOCH });
        assert_eq!(
            finding.to_string(),
            "waits   orphaned-pods: Pod default/web: NodeNotSeen: Node \"n1\" is not known. (until 1970-01-01T00:00:00Z)"
        );
        let json = serde_json::to_value(&finding).unwrap();
        assert_eq!(json["reason"], "NodeNotSeen");
        assert_eq!(json["verdict"], "waits");
        assert_eq!(json["until"], "1970-01-01T00:00:00Z");
    }
}
