//! ConfigMaps, and what they share with secrets: keys are file names, everything together fits into one
//! object, and `immutable` is for good.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::Strategy;
use super::checks::Problems;
use super::edit::{entries, flag, same_at};
use crate::field::{FieldError, Path};
use crate::names;

pub(super) const STRATEGY: Strategy = Strategy { validate_create: validate, validate_update, ..Strategy::PLAIN };

/// All values together. The store takes little more in one object.
pub(super) const MAX_DATA_BYTES: usize = 1024 * 1024;

fn validate(map: &Value) -> Vec<FieldError> {
    let mut problems = Problems::new();
    let path = Path::new("data");
    let binary = map.get("binaryData").unwrap_or(&Value::Null);
    let mut size = 0;
    for (key, value) in entries(map, "/data") {
        problems.messages(&path.key(key), key, names::config_key(key));
        if binary.get(key).is_some() {
            problems.invalid(&path.key(key), key.as_str(), "duplicate of key present in binaryData");
        }
        size += value.as_str().map_or(0, str::len);
    }
    size += encoded(&mut problems, &Path::new("binaryData"), map);
    if size > MAX_DATA_BYTES {
        problems.too_long(&Path::new("[]"), MAX_DATA_BYTES);
    }
    problems.0
}

/// Checks the keys of base64 values and returns their size once decoded.
pub(super) fn encoded(problems: &mut Problems, path: &Path, object: &Value) -> usize {
    let mut size = 0;
    for (key, value) in entries(object, &format!("/{path}")) {
        problems.messages(&path.key(key), key, names::config_key(key));
        match STANDARD.decode(value.as_str().unwrap_or_default()) {
            Ok(bytes) => size += bytes.len(),
            Err(error) => problems.invalid(&path.key(key), "<contents redacted>", format!("not base64: {error}")),
        }
    }
    size
}

/// What `immutable` froze must be as it was.
pub(super) fn frozen(problems: &mut Problems, new: &Value, old: &Value, fields: &[&str]) {
    if !flag(old, "/immutable") {
        return;
    }
    let detail = "field is immutable when `immutable` is set";
    if !flag(new, "/immutable") {
        problems.forbidden(&Path::new("immutable"), detail);
    }
    for field in fields {
        if !same_at(new, old, &format!("/{field}")) {
            problems.forbidden(&Path::new(*field), detail);
        }
    }
}

fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut problems = Problems::new();
    frozen(&mut problems, new, old, &["data", "binaryData"]);
    problems.0.extend(validate(new));
    problems.0
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::checks::texts;

    #[test]
    fn keys_are_file_names() {
        let map = json!({"data": {"a/b": "", "ok": "", "..": ""}, "binaryData": {"ok": ""}});
        let errors = texts(validate(&map));
        assert_eq!(errors.len(), 3, "{errors:?}");
        assert_eq!(errors[0], "data[..]: Invalid value: \"..\": must not be '..'");
        assert!(errors[1].starts_with("data[a/b]: Invalid value: \"a/b\": a valid config key must consist of"));
        assert_eq!(errors[2], "data[ok]: Invalid value: \"ok\": duplicate of key present in binaryData");
    }

    #[test]
    fn one_mebibyte_is_enough() {
        let map = |bytes: usize| json!({"data": {"k": "x".repeat(bytes)}, "binaryData": {"b": "AAAA"}});
        assert_eq!(validate(&map(MAX_DATA_BYTES - 3)), []);
        assert_eq!(texts(validate(&map(MAX_DATA_BYTES - 2))), ["[]: Too long: may not be more than 1048576 bytes"]);
    }

    #[test]
    fn immutable_is_for_good() {
        let old = json!({"immutable": true, "data": {"a": "1"}});
        assert_eq!(validate_update(&old, &old), []);
        let errors = texts(validate_update(&json!({"data": {"a": "2"}}), &old));
        assert_eq!(
            errors,
            [
                "immutable: Forbidden: field is immutable when `immutable` is set",
                "data: Forbidden: field is immutable when `immutable` is set",
            ]
        );
    }
}
