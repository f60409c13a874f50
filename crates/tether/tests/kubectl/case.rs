//! The transcript format: what a `.case` file says, and writing it back after a recording.
//!
//! ```text
//! # One sentence: what this case shows.
//! needs: kubectl 1.27
//! namespace: shapes
//! mask: token-[a-z0-9]+ => <token>
//!
//! @ pod.yaml
//!     kind: Pod
//!
//! $ kubectl apply -f pod.yaml
//! pod/web created
//!
//! $ kubectl get pod missing
//! ! Error from server (NotFound): pods "missing" not found
//! [1]
//! ```
//!
//! `$` is a command for `sh` (`>` continues it on the next line), `&` one that keeps running until the case ends. What follows is
//! its output: plain lines are stdout, `!` lines stderr, `[n]` the exit code when it is not 0. An output line that would
//! read as one of these markers is written with a leading backslash. `@` begins a file, indented by four spaces.

use std::fmt::Write as _;

use regex::Regex;

/// Characters that mean something at the start of a line, so output lines that begin with one are escaped.
const MARKERS: &[char] = &['$', '&', '>', '!', '[', '#', '@', '\\'];

/// One transcript.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) header: Header,
    pub(crate) items: Vec<Item>,
}

/// What the lines above the first item declare.
#[derive(Debug)]
pub(crate) struct Header {
    /// The text as written; a recording must not reformat it.
    lines: Vec<String>,
    /// The oldest kubectl, as (major, minor), whose output is the recorded one.
    pub(crate) needs_kubectl: (u32, u32),
    /// The namespace that the case works in; it exists before the first step.
    pub(crate) namespace: Option<String>,
    /// Text that differs from run to run in this case only.
    pub(crate) masks: Vec<(Regex, String)>,
}

#[derive(Debug)]
pub(crate) enum Item {
    /// Comment lines and the blank lines between blocks.
    Comment(String),
    File {
        name: String,
        lines: Vec<String>,
    },
    /// A command that runs until the case ends; it redirects its own output.
    Background {
        command: Vec<String>,
    },
    Step {
        command: Vec<String>,
        expected: Output,
    },
}

/// What a command printed, line by line, and how it ended.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Output {
    pub(crate) stdout: Vec<String>,
    pub(crate) stderr: Vec<String>,
    pub(crate) code: i32,
}

impl Case {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let lines: Vec<&str> = text.lines().collect();
        let body = lines.iter().position(|line| line.starts_with(['$', '&', '@'])).unwrap_or(lines.len());
        // A comment directly above the first block belongs to that block.
        let body = (0..body).rev().find(|&i| !lines[i].starts_with('#')).map_or(body, |blank| blank + 1);
        let header = Header::parse(&lines[..body])?;
        let mut items = Vec::new();
        let mut rest = &lines[body..];
        while let Some(line) = rest.first() {
            let (item, used) = match line.chars().next() {
                Some('@') => parse_file(rest),
                Some('&') => parse_background(rest),
                Some('$') => parse_step(rest)?,
                Some('#') | None => (Item::Comment((*line).to_owned()), 1),
                Some(_) => return Err(format!("a line that belongs to no command: {line:?}")),
            };
            items.push(item);
            rest = &rest[used..];
        }
        Ok(Self { header, items })
    }

    /// The file's text; `parse` and `render` are inverse on every committed case.
    pub(crate) fn render(&self) -> String {
        let mut text = self.header.lines.join("\n");
        text.push('\n');
        for item in &self.items {
            item.render(&mut text);
        }
        text
    }
}

impl Header {
    fn parse(lines: &[&str]) -> Result<Self, String> {
        let mut header = Self {
            lines: lines.iter().map(|&line| line.to_owned()).collect(),
            needs_kubectl: (1, 0),
            namespace: None,
            masks: Vec::new(),
        };
        for line in lines.iter().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (key, value) = line.split_once(": ").ok_or_else(|| format!("not a header line: {line:?}"))?;
            match key {
                "needs" => {
                    let version = value.strip_prefix("kubectl ").and_then(minor_version);
                    header.needs_kubectl = version.ok_or_else(|| format!("needs what? {value:?}"))?;
                }
                "namespace" => header.namespace = Some(value.to_owned()),
                "mask" => {
                    let (pattern, by) =
                        value.split_once(" => ").ok_or_else(|| format!("mask without =>: {value:?}"))?;
                    header.masks.push((Regex::new(pattern).map_err(|e| e.to_string())?, by.to_owned()));
                }
                _ => return Err(format!("unknown header {key:?}")),
            }
        }
        Ok(header)
    }
}

/// `1.32`, `v1.32.4-suffix` → (1, 32).
pub(crate) fn minor_version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.trim_start_matches('v').split('.');
    let major = parts.next()?.parse().ok()?;
    let minor = parts.next()?.trim_end_matches('+').parse().ok()?;
    Some((major, minor))
}

fn parse_file(lines: &[&str]) -> (Item, usize) {
    let name = lines[0][1..].trim().to_owned();
    let mut end = 1 + lines[1..].iter().take_while(|line| line.is_empty() || line.starts_with("    ")).count();
    while lines[end - 1].is_empty() {
        end -= 1;
    }
    let lines = lines[1..end].iter().map(|line| line.get(4..).unwrap_or_default().to_owned()).collect();
    (Item::File { name, lines }, end)
}

/// The command in `lines[0]` and its continuation lines.
fn parse_command(lines: &[&str]) -> Vec<String> {
    let more = lines[1..].iter().take_while(|line| line.starts_with('>'));
    std::iter::once(&lines[0])
        .chain(more)
        .map(|line| line[1..].strip_prefix(' ').unwrap_or_default().to_owned())
        .collect()
}

fn parse_background(lines: &[&str]) -> (Item, usize) {
    let command = parse_command(lines);
    let used = command.len();
    (Item::Background { command }, used)
}

fn parse_step(lines: &[&str]) -> Result<(Item, usize), String> {
    let command = parse_command(lines);
    let start = command.len();
    let mut end = start + lines[start..].iter().take_while(|line| !line.starts_with(['$', '&', '@', '#'])).count();
    while end > start && lines[end - 1].is_empty() {
        end -= 1;
    }
    let mut expected = Output::default();
    for line in &lines[start..end] {
        if let Some(code) = line.strip_prefix('[') {
            let code = code.strip_suffix(']').and_then(|code| code.parse().ok());
            expected.code = code.ok_or_else(|| format!("not an exit code: {line:?}"))?;
        } else if let Some(text) = line.strip_prefix('!') {
            expected.stderr.push(text.strip_prefix(' ').unwrap_or_default().to_owned());
        } else {
            expected.stdout.push(line.strip_prefix('\\').unwrap_or(line).to_owned());
        }
    }
    Ok((Item::Step { command, expected }, end))
}

impl Item {
    fn render(&self, text: &mut String) {
        match self {
            Self::Comment(line) => put(text, "", line),
            Self::File { name, lines } => {
                put(text, "@ ", name);
                for line in lines {
                    put(text, if line.is_empty() { "" } else { "    " }, line);
                }
            }
            Self::Background { command } => put_command(text, "& ", command),
            Self::Step { command, expected } => {
                put_command(text, "$ ", command);
                for line in &expected.stdout {
                    put(text, if line.starts_with(MARKERS) { "\\" } else { "" }, line);
                }
                for line in &expected.stderr {
                    put(text, if line.is_empty() { "!" } else { "! " }, line);
                }
                if expected.code != 0 {
                    put(text, "", &format!("[{}]", expected.code));
                }
            }
        }
    }
}

fn put(text: &mut String, prefix: &str, line: &str) {
    writeln!(text, "{prefix}{line}").expect("writing to a String must succeed");
}

fn put_command(text: &mut String, prefix: &str, command: &[String]) {
    for (i, line) in command.iter().enumerate() {
        put(text, if i == 0 { prefix } else { "> " }, line);
    }
}
