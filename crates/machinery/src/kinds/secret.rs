//! Secrets: `stringData` is written, never read.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::Strategy;
use super::checks::Problems;
use super::configmap::{MAX_DATA_BYTES, encoded, frozen};
use super::edit::{child, fill_zero, text};
use crate::field::{FieldError, Path};

pub(super) const STRATEGY: Strategy =
    Strategy { default, validate_create: validate, validate_update, ..Strategy::PLAIN };

fn default(secret: &mut Value) {
    if let Some(map) = secret.as_object_mut() {
        fill_zero(map, "type", "Opaque");
        if let Some(Value::Object(texts)) = map.remove("stringData")
            && let Some(data) = child(secret, "data")
        {
            for (key, text) in texts {
                let text = text.as_str().unwrap_or_default();
                data.insert(key, STANDARD.encode(text).into());
            }
        }
    }
}

fn validate(secret: &Value) -> Vec<FieldError> {
    let mut problems = Problems::new();
    let path = Path::new("data");
    if encoded(&mut problems, &path, secret) > MAX_DATA_BYTES {
        problems.too_long(&path, MAX_DATA_BYTES);
    }
    let value = |key: &str| secret.get("data").and_then(|d| d.get(key)).and_then(Value::as_str);
    match text(secret, "/type") {
        "kubernetes.io/service-account-token" => {
            const ACCOUNT: &str = "kubernetes.io/service-account.name";
            if text(secret, "/metadata/annotations/kubernetes.io~1service-account.name").is_empty() {
                problems.required(&Path::new("metadata.annotations").key(ACCOUNT), "");
            }
        }
        "kubernetes.io/dockercfg" => json_file(&mut problems, &path.key(".dockercfg"), value(".dockercfg")),
        "kubernetes.io/dockerconfigjson" => {
            json_file(&mut problems, &path.key(".dockerconfigjson"), value(".dockerconfigjson"));
        }
        "kubernetes.io/basic-auth" if value("username").is_none() && value("password").is_none() => {
            problems.required(&path.key("username"), "");
            problems.required(&path.key("password"), "");
        }
        "kubernetes.io/ssh-auth" if value("ssh-privatekey").unwrap_or_default().is_empty() => {
            problems.required(&path.key("ssh-privatekey"), "");
        }
        "kubernetes.io/tls" => {
            for key in ["tls.crt", "tls.key"] {
                if value(key).is_none() {
                    problems.required(&path.key(key), "");
                }
            }
        }
        _ => {}
    }
    problems.0
}

/// A file that must be there and be a JSON object. What is in it is nobody's business.
fn json_file(problems: &mut Problems, path: &Path, value: Option<&str>) {
    let Some(value) = value else {
        problems.required(path, "");
        return;
    };
    if let Some(problem) = json_problem(&STANDARD.decode(value).unwrap_or_default()) {
        problems.invalid(path, "<secret contents redacted>", problem);
    }
}

/// Why these bytes are no JSON object, in the words of Go's decoder.
fn json_problem(bytes: &[u8]) -> Option<String> {
    let kind = match serde_json::from_slice::<Value>(bytes) {
        Ok(Value::Object(_) | Value::Null) => return None,
        Ok(Value::Array(_)) => "array",
        Ok(Value::String(_)) => "string",
        Ok(Value::Number(_)) => "number",
        Ok(Value::Bool(_)) => "bool",
        Err(error) if error.is_eof() => return Some("unexpected end of JSON input".to_owned()),
        Err(error) => {
            let at = error.column().saturating_sub(1).min(bytes.len().saturating_sub(1));
            let shown = match bytes[at] {
                b if b.is_ascii_graphic() || b == b' ' => format!("'{}'", char::from(b)),
                b => format!("'\\x{b:02x}'"),
            };
            let start = bytes.iter().position(|b| !b.is_ascii_whitespace()).unwrap_or(0);
            let place = if at <= start { "looking for beginning of value" } else { "after top-level value" };
            return Some(format!("invalid character {shown} {place}"));
        }
    };
    Some(format!("json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}"))
}

fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut problems = Problems::new();
    problems.immutable(new, old, "/type", &Path::new("type"));
    frozen(&mut problems, new, old, &["data"]);
    problems.0.extend(validate(new));
    problems.0
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::checks::texts;

    #[test]
    fn string_data_is_folded_into_data() {
        let mut secret = json!({"data": {"a": "YQ==", "b": "Yg=="}, "stringData": {"b": "new", "c": "c"}});
        default(&mut secret);
        assert_eq!(secret, json!({"type": "Opaque", "data": {"a": "YQ==", "b": "bmV3", "c": "Yw=="}}));
    }

    #[test]
    fn types_say_what_must_be_in_them() {
        for (secret, errors) in [
            (json!({"type": "Opaque"}), vec![]),
            (json!({"type": "kubernetes.io/tls", "data": {"tls.crt": ""}}), vec!["data[tls.key]: Required value"]),
            (
                json!({"type": "kubernetes.io/basic-auth"}),
                vec!["data[username]: Required value", "data[password]: Required value"],
            ),
            (json!({"type": "kubernetes.io/basic-auth", "data": {"password": ""}}), vec![]),
            (json!({"type": "kubernetes.io/ssh-auth"}), vec!["data[ssh-privatekey]: Required value"]),
            (json!({"type": "kubernetes.io/dockerconfigjson"}), vec!["data[.dockerconfigjson]: Required value"]),
            (json!({"type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": "e30="}}), vec![]),
            (
                json!({"type": "kubernetes.io/service-account-token"}),
                vec!["metadata.annotations[kubernetes.io/service-account.name]: Required value"],
            ),
        ] {
            assert_eq!(texts(validate(&secret)), errors, "{secret}");
        }
        let secret = json!({"type": "kubernetes.io/dockercfg", "data": {".dockercfg": "W10="}});
        assert!(
            texts(validate(&secret))[0]
                .starts_with("data[.dockercfg]: Invalid value: \"<secret contents redacted>\": ")
        );
    }

    #[test]
    fn the_type_stays() {
        let errors = validate_update(&json!({"type": "a"}), &json!({"type": "Opaque"}));
        assert_eq!(texts(errors), ["type: Invalid value: \"a\": field is immutable"]);
    }
}
