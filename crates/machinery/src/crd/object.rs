//! Is a custom resource what its definition wants? Schema, scale, rules, in the order of Kubernetes.

use serde_json::Value;

use super::{CrdVersion, Scale};
use crate::field::{FieldError, Path};
use crate::go;
use crate::schema::{self, cel};

/// Errors of an object, apart from those of its metadata. `old` is what an update replaces; `status` says
/// that it came through the status subresource.
pub fn validate_object(new: &Value, old: Option<&Value>, status: bool, version: &CrdVersion) -> Vec<FieldError> {
    let schema = &version.schema;
    let mut errors = match old {
        Some(old) if status => schema::validate_status_update(new, old, schema),
        Some(old) => schema::validate_update(new, old, schema),
        None => schema::validate(new, schema),
    };
    if let Some(scale) = &version.scale {
        if !status {
            replicas(new, &scale.spec_path, &mut errors);
        }
        scale_status(new, scale, &mut errors);
    }
    match cel::blocked(&errors, schema) {
        Some(error) => errors.push(error),
        None => errors.extend(cel::validate(new, old, schema)),
    }
    errors
}

fn scale_status(object: &Value, scale: &Scale, errors: &mut Vec<FieldError>) {
    replicas(object, &scale.status_path, errors);
    let Some(path) = &scale.selector_path else { return };
    if let Some(other) = at(object, path).filter(|value| !value.is_string()) {
        let why =
            format!("{path} accessor error: {} is of the type {}, expected string", go::shown(other), go_type(other));
        errors.push(FieldError::invalid(Path::new(path), "", why));
    }
}

/// A number of replicas is a number of processes somewhere.
fn replicas(object: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let Some(value) = at(object, path) else { return };
    let mut invalid = |value: Value, why: String| errors.push(FieldError::invalid(Path::new(path), value, why));
    match value.as_i64() {
        None => {
            let (shown, ty) = (go::shown(value), go_type(value));
            invalid(0.into(), format!("{path} accessor error: {shown} is of the type {ty}, expected int64"));
        }
        Some(n) if n < 0 => invalid(n.into(), "should be a non-negative integer".to_owned()),
        Some(n) if n > i64::from(i32::MAX) => {
            invalid(n.into(), format!("should be less than or equal to {}", i32::MAX));
        }
        Some(_) => {}
    }
}

/// The value at a path like `.spec.replicas`.
fn at<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    path.trim_start_matches('.').split('.').try_fold(object, |value, name| value.get(name))
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
        validate_object(new, old, status, &version()).iter().map(ToString::to_string).collect()
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
