//! Leaving members out of a JSON object without parsing it: lists show objects as they are stored, less their type.

use std::ops::Range;

/// The object without the top-level members of these names. `None` if the bytes are not one JSON object.
///
/// Values are skipped, not checked: the bytes come from a serializer.
pub fn without_members(object: &[u8], names: &[&str]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(object.len());
    let mut at = skip_space(object, 0);
    if object.get(at) != Some(&b'{') {
        return None;
    }
    out.push(b'{');
    at = skip_space(object, at + 1);
    while object.get(at)? != &b'}' {
        let (name, member) = member(object, at)?;
        at = skip_space(object, member.end);
        if !names.iter().any(|n| n.as_bytes() == &object[name.clone()]) {
            if out.len() > 1 {
                out.push(b',');
            }
            out.extend_from_slice(&object[member]);
        }
        match object.get(at)? {
            b',' => at = skip_space(object, at + 1),
            b'}' => {}
            _ => return None,
        }
    }
    out.push(b'}');
    Some(out)
}

/// Where the name (without its quotes) and the whole of the member that starts here are.
fn member(object: &[u8], start: usize) -> Option<(Range<usize>, Range<usize>)> {
    let name_end = string_end(object, start)?;
    let colon = skip_space(object, name_end);
    if object.get(colon) != Some(&b':') {
        return None;
    }
    let end = value_end(object, skip_space(object, colon + 1))?;
    Some((start + 1..name_end - 1, start..end))
}

fn skip_space(bytes: &[u8], mut at: usize) -> usize {
    while bytes.get(at).is_some_and(u8::is_ascii_whitespace) {
        at += 1;
    }
    at
}

fn string_end(bytes: &[u8], start: usize) -> Option<usize> {
    if bytes.get(start) != Some(&b'"') {
        return None;
    }
    let mut at = start + 1;
    loop {
        match bytes.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

fn value_end(bytes: &[u8], start: usize) -> Option<usize> {
    match bytes.get(start)? {
        b'"' => string_end(bytes, start),
        b'{' | b'[' => nested_end(bytes, start),
        _ => {
            let length = bytes[start..].iter().position(|b| matches!(b, b',' | b'}' | b']') || b.is_ascii_whitespace());
            length.map(|length| start + length)
        }
    }
}

fn nested_end(bytes: &[u8], start: usize) -> Option<usize> {
    let (mut at, mut depth) = (start, 0_usize);
    loop {
        match bytes.get(at)? {
            b'"' => {
                at = string_end(bytes, at)?;
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            return Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    use super::*;

    const TYPE: [&str; 2] = ["apiVersion", "kind"];

    fn json_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[a-c\"\\\\{}\\[\\],: é]{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-c\"\\\\]{0,3}|kind", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_rest_is_as_it_was(
            members in prop::collection::btree_map("[a-d\"]{0,3}|kind|apiVersion", json_value(), 0..6),
            pretty in any::<bool>(),
        ) {
            let object: Map<String, Value> = members.into_iter().collect();
            let text = match pretty {
                true => serde_json::to_vec_pretty(&object).unwrap(),
                false => serde_json::to_vec(&object).unwrap(),
            };
            let mut expected = object;
            for name in TYPE {
                expected.remove(name);
            }
            let got = without_members(&text, &TYPE).expect("an object");
            prop_assert_eq!(serde_json::from_slice::<Value>(&got).unwrap(), Value::Object(expected));
        }

        #[test]
        fn no_bytes_are_too_odd(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = without_members(&bytes, &TYPE);
        }
    }

    #[test]
    fn the_type_goes_wherever_it_stands() {
        let object = json!({"action": "a", "apiVersion": "v1", "kind": "Event", "metadata": {"kind": "stays"}});
        let got = without_members(object.to_string().as_bytes(), &TYPE).unwrap();
        assert_eq!(String::from_utf8(got).unwrap(), r#"{"action":"a","metadata":{"kind":"stays"}}"#);
        for odd in ["", "[]", "{", "{\"a\"", "{\"a\":1", "{\"a\" 1}", "{\"a\":\"x}"] {
            assert_eq!(without_members(odd.as_bytes(), &TYPE), None, "{odd}");
        }
    }
}
