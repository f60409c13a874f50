//! Ages as Kubernetes prints them: two or three significant figures.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::kinds::edit::text;

/// Shown where there is no time to count from.
pub(super) const UNKNOWN: &str = "<unknown>";

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const YEAR: i64 = 365 * DAY;

/// `45s`, `3m5s`, `90m`, `5h10m`, `30h`, `3d4h`, `400d`, `2y35d`. Clocks may disagree by a second; beyond
/// that a negative duration is `<invalid>`.
pub fn human(duration: SignedDuration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        ..=-2 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => pair(seconds, (MINUTE, 'm'), (1, 's'), 60),
        600..10_800 => format!("{}m", seconds / MINUTE),
        10_800..28_800 => pair(seconds, (HOUR, 'h'), (MINUTE, 'm'), 60),
        28_800..172_800 => format!("{}h", seconds / HOUR),
        172_800..691_200 => pair(seconds, (DAY, 'd'), (HOUR, 'h'), 24),
        _ if seconds < 2 * YEAR => format!("{}d", seconds / DAY),
        _ if seconds < 8 * YEAR => pair(seconds, (YEAR, 'y'), (DAY, 'd'), 365),
        _ => format!("{}y", seconds / YEAR),
    }
}

/// Two units, the smaller one left out when it is zero.
fn pair(seconds: i64, (large, large_unit): (i64, char), (small, small_unit): (i64, char), modulus: i64) -> String {
    match seconds / small % modulus {
        0 => format!("{}{large_unit}", seconds / large),
        rest => format!("{}{large_unit}{rest}{small_unit}", seconds / large),
    }
}

/// The age of the RFC 3339 time at `pointer`, or `<unknown>`.
pub(super) fn since(object: &Value, pointer: &str, now: Timestamp) -> String {
    match text(object, pointer).parse::<Timestamp>() {
        Ok(at) => human(now.duration_since(at)),
        Err(_) => UNKNOWN.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_two_or_three_figures() {
        for (seconds, shown) in [
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (599, "9m59s"),
            (600, "10m"),
            (3 * HOUR - 1, "179m"),
            (3 * HOUR, "3h"),
            (3 * HOUR + 61, "3h1m"),
            (8 * HOUR, "8h"),
            (48 * HOUR - 1, "47h"),
            (2 * DAY, "2d"),
            (2 * DAY + 3 * HOUR, "2d3h"),
            (8 * DAY, "8d"),
            (2 * YEAR - 1, "729d"),
            (2 * YEAR, "2y"),
            (2 * YEAR + 3 * DAY, "2y3d"),
            (8 * YEAR + 3 * DAY, "8y"),
        ] {
            assert_eq!(human(SignedDuration::from_secs(seconds)), shown, "{seconds} s");
        }
    }
}
