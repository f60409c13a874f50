//! JSON patch (RFC 6902), as Kubernetes applies it.
//!
//! Kubernetes' implementation is more lenient than the RFC in ways that clients rely on — `replace` creates
//! a missing field, `-1` is the last element, `test` against null holds for a missing field, a missing
//! `value` is null — so the operations are written out here.

use std::io;

use serde_json::{Map, Value};

use super::{MAX_DEPTH, deeper_than, does_not_apply};
use crate::json::go_kind;
use crate::status::ApiError;

/// More operations than this are refused before the first one runs; Kubernetes' number.
pub const MAX_OPERATIONS: usize = 10_000;
/// What all `copy` operations of a patch may add together, serialized; Kubernetes' number.
pub const MAX_COPY_BYTES: usize = 3 * 1024 * 1024;

/// Elements that all operations of a patch may shift in lists, about a quarter of a second's work. Ten
/// thousand insertions at the head of a long list would otherwise keep a core busy for minutes.
pub const MAX_SHIFTED_ELEMENTS: usize = 50_000_000;

/// What a patch may still spend.
struct Budget {
    copied_bytes: usize,
    shifted_elements: usize,
}

impl Budget {
    fn copy(&mut self, bytes: usize) -> Applied {
        self.copied_bytes = self.copied_bytes.checked_sub(bytes).ok_or(DoesNotApply)?;
        Ok(())
    }

    fn shift(&mut self, elements: usize) -> Applied {
        self.shifted_elements = self.shifted_elements.checked_sub(elements).ok_or(DoesNotApply)?;
        Ok(())
    }
}

/// Why an operation does not apply. Clients only learn that it did not.
#[derive(Debug, PartialEq, Eq)]
struct DoesNotApply;

type Applied = Result<(), DoesNotApply>;

/// Applies a JSON patch to a copy of `object`.
///
/// 400 for what is no patch, 413 for too many operations, 422 when an operation does not apply.
pub fn json(object: &Value, patch: &Value) -> Result<Value, ApiError> {
    let operations = decode(patch)?;
    let mut patched = object.clone();
    let mut budget = Budget { copied_bytes: MAX_COPY_BYTES, shifted_elements: MAX_SHIFTED_ELEMENTS };
    for operation in &operations {
        operation.apply(&mut patched, &mut budget).map_err(|DoesNotApply| does_not_apply())?;
    }
    // A path may be as deep as it is long, so operations can nest deeper than any request body could.
    if deeper_than(&patched, MAX_DEPTH) {
        return Err(does_not_apply());
    }
    Ok(patched)
}

/// One step; fields as they came, since a missing one matters only to some kinds.
struct Operation<'a> {
    op: &'a str,
    path: Option<&'a str>,
    from: Option<&'a str>,
    value: &'a Value,
}

fn decode(patch: &Value) -> Result<Vec<Operation<'_>>, ApiError> {
    let Value::Array(steps) = patch else {
        return Err(undecodable(patch, "value of type []handlers.jsonPatchOp"));
    };
    if steps.len() > MAX_OPERATIONS {
        return Err(ApiError::too_large(format!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
            steps.len()
        )));
    }
    steps.iter().map(decode_step).collect()
}

fn decode_step(step: &Value) -> Result<Operation<'_>, ApiError> {
    let Value::Object(fields) = step else {
        return Err(undecodable(step, "value of type handlers.jsonPatchOp"));
    };
    Ok(Operation {
        op: text(fields, "op")?.unwrap_or("unknown"),
        path: text(fields, "path")?,
        from: text(fields, "from")?,
        value: fields.get("value").unwrap_or(&Value::Null),
    })
}

fn text<'a>(fields: &'a Map<String, Value>, name: &str) -> Result<Option<&'a str>, ApiError> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(undecodable(other, &format!("struct field jsonPatchOp.{name} of type string"))),
    }
}

fn undecodable(value: &Value, into: &str) -> ApiError {
    let kind = go_kind(value);
    ApiError::bad_request(format!("error decoding patch: json: cannot unmarshal {kind} into Go {into}"))
}

impl Operation<'_> {
    fn apply(&self, document: &mut Value, budget: &mut Budget) -> Applied {
        let path = self.path.ok_or(DoesNotApply)?;
        match self.op {
            "add" => add(document, path, self.value.clone(), budget),
            "remove" => remove(document, path, budget).map(drop),
            "replace" => replace(document, path, self.value),
            "test" => test(document, path, self.value),
            "move" => {
                let value = remove(document, self.from.ok_or(DoesNotApply)?, budget)?;
                add(document, path, value, budget)
            }
            "copy" => {
                let (parent, key) = parent(document, self.from.ok_or(DoesNotApply)?)?;
                let value = get(parent, &key)?;
                budget.copy(size(value))?;
                let value = value.clone();
                add(document, path, value, budget)
            }
            _ => Err(DoesNotApply),
        }
    }
}

/// The container that `path` points into, and the last, decoded part of the path.
fn parent<'a>(document: &'a mut Value, path: &str) -> Result<(&'a mut Value, String), DoesNotApply> {
    // What comes before the first slash does not count: `data/a` is `/a`.
    let (_, path) = path.split_once('/').ok_or(DoesNotApply)?;
    let (parents, key) = path.rsplit_once('/').map_or((None, path), |(parents, key)| (Some(parents), key));
    let mut at = document;
    for part in parents.into_iter().flat_map(|parents| parents.split('/')) {
        at = child(at, &decode_key(part))?;
    }
    if at.is_object() || at.is_array() { Ok((at, decode_key(key))) } else { Err(DoesNotApply) }
}

fn child<'a>(container: &'a mut Value, key: &str) -> Result<&'a mut Value, DoesNotApply> {
    match container {
        Value::Object(fields) => fields.get_mut(key).ok_or(DoesNotApply),
        Value::Array(list) => {
            let at = index(key, list.len())?;
            list.get_mut(at).ok_or(DoesNotApply)
        }
        _ => Err(DoesNotApply),
    }
}

fn decode_key(part: &str) -> String {
    if part.contains('~') { part.replace("~1", "/").replace("~0", "~") } else { part.to_owned() }
}

/// An index below `length`; negative ones count from the end.
fn index(key: &str, length: usize) -> Result<usize, DoesNotApply> {
    let at: i64 = key.parse().map_err(|_| DoesNotApply)?;
    let at = if at < 0 { at.checked_add_unsigned(length as u64).ok_or(DoesNotApply)? } else { at };
    usize::try_from(at).ok().filter(|at| *at < length).ok_or(DoesNotApply)
}

/// The value at `key`; a field that is not there reads as null.
fn get<'a>(container: &'a Value, key: &str) -> Result<&'a Value, DoesNotApply> {
    match container {
        Value::Array(list) => Ok(&list[index(key, list.len())?]),
        other => Ok(other.get(key).unwrap_or(&Value::Null)),
    }
}

fn add(document: &mut Value, path: &str, value: Value, budget: &mut Budget) -> Applied {
    let (parent, key) = parent(document, path)?;
    match parent {
        Value::Object(fields) => {
            fields.insert(key, value);
        }
        Value::Array(list) if key == "-" => list.push(value),
        Value::Array(list) => {
            let at = index(&key, list.len() + 1)?;
            budget.shift(list.len() - at)?;
            list.insert(at, value);
        }
        _ => return Err(DoesNotApply),
    }
    Ok(())
}

fn remove(document: &mut Value, path: &str, budget: &mut Budget) -> Result<Value, DoesNotApply> {
    let (parent, key) = parent(document, path)?;
    match parent {
        Value::Object(fields) => fields.remove(&key).ok_or(DoesNotApply),
        Value::Array(list) => {
            let at = index(&key, list.len())?;
            budget.shift(list.len() - at)?;
            Ok(list.remove(at))
        }
        _ => Err(DoesNotApply),
    }
}

fn replace(document: &mut Value, path: &str, value: &Value) -> Applied {
    if path.is_empty() {
        if !value.is_object() && !value.is_array() {
            return Err(DoesNotApply);
        }
        *document = value.clone();
        return Ok(());
    }
    let (parent, key) = parent(document, path)?;
    match parent {
        Value::Object(fields) => {
            fields.insert(key, value.clone());
        }
        list => *child(list, &key)? = value.clone(),
    }
    Ok(())
}

fn test(document: &mut Value, path: &str, expected: &Value) -> Applied {
    let holds = if path.is_empty() {
        document == expected
    } else {
        let (parent, key) = parent(document, path)?;
        get(parent, &key)? == expected
    };
    if holds { Ok(()) } else { Err(DoesNotApply) }
}

/// Bytes of the value as JSON.
fn size(value: &Value) -> usize {
    struct Count(usize);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    serde_json::to_writer(&mut count, value).expect("a JSON value must serialize into a counter");
    count.0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::testing::any_json;

    fn patched(object: &Value, patch: &Value) -> Result<Value, u16> {
        json(object, patch).map_err(|e| e.code)
    }

    #[test]
    fn operations() {
        let object = json!({"a": {"b": [1, 2, 3], "c/d": "x", "e~f": null}, "n": null});
        for (patch, result) in [
            (json!([]), object.clone()),
            (
                json!([{"op":"add","path":"/a/b/-","value":4}]),
                json!({"a":{"b":[1,2,3,4],"c/d":"x","e~f":null},"n":null}),
            ),
            (
                json!([{"op":"add","path":"/a/b/1","value":4}]),
                json!({"a":{"b":[1,4,2,3],"c/d":"x","e~f":null},"n":null}),
            ),
            (json!([{"op":"remove","path":"/a/b/-1"}]), json!({"a":{"b":[1,2],"c/d":"x","e~f":null},"n":null})),
            (json!([{"op":"replace","path":"/a","value":1},{"op":"remove","path":"/n"}]), json!({"a":1})),
            (json!([{"op":"replace","path":"/new","value":1},{"op":"remove","path":"/a"}]), json!({"new":1,"n":null})),
            (
                json!([{"op":"remove","path":"/a/c~1d"},{"op":"remove","path":"/a/e~0f"}]),
                json!({"a":{"b":[1,2,3]},"n":null}),
            ),
            (json!([{"op":"move","from":"/a/b","path":"/n"}]), json!({"a":{"c/d":"x","e~f":null},"n":[1,2,3]})),
            (json!([{"op":"copy","from":"/a/b/0","path":"/a"}]), json!({"a":1,"n":null})),
            (json!([{"op":"copy","from":"/missing","path":"/a"}]), json!({"a":null,"n":null})),
            (json!([{"op":"add","path":"/a"}]), json!({"a":null,"n":null})),
            (json!([{"op":"add","path":"/","value":1},{"op":"remove","path":"/a"}]), json!({"":1,"n":null})),
            (json!([{"op":"test","path":"/missing","value":null},{"op":"replace","path":"","value":{}}]), json!({})),
            (json!([{"op":"test","path":"/a/b/1","value":2},{"op":"replace","path":"","value":{}}]), json!({})),
        ] {
            assert_eq!(patched(&object, &patch), Ok(result), "{patch}");
        }
    }

    #[test]
    fn what_does_not_apply_is_422() {
        let object = json!({"a": {"b": [1]}, "s": "text", "n": null});
        for operation in [
            json!({"op":"test","path":"/a/b/0","value":2}),
            json!({"op":"test","path":"/a/b/7","value":2}),
            json!({"op":"test","path":"","value":{}}),
            json!({"op":"add","path":"/x/y","value":1}),
            json!({"op":"add","path":"/s/y","value":1}),
            json!({"op":"add","path":"/n/y","value":1}),
            json!({"op":"add","path":"/a/b/2","value":1}),
            json!({"op":"add","path":"/a/b/x","value":1}),
            json!({"op":"add","path":"","value":{}}),
            json!({"op":"add","path":"a","value":{}}),
            json!({"op":"add","path":"a/b/c","value":{}}),
            json!({"op":"add","value":{}}),
            json!({"op":"remove","path":"/missing"}),
            json!({"op":"remove","path":"/a/b/-"}),
            json!({"op":"replace","path":"/a/b/1","value":1}),
            json!({"op":"replace","path":"","value":1}),
            json!({"op":"move","from":"/missing","path":"/a"}),
            json!({"op":"move","from":"/a","path":"/a/b"}),
            json!({"op":"move","path":"/a/b"}),
            json!({"op":"copy","from":"/x/y","path":"/a/b"}),
            json!({"op":"shuffle","path":"/a"}),
            json!({"path":"/a"}),
        ] {
            assert_eq!(patched(&object, &json!([operation])), Err(422), "{operation}");
        }
        let e = json(&object, &json!([{"op":"test","path":"/s","value":1}])).unwrap_err();
        assert_eq!(
            (e.reason, e.message.as_str()),
            ("Invalid", "the server rejected our request due to an error in our request")
        );
    }

    #[test]
    fn what_is_no_patch_is_400() {
        for (patch, message) in [
            (
                json!({}),
                "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp",
            ),
            (
                json!([1]),
                "error decoding patch: json: cannot unmarshal number into Go value of type handlers.jsonPatchOp",
            ),
            (
                json!([{"op": 1}]),
                "error decoding patch: json: cannot unmarshal number into Go struct field jsonPatchOp.op of type string",
            ),
        ] {
            let e = json(&json!({}), &patch).unwrap_err();
            assert_eq!((e.code, e.message.as_str()), (400, message));
        }
    }

    #[test]
    fn a_small_patch_cannot_ask_for_a_large_result() {
        let one = json!({"op":"test","path":"/x","value":null});
        assert!(patched(&json!({}), &json!(vec![one.clone(); MAX_OPERATIONS])).is_ok());
        let e = json(&json!({}), &json!(vec![one; MAX_OPERATIONS + 1])).unwrap_err();
        assert_eq!(
            (e.code, e.message.as_str()),
            (413, "The allowed maximum operations in a JSON patch is 10000, got 10001")
        );

        let mut doubling = vec![json!({"op":"add","path":"/a","value":["x".repeat(1024)]})];
        doubling.extend((0..40).map(|_| json!({"op":"copy","from":"/a","path":"/a/-"})));
        assert_eq!(patched(&json!({}), &json!(doubling)), Err(422));

        let long = json!({"a": vec![0; MAX_SHIFTED_ELEMENTS / 100]});
        let head = vec![json!({"op":"add","path":"/a/0","value":0}); 101];
        assert_eq!(patched(&long, &json!(head)), Err(422));
        assert!(patched(&long, &json!(head[..99])).is_ok());

        let deep = (1..=MAX_DEPTH).map(|n| json!({"op":"add","path":"/a".repeat(n),"value":{}}));
        assert_eq!(patched(&json!({}), &deep.clone().collect()), Err(422));
        assert!(patched(&json!({}), &deep.take(MAX_DEPTH - 1).collect()).is_ok());
    }

    proptest! {
        #[test]
        fn a_failed_or_applied_patch_never_panics(
            object in any_json(),
            value in any_json(),
            steps in prop::collection::vec(("(add|remove|replace|move|copy|test)", "(/[a-c0-2~/-]{0,2}){0,3}", "(/[a-c0-2]){0,3}"), 0..6),
        ) {
            let patch: Vec<Value> = steps
                .into_iter()
                .map(|(op, path, from)| json!({"op": op, "path": path, "from": from, "value": value}))
                .collect();
            let _ = json(&object, &json!(patch));
            let _ = json(&object, &value);
        }
    }
}
