//! Defaults in a schema must be values that the schema accepts, and whole ones.

use serde_json::Value;

use crate::field::{FieldError, Path};
use crate::schema::{self, Schema, cel};

/// Errors of every default in a compiled schema whose OpenAPI form stands at `path`.
pub(super) fn validate(schema: &Schema, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    walk(schema, true, path, &mut errors);
    errors
}

fn walk(node: &Schema, root: bool, path: &Path, errors: &mut Vec<FieldError>) {
    if let Some(default) = &node.default {
        one(default, node, root, &path.child("default"), errors);
    }
    if let Some(items) = &node.items {
        walk(items, false, &path.child("items"), errors);
    }
    for (name, property) in &node.properties {
        // What came from Kubernetes, not from this definition, has no defaults of its own.
        if property.definition.is_none() {
            walk(property, false, &path.child("properties").key(name), errors);
        }
    }
}

fn one(default: &Value, node: &Schema, root: bool, path: &Path, errors: &mut Vec<FieldError>) {
    let mut pruned = default.clone();
    if !schema::prune(&mut pruned, node).is_empty() {
        errors.push(FieldError::invalid(path.clone(), default.clone(), "must not have unknown fields"));
    }
    let mut wrong = Vec::new();
    schema::embedded_resources(default, node, root, path, &mut wrong);
    if wrong.is_empty() {
        wrong = schema::validate_value(default, node, path);
    }
    if !wrong.is_empty() {
        errors.extend(wrong);
        return;
    }
    // As an update that changes nothing, then as a creation: rules may ask for the old value.
    let wrong = cel::validate_value(default, Some(default), node, root, path);
    let unchanged = wrong.is_empty();
    errors.extend(wrong);
    if unchanged {
        errors.extend(cel::validate_value(default, None, node, root, path));
    }
}
