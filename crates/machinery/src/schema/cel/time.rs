//! Durations and timestamps: reading, printing, taking apart.

use jiff::Timestamp;
use jiff::tz::{Offset, TimeZone};

use super::value::{Fault, Outcome};

const SECOND: i128 = 1_000_000_000;

/// Units of Go's durations, in nanoseconds; longer names first where one is the start of another.
const UNITS: [(&str, i128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", SECOND),
    ("m", 60 * SECOND),
    ("h", 3600 * SECOND),
];

/// `1h30m`, `-1.5s`, `0`, in nanoseconds.
pub(super) fn parse_duration(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(end);
        let unit_end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, next) = after.split_at(unit_end);
        let factor = UNITS.iter().find(|(name, _)| *name == unit)?.1;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        total = total.checked_add(whole.checked_mul(factor)?)?;
        // More than 18 digits of a fraction are below a nanosecond of any unit.
        let digits = &fraction[..fraction.len().min(18)];
        if !digits.is_empty() {
            let scale = 10_i128.pow(digits.len() as u32);
            total = total.checked_add(digits.parse::<i128>().ok()? * factor / scale)?;
        }
        rest = next;
    }
    i64::try_from(if negative { -total } else { total }).ok()
}

/// `2 weeks`, `1 day`: what the format `duration` takes besides Go's durations.
pub(super) fn parse_worded_duration(text: &str) -> Option<i64> {
    const WORDS: [(&str, i128); 8] = [
        ("nano", 1),
        ("micro", 1_000),
        ("milli", 1_000_000),
        ("sec", SECOND),
        ("min", 60 * SECOND),
        ("hour", 3600 * SECOND),
        ("day", 86400 * SECOND),
        ("week", 7 * 86400 * SECOND),
    ];
    const SHORT: [(&str, i128); 4] =
        [("d", 86400 * SECOND), ("w", 7 * 86400 * SECOND), ("wk", 7 * 86400 * SECOND), ("hr", 3600 * SECOND)];
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let number: i128 = text[..digits].parse().ok()?;
    let unit = text[digits..].trim().to_lowercase();
    let exact = UNITS.iter().chain(&SHORT).find(|(name, _)| *name == unit);
    let (_, factor) = exact.or_else(|| WORDS.iter().find(|(name, _)| unit.starts_with(name)))?;
    i64::try_from(number.checked_mul(*factor)?).ok()
}

/// How Go prints a duration in seconds: `90s`, `0.5s`.
pub(super) fn show_duration(nanos: i64) -> String {
    let (whole, rest) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    if rest == 0 {
        return format!("{whole}s");
    }
    let sign = if nanos < 0 { "-" } else { "" };
    let fraction = format!("{:09}", rest.abs());
    format!("{sign}{}.{}s", whole.abs(), fraction.trim_end_matches('0'))
}

/// What can be asked of a timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    FullYear,
    Month,
    DayOfYear,
    DayOfMonth,
    Date,
    DayOfWeek,
    Hours,
    Minutes,
    Seconds,
    Milliseconds,
}

/// A part of a timestamp, in UTC or at an offset (`+02:00`). Zones by name would have to be read from
/// the system, which this crate does not do.
pub(super) fn part(at: Timestamp, part: Part, zone: Option<&str>) -> Outcome<i64> {
    let zone = match zone {
        None | Some("UTC" | "") => TimeZone::UTC,
        Some(text) => offset(text).ok_or_else(|| Fault::new(format!("unknown time zone {text}")))?,
    };
    let at = at.to_zoned(zone);
    Ok(match part {
        Part::FullYear => i64::from(at.year()),
        Part::Month => i64::from(at.month()) - 1,
        Part::DayOfYear => i64::from(at.day_of_year()) - 1,
        Part::DayOfMonth => i64::from(at.day()) - 1,
        Part::Date => i64::from(at.day()),
        Part::DayOfWeek => i64::from(at.weekday().to_sunday_zero_offset()),
        Part::Hours => i64::from(at.hour()),
        Part::Minutes => i64::from(at.minute()),
        Part::Seconds => i64::from(at.second()),
        Part::Milliseconds => i64::from(at.millisecond()),
    })
}

fn offset(text: &str) -> Option<TimeZone> {
    let (sign, rest) = match text.as_bytes().first()? {
        b'-' => (-1, &text[1..]),
        b'+' => (1, &text[1..]),
        _ => (1, text),
    };
    let (hours, minutes) = rest.split_once(':')?;
    let seconds = sign * (hours.parse::<i32>().ok()? * 3600 + minutes.parse::<i32>().ok()? * 60);
    Some(TimeZone::fixed(Offset::from_seconds(seconds).ok()?))
}

/// A part of a duration, all of it in that unit.
pub(super) fn duration_part(nanos: i64, part: Part) -> Outcome<i64> {
    Ok(match part {
        Part::Hours => nanos / 3_600_000_000_000,
        Part::Minutes => nanos / 60_000_000_000,
        Part::Seconds => nanos / 1_000_000_000,
        Part::Milliseconds => nanos / 1_000_000 % 1000,
        _ => return Err(Fault::no_such_overload()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_those_of_go() {
        for (text, want) in [
            ("0", Some(0)),
            ("1h30m", Some(5400 * 1_000_000_000)),
            ("-1.5s", Some(-1_500_000_000)),
            ("1ms2us3ns", Some(1_002_003)),
            (".5s", Some(500_000_000)),
            ("", None),
            ("1", None),
            ("1x", None),
            ("9999999999999h", None),
        ] {
            assert_eq!(parse_duration(text), want, "{text}");
        }
        assert_eq!(parse_worded_duration("2 weeks"), Some(14 * 86400 * 1_000_000_000));
        assert_eq!(show_duration(-1_500_000_000), "-1.5s");
        assert_eq!(show_duration(5_400_000_000_000), "5400s");
    }

    #[test]
    fn timestamps_come_apart() {
        let at: Timestamp = "2024-03-01T23:30:15.250Z".parse().unwrap();
        for (what, want) in [
            (Part::FullYear, 2024),
            (Part::Month, 2),
            (Part::Date, 1),
            (Part::DayOfMonth, 0),
            (Part::DayOfYear, 60),
            (Part::DayOfWeek, 5),
            (Part::Hours, 23),
            (Part::Milliseconds, 250),
        ] {
            assert_eq!(part(at, what, None), Ok(want), "{what:?}");
        }
        assert_eq!(part(at, Part::Date, Some("+01:00")), Ok(2));
        assert!(part(at, Part::Date, Some("Mars/Olympus")).is_err());
    }
}
