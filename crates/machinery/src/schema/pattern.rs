//! Regular expressions as Go reads them, run by Rust's engine.
//!
//! Schemas are written for Go's RE2. The two dialects share almost everything; where they differ, the
//! expression is rewritten: Perl classes are ASCII in Go, brackets do not nest there, and a brace that
//! does not count is a brace.

use std::fmt;
use std::sync::OnceLock;

use regex::{Regex, RegexBuilder};

/// Bytes that one compiled expression may take: schemas come from clients.
const MAX_PROGRAM_BYTES: usize = 1 << 20;
/// Highest count in `x{n,m}`, as in Go.
const MAX_REPEAT: u32 = 1000;

/// An expression and, from its first use on, the program compiled from it.
#[derive(Clone, Default)]
pub struct Pattern {
    source: String,
    program: OnceLock<Result<Regex, String>>,
}

impl Pattern {
    /// Nothing is compiled yet: see [`Pattern::check`].
    pub fn new(source: impl Into<String>) -> Self {
        Self { source: source.into(), program: OnceLock::new() }
    }

    /// The expression as written.
    pub fn as_str(&self) -> &str {
        &self.source
    }

    /// The reason why this is no expression, if it is none.
    pub fn check(&self) -> Result<(), &str> {
        self.program().as_ref().map(|_| ()).map_err(String::as_str)
    }

    /// Whether `text` contains a match; an expression that does not compile matches nothing.
    pub fn is_match(&self, text: &str) -> bool {
        self.program().as_ref().is_ok_and(|program| program.is_match(text))
    }

    fn program(&self) -> &Result<Regex, String> {
        self.program.get_or_init(|| compile(&self.source))
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.source)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)
    }
}

/// Compiles an expression written for Go. Errors have the words of Go where it has the same complaint.
pub fn compile(source: &str) -> Result<Regex, String> {
    let complain = |what: &str| format!("error parsing regexp: {what}");
    let translated = translate(source).map_err(|what| complain(&what))?;
    RegexBuilder::new(&translated).size_limit(MAX_PROGRAM_BYTES).build().map_err(|e| match e {
        regex::Error::Syntax(text) => {
            let last = text.lines().last().unwrap_or_default().trim_start_matches("error: ");
            complain(&match last {
                "unclosed group" => format!("missing closing ): `{source}`"),
                "unopened group" => format!("unexpected ): `{source}`"),
                "unclosed character class" => format!("missing closing ]: `{}`", from_bracket(source)),
                _ if last.starts_with("incomplete escape sequence") => {
                    "trailing backslash at end of expression: ``".to_owned()
                }
                _ => {
                    let what = last.split(',').next().unwrap_or(last);
                    format!("{what}: `{}`", marked(&text).unwrap_or(source))
                }
            })
        }
        _ => complain("expression is too large"),
    })
}

/// The part of the expression that an error message marks.
fn marked(message: &str) -> Option<&str> {
    let mut lines = message.lines().skip(1);
    let (expression, marks) = (lines.next()?, lines.next()?);
    let (start, end) = (marks.find('^')?, marks.rfind('^')? + 1);
    expression.get(start..end)
}

/// From the last bracket on, which is the one that nothing closes.
fn from_bracket(source: &str) -> &str {
    source.rfind('[').map_or(source, |at| &source[at..])
}

/// Rewrites `source` so that Rust's engine reads it the way Go does; the error is what Go refuses.
fn translate(source: &str) -> Result<String, String> {
    let mut out = String::with_capacity(source.len() + 8);
    let mut rest = source;
    // What the operator that was just read repeats with: Go takes only one.
    let mut repetition: Option<&str> = None;
    while let Some(c) = rest.chars().next() {
        let before = rest;
        rest = match c {
            '\\' => escape(rest, false, &mut out),
            '[' => class(rest, &mut out),
            '{' => brace(rest, &mut out)?,
            '(' => group(rest, &mut out)?,
            _ => {
                out.push(c);
                &rest[c.len_utf8()..]
            }
        };
        let repeats = matches!(c, '*' | '+' | '?') || (c == '{' && before.len() - rest.len() > 1);
        repetition = match repetition {
            _ if !repeats => None,
            None if c == '*' || c == '+' || c == '?' => {
                if out.len() == 1 {
                    return Err(format!("missing argument to repetition operator: `{c}`"));
                }
                rest = lazy(rest, &mut out);
                Some(before)
            }
            None => {
                rest = lazy(rest, &mut out);
                Some(before)
            }
            Some(first) => {
                let end = first.len() - rest.len();
                return Err(format!("invalid nested repetition operator: `{}`", &first[..end]));
            }
        };
    }
    Ok(out)
}

/// A question mark behind a repetition makes it lazy, and repeats nothing.
fn lazy<'a>(rest: &'a str, out: &mut String) -> &'a str {
    match rest.strip_prefix('?') {
        Some(after) => {
            out.push('?');
            after
        }
        None => rest,
    }
}

/// The start of a group: names and the flags `i`, `m`, `s` and `U` are all that Go knows.
fn group<'a>(rest: &'a str, out: &mut String) -> Result<&'a str, String> {
    let Some(inner) = rest.strip_prefix("(?") else {
        out.push('(');
        return Ok(&rest[1..]);
    };
    let named = inner.strip_prefix("P<").or_else(|| inner.strip_prefix('<'));
    if let Some(name) = named {
        let word = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        let Some((name, after)) = name.split_once('>').filter(|(name, _)| word(name)) else {
            return Err(format!("invalid named capture: `{rest}`"));
        };
        out.extend(["(?P<", name, ">"]);
        return Ok(after);
    }
    for (at, c) in inner.char_indices() {
        match c {
            'i' | 'm' | 's' | 'U' | '-' => {}
            ':' | ')' => {
                let end = 2 + at + 1;
                out.push_str(&rest[..end]);
                return Ok(&rest[end..]);
            }
            _ => return Err(format!("invalid or unsupported Perl syntax: `{}`", &rest[..2 + at + c.len_utf8()])),
        }
    }
    Err(format!("missing argument to repetition operator: `{}`", &rest[1..2]))
}

/// One escape sequence at the start of `rest`; returns what follows it.
fn escape<'a>(rest: &'a str, in_class: bool, out: &mut String) -> &'a str {
    let Some(c) = rest[1..].chars().next() else {
        out.push('\\');
        return "";
    };
    let after = &rest[1 + c.len_utf8()..];
    let (class, negated) = match c {
        'd' => ("0-9", false),
        'D' => ("0-9", true),
        's' => (r"\t\n\x0C\r ", false),
        'S' => (r"\t\n\x0C\r ", true),
        'w' => ("0-9A-Za-z_", false),
        'W' => ("0-9A-Za-z_", true),
        'Q' => {
            let (quoted, after) = after.split_once(r"\E").unwrap_or((after, ""));
            out.push_str(&regex::escape(quoted));
            return after;
        }
        'b' | 'B' if !in_class => {
            out.push_str(if c == 'b' { r"(?-u:\b)" } else { r"(?-u:\B)" });
            return after;
        }
        '<' | '>' => {
            out.push(c);
            return after;
        }
        _ => {
            out.push('\\');
            out.push(c);
            return after;
        }
    };
    match (negated, in_class) {
        (false, true) => out.push_str(class),
        (false, false) => out.extend(["[", class, "]"]),
        (true, _) => out.extend(["[^", class, "]"]),
    }
    after
}

/// One bracket expression: what opens a nested class or a set operation in Rust is a plain character in Go.
fn class<'a>(rest: &'a str, out: &mut String) -> &'a str {
    let mut at = &rest[1..];
    out.push('[');
    if let Some(after) = at.strip_prefix('^') {
        out.push('^');
        at = after;
    }
    let mut first = true;
    while let Some(c) = at.chars().next() {
        at = match c {
            ']' if !first => {
                out.push(']');
                return &at[1..];
            }
            ']' => {
                out.push_str(r"\]");
                &at[1..]
            }
            '[' if at.starts_with("[:") && at[2..].contains(":]") => {
                let end = at.find(":]").unwrap_or(at.len() - 2) + 2;
                out.push_str(&at[..end]);
                &at[end..]
            }
            '[' | '&' | '~' => {
                out.push('\\');
                out.push(c);
                &at[1..]
            }
            '\\' => escape(at, true, out),
            // `--` is a set operation in Rust; in Go the first dash of a range may be the end of nothing.
            '-' if at.starts_with("--") => {
                out.push_str(r"\-");
                &at[1..]
            }
            _ => {
                out.push(c);
                &at[c.len_utf8()..]
            }
        };
        first = false;
    }
    at
}

/// A counted repetition, or a brace that stands for itself.
fn brace<'a>(rest: &'a str, out: &mut String) -> Result<&'a str, String> {
    let counts = rest[1..].split_once('}').filter(|(inner, _)| {
        let (low, high) = inner.split_once(',').unwrap_or((inner, ""));
        let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
        !low.is_empty() && digits(low) && digits(high)
    });
    let Some((inner, after)) = counts else {
        out.push_str(r"\{");
        return Ok(&rest[1..]);
    };
    let too_many = |n: &str| !n.is_empty() && n.parse::<u32>().map_or(true, |n| n > MAX_REPEAT);
    if inner.split(',').any(too_many) {
        return Err(format!("invalid repeat count: `{{{inner}}}`"));
    }
    out.extend(["{", inner, "}"]);
    Ok(after)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn go_dialect() {
        for (pattern, yes, no) in [
            (r"^\d+$", "123", "١٢٣"),
            (r"^\w+$", "a_1", "ä"),
            (r"^[\w-]+$", "a-b", "a b"),
            (r"^[^\s]+$", "a\u{a0}b", "a b"),
            (r"^[\D]$", "a", "1"),
            ("^a{2}$", "aa", "a"),
            ("^a{,2}$", "a{,2}", "aa"),
            ("^{name}$", "{name}", "name"),
            (r"^[[a]$", "[", "b"),
            (r"^[]a]$", "]", "b"),
            (r"^[a&&b]$", "&", "c"),
            (r"^[[:alpha:]]$", "x", "1"),
            (r"^\Qa.b\E$", "a.b", "axb"),
            (r"^\<x\>$", "<x>", "x"),
            (r"^(?i)abc$", "ABC", "abd"),
            (r"^[+--]$", "-", "b"),
        ] {
            let re = Pattern::new(pattern);
            assert_eq!(re.check(), Ok(()), "{pattern}");
            assert!(re.is_match(yes), "{pattern} {yes}");
            assert!(!re.is_match(no), "{pattern} {no}");
        }
    }

    #[test]
    fn bad_expressions_say_why() {
        for (pattern, why) in [
            ("(", "missing closing ): `(`"),
            ("a)", "unexpected ): `a)`"),
            ("a{1001}", "invalid repeat count: `{1001}`"),
            ("x[a", "missing closing ]: `[a`"),
            (r"\", "trailing backslash at end of expression: ``"),
            ("a**", "invalid nested repetition operator: `**`"),
            ("a*?+", "invalid nested repetition operator: `*?+`"),
            ("*a", "missing argument to repetition operator: `*`"),
            ("(?=a)", "invalid or unsupported Perl syntax: `(?=`"),
            ("(?x)a", "invalid or unsupported Perl syntax: `(?x`"),
            ("(?<!a)b", "invalid named capture: `(?<!a)b`"),
            ("[z-a]", "invalid character class range: `z-a`"),
        ] {
            let re = Pattern::new(pattern);
            assert_eq!(re.check(), Err(format!("error parsing regexp: {why}").as_str()), "{pattern}");
            assert!(!re.is_match("a"), "{pattern}");
        }
        for pattern in ["a*?b+?c??", "(?i:a)(?P<n>b)(?<m>c)(?s)d", "a{2}?", "x{a}*", "(?:a*)*"] {
            assert_eq!(Pattern::new(pattern).check(), Ok(()), "{pattern}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_an_expression_or_an_error(text in r"[\[\](){}a-d\\^$.|?*+&~<>QEdswb,0-9:-]{0,24}") {
            let _ = compile(&text);
        }
    }
}
