//! What no two runs have in common — ages, uids, versions, times, addresses — replaced by names, so that the rest can be compared.

use std::sync::LazyLock;

use regex::Regex;

use crate::case::Output;

/// Masks of every case, applied in this order. Quotes and keys are kept: their presence is part of the answer.
static COMMON: LazyLock<Vec<(Regex, &'static str)>> = LazyLock::new(|| {
    [
        (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "<uid>"),
        (r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", "<time>"),
        (r"\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d \w{3} \d{4} \d\d:\d\d:\d\d [+-]\d{4}", "<time>"),
        (r#"(resourceVersion\\?"?:\s*\\?"?|Resource Version:\s+)\d+"#, "${1}<rv>"),
        (r#"(continue"?:\s*"?)[A-Za-z0-9_=-]{16,}"#, "${1}<continue>"),
    ]
    .into_iter()
    .map(|(pattern, by)| (Regex::new(pattern).expect("a mask must compile"), by))
    .collect()
});

/// An age as printed in a table cell: `5s`, `2m3s`, `3d`, and in events `5s (x3 over 2m)`.
static AGE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(^|\s{2,})\d+[smhdy](\d+[smhd])?( \(x(\d+) over \d+[smhdy](\d+[smhd])?\))?(\s{2,}|$)")
        .expect("the age mask must compile")
});

/// Columns are padded to the widest cell, so one more digit in an age moves everything after it.
static PADDING: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"(\S)\s{2,}").expect("the padding mask must compile"));

/// Since 1.33 kubectl names the namespace that it deletes from.
static DELETED_FROM: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r" deleted from \S+ namespace").expect("the deletion mask must compile"));

/// The masks of one run: the common ones, the case's own, and the strings of this server and directory.
pub(crate) struct Masks<'a> {
    pub(crate) literals: Vec<(String, &'static str)>,
    pub(crate) case: &'a [(Regex, String)],
}

impl Masks<'_> {
    /// What is written into a transcript: the run's own values are gone, the layout is still kubectl's.
    pub(crate) fn apply(&self, line: &str) -> String {
        let mut line = line.trim_end().to_owned();
        for (text, name) in &self.literals {
            line = line.replace(text, name);
        }
        for (pattern, by) in self.case {
            line = pattern.replace_all(&line, by.as_str()).into_owned();
        }
        for (pattern, by) in COMMON.iter() {
            line = pattern.replace_all(&line, *by).into_owned();
        }
        line
    }
}

/// Two outputs that are equal in this form say the same.
pub(crate) fn comparable(output: &Output) -> Output {
    let lines = |lines: &[String]| lines.iter().map(|line| comparable_line(line)).collect();
    Output { stdout: lines(&output.stdout), stderr: lines(&output.stderr), code: output.code }
}

pub(crate) fn comparable_line(line: &str) -> String {
    // A raw body in one line: the order of its keys is no part of what it says.
    if let (true, Ok(body)) = (line.starts_with('{'), serde_json::from_str::<serde_json::Value>(line)) {
        return body.to_string();
    }
    let line = DELETED_FROM.replace_all(line, " deleted");
    // Twice: matches cannot overlap, and two ages may share the blanks between them.
    let line = AGE.replace_all(&line, "$1<age>$6");
    let line = AGE.replace_all(&line, "$1<age>$6");
    PADDING.replace_all(&line, "$1  ").trim_end().to_owned()
}
