//! When a manager last wrote: a write that changes nothing but that is none.

use serde_json::{Map, Value};

/// Takes the old times of `managedFields` if they are all that differs from the old object, so that a write which
/// changes nothing is none.
pub fn keep_times(new: &mut Value, old: &Value) {
    let differs_in_time = |new: &Value, old: &Value| {
        let (new, old) = (&new["metadata"]["managedFields"], &old["metadata"]["managedFields"]);
        new != old && same_but_times(new, old)
    };
    let same_rest = |new: &Value, old: &Value| {
        let same_metadata = match (new.get("metadata"), old.get("metadata")) {
            (Some(new @ Value::Object(_)), Some(old @ Value::Object(_))) => same_fields_but(new, old, "managedFields"),
            (new, old) => new == old,
        };
        same_metadata && same_fields_but(new, old, "metadata")
    };
    if differs_in_time(new, old) && same_rest(new, old) {
        new["metadata"]["managedFields"] = old["metadata"]["managedFields"].clone();
    }
}

/// Whether two `managedFields` differ in times at most.
pub fn same_but_times(new: &Value, old: &Value) -> bool {
    match (new.as_array(), old.as_array()) {
        (Some(new), Some(old)) if new.len() == old.len() => {
            new.iter().zip(old).all(|(new, old)| same_fields_but(new, old, "time"))
        }
        _ => false,
    }
}

/// Whether two objects have the same fields, one aside.
fn same_fields_but(new: &Value, old: &Value, aside: &str) -> bool {
    let (Some(new), Some(old)) = (new.as_object(), old.as_object()) else { return false };
    let fields = |map: &Map<String, Value>| map.len() - usize::from(map.contains_key(aside));
    fields(new) == fields(old) && new.iter().all(|(name, value)| name == aside || old.get(name) == Some(value))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn times_alone_are_no_change() {
        let object = |time: &str, replicas: i64, label: &str| {
            json!({"metadata": {"labels": {"a": label}, "managedFields": [{"manager": "me", "time": time}]},
                "spec": {"replicas": replicas}})
        };
        let old = object("1", 1, "x");
        for (new, kept) in [(object("2", 1, "x"), true), (object("2", 2, "x"), false), (object("2", 1, "y"), false)] {
            let mut changed = new.clone();
            keep_times(&mut changed, &old);
            assert_eq!(changed == old, kept, "{new}");
            assert_eq!(changed == new, !kept, "{new}");
        }
        let mut other = old.clone();
        other["metadata"]["managedFields"][0]["manager"] = "you".into();
        let before = other.clone();
        keep_times(&mut other, &old);
        assert_eq!(other, before, "another manager is a change");
    }
}
