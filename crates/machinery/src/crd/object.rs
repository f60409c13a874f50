//! Is a custom resource what its definition wants? Schema, scale, rules, in the order of Kubernetes.

use serde_json::Value;

use super::{CrdVersion, Scale};
use crate::field::{FieldError, Path};
use crate::go;
use crate::schema::{self, cel};

/// Errors of an object. `errors` are those of its metadata; `old` is what an update replaces; `status` says that it
/// came through the status subresource.
pub fn validate_object(
    mut errors: Vec<FieldError>,
    new: &Value,
    old: Option<&Value>,
    status: bool,
    version: &CrdVersion,
) -> Vec<FieldError> {
    let schema = &version.schema;
    errors.extend(schema::validate_fields(new, old, status, schema));
    if let Some(scale) = &version.scale {
        if !status {
            replicas(new, &scale.spec_path, &mut errors);
        }
        scale_status(new, scale, &mut errors);
    }
    errors.extend(schema::validate_lists(new, old, status, schema));
    match cel::blocked(&errors, schema) {
        Some(error) => errors.push(error),
        None => errors.extend(cel::validate(new, old, schema)),
    }
    errors
}

fn scale_status(object: &Value, scale: &Scale, errors: &mut Vec<FieldError>) {
    replicas(object, &scale.status_path, errors);
    let Some(path) = &scale.selector_path else { return };
    let why = match at(object, path) {
        Ok(Some(other)) if !other.is_string() => accessor_error(path, other, "string"),
        Ok(_) => return,
        Err(why) => why,
    };
    errors.push(FieldError::invalid(Path::new(path), "", why));
}

/// A number of replicas is a number of processes somewhere.
fn replicas(object: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let mut invalid = |value: Value, why: String| errors.push(FieldError::invalid(Path::new(path), value, why));
    let value = match at(object, path) {
        Ok(Some(value)) => value,
        Ok(None) => return,
        Err(why) => return invalid(0.into(), why),
    };
    match value.as_i64() {
        None => invalid(0.into(), accessor_error(path, value, "int64")),
        Some(n) if n < 0 => invalid(n.into(), "should be a non-negative integer".to_owned()),
        Some(n) if n > i64::from(i32::MAX) => {
            invalid(n.into(), format!("should be less than or equal to {}", i32::MAX));
        }
        Some(_) => {}
    }
}

/// The value at a path like `.spec.replicas`, or what stands in its way.
pub(super) fn at<'a>(object: &'a Value, path: &str) -> Result<Option<&'a Value>, String> {
    let mut value = object;
    for name in path.trim_start_matches('.').split('.') {
        let Some(map) = value.as_object() else {
            return Err(accessor_error(path, value, "map[string]interface{}"));
        };
        match map.get(name) {
            Some(inner) => value = inner,
            None => return Ok(None),
        }
    }
    Ok(Some(value))
}

fn accessor_error(path: &str, value: &Value, expected: &str) -> String {
    format!("{path} accessor error: {} is of the type {}, expected {expected}", go::shown(value), go_type(value))
}

fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::crd;

    fn version() -> CrdVersion {
        let crd = json!({"spec": {"group": "g.io", "scope": "Cluster", "names": {"kind": "K", "plural": "ks"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas",
                    "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector"}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "required": ["name"], "properties": {
                        "name": {"type": "string", "x-kubernetes-validations": [{"rule": "self != 'root'"}]},
                        "replicas": {"type": "integer"}}},
                    "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}}]}});
        crd::parse(&crd).unwrap().versions.remove(0)
    }

    fn check(new: &Value, old: Option<&Value>, status: bool) -> Vec<String> {
        validate_object(Vec::new(), new, old, status, &version()).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_object_is_held_against_all_of_its_definition() {
        assert_eq!(check(&json!({"spec": {"name": "a", "replicas": 1}}), None, false), Vec::<String>::new());
        assert_eq!(
            check(&json!({"spec": {"name": "root", "replicas": -1}}), None, false),
            [
                ".spec.replicas: Invalid value: -1: should be a non-negative integer",
                "spec.name: Invalid value: \"root\": failed rule: self != 'root'",
            ]
        );
        let wrong = check(&json!({"spec": {"replicas": 1}, "status": {"replicas": "x"}}), None, false);
        assert_eq!(wrong[0], "spec.name: Required value");
        assert_eq!(
            wrong[1],
            ".status.replicas: Invalid value: 0: .status.replicas accessor error: x is of the type string, expected int64"
        );
        assert!(wrong[2].contains("some validation rules were not checked"));
        assert_eq!(
            check(&json!({"spec": []}), None, false)[1],
            ".spec.replicas: Invalid value: 0: .spec.replicas accessor error: [] is of the type []interface {}, expected map[string]interface{}"
        );
    }

    #[test]
    fn wrong_metadata_keeps_rules_from_running() {
        let nameless = vec![FieldError::required(Path::new("metadata.name"), "")];
        let errors = validate_object(nameless, &json!({"spec": {"name": "root"}}), None, false, &version());
        assert!(errors[1].to_string().contains("some validation rules were not checked"), "{errors:?}");
    }

    #[test]
    fn the_status_is_held_against_its_part() {
        let old = json!({"spec": {"name": "a"}});
        let new = json!({"spec": {"name": "a"}, "status": {"replicas": 3_000_000_000_i64, "selector": 1}});
        let wrong = check(&new, Some(&old), true);
        assert_eq!(wrong[0], ".status.replicas: Invalid value: 3000000000: should be less than or equal to 2147483647");
        assert!(wrong[1].starts_with(".status.selector: Invalid value: \"\": .status.selector accessor error"));
    }
}
