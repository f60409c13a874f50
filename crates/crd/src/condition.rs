//! Conditions: what is the case, since when, and why.

use jiff::Timestamp;

object! {
    /// One aspect of an object's state.
    Condition {
        /// Which aspect.
        kind: String = "type",
        /// True, False or Unknown.
        status: String,
        /// Not used; kept for clients that read it.
        last_probe_time: String,
        /// When the status last changed.
        last_transition_time: String,
        /// Why, as a code.
        reason: String,
        /// Why, in words.
        message: String,
    }
}

/// The status of a condition that holds.
pub const TRUE: &str = "True";
/// The status of a condition that does not hold.
pub const FALSE: &str = "False";
/// The status of a condition that nobody can tell; a missing condition reads like this.
pub const UNKNOWN: &str = "Unknown";

/// The condition, if it was ever set.
pub fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.kind == kind)
}

/// The status of a condition; a missing one is unknown.
pub fn status<'a>(conditions: &'a [Condition], kind: &str) -> &'a str {
    find(conditions, kind).map_or(UNKNOWN, |condition| condition.status.as_str())
}

/// Whether the condition holds.
pub fn is_true(conditions: &[Condition], kind: &str) -> bool {
    status(conditions, kind) == TRUE
}

/// Whether the condition is known not to hold.
pub fn is_false(conditions: &[Condition], kind: &str) -> bool {
    status(conditions, kind) == FALSE
}

/// Sets a condition. The time of its last transition moves only if its status does. True if anything changed.
pub fn set(
    conditions: &mut Vec<Condition>,
    kind: &str,
    status: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> bool {
    if let Some(condition) = conditions.iter_mut().find(|condition| condition.kind == kind) {
        if condition.status == status && condition.reason == reason && condition.message == message {
            return false;
        }
        if condition.status != status {
            status.clone_into(&mut condition.status);
            condition.last_transition_time = rfc3339(now);
        }
        reason.clone_into(&mut condition.reason);
        message.clone_into(&mut condition.message);
        return true;
    }
    conditions.push(Condition {
        kind: kind.to_owned(),
        status: status.to_owned(),
        last_probe_time: String::new(),
        last_transition_time: rfc3339(now),
        reason: reason.to_owned(),
        message: message.to_owned(),
    });
    true
}

/// A time as Longhorn writes it into specs and statuses: RFC 3339, whole seconds, UTC.
pub fn rfc3339(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The time that a field names; an empty or broken one is none.
pub fn time(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transition_is_a_change_of_status() {
        let (noon, later): (Timestamp, Timestamp) =
            ("2026-01-01T12:00:00Z".parse().expect("a time"), "2026-01-01T13:00:00.5Z".parse().expect("a time"));
        let mut conditions = Vec::new();
        assert!(set(&mut conditions, "Ready", TRUE, "", "", noon));
        assert!(!set(&mut conditions, "Ready", TRUE, "", "", later), "nothing new");
        assert!(set(&mut conditions, "Ready", TRUE, "Because", "", later));
        assert_eq!(conditions[0].last_transition_time, "2026-01-01T12:00:00Z");
        assert!(set(&mut conditions, "Ready", FALSE, "Because", "", later));
        assert_eq!(conditions[0].last_transition_time, "2026-01-01T13:00:00Z");
        assert_eq!((conditions.len(), status(&conditions, "Schedulable")), (1, UNKNOWN));
    }
}
