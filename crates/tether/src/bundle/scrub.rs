//! Leaves out what must not be seen: contents of Secrets, bearer tokens, private keys.

use serde_json::{Value, json};

const LEFT_OUT: &str = "(left out)";
/// kubectl keeps a copy of the whole object here.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// An object as it may be seen: of a Secret only the names of its keys, of any object no field managers, which are long
/// and may carry the fields' values in their keys.
pub(super) fn object(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    if object["kind"] == "Secret" {
        for field in ["data", "stringData"] {
            if let Some(entries) = object.get_mut(field).and_then(Value::as_object_mut) {
                entries.values_mut().for_each(|value| *value = json!(LEFT_OUT));
            }
        }
        if let Some(annotations) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
            annotations.remove(LAST_APPLIED);
        }
    }
}

/// Text as it may be seen: without tokens and without private keys.
pub(super) fn text(text: &str) -> String {
    let mut inside_key = false;
    let mut clean = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        if line.contains("-----BEGIN") && line.contains("PRIVATE KEY") {
            inside_key = true;
            clean.push_str(LEFT_OUT);
            clean.push('\n');
        }
        if !inside_key {
            clean.push_str(&without_tokens(line));
        }
        if line.contains("-----END") {
            inside_key = false;
        }
    }
    clean
}

/// The line without what looks like a JSON web token (three parts in base64, the first of which opens a JSON object).
fn without_tokens(line: &str) -> String {
    let mut clean = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(start) = rest.find("eyJ") {
        let (before, token) = rest.split_at(start);
        let is_token_character = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '=');
        let end = token.find(|c| !is_token_character(c)).unwrap_or(token.len());
        clean.push_str(before);
        clean.push_str(if token[..end].contains('.') { LEFT_OUT } else { &token[..end] });
        rest = &token[end..];
    }
    clean.push_str(rest);
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_keeps_its_keys_and_loses_its_contents() {
        let mut secret = json!({
            "kind": "Secret",
            "metadata": {
                "name": "db",
                "annotations": {LAST_APPLIED: "{\"data\":{\"password\":\"aHVudGVyMg==\"}}", "team": "a"},
                "managedFields": [{"fieldsV1": {"f:data": {"f:password": {}}}}],
            },
            "data": {"password": "aHVudGVyMg=="},
            "stringData": {"user": "hunter2"},
        });
        object(&mut secret);
        let text = secret.to_string();
        assert!(!text.contains("aHVudGVyMg") && !text.contains("hunter2"), "{text}");
        assert_eq!(secret["data"], json!({"password": LEFT_OUT}));
        assert_eq!(secret["metadata"]["annotations"], json!({"team": "a"}));
    }

    #[test]
    fn other_objects_keep_their_contents() {
        let mut map = json!({"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "b"}});
        let before = map.clone();
        object(&mut map);
        assert_eq!(map, before);
    }

    #[test]
    fn logs_lose_tokens_and_keys_and_nothing_else() {
        let log = "GET /api Authorization: Bearer eyJhbGciOi.eyJzdWIi.c2ln-_x, done\n\
            -----BEGIN EC PRIVATE KEY-----\nMHcCAQEE\n-----END EC PRIVATE KEY-----\n\
            -----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\neyJust a word\nlast";
        let expected = "GET /api Authorization: Bearer (left out), done\n(left out)\n\
            -----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\neyJust a word\nlast";
        assert_eq!(text(log), expected);
    }
}
