//! A unified diff of two objects as indented JSON, for errors that say "this may not change".

use serde_json::Value;
use serde_json::ser::{PrettyFormatter, Serializer};

/// Unchanged lines around each change.
const CONTEXT: usize = 3;
/// Lines of either side beyond which no diff is made: its cost grows with the product.
const MAX_LINES: usize = 2_000;

/// The difference between two objects, or nothing if they are too large to compare.
pub(super) fn unified(old: &Value, new: &Value) -> String {
    let (old, new) = (pretty(old), pretty(new));
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    if old.len() > MAX_LINES || new.len() > MAX_LINES {
        return String::new();
    }
    let script = script(&old, &new);
    let mut out = String::new();
    for hunk in hunks(&script) {
        out.push_str(&header(&script, &hunk));
        for (mark, line) in &script[hunk] {
            out.push(*mark);
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

fn pretty(value: &Value) -> String {
    let mut out = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut out, PrettyFormatter::with_indent(b" "));
    match serde::Serialize::serialize(value, &mut serializer) {
        Ok(()) => String::from_utf8(out).unwrap_or_default(),
        Err(_) => String::new(),
    }
}

/// Lines marked as kept (space), removed (-) or added (+), by the longest common subsequence.
fn script<'a>(old: &[&'a str], new: &[&'a str]) -> Vec<(char, &'a str)> {
    let width = new.len() + 1;
    let mut common = vec![0_u32; (old.len() + 1) * width];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i * width + j] = if old[i] == new[j] {
                common[(i + 1) * width + j + 1] + 1
            } else {
                common[(i + 1) * width + j].max(common[i * width + j + 1])
            };
        }
    }
    let mut lines = Vec::with_capacity(old.len() + new.len());
    let (mut i, mut j) = (0, 0);
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            lines.push((' ', old[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == new.len() || (i < old.len() && common[(i + 1) * width + j] >= common[i * width + j + 1]) {
            lines.push(('-', old[i]));
            i += 1;
        } else {
            lines.push(('+', new[j]));
            j += 1;
        }
    }
    lines
}

/// Stretches of changes that are close enough to share their context.
fn hunks(script: &[(char, &str)]) -> Vec<std::ops::Range<usize>> {
    let mut hunks: Vec<std::ops::Range<usize>> = Vec::new();
    for (at, _) in script.iter().enumerate().filter(|(_, (mark, _))| *mark != ' ') {
        let (start, end) = (at.saturating_sub(CONTEXT), (at + 1 + CONTEXT).min(script.len()));
        match hunks.last_mut() {
            Some(last) if start <= last.end => last.end = end,
            _ => hunks.push(start..end),
        }
    }
    hunks
}

fn header(script: &[(char, &str)], hunk: &std::ops::Range<usize>) -> String {
    let count = |lines: &[(char, &str)], without: char| lines.iter().filter(|(m, _)| *m != without).count();
    let side = |without: char| {
        let (before, lines) = (count(&script[..hunk.start], without), count(&script[hunk.clone()], without));
        if lines == 1 { format!("{}", before + 1) } else { format!("{},{lines}", before + usize::from(lines > 0)) }
    };
    format!("@@ -{} +{} @@\n", side('+'), side('-'))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn changes_stand_in_their_context() {
        let old = json!({"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6, "g": 7});
        let mut new = old.clone();
        new["d"] = 9.into();
        let expected = [
            "@@ -2,7 +2,7 @@",
            "  \"a\": 1,",
            "  \"b\": 2,",
            "  \"c\": 3,",
            "- \"d\": 4,",
            "+ \"d\": 9,",
            "  \"e\": 5,",
            "  \"f\": 6,",
            "  \"g\": 7",
            "",
        ];
        assert_eq!(unified(&old, &new), expected.join("\n"));
    }

    #[test]
    fn far_changes_are_separate_hunks() {
        let old: Value = (0..40).map(|i| (format!("k{i:02}"), json!(i))).collect::<serde_json::Map<_, _>>().into();
        let mut new = old.clone();
        new["k05"] = "x".into();
        new["k30"] = "y".into();
        let diff = unified(&old, &new);
        assert_eq!(diff.matches("@@ -").count(), 2);
        assert!(diff.contains("@@ -4,7 +4,7 @@") && diff.contains("@@ -29,7 +29,7 @@"), "{diff}");
    }
}
