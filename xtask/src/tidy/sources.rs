//! Rules about single files: module docs, leftovers, length, traces of a machine, pure crates.

use std::sync::LazyLock;

use regex::Regex;

use super::files::File;
use super::{Finding, PURE};

/// Around this many lines a file probably holds two ideas.
const LONG_FILE_LINES: usize = 600;

/// Never in a commit: what marks unfinished work. Split so that this file does not match itself.
const LEFTOVERS: &[&str] =
    &[concat!("to", "do!("), concat!("unimpl", "emented!("), concat!("db", "g!("), concat!("FIX", "ME")];

/// Home and work folders of some machine, and hosts of package registries (a mirror is a setting of a
/// machine, not of the repository).
static MACHINE: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = concat!(
        r"(^|[^\w.$}~-])/(root|work|home)/[\w.-]",
        r"|\b(index|static)\.crates\.io\b|\bpypi\.org\b|\bpythonhosted\.org\b|\bproxy\.golang\.org\b|\bdeb\.debian\.org\b"
    );
    Regex::new(pattern).expect("the pattern must compile")
});

/// What a pure crate must not touch, beyond what its dependency list already rules out.
const IMPURE: &[(&str, &str)] = &[
    ("std::fs", "files"),
    ("TcpStream", "sockets"),
    ("TcpListener", "sockets"),
    ("UdpSocket", "sockets"),
    ("std::os::unix::net", "sockets"),
    ("std::process", "processes"),
    ("std::thread", "threads"),
    ("std::env::", "the environment"),
    ("SystemTime::now", "the clock"),
    ("Instant::now", "the clock"),
    ("Timestamp::now", "the clock"),
    ("Zoned::now", "the clock"),
    ("Utc::now", "the clock"),
    ("Uuid::new_v4", "randomness"),
];

pub(super) fn check(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    if file.path != "xtask/src/tidy/sources.rs" {
        findings.extend(each_line(file, |line| {
            MACHINE.find(line).map(|found| format!("{:?} belongs to a machine, not to the repository", found.as_str()))
        }));
    }
    if file.path == "Cargo.lock" {
        findings.extend(each_line(file, foreign_source));
    }
    if file.is("rs") {
        findings.extend(rust(file));
    }
    findings
}

fn rust(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    let first = file.text.lines().next().unwrap_or_default();
    if first.strip_prefix("//!").is_none_or(|doc| doc.trim().is_empty()) {
        findings.push(Finding::error(&file.path, "must open with a `//!` module doc that says its one idea"));
    }
    let lines = file.text.lines().count();
    if lines > LONG_FILE_LINES {
        findings.push(Finding::warning(&file.path, format!("{lines} lines: probably more than one idea")));
    }
    findings.extend(each_line(file, |line| {
        LEFTOVERS
            .iter()
            .find(|leftover| line.contains(**leftover))
            .map(|leftover| format!("`{leftover}` is unfinished"))
    }));
    if in_pure_source(file) {
        findings.extend(impure(file));
    }
    findings
}

/// Whether this is shipped code of a pure crate; tests and build scripts may read files.
fn in_pure_source(file: &File) -> bool {
    let pure = file.crate_name().is_some_and(|name| PURE.contains(&name));
    pure && file.path.split('/').nth(2) == Some("src")
        && !file.path.ends_with("/tests.rs")
        && !file.path.contains("/tests/")
}

fn impure(file: &File) -> Vec<Finding> {
    let shipped = file.text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let shipped = File { path: file.path.clone(), text: shipped.to_owned() };
    each_line(&shipped, |line| {
        let code = line.split("//").next().unwrap_or_default();
        let (name, what) = IMPURE.iter().find(|(name, _)| code.contains(name))?;
        Some(format!("`{name}`: a pure crate does not touch {what}; take it as an argument"))
    })
}

fn foreign_source(line: &str) -> Option<String> {
    let source = line.strip_prefix("source = ")?;
    (source != "\"registry+https://github.com/rust-lang/crates.io-index\"")
        .then(|| format!("{source}: dependencies come from the public registry only"))
}

/// One finding per line that `judge` dislikes.
fn each_line(file: &File, judge: impl Fn(&str) -> Option<String>) -> Vec<Finding> {
    let judged = file.text.lines().enumerate().filter_map(|(index, line)| Some((index + 1, judge(line)?)));
    judged.map(|(number, text)| Finding::error(format!("{}:{number}", file.path), text)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<String> {
        let file = File { path: path.to_owned(), text: text.to_owned() };
        check(&file).into_iter().map(|finding| format!("{} {}", finding.place, finding.text)).collect()
    }

    #[test]
    fn a_tidy_file_has_no_findings() {
        assert_eq!(findings("crates/plan/src/a.rs", "//! One idea.\nfn a() {}\n"), Vec::<String>::new());
    }

    #[test]
    fn each_rule_fires() {
        let long = format!("//! Long.\n{}", "\n".repeat(LONG_FILE_LINES));
        let cases = [
            ("crates/agent/src/a.rs", "fn a() {}".to_owned(), "must open with"),
            ("crates/agent/src/a.rs", "//!\nfn a() {}".to_owned(), "must open with"),
            ("crates/agent/src/a.rs", format!("//! A.\n{}) }}", LEFTOVERS[0]), "unfinished"),
            ("crates/agent/src/a.rs", long, "more than one idea"),
            ("docs/a.md", format!("see {}/src", "/ro".to_owned() + "ot/tether"), "belongs to a machine"),
            ("Cargo.lock", "source = \"registry+https://mirror.example\"".to_owned(), "public registry only"),
            ("crates/plan/src/a.rs", "//! A.\nuse std::fs;".to_owned(), "does not touch files"),
            ("crates/plan/src/a.rs", "//! A.\nlet now = Timestamp::now();".to_owned(), "does not touch the clock"),
        ];
        for (path, text, expected) in cases {
            let found = findings(path, &text);
            assert!(found.iter().any(|finding| finding.contains(expected)), "{path}: {text:?} gave {found:?}");
        }
    }

    #[test]
    fn shells_and_tests_may_touch_the_world() {
        for (path, text) in [
            ("crates/agent/src/a.rs", "//! A.\nuse std::fs;"),
            ("crates/plan/tests/golden.rs", "//! A.\nuse std::fs;"),
            ("crates/plan/src/a.rs", "//! A.\nfn a() {}\n#[cfg(test)]\nmod tests { use std::fs; }"),
            ("crates/plan/src/a.rs", "//! A.\n// unlike std::fs\nfn a() {}"),
        ] {
            assert_eq!(findings(path, text), Vec::<String>::new(), "{path}: {text:?}");
        }
    }
}
