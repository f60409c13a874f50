//! The rules of the repository that no compiler checks.
//!
//! Each rule is a function from what it reads to the findings it has; `cargo test -p xtask` fails if
//! there is an error. Warnings are printed by `cargo xtask tidy` and fail nothing.

mod dependencies;
mod documents;
mod files;
mod sources;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

/// Crates that take values and return values: no I/O, no clock, no randomness.
/// `nbd` and `crd` are named before they exist, so that they are born under the rule.
const PURE: &[&str] = &["model", "machinery", "plan", "replication", "nbd", "crd"];

/// Something that a rule did not like.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    severity: Severity,
    /// File (with line, where there is one) or crate.
    place: String,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Severity {
    Error,
    Warning,
}

impl Finding {
    fn error(place: impl Into<String>, text: impl Into<String>) -> Self {
        Self { severity: Severity::Error, place: place.into(), text: text.into() }
    }

    fn warning(place: impl Into<String>, text: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, place: place.into(), text: text.into() }
    }
}

pub(crate) fn main(root: &Path) -> Result<ExitCode> {
    let findings = check(root)?;
    for finding in &findings {
        let label = if finding.severity == Severity::Error { "error" } else { "warning" };
        println!("{label}: {}: {}", finding.place, finding.text);
    }
    let errors = findings.iter().filter(|finding| finding.severity == Severity::Error).count();
    println!("tidy: {errors} errors, {} warnings", findings.len() - errors);
    Ok(if errors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Every rule, over the whole repository.
fn check(root: &Path) -> Result<Vec<Finding>> {
    let files = files::read(root)?;
    let metadata = dependencies::Metadata::read(root)?;
    let mut findings = Vec::new();
    for file in &files {
        findings.extend(sources::check(file));
        findings.extend(documents::check(root, file));
    }
    findings.extend(dependencies::check(&metadata, &files));
    findings.sort();
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_is_tidy() {
        let mut findings = check(&crate::root()).unwrap();
        findings.retain(|finding| finding.severity == Severity::Error);
        let text: Vec<_> = findings.iter().map(|finding| format!("{}: {}", finding.place, finding.text)).collect();
        assert!(findings.is_empty(), "\n{}\n", text.join("\n"));
    }
}
