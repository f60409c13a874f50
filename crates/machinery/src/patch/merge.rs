//! JSON merge patch (RFC 7396), as Kubernetes applies it.

use serde_json::Value;

/// Merges `patch` into `target`: null removes, objects merge, everything else replaces.
///
/// Beyond the RFC, and as Kubernetes does, what comes to stand where no object was is freed of null fields
/// even below lists.
pub fn merge(target: &mut Value, patch: &Value) {
    match (&mut *target, patch) {
        (Value::Object(fields), Value::Object(changes)) => {
            for (key, change) in changes {
                if change.is_null() {
                    fields.remove(key);
                } else {
                    merge(fields.entry(key.as_str()).or_insert(Value::Null), change);
                }
            }
        }
        (Value::Object(_), _) => *target = patch.clone(),
        _ => {
            *target = patch.clone();
            drop_nulls(target);
        }
    }
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, v| !v.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rfc_7396_table() {
        for (original, patch, result) in [
            (json!({"a":"b"}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"b"}), json!({"b":"c"}), json!({"a":"b","b":"c"})),
            (json!({"a":"b"}), json!({"a":null}), json!({})),
            (json!({"a":"b","b":"c"}), json!({"a":null}), json!({"b":"c"})),
            (json!({"a":["b"]}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"c"}), json!({"a":["b"]}), json!({"a":["b"]})),
            (json!({"a":{"b":"c"}}), json!({"a":{"b":"d","c":null}}), json!({"a":{"b":"d"}})),
            (json!({"a":[{"b":"c"}]}), json!({"a":[1]}), json!({"a":[1]})),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!({"e":null}), json!({"a":1}), json!({"e":null,"a":1})),
            (json!([1, 2]), json!({"a":"b","c":null}), json!({"a":"b"})),
            (json!({}), json!({"a":{"bb":{"ccc":null}}}), json!({"a":{"bb":{}}})),
        ] {
            let mut target = original.clone();
            merge(&mut target, &patch);
            assert_eq!(target, result, "{original} + {patch}");
        }
    }

    #[test]
    fn nulls_vanish_below_lists_too() {
        let mut target = json!({"list": []});
        merge(&mut target, &json!({"list": [{"a": null, "b": 1}, null]}));
        assert_eq!(target, json!({"list": [{"b": 1}, null]}));
    }
}
