//! What changed about a part of an object, as the merge patch that a write of it sends.
//!
//! Fields are compared as the values that they are; only those that differ are turned into JSON.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::scalar::Omit;

/// Something whose changes can be told.
pub trait Difference {
    /// The merge patch that makes `self` of `was`.
    fn since(&self, was: &Self) -> Map<String, Value>;
}

/// Adds a field that differs.
pub(crate) fn put<T: Serialize + Omit>(patch: &mut Map<String, Value>, name: String, was: &T, now: &T) {
    let value = |field: &T| serde_json::to_value(field).expect("a field must be writable as JSON");
    let change = if now.omit() {
        Value::Null
    } else if was.omit() {
        value(now)
    } else {
        merge_patch(&value(was), value(now))
    };
    patch.insert(name, change);
}

fn merge_patch(was: &Value, now: Value) -> Value {
    let Value::Object(was) = was else { return now };
    let now = match now {
        Value::Object(now) => now,
        other => return other,
    };
    let gone = was.keys().filter(|key| !now.contains_key(*key)).map(|key| (key.clone(), Value::Null));
    let mut patch: Map<String, Value> = gone.collect();
    for (key, value) in now {
        match was.get(&key) {
            Some(held) if *held == value => {}
            Some(held) if held.is_object() && value.is_object() => {
                patch.insert(key, merge_patch(held, value));
            }
            _ => {
                patch.insert(key, value);
            }
        }
    }
    Value::Object(patch)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::engine::{EngineStatus, ReplicaMode};
    use crate::volume::{Record, Robustness, VolumeStatus};

    #[test]
    fn a_difference_is_what_changed_and_nothing_else() {
        let was = json!({ "a": 1, "b": { "x": "old", "y": 1 }, "c": [1, 2], "gone": {} });
        let now = json!({ "a": 1, "b": { "y": 1, "z": true }, "c": [1], "new": { "k": null } });
        let expected = json!({ "b": { "x": null, "z": true }, "c": [1], "gone": null, "new": { "k": null } });
        assert_eq!(merge_patch(&was, now), expected);
        assert_eq!(merge_patch(&was, was.clone()), json!({}));
    }

    #[test]
    fn a_part_of_an_object_is_told_field_by_field() {
        let was = VolumeStatus { record: Some(Record::default()), actual_size: 5, ..VolumeStatus::default() };
        let mut now = VolumeStatus { robustness: Robustness::Faulted, current_node_id: "a".into(), ..was.clone() };
        now.clone_status.attempt_count = 2;
        let expected = json!({"robustness": "faulted", "currentNodeID": "a", "cloneStatus": {"attemptCount": 2}});
        assert_eq!(Value::Object(now.since(&was)), expected);
        assert_eq!(Value::Object(now.since(&now)), json!({}));
        let without = VolumeStatus { record: None, ..was.clone() };
        assert_eq!(Value::Object(without.since(&was)), json!({"record": null}));
        assert_eq!(without.since(&VolumeStatus::default()).keys().collect::<Vec<_>>(), ["actualSize"]);
        assert!(was.since(&without)["record"]["epoch"].is_u64());
    }

    #[test]
    fn an_entry_that_went_is_told_as_such() {
        let mut was = EngineStatus::default();
        was.replica_mode_map.insert("r1".into(), ReplicaMode::ReadWrite);
        was.replica_mode_map.insert("r2".into(), ReplicaMode::ReadWrite);
        let mut now = was.clone();
        now.replica_mode_map.remove("r1");
        assert_eq!(Value::Object(now.since(&was)), json!({"replicaModeMap": {"r1": null}}));
    }
}
