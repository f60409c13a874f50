//! The string formats that Kubernetes checks. Any other `format` is documentation.

use core::net::{Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use regex::Regex;

type Check = fn(&str) -> bool;

/// Names are compared without their dashes: `date-time` is `datetime`.
const FORMATS: &[(&str, Check)] = &[
    ("bsonobjectid", |s| s.len() == 24 && s.bytes().all(|b| b.is_ascii_hexdigit())),
    ("byte", is_base64),
    ("cidr", is_cidr),
    ("creditcard", is_credit_card),
    ("date", is_date),
    ("datetime", is_date_time),
    ("duration", is_duration),
    ("email", is_email),
    ("hexcolor", is_hex_color),
    ("hostname", is_hostname),
    ("ipv4", |s| s.contains('.') && (parse_ipv4(s).is_some() || s.parse::<Ipv6Addr>().is_ok())),
    ("ipv6", |s| s.parse::<Ipv6Addr>().is_ok()),
    ("isbn", |s| is_isbn10(s) || is_isbn13(s)),
    ("isbn10", is_isbn10),
    ("isbn13", is_isbn13),
    ("k8slongname", |s| s.len() <= 253 && s.split('.').all(is_name_segment)),
    ("k8sshortname", |s| s.len() <= 63 && is_name_segment(s)),
    ("mac", is_mac),
    ("password", |_| true),
    ("rgbcolor", is_rgb_color),
    ("ssn", |s| s.len() == 11 && is_ssn(s)),
    ("uri", is_request_uri),
    ("uuid", |s| is_uuid(s, None)),
    ("uuid3", |s| is_uuid(s, Some('3'))),
    ("uuid4", |s| is_uuid(s, Some('4'))),
    ("uuid5", |s| is_uuid(s, Some('5'))),
];

/// Whether strings of this format are checked at all.
pub fn is_known(format: &str) -> bool {
    check_for(format).is_some()
}

/// Whether `text` is of `format`; a format that is not known says nothing.
pub(super) fn holds(format: &str, text: &str) -> bool {
    check_for(format).is_none_or(|check| check(text))
}

fn check_for(format: &str) -> Option<Check> {
    let same = |name: &str| name.bytes().eq(format.bytes().filter(|b| *b != b'-'));
    FORMATS.iter().find(|(name, _)| same(name)).map(|(_, check)| *check)
}

macro_rules! expression {
    ($name:ident, $pattern:expr) => {
        fn $name(text: &str) -> bool {
            static EXPRESSION: LazyLock<Regex> =
                LazyLock::new(|| Regex::new($pattern).expect("a literal expression must compile"));
            EXPRESSION.is_match(text)
        }
    };
}

expression!(is_hex_color, "^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$");
expression!(
    is_rgb_color,
    r"^rgb\(\s*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])\s*,\s*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])\s*,\s*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])\s*\)$"
);
expression!(is_ssn, "^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$");
expression!(
    is_card_number,
    "^(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}|3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35[0-9]{3})[0-9]{11})$"
);
expression!(is_time_of_day, "^([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))$");
expression!(
    is_host_label_chain,
    r"^([a-zA-Z0-9\p{S}\p{L}]((-?[a-zA-Z0-9\p{S}\p{L}]{0,62})?)|([a-zA-Z0-9\p{S}\p{L}](([a-zA-Z0-9-\p{S}\p{L}]{0,61}[a-zA-Z0-9\p{S}\p{L}])?)(\.)){1,}([a-zA-Z\p{L}]){2,63})$"
);

fn is_hostname(text: &str) -> bool {
    text.len() <= 255 && text.split('.').all(|label| label.len() <= 63) && is_host_label_chain(text)
}

fn is_name_segment(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    let ends = bytes.first().is_some_and(|b| inner(*b)) && bytes.last().is_some_and(|b| inner(*b));
    ends && bytes.iter().all(|b| inner(*b) || *b == b'-')
}

fn is_base64(text: &str) -> bool {
    let body = text.trim_end_matches('=');
    let padding = text.len() - body.len();
    let alphabet = |b: u8| b.is_ascii_alphanumeric() || b == b'+' || b == b'/';
    !text.is_empty() && text.len().is_multiple_of(4) && padding <= 2 && body.bytes().all(alphabet)
}

/// Leading zeros are decimal here: older clients wrote them.
fn parse_ipv4(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0_u8; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        let significant = part.trim_start_matches('0');
        *octet = match significant {
            "" if digits => 0,
            _ if digits => significant.parse().ok()?,
            _ => return None,
        };
    }
    parts.next().is_none().then(|| Ipv4Addr::from(octets))
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let width = match parse_ipv4(address) {
        Some(_) => 32,
        None if address.parse::<Ipv6Addr>().is_ok() => 128,
        None => return false,
    };
    let digits = !bits.is_empty() && bits.bytes().all(|b| b.is_ascii_digit());
    digits && bits.parse::<u32>().is_ok_and(|n| n <= width)
}

fn is_mac(text: &str) -> bool {
    let group = |part: &str, width: usize| part.len() == width && part.bytes().all(|b| b.is_ascii_hexdigit());
    for (separator, width, counts) in [(':', 2, [6, 8, 20]), ('-', 2, [6, 8, 20]), ('.', 4, [3, 4, 10])] {
        let parts: Vec<&str> = text.split(separator).collect();
        if counts.contains(&parts.len()) && parts.iter().all(|part| group(part, width)) {
            return true;
        }
    }
    false
}

fn is_uuid(text: &str, version: Option<char>) -> bool {
    let mut rest = text;
    let mut digits = String::with_capacity(32);
    for (i, width) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        if i > 0 {
            rest = rest.strip_prefix('-').unwrap_or(rest);
        }
        let Some(group) = rest.get(..width) else { return false };
        digits.push_str(group);
        rest = &rest[width..];
    }
    let nth = |i: usize| digits.chars().nth(i).map(|c| c.to_ascii_lowercase());
    let variant_ok = version.is_none_or(|v| v == '3' || matches!(nth(16), Some('8' | '9' | 'a' | 'b')));
    let version_ok = version.is_none_or(|v| nth(12) == Some(v));
    rest.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit()) && version_ok && variant_ok
}

fn without_separators(text: &str) -> String {
    text.chars().filter(|c| !c.is_ascii_whitespace() && *c != '-').collect()
}

fn is_isbn10(text: &str) -> bool {
    let text = without_separators(text);
    if text.len() != 10 || !text.is_ascii() {
        return false;
    }
    let mut sum = 0;
    for (i, c) in text.chars().enumerate() {
        let digit = match c {
            'X' if i == 9 => 10,
            _ => match c.to_digit(10) {
                Some(digit) => digit,
                None => return false,
            },
        };
        sum += (i as u32 + 1) * digit;
    }
    sum % 11 == 0
}

fn is_isbn13(text: &str) -> bool {
    let digits: Option<Vec<u32>> = without_separators(text).chars().map(|c| c.to_digit(10)).collect();
    let Some(digits) = digits.filter(|digits| digits.len() == 13) else { return false };
    let sum: u32 = digits[..12].iter().enumerate().map(|(i, d)| d * if i % 2 == 0 { 1 } else { 3 }).sum();
    digits[12] == (10 - sum % 10) % 10
}

fn is_credit_card(text: &str) -> bool {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    let doubled = |(i, c): (usize, char)| {
        let digit = c.to_digit(10).unwrap_or(0);
        match (i % 2, digit * 2) {
            (0, _) => digit,
            (_, twice) if twice >= 10 => twice % 10 + 1,
            (_, twice) => twice,
        }
    };
    is_card_number(&digits) && digits.chars().rev().enumerate().map(doubled).sum::<u32>() % 10 == 0
}

fn is_date(text: &str) -> bool {
    let bytes = text.as_bytes();
    let shape = bytes.len() == 10 && bytes[4] == b'-' && bytes[7] == b'-';
    let number = |from: usize, to: usize| {
        let part = text.get(from..to)?;
        part.bytes().all(|b| b.is_ascii_digit()).then(|| part.parse::<i16>().ok())?
    };
    let date = || jiff::civil::Date::new(number(0, 4)?, number(5, 7)? as i8, number(8, 10)? as i8).ok();
    shape && date().is_some()
}

fn is_date_time(text: &str) -> bool {
    let lower = text.to_lowercase();
    let mut parts = lower.split('t');
    let (Some(date), Some(time)) = (parts.next(), parts.next()) else { return false };
    let in_range = || time[0..2] <= *"23" && time[3..5] <= *"59" && time[6..8] <= *"59";
    is_date(date) && is_time_of_day(time) && in_range()
}

/// Go's durations (`1h30m`), and words (`2 weeks`).
fn is_duration(text: &str) -> bool {
    is_go_duration(text) || is_worded_duration(text)
}

pub(crate) fn is_go_duration(text: &str) -> bool {
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return true;
    }
    if rest.is_empty() {
        return false;
    }
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let digits = &rest[..number];
        if digits.matches('.').count() > 1 || !digits.bytes().any(|b| b.is_ascii_digit()) {
            return false;
        }
        rest = &rest[number..];
        let unit = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        if !matches!(&rest[..unit], "ns" | "us" | "µs" | "μs" | "ms" | "s" | "m" | "h") {
            return false;
        }
        rest = &rest[unit..];
    }
    true
}

fn is_worded_duration(text: &str) -> bool {
    static WORD: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"[0-9]+[\t\n\x0C\r ]*([A-Za-zµ]+)").expect("a literal expression must compile"));
    const EXACT: &[&str] = &["ns", "us", "µs", "ms", "s", "m", "h", "hr", "d", "w", "wk"];
    const PREFIX: &[&str] = &["nano", "micro", "milli", "sec", "min", "hour", "day", "week"];
    WORD.captures_iter(text).any(|found| {
        let unit = found[1].to_lowercase();
        EXACT.contains(&unit.as_str()) || PREFIX.iter().any(|prefix| unit.starts_with(prefix))
    })
}

/// An address as mail headers carry it: `a@b.c` or `Name <a@b.c>`.
fn is_email(text: &str) -> bool {
    let text = text.trim_matches([' ', '\t']);
    let address = match text.strip_suffix('>') {
        Some(head) => match head.rsplit_once('<') {
            Some((_, address)) => address,
            None => return false,
        },
        None => text,
    };
    let Some((local, domain)) = address.rsplit_once('@') else { return false };
    let atom = |s: &str| {
        let special = |c: char| c.is_ascii_control() || c == ' ' || "()<>[]:;@\\,\"".contains(c);
        !s.is_empty() && !s.chars().any(special)
    };
    let dotted = |s: &str| s.split('.').all(atom);
    let quoted = local.len() >= 2 && local.starts_with('"') && local.ends_with('"');
    let literal = domain.starts_with('[') && domain.ends_with(']');
    (dotted(local) || quoted) && (dotted(domain) || literal)
}

/// An absolute URI, or an absolute path, as a request line may carry it.
fn is_request_uri(text: &str) -> bool {
    if text.is_empty() || text.bytes().any(|b| b < 0x20 || b == 0x7f) {
        return false;
    }
    if text == "*" {
        return true;
    }
    let scheme = text.split_once(':').filter(|(scheme, _)| {
        let mut bytes = scheme.bytes();
        bytes.next().is_some_and(|b| b.is_ascii_alphabetic())
            && bytes.all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
    });
    let rest = match scheme {
        Some((_, rest)) => rest,
        None if text.starts_with('/') => text,
        None => return false,
    };
    let path = rest.split(['?', '#']).next().unwrap_or(rest);
    let escapes_ok = path
        .match_indices('%')
        .all(|(at, _)| path.get(at + 1..at + 3).is_some_and(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit())));
    let authority = path.strip_prefix("//").map(|after| after.split('/').next().unwrap_or(after));
    escapes_ok && authority.is_none_or(is_authority)
}

fn is_authority(authority: &str) -> bool {
    let host_port = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let (host, port) = match host_port.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((_, "")) => return true,
        Some((host, after)) => match after.strip_prefix(':') {
            Some(port) => (host, port),
            None => return false,
        },
        None => host_port.rsplit_once(':').unwrap_or((host_port, "")),
    };
    let host_ok = !host.contains([' ', '<', '>', '"', '{', '}', '|', '\\', '^', '`']);
    host_ok && port.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn formats_tell_good_from_bad() {
        for (format, good, bad) in [
            ("date", vec!["2024-02-29"], vec!["2023-02-29", "2024-2-1", "x"]),
            (
                "date-time",
                vec!["2014-12-15T19:30:20.000Z", "2014-12-15t19:30:20+01:00"],
                vec!["2014-12-15", "2014-12-15T24:00:00Z", "2014-12-15T10:00:00"],
            ),
            ("duration", vec!["1h30m", "-1.5s", "0", "22 ns", "2 weeks", "1 Day"], vec!["", "1", "h", "1x"]),
            ("ipv4", vec!["10.0.0.1", "010.0.0.1"], vec!["10.0.0", "10.0.0.256", "::1", "a.b.c.d"]),
            ("ipv6", vec!["::1", "2001:db8::1"], vec!["10.0.0.1", "fe80::1%eth0"]),
            ("cidr", vec!["10.0.0.0/8", "2001:db8::/32"], vec!["10.0.0.0", "10.0.0.0/33", "10.0.0.0/+8"]),
            ("mac", vec!["01:23:45:67:89:ab", "0123.4567.89ab"], vec!["01:23:45:67:89", "01-23:45:67:89:ab"]),
            ("uuid", vec!["3f2504e0-4f89-11d3-9a0c-0305e82c3301", "3F2504E04F8911D39A0C0305E82C3301"], vec!["3f25"]),
            ("uuid4", vec!["3f2504e0-4f89-41d3-9a0c-0305e82c3301"], vec!["3f2504e0-4f89-11d3-9a0c-0305e82c3301"]),
            ("byte", vec!["YWJj", "YQ=="], vec!["", "YQ=", "a b="]),
            ("email", vec!["a@b.c", "A B <a@b>"], vec!["a", "a@", "@b", "a b@c"]),
            ("hostname", vec!["example.com", "a"], vec!["-a.com", "a..b", ""]),
            ("uri", vec!["http://a.b/c?d", "/x", "urn:a:b"], vec!["", "a/b", "http://a b/", "http://a:x/", "/%zz"]),
            ("hexcolor", vec!["#FFF", "abcdef"], vec!["#ff", "#gggggg"]),
            ("rgbcolor", vec!["rgb(0, 10,255)"], vec!["rgb(0,0,256)"]),
            ("isbn", vec!["0321751043", "978-0321751041"], vec!["0321751044", "978-0321751042"]),
            ("creditcard", vec!["4012-8888-8888-1881"], vec!["4012888888881882"]),
            ("ssn", vec!["123-45-6789"], vec!["123456789", "12-345-6789"]),
            ("bsonobjectid", vec!["507f1f77bcf86cd799439011"], vec!["507f"]),
            ("k8s-short-name", vec!["a-b"], vec!["A", "a.b", "-a"]),
            ("k8s-long-name", vec!["a-b.c"], vec!["A.b", "a..b"]),
        ] {
            assert!(is_known(format), "{format}");
            for text in good {
                assert!(holds(format, text), "{format} should take {text:?}");
            }
            for text in bad {
                assert!(!holds(format, text), "{format} should refuse {text:?}");
            }
        }
        assert!(!is_known("int-or-string") && holds("whatever", "x"));
    }

    proptest! {
        #[test]
        fn no_text_upsets_a_format(text in "\\PC{0,40}") {
            for (name, _) in FORMATS {
                let _ = holds(name, &text);
            }
        }
    }
}
