//! The JSONPath dialect of printer columns: fields, indexes, slices, wildcards, recursive descent, unions
//! and filters (`.status.conditions[?(@.type=="Ready")].status`).
//!
//! A path is evaluated as a list of steps, each of which maps a list of values to a list of values. Keys
//! that are missing give nothing; indexing what is no list, or comparing what cannot be compared, makes the
//! whole path give nothing.

use std::borrow::Cow;
use std::cmp::Ordering;

use serde_json::Value;
use thiserror::Error;

use crate::go::float as go_float;

/// Filters within filters, beyond which a path is refused: no honest column needs more.
const MAX_NESTING: usize = 8;

/// Values that a path may yield at most; `..` on a large object yields many.
const MAX_RESULTS: usize = 10_000;

/// Why a path cannot be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("unrecognized column definition {path:?}: {problem}")]
pub struct ParseError {
    path: String,
    problem: String,
}

/// A parsed path.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonPath(Vec<Step>);

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    Wildcard,
    Recursive,
    Slice(Slice),
    Union(Vec<Vec<Step>>),
    Filter { left: Vec<Step>, test: Option<(Operator, Vec<Step>)> },
    Literal(Value),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Slice {
    At(i64),
    Range { start: Option<i64>, end: Option<i64>, step: usize },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl JsonPath {
    /// Parses a column's path: `.spec.replicas`, with or without braces around it.
    pub fn parse(path: &str) -> Result<Self, ParseError> {
        let inner = path.strip_prefix('{').and_then(|p| p.strip_suffix('}')).unwrap_or(path);
        let fail = |problem: String| ParseError { path: path.to_owned(), problem };
        Parser { rest: inner, nesting: 0 }.steps().map(Self).map_err(fail)
    }

    /// The first value that the path finds in `object`.
    pub fn first<'a>(&'a self, object: &'a Value) -> Option<&'a Value> {
        self.all(object)?.first().copied()
    }

    /// All values that the path finds in `object`; `None` if it does not apply.
    pub fn all<'a>(&'a self, object: &'a Value) -> Option<Vec<&'a Value>> {
        walk(&self.0, vec![object])
    }
}

struct Parser<'a> {
    rest: &'a str,
    nesting: usize,
}

impl<'a> Parser<'a> {
    fn steps(&mut self) -> Result<Vec<Step>, String> {
        let mut steps = Vec::new();
        while let Some(c) = self.rest.chars().next() {
            if let Some(rest) = self.rest.strip_prefix("..") {
                if steps.last() == Some(&Step::Recursive) {
                    return Err("invalid multiple recursive descent".to_owned());
                }
                self.rest = rest;
                steps.push(Step::Recursive);
                if rest.starts_with(is_word) {
                    steps.push(self.field());
                }
                continue;
            }
            match c {
                ' ' | '@' | '$' => self.rest = &self.rest[1..],
                '.' => {
                    self.rest = &self.rest[1..];
                    steps.push(self.field());
                }
                '[' if self.rest.starts_with("[?(") => steps.push(self.filter()?),
                '[' => self.bracket(&mut steps)?,
                '"' | '\'' => steps.push(Step::Literal(self.quoted(c)?.into())),
                '+' | '-' | '0'..='9' => steps.push(self.number()?),
                _ if is_word(c) => steps.push(self.word()),
                _ => return Err(format!("unrecognized character in action: {c:?}")),
            }
        }
        Ok(steps)
    }

    /// Takes the text up to the first character that `end` accepts; a backslash protects the next one.
    fn take_until(&mut self, end: impl Fn(char) -> bool) -> &'a str {
        let mut escaped = false;
        let stop = self.rest.char_indices().find(|(_, c)| {
            let stops = !escaped && end(*c);
            escaped = !escaped && *c == '\\';
            stops
        });
        let (taken, rest) = self.rest.split_at(stop.map_or(self.rest.len(), |(at, _)| at));
        self.rest = rest;
        taken
    }

    fn field(&mut self) -> Step {
        match self.take_until(ends_field) {
            "*" => Step::Wildcard,
            name => Step::Field(name.replace('\\', "")),
        }
    }

    fn word(&mut self) -> Step {
        match self.take_until(ends_field) {
            "true" => Step::Literal(true.into()),
            "false" => Step::Literal(false.into()),
            word => Step::Field(word.to_owned()),
        }
    }

    fn number(&mut self) -> Result<Step, String> {
        let sign = usize::from(self.rest.starts_with(['+', '-']));
        let end = self.rest[sign..].find(|c: char| c != '.' && !c.is_ascii_digit());
        let (text, rest) = self.rest.split_at(end.map_or(self.rest.len(), |e| e + sign));
        self.rest = rest;
        let digits = text.strip_prefix('+').unwrap_or(text);
        let parsed = digits.parse::<i64>().map(Value::from).or_else(|_| digits.parse::<f64>().map(Value::from));
        parsed.map(Step::Literal).map_err(|_| format!("cannot parse number {text}"))
    }

    fn quoted(&mut self, quote: char) -> Result<String, String> {
        self.rest = &self.rest[1..];
        let inner = self.take_until(|c| c == quote);
        if self.rest.is_empty() {
            return Err("unterminated quoted string".to_owned());
        }
        self.rest = &self.rest[1..];
        Ok(unescape(inner))
    }

    /// `[0]`, `[-1]`, `[1:3]`, `[*]`, `['key']`, `[a,b]`.
    fn bracket(&mut self, steps: &mut Vec<Step>) -> Result<(), String> {
        let Some(end) = self.rest.find(']') else {
            return Err("unterminated array".to_owned());
        };
        let inner = &self.rest[1..end];
        self.rest = &self.rest[end + 1..];
        if inner.contains(',') {
            let parts = inner.split(',').map(|part| element(part.trim()));
            steps.push(Step::Union(parts.collect::<Result<_, _>>()?));
        } else {
            steps.extend(element(inner)?);
        }
        Ok(())
    }

    /// `[?(@.a)]` or `[?(@.a == "b")]`.
    fn filter(&mut self) -> Result<Step, String> {
        if self.nesting >= MAX_NESTING {
            return Err(format!("filters nested more than {MAX_NESTING} deep"));
        }
        self.rest = &self.rest["[?(".len()..];
        let inner = self.filter_text()?;
        let nested = |text| Parser { rest: text, nesting: self.nesting + 1 }.steps();
        let is_operator = |c: char| "!<>=".contains(c);
        let Some(at) = inner.find(is_operator).filter(|at| *at > 0) else {
            return Ok(Step::Filter { left: nested(inner)?, test: None });
        };
        let (left, rest) = inner.split_at(at);
        let right = rest.trim_start_matches(is_operator);
        let operator = match &rest[..rest.len() - right.len()] {
            "==" => Operator::Equal,
            "!=" => Operator::NotEqual,
            "<" => Operator::Less,
            "<=" => Operator::LessOrEqual,
            ">" => Operator::Greater,
            ">=" => Operator::GreaterOrEqual,
            other => return Err(format!("unrecognized filter operator {other}")),
        };
        Ok(Step::Filter { left: nested(left)?, test: Some((operator, nested(right)?)) })
    }

    /// The text up to `)]`, brackets within quotes apart.
    fn filter_text(&mut self) -> Result<&'a str, String> {
        let mut quote = None;
        let mut depth = 0_usize;
        let mut before = ' ';
        for (at, c) in self.rest.char_indices() {
            match (c, quote) {
                ('"' | '\'', None) => quote = Some(c),
                (c, Some(q)) if c == q && before != '\\' => quote = None,
                ('(', None) => depth += 1,
                (')', None) if depth > 0 => depth -= 1,
                (')', None) => {
                    let inner = &self.rest[..at];
                    self.rest = self.rest[at + 1..].strip_prefix(']').ok_or("unclosed array expect ]")?;
                    return Ok(inner);
                }
                _ => {}
            }
            before = c;
        }
        Err("unterminated filter".to_owned())
    }
}

fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

fn ends_field(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n' | '.' | ',' | '[' | ']' | '$' | '@' | '{' | '}')
}

/// One element of a bracket. A quoted key is read as a path of its own: dots in it need a backslash.
fn element(text: &str) -> Result<Vec<Step>, String> {
    let quoted = text.strip_prefix('\'').and_then(|t| t.strip_suffix('\''));
    if let Some(key) = quoted.filter(|key| !key.contains('\'')) {
        return Parser { rest: &format!(".{key}"), nesting: MAX_NESTING }.steps();
    }
    slice(text).map(|slice| vec![Step::Slice(slice)])
}

/// `*`, an index, or a range with an optional step.
fn slice(text: &str) -> Result<Slice, String> {
    if text == "*" {
        return Ok(Slice::Range { start: None, end: None, step: 1 });
    }
    let invalid = || format!("invalid array index {text}");
    let number = |part: &str| match part {
        "" => Ok(None),
        digits => digits.parse::<i64>().map(Some).map_err(|_| invalid()),
    };
    let mut parts = text.splitn(3, ':');
    let start = number(parts.next().unwrap_or_default())?;
    match (start, parts.next()) {
        (Some(at), None) => Ok(Slice::At(at)),
        (None, None) => Err(invalid()),
        (start, Some(end)) => {
            let step = number(parts.next().unwrap_or_default())?.unwrap_or(1);
            let step = usize::try_from(step).ok().filter(|s| *s > 0).ok_or("step must be > 0")?;
            Ok(Slice::Range { start, end: number(end)?, step })
        }
    }
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('n') => out.push('\n'),
                Some('t') => out.push('\t'),
                Some('r') => out.push('\r'),
                Some(other) => out.push(other),
                None => {}
            },
            c => out.push(c),
        }
    }
    out
}

fn walk<'a>(steps: &'a [Step], input: Vec<&'a Value>) -> Option<Vec<&'a Value>> {
    steps.iter().try_fold(input, |values, step| apply(step, values).filter(|v| v.len() <= MAX_RESULTS))
}

fn apply<'a>(step: &'a Step, input: Vec<&'a Value>) -> Option<Vec<&'a Value>> {
    let mut output = Vec::new();
    match step {
        Step::Literal(value) => return Some(vec![value]),
        Step::Field(name) => output.extend(input.iter().filter_map(|v| v.as_object()?.get(name))),
        Step::Wildcard => input.iter().for_each(|v| output.extend(children(v))),
        Step::Recursive => input.iter().for_each(|v| descend(v, &mut output)),
        Step::Slice(slice) => {
            for value in input.iter().filter(|v| !v.is_null()) {
                take_slice(*slice, value.as_array()?, &mut output)?;
            }
        }
        Step::Union(alternatives) => {
            for steps in alternatives {
                output.extend(walk(steps, input.clone())?);
            }
        }
        Step::Filter { left, test } => {
            for value in input {
                for item in value.as_array()? {
                    if passes(left, test.as_ref(), item)? {
                        output.push(item);
                    }
                }
            }
        }
    }
    Some(output)
}

fn children(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(list) => list.iter().collect(),
        Value::Object(map) => map.values().collect(),
        _ => Vec::new(),
    }
}

/// The value and everything below it that has something below.
fn descend<'a>(value: &'a Value, output: &mut Vec<&'a Value>) {
    let below = children(value);
    if !below.is_empty() && output.len() <= MAX_RESULTS {
        output.push(value);
        for v in below {
            descend(v, output);
        }
    }
}

fn take_slice<'a>(slice: Slice, list: &'a [Value], output: &mut Vec<&'a Value>) -> Option<()> {
    let from_end = |index: i64| if index < 0 { index.checked_add_unsigned(list.len() as u64) } else { Some(index) };
    match slice {
        Slice::At(index) => output.push(list.get(usize::try_from(from_end(index)?).ok()?)?),
        Slice::Range { start, end, step } => {
            let start = usize::try_from(from_end(start.unwrap_or(0))?).ok()?;
            let end = match end {
                Some(end) => usize::try_from(from_end(end)?).ok()?,
                None => list.len(),
            };
            if start != end {
                output.extend(list.get(start..end)?.iter().step_by(step));
            }
        }
    }
    Some(())
}

fn passes<'a>(left: &'a [Step], test: Option<&'a (Operator, Vec<Step>)>, item: &'a Value) -> Option<bool> {
    let left = walk(left, vec![item]);
    let Some((operator, right)) = test else {
        return Some(left.is_some_and(|found| !found.is_empty()));
    };
    match (left?.as_slice(), walk(right, vec![item])?.as_slice()) {
        ([], _) | (_, []) => Some(false),
        ([left], [right]) => compare(*operator, left, right),
        _ => None,
    }
}

/// Only values of one kind can be compared, as in Go's templates.
fn compare(operator: Operator, left: &Value, right: &Value) -> Option<bool> {
    let order = match (left, right) {
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Bool(a), Value::Bool(b)) if matches!(operator, Operator::Equal | Operator::NotEqual) => a.cmp(b),
        (Value::Number(a), Value::Number(b)) => match (a.as_i64(), b.as_i64()) {
            (Some(a), Some(b)) => a.cmp(&b),
            _ => a.as_f64()?.partial_cmp(&b.as_f64()?)?,
        },
        _ => return None,
    };
    Some(match operator {
        Operator::Equal => order == Ordering::Equal,
        Operator::NotEqual => order != Ordering::Equal,
        Operator::Less => order == Ordering::Less,
        Operator::LessOrEqual => order != Ordering::Greater,
        Operator::Greater => order == Ordering::Greater,
        Operator::GreaterOrEqual => order != Ordering::Less,
    })
}

/// A value as text: strings bare, numbers as Go prints them, lists and objects as JSON.
pub(super) fn print(value: &Value) -> String {
    match value {
        Value::Null => "<no value>".to_owned(),
        Value::Bool(b) => b.to_string(),
        Value::String(s) => s.clone(),
        Value::Number(n) => match (n.as_i64(), n.as_f64()) {
            (None, Some(f)) => go_float(f),
            _ => n.to_string(),
        },
        Value::Array(_) | Value::Object(_) => escape_html(&value.to_string()).into_owned(),
    }
}

/// Go's JSON encoder hides these three from browsers.
fn escape_html(json: &str) -> Cow<'_, str> {
    if json.contains(['<', '>', '&']) {
        json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026").into()
    } else {
        json.into()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn found(path: &str, object: &Value) -> Option<Value> {
        let path = JsonPath::parse(path).unwrap();
        path.first(object).cloned()
    }

    #[test]
    fn columns_find_what_they_name() {
        let volume = json!({
            "metadata": {"labels": {"a.b/c": "x"}},
            "spec": {"replicas": 3, "disks": [{"name": "d0", "size": 5}, {"name": "d1", "size": 9}]},
            "status": {"conditions": [
                {"type": "Scheduled", "status": "False"}, {"type": "Ready", "status": "True", "extra": "e"},
            ]},
        });
        for (path, value) in [
            (".spec.replicas", json!(3)),
            ("{.spec.replicas}", json!(3)),
            ("$.spec.replicas", json!(3)),
            (".spec['replicas']", json!(3)),
            (r".metadata.labels.a\.b/c", json!("x")),
            (r".metadata.labels['a\.b/c']", json!("x")),
            (".spec.disks[0].name", json!("d0")),
            (".spec.disks[-1].name", json!("d1")),
            (".spec.disks[1:2].name", json!("d1")),
            (".spec.disks[*].name", json!("d0")),
            (".spec.disks[0,1].name", json!("d0")),
            ("..size", json!(5)),
            (r#".status.conditions[?(@.type=="Ready")].status"#, json!("True")),
            (".status.conditions[?(@.type == 'Ready')].status", json!("True")),
            (".status.conditions[?(@.type!='Ready')].status", json!("False")),
            (".status.conditions[?(@.extra)].type", json!("Ready")),
            (".spec.disks[?(@.size > 5)].name", json!("d1")),
            (".spec.disks[?(@.size<=5)].name", json!("d0")),
        ] {
            assert_eq!(found(path, &volume), Some(value), "{path}");
        }
        for path in [
            ".spec.gone",
            ".spec.gone.deeper",
            ".spec.disks[7].name",
            ".spec.replicas[0]",
            ".spec.disks[?(@.size=='x')]",
        ] {
            assert_eq!(found(path, &volume), None, "{path}");
        }
    }

    #[test]
    fn broken_paths_are_refused() {
        for path in [".a[", ".a[x]", ".a[?(@.b", ".a[?(@.b)", "....a", ".a[::0]", "'open", ".a[?(@.b=~'x')]"] {
            assert!(JsonPath::parse(path).is_err(), "{path}");
        }
    }

    #[test]
    fn values_print_as_go_prints_them() {
        for (value, text) in [
            (json!("a b"), "a b"),
            (json!(12), "12"),
            (json!(1.5), "1.5"),
            (json!(1e21), "1e+21"),
            (json!(0.00001), "1e-05"),
            (json!(true), "true"),
            (json!(["a", 1]), r#"["a",1]"#),
            (json!({"b": "<", "a": 1}), r#"{"a":1,"b":"\u003c"}"#),
            (json!(null), "<no value>"),
        ] {
            assert_eq!(print(&value), text);
        }
    }

    proptest! {
        #[test]
        fn no_path_panics(path in r#"[.\[\]?()@*:,'"a-c0-9=<>! \\-]{0,40}"#) {
            let object = json!({"a": [{"b": 1, "c": "a"}, {"b": 2}], "b": {"a": "x"}, "c": null});
            if let Ok(path) = JsonPath::parse(&path) {
                let _ = path.first(&object);
            }
        }
    }
}
