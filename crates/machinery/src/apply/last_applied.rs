//! The annotation of client-side apply, for objects that move to server-side apply with kubectl.
//!
//! What kubectl applied on the client's side, and nobody changed since, it may take over without a conflict;
//! and as long as the annotation exists it is kept in step, so that one can go back.

use serde_json::Value;

use super::compare::compare;
use super::fields::fields_of;
use super::set::FieldSet;
use super::types::Ty;
use super::validate::validate;
use crate::names::ANNOTATIONS_MAX_BYTES;

const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The only manager that this is done for; anything else opts out.
pub(super) const MANAGER: &str = "kubectl";

fn annotation(object: &Value) -> Option<&str> {
    object["metadata"]["annotations"][ANNOTATION].as_str().filter(|text| !text.is_empty())
}

/// The fields that were last applied on the client's side and still have that value.
pub(super) fn unchanged_fields(live: &Value, api_version: &str, ty: Ty<'_>) -> Option<FieldSet> {
    let last: Value = serde_json::from_str(annotation(live)?).ok()?;
    if last["apiVersion"] != api_version || validate(&last, ty).is_err() {
        return None;
    }
    let changed = compare(&last, live, ty).ok()?;
    let fields = fields_of(&last, ty).ok()?;
    Some(fields.difference(&changed.modified).difference(&changed.added).difference(&changed.removed))
}

/// Brings the annotation up to date, if the object has one.
pub(super) fn refresh(object: &mut Value, config: &Value) {
    if annotation(object).is_none() {
        return;
    }
    let mut applied = config.clone();
    if let Some(annotations) = applied.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.remove(ANNOTATION);
    }
    let Some(annotations) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) else {
        return;
    };
    annotations.insert(ANNOTATION.to_owned(), format!("{applied}\n").into());
    let size: usize = annotations.iter().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
    if size > ANNOTATIONS_MAX_BYTES {
        annotations.remove(ANNOTATION);
    }
}
