//! What an object says of a process that is not as it should be: conditions that come and go.

use jiff::Timestamp;
use tether_crd::condition::{self, Condition};

/// The reason of a process that could not be made, or ended.
pub(super) const CREATION_FAILED: &str = "InstanceCreationFailed";
/// The reason of a process that does not end.
pub(super) const REMOVAL_FAILED: &str = "InstanceRemovalFailed";

/// Says in a condition what is wrong with the process, or that nothing is any more. What never was wrong needs no words.
pub(super) fn tell(conditions: &mut Vec<Condition>, kind: &str, problem: Option<(&str, &str)>, now: Timestamp) {
    match problem {
        Some((reason, why)) => drop(condition::set(conditions, kind, condition::FALSE, reason, why, now)),
        None if condition::is_false(conditions, kind) => {
            condition::set(conditions, kind, condition::TRUE, "", "", now);
        }
        None => {}
    }
}

/// A reason, as the end of a sentence.
pub(crate) fn because(why: Option<&str>) -> String {
    why.map(|why| format!(" It does not end: {why}.")).unwrap_or_default()
}
