//! Functions of texts. Positions count characters, not bytes.

use super::convert::{show, text};
use super::eval::Meter;
use super::functions::{Gives, Kind, Row};
use super::value::{Fault, Outcome, Val};

const BOOL: Gives = Gives::Kind(Kind::Bool);
const INT: Gives = Gives::Kind(Kind::Int);
const TEXT: Gives = Gives::Kind(Kind::Text);

/// Bytes that one function may make.
const MAX_TEXT_BYTES: usize = 1 << 20;

pub(super) const FUNCTIONS: &[Row] = &[
    ("contains", true, &[Kind::Text, Kind::Text], BOOL, |v, m| test(v, m, |a, b| a.contains(b))),
    ("startsWith", true, &[Kind::Text, Kind::Text], BOOL, |v, m| test(v, m, |a, b| a.starts_with(b))),
    ("endsWith", true, &[Kind::Text, Kind::Text], BOOL, |v, m| test(v, m, |a, b| a.ends_with(b))),
    ("matches", true, &[Kind::Text, Kind::Text], BOOL, matches),
    ("matches", false, &[Kind::Text, Kind::Text], BOOL, matches),
    ("find", true, &[Kind::Text, Kind::Text], TEXT, find),
    ("findAll", true, &[Kind::Text, Kind::Text], Gives::Texts, find_all),
    ("findAll", true, &[Kind::Text, Kind::Text, Kind::Int], Gives::Texts, find_all),
    ("charAt", true, &[Kind::Text, Kind::Int], TEXT, char_at),
    ("indexOf", true, &[Kind::Text, Kind::Text], INT, index_of),
    ("indexOf", true, &[Kind::Text, Kind::Text, Kind::Int], INT, index_of),
    ("lastIndexOf", true, &[Kind::Text, Kind::Text], INT, last_index_of),
    ("lastIndexOf", true, &[Kind::Text, Kind::Text, Kind::Int], INT, last_index_of),
    ("lowerAscii", true, &[Kind::Text], TEXT, |v, m| map(v, m, str::to_ascii_lowercase)),
    ("upperAscii", true, &[Kind::Text], TEXT, |v, m| map(v, m, str::to_ascii_uppercase)),
    ("trim", true, &[Kind::Text], TEXT, |v, m| map(v, m, |s| s.trim().to_owned())),
    ("strings.quote", false, &[Kind::Text], TEXT, |v, m| map(v, m, quote)),
    ("replace", true, &[Kind::Text, Kind::Text, Kind::Text], TEXT, replace),
    ("replace", true, &[Kind::Text, Kind::Text, Kind::Text, Kind::Int], TEXT, replace),
    ("split", true, &[Kind::Text, Kind::Text], Gives::Texts, split),
    ("split", true, &[Kind::Text, Kind::Text, Kind::Int], Gives::Texts, split),
    ("substring", true, &[Kind::Text, Kind::Int], TEXT, substring),
    ("substring", true, &[Kind::Text, Kind::Int, Kind::Int], TEXT, substring),
    ("join", true, &[Kind::List], TEXT, join),
    ("join", true, &[Kind::List, Kind::Text], TEXT, join),
    ("format", true, &[Kind::Text, Kind::List], TEXT, format),
];

fn int(value: &Val<'_>) -> Outcome<i64> {
    match value {
        Val::Int(n) => Ok(*n),
        _ => Err(Fault::no_such_overload()),
    }
}

fn test<'a>(v: &[Val<'a>], meter: &mut Meter, holds: fn(&str, &str) -> bool) -> Outcome<Val<'a>> {
    let (a, b) = (text(&v[0])?, text(&v[1])?);
    meter.read(a)?;
    Ok(Val::Bool(holds(a, b)))
}

fn map<'a>(v: &[Val<'a>], meter: &mut Meter, change: fn(&str) -> String) -> Outcome<Val<'a>> {
    let text = text(&v[0])?;
    meter.read(text)?;
    Ok(Val::text(change(text)))
}

fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            _ => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Matching reads the text for every part of the expression, in the worst case.
fn charge_match(text: &str, expression: &str, meter: &mut Meter) -> Outcome<()> {
    let (text, expression) = (1 + text.len() as u64 / 10, 1 + expression.len() as u64 / 4);
    meter.charge(text.saturating_mul(expression))
}

fn matches<'a>(v: &[Val<'a>], meter: &mut Meter) -> Outcome<Val<'a>> {
    let (subject, expression) = (text(&v[0])?, text(&v[1])?);
    let pattern = meter.pattern(expression)?;
    charge_match(subject, expression, meter)?;
    Ok(Val::Bool(pattern.is_match(subject)))
}

fn find<'a>(v: &[Val<'a>], meter: &mut Meter) -> Outcome<Val<'a>> {
    let (subject, expression) = (text(&v[0])?, text(&v[1])?);
    let pattern = meter.pattern(expression)?;
    charge_match(subject, expression, meter)?;
    Ok(Val::text(pattern.find(subject).map_or("", |found| found.as_str()).to_owned()))
}

fn find_all<'a>(v: &[Val<'a>], meter: &mut Meter) -> Outcome<Val<'a>> {
    let (subject, expression) = (text(&v[0])?, text(&v[1])?);
    let limit = v.get(2).map(int).transpose()?.unwrap_or(-1);
    let pattern = meter.pattern(expression)?;
    charge_match(subject, expression, meter)?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let found = pattern.find_iter(subject).take(limit);
    Ok(Val::list(found.map(|found| Val::text(found.as_str().to_owned())).collect()))
}

fn char_at<'a>(v: &[Val<'a>], meter: &mut Meter) -> Outcome<Val<'a>> {
    let (text, at) = (text(&v[0])?, int(&v[1])?);
    meter.read(text)?;
    let count = text.chars().count() as i64;
    let out_of_range = || Fault::new(format!("index out of range: {at}"));
    if at < 0 || at > count {
        return Err(out_of_range());
    }
    Ok(Val::text(text.chars().nth(at as usize).map(String::from).unwrap_or_default()))
}

/// The byte at which the character of that number starts.
fn byte_of(text: &str, character: i64) -> Outcome<usize> {
    let out_of_range = || Fault::new(format!("index out of range: {character}"));
    let wanted = usize::try_from(character).map_err(|_| out_of_range())?;
    let mut starts = text.char_indices().map(|(at, _)| at).chain([text.len()]);
    starts.nth(wanted).ok_or_else(out_of_range)
}

fn characters_before(text: &str, byte: usize) -> i64 {
    text[..byte].chars().count() as i64
}

fn index_of<'a>(v: &[Val<'a>], meter: &mut Meter) -> Outcome<Val<'a>> {
    let (subject, wanted) = (text(&v[0])?, text(&v[1])?);
    meter.read(subject)?;
    let from = byte_of(subject, v.get(2).map(int).transpose()?.unwrap_or(0))?;
    let found = subject[from..].find(wanted).map(|at| characters_before(subject, from + at));
    Ok(Val::Int(found.unwrap_or(-1)))
}

fn last_index_of<'a>(v: &[Val<'a>], meter: &mut Meter) -> Outcome<Val<'a>> {
    let (subject, wanted) = (text(&v[0])?, text(&v[1])?);
    meter.read(subject)?;
    let until = match v.get(2) {
        Some(until) => byte_of(subject, int(until)?)?,
        None => subject.len(),
    };
    let end = (until + wanted.len()).min(subject.len());
    let searched = subject.get(..end).unwrap_or(subject);
    let found = searched.rfind(wanted).map(|at| characters_before(subject, at));
    Ok(Val::Int(found.unwrap_or(-1)))
}

fn replace<'a>(v: &[Val<'a>], meter: &mut Meter) -> Outcome<Val<'a>> {
    let (subject, from, to) = (text(&v[0])?, text(&v[1])?, text(&v[2])?);
    meter.read(subject)?;
    let limit = v.get(3).map(int).transpose()?.unwrap_or(-1);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    // Every character may be replaced, and an empty text is found between all of them.
    let most = (subject.len() + 1).min(limit).saturating_mul(to.len()).saturating_add(subject.len());
    meter.charge(most as u64 / 10)?;
    if most > MAX_TEXT_BYTES && subject.matches(from).count().min(limit).saturating_mul(to.len()) > MAX_TEXT_BYTES {
        return Err(Fault::CostLimit);
    }
    Ok(Val::text(subject.replacen(from, to, limit)))
}

fn split<'a>(v: &[Val<'a>], meter: &mut Meter) -> Outcome<Val<'a>> {
    let (subject, separator) = (text(&v[0])?, text(&v[1])?);
    meter.read(subject)?;
    let limit = v.get(2).map(int).transpose()?.unwrap_or(-1);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let own = |part: &str| Val::text(part.to_owned());
    let parts: Vec<Val<'a>> = match (limit, separator) {
        (0, _) => Vec::new(),
        // Between all characters, but not around them.
        (_, "") => {
            let mut parts: Vec<String> = subject.chars().map(String::from).collect();
            if parts.len() > limit {
                let rest = parts.split_off(limit - 1).concat();
                parts.push(rest);
            }
            parts.into_iter().map(Val::text).collect()
        }
        _ => subject.splitn(limit, separator).map(own).collect(),
    };
    meter.charge(parts.len() as u64)?;
    Ok(Val::list(parts))
}

fn substring<'a>(v: &[Val<'a>], meter: &mut Meter) -> Outcome<Val<'a>> {
    let (subject, start) = (text(&v[0])?, int(&v[1])?);
    meter.read(subject)?;
    let from = byte_of(subject, start)?;
    let to = match v.get(2) {
        Some(end) => byte_of(subject, int(end)?)?,
        None => subject.len(),
    };
    let part = subject.get(from..to);
    let range =
        || Fault::new(format!("invalid substring range. start: {start}, end: {}", characters_before(subject, to)));
    Ok(Val::text(part.ok_or_else(range)?.to_owned()))
}

fn join<'a>(v: &[Val<'a>], meter: &mut Meter) -> Outcome<Val<'a>> {
    let Val::List(list) = &v[0] else { return Err(Fault::no_such_overload()) };
    let separator = v.get(1).map(text).transpose()?.unwrap_or("");
    meter.charge(v[0].weight() + (separator.len() * list.len()) as u64 / 10)?;
    let items = list.items()?;
    let texts: Vec<&str> = items.iter().map(text).collect::<Outcome<_>>()?;
    Ok(Val::text(texts.join(separator)))
}

/// `"%s has %d".format([a, 1])`
fn format<'a>(v: &[Val<'a>], meter: &mut Meter) -> Outcome<Val<'a>> {
    let Val::List(list) = &v[1] else { return Err(Fault::no_such_overload()) };
    meter.charge(v[0].weight() + v[1].weight())?;
    let mut arguments = list.items()?.into_iter();
    let mut out = String::new();
    let mut rest = text(&v[0])?;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let mut precision = None;
        if let Some(after) = rest.strip_prefix('.') {
            let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
            // More digits than a double has are all zeros.
            precision = Some(after[..digits].parse::<usize>().unwrap_or(0).min(1000));
            rest = &after[digits..];
        }
        let verb = rest.chars().next().ok_or_else(|| Fault::new("unexpected end of format string"))?;
        rest = &rest[verb.len_utf8()..];
        if verb == '%' {
            out.push('%');
            continue;
        }
        let argument = arguments.next().ok_or_else(|| Fault::new("index out of range: not enough arguments"))?;
        out.push_str(&format_one(verb, precision, &argument, 0)?);
        meter.charge(out.len() as u64 / 100)?;
        if out.len() > MAX_TEXT_BYTES {
            return Err(Fault::CostLimit);
        }
    }
    out.push_str(rest);
    Ok(Val::text(out))
}

fn format_one(verb: char, precision: Option<usize>, value: &Val<'_>, depth: usize) -> Outcome<String> {
    let wrong = || Fault::new(format!("no such overload for %{verb}: {}", value.type_name()));
    Ok(match (verb, value) {
        ('s', value) => format_text(value, depth)?,
        ('d', Val::Int(n)) => n.to_string(),
        ('d', Val::UInt(n)) => n.to_string(),
        ('f', Val::Double(n)) => format!("{n:.*}", precision.unwrap_or(6)),
        ('f', Val::Int(n)) => format!("{:.*}", precision.unwrap_or(6), *n as f64),
        ('e', Val::Double(n)) => exponent(*n, precision.unwrap_or(6)),
        ('e', Val::Int(n)) => exponent(*n as f64, precision.unwrap_or(6)),
        ('b', Val::Int(n)) => radix(*n, |n| format!("{n:b}")),
        ('b', Val::UInt(n)) => format!("{n:b}"),
        ('b', Val::Bool(flag)) => u8::from(*flag).to_string(),
        ('o', Val::Int(n)) => radix(*n, |n| format!("{n:o}")),
        ('o', Val::UInt(n)) => format!("{n:o}"),
        ('x', Val::Int(n)) => radix(*n, |n| format!("{n:x}")),
        ('X', Val::Int(n)) => radix(*n, |n| format!("{n:X}")),
        ('x', Val::UInt(n)) => format!("{n:x}"),
        ('X', Val::UInt(n)) => format!("{n:X}"),
        ('x', Val::Text(text)) => hex(text),
        ('X', Val::Text(text)) => hex(text).to_ascii_uppercase(),
        _ => return Err(wrong()),
    })
}

fn hex(text: &str) -> String {
    let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap_or('0');
    text.bytes().flat_map(|b| [digit(b >> 4), digit(b & 0xf)]).collect()
}

fn radix(number: i64, show: fn(u64) -> String) -> String {
    let digits = show(number.unsigned_abs());
    if number < 0 { format!("-{digits}") } else { digits }
}

/// Two digits of exponent at least, raised, as cel-go prints it: `3.14×10⁰²`.
fn exponent(number: f64, precision: usize) -> String {
    const RAISED: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
    let plain = format!("{number:.precision$e}");
    let (mantissa, exponent) = plain.split_once('e').unwrap_or((&plain, "0"));
    let (sign, digits) = match exponent.strip_prefix('-') {
        Some(digits) => ("⁻", digits),
        None => ("", exponent),
    };
    let raised: String = format!("{digits:0>2}").chars().filter_map(|c| RAISED.get(c.to_digit(10)? as usize)).collect();
    format!("{mantissa}×10{sign}{raised}")
}

fn format_text(value: &Val<'_>, depth: usize) -> Outcome<String> {
    if depth > 16 {
        return Err(Fault::new("value is nested too deeply"));
    }
    match value {
        Val::List(list) => {
            let items = list.items()?;
            let texts: Vec<String> = items.iter().map(|item| format_text(item, depth + 1)).collect::<Outcome<_>>()?;
            Ok(format!("[{}]", texts.join(", ")))
        }
        Val::Map(map) => {
            let mut entries = Vec::new();
            for key in map.keys() {
                let value = map.get(&key).unwrap_or(Ok(Val::Null))?;
                entries.push(format!("{}: {}", format_text(&key, depth + 1)?, format_text(&value, depth + 1)?));
            }
            entries.sort();
            Ok(format!("{{{}}}", entries.join(", ")))
        }
        other => show(other).ok_or_else(|| Fault::new(format!("could not convert {} to string", other.type_name()))),
    }
}
