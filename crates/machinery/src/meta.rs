//! Whether `metadata` is right: on its own when an object is created, against the old one when it changes.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::field::{FieldError, Path};
use crate::names::{self, ANNOTATIONS_MAX_BYTES, FIELD_MANAGER_MAX_BYTES, NameRule};

/// The finalizer that keeps an owner until its dependents are orphaned.
pub const ORPHAN_DEPENDENTS: &str = "orphan";
/// The finalizer that keeps an owner until its dependents are deleted.
pub const DELETE_DEPENDENTS: &str = "foregroundDeletion";
/// What the name of a subresource may be long in a `managedFields` entry.
const SUBRESOURCE_MAX_BYTES: usize = 256;

/// Checks the metadata of an object whose name is a DNS subdomain, which is the rule for most kinds.
///
/// Without `old` this is a creation, and `name` must already be generated. With it, it is an update, and
/// the server has already filled in what a client may leave out (uid, timestamps, resourceVersion).
pub fn validate(metadata: &Value, namespaced: bool, old: Option<&Value>) -> Vec<FieldError> {
    validate_named(metadata, namespaced, NameRule::Subdomain, old)
}

/// [`validate`] for kinds with another rule for names.
pub fn validate_named(metadata: &Value, namespaced: bool, rule: NameRule, old: Option<&Value>) -> Vec<FieldError> {
    let path = Path::new("metadata");
    match old {
        None => validate_create(metadata, namespaced, rule, &path),
        Some(old) => validate_update(metadata, old, &path),
    }
}

fn validate_create(metadata: &Value, namespaced: bool, rule: NameRule, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let (name, prefix, namespace) =
        (text(metadata, "name"), text(metadata, "generateName"), text(metadata, "namespace"));
    if !prefix.is_empty() {
        errors.extend(invalid(&path.child("generateName"), prefix, rule.check(prefix, true)));
    }
    if name.is_empty() {
        errors.push(FieldError::required(path.child("name"), "name or generateName is required"));
    } else {
        errors.extend(invalid(&path.child("name"), name, rule.check(name, false)));
    }
    match (namespaced, namespace) {
        (true, "") => errors.push(FieldError::required(path.child("namespace"), "")),
        (true, _) => errors.extend(invalid(&path.child("namespace"), namespace, names::dns1123_label(namespace))),
        (false, "") => {}
        (false, _) => errors.push(FieldError::forbidden(path.child("namespace"), "not allowed on this type")),
    }
    let generation = integer(metadata, "generation");
    if generation < 0 {
        let detail = "must be greater than or equal to 0";
        errors.push(FieldError::invalid(path.child("generation"), generation, detail));
    }
    errors.extend(labels(&metadata["labels"], &path.child("labels")));
    errors.extend(annotations(&metadata["annotations"], &path.child("annotations")));
    errors.extend(owner_references(&metadata["ownerReferences"], &path.child("ownerReferences")));
    errors.extend(finalizers(&metadata["finalizers"], &path.child("finalizers")));
    errors.extend(managed_fields(&metadata["managedFields"], &path.child("managedFields")));
    errors
}

fn validate_update(metadata: &Value, old: &Value, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if !old["deletionTimestamp"].is_null() {
        errors.extend(no_new_finalizers(metadata, old, &path.child("finalizers")));
    }
    if text(metadata, "resourceVersion").is_empty() {
        errors.push(FieldError::invalid(path.child("resourceVersion"), "", "must be specified for an update"));
    }
    let generation = integer(metadata, "generation");
    if generation < integer(old, "generation") {
        errors.push(FieldError::invalid(path.child("generation"), generation, "must not be decremented"));
    }
    for field in ["name", "namespace", "uid"] {
        if text(metadata, field) != text(old, field) {
            errors.push(FieldError::invalid(path.child(field), text(metadata, field), "field is immutable"));
        }
    }
    for field in ["creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        if metadata[field] != old[field] {
            errors.push(FieldError::invalid(path.child(field), metadata[field].clone(), "field is immutable"));
        }
    }
    errors.extend(labels(&metadata["labels"], &path.child("labels")));
    errors.extend(annotations(&metadata["annotations"], &path.child("annotations")));
    errors.extend(owner_references(&metadata["ownerReferences"], &path.child("ownerReferences")));
    errors.extend(finalizers(&metadata["finalizers"], &path.child("finalizers")));
    errors.extend(managed_fields(&metadata["managedFields"], &path.child("managedFields")));
    errors
}

/// Checks a set of labels: keys and values.
pub fn labels(labels: &Value, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (key, value) in labels.as_object().into_iter().flatten() {
        errors.extend(invalid(path, key, names::qualified_name(key)));
        let value = value.as_str().unwrap_or_default();
        errors.extend(invalid(path, value, names::label_value(value)));
    }
    errors
}

/// Checks annotations: keys, in any case, and the size of everything together.
pub fn annotations(annotations: &Value, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut size = 0;
    for (key, value) in annotations.as_object().into_iter().flatten() {
        errors.extend(invalid(path, key, names::qualified_name(&key.to_lowercase())));
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size > ANNOTATIONS_MAX_BYTES {
        errors.push(FieldError::too_long(path.clone(), ANNOTATIONS_MAX_BYTES));
    }
    errors
}

/// Checks finalizers: qualified names, and not both kinds of dependents at once.
pub fn finalizers(finalizers: &Value, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let names: Vec<&str> = list(finalizers).iter().filter_map(Value::as_str).collect();
    for name in &names {
        errors.extend(invalid(path, name, names::qualified_name(name)));
    }
    if names.contains(&ORPHAN_DEPENDENTS) && names.contains(&DELETE_DEPENDENTS) {
        let detail = format!("finalizer {ORPHAN_DEPENDENTS} and {DELETE_DEPENDENTS} cannot be both set");
        errors.push(FieldError::invalid(path.clone(), finalizers.clone(), detail));
    }
    errors
}

/// What built-in kinds ask of finalizers beyond [`finalizers`], on creation and on update: a domain, unless it
/// is one of Kubernetes' own.
pub fn qualified_finalizers(finalizers: &Value, path: &Path) -> Vec<FieldError> {
    let unqualified =
        |name: &&str| !name.contains('/') && !["kubernetes", ORPHAN_DEPENDENTS, DELETE_DEPENDENTS].contains(name);
    let detail = "name is neither a standard finalizer name nor is it fully qualified";
    let names = list(finalizers).iter().enumerate().filter_map(|(i, name)| Some((i, name.as_str()?)));
    names
        .filter(|(_, name)| unqualified(name))
        .map(|(i, name)| FieldError::invalid(path.index(i), name, detail))
        .collect()
}

fn no_new_finalizers(metadata: &Value, old: &Value, path: &Path) -> Option<FieldError> {
    let names = |of: &Value| -> BTreeSet<String> {
        list(&of["finalizers"]).iter().filter_map(|f| f.as_str().map(str::to_owned)).collect()
    };
    let (new, old) = (names(metadata), names(old));
    let added: Vec<String> = new.difference(&old).map(|name| format!("{name:?}")).collect();
    (!added.is_empty()).then(|| {
        let detail = format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
            added.join(", ")
        );
        FieldError::forbidden(path.clone(), detail)
    })
}

/// Checks owner references: complete, no event among them, and at most one controller.
pub fn owner_references(references: &Value, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut controller: Option<String> = None;
    for reference in list(references) {
        errors.extend(owner_reference(reference, path));
        if reference["controller"] != json!(true) {
            continue;
        }
        let this = format!("{}/{}", text(reference, "kind"), text(reference, "name"));
        match &controller {
            None => controller = Some(this),
            Some(first) => {
                let detail = format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {this}"
                );
                errors.push(FieldError::invalid(path.clone(), references.clone(), detail));
            }
        }
    }
    errors
}

fn owner_reference(reference: &Value, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let api_version = text(reference, "apiVersion");
    let version = match api_version.split_once('/') {
        None => api_version,
        Some((_, version)) if !version.contains('/') => version,
        Some(_) => "",
    };
    if version.is_empty() {
        errors.push(FieldError::invalid(path.child("apiVersion"), api_version, "version must not be empty"));
    }
    for field in ["kind", "name", "uid"] {
        if text(reference, field).is_empty() {
            errors.push(FieldError::invalid(path.child(field), "", "must not be empty"));
        }
    }
    if api_version == "v1" && text(reference, "kind") == "Event" {
        let detail = "/v1, Kind=Event is disallowed from being an owner";
        errors.push(FieldError::invalid(path.clone(), reference.clone(), detail));
    }
    errors
}

/// Checks the entries of `managedFields`, all but the field sets in them.
pub fn managed_fields(entries: &Value, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (i, entry) in list(entries).iter().enumerate() {
        let path = path.index(i);
        let (operation, fields_type) = (text(entry, "operation"), text(entry, "fieldsType"));
        if !matches!(operation, "Apply" | "Update") {
            let detail = "must be `Apply` or `Update`";
            errors.push(FieldError::invalid(path.child("operation"), operation, detail));
        }
        if !matches!(fields_type, "" | "FieldsV1") {
            errors.push(FieldError::invalid(path.child("fieldsType"), fields_type, "must be `FieldsV1`"));
        }
        errors.extend(field_manager(text(entry, "manager"), &path.child("manager")));
        if text(entry, "subresource").len() > SUBRESOURCE_MAX_BYTES {
            errors.push(FieldError::too_long(path.child("subresource"), SUBRESOURCE_MAX_BYTES));
        }
    }
    errors
}

/// Checks the name of a field manager, as a parameter of a request or in `managedFields`.
pub fn field_manager(manager: &str, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if manager.len() > FIELD_MANAGER_MAX_BYTES {
        errors.push(FieldError::too_long(path.clone(), FIELD_MANAGER_MAX_BYTES));
    }
    // Printable as Go's unicode package has it, as far as the standard library can tell.
    for (at, c) in manager.char_indices().filter(|(_, c)| c.is_control() || (c.is_whitespace() && *c != ' ')) {
        let detail = format!("invalid character U+{:04X} (at position {at})", u32::from(c));
        errors.push(FieldError::invalid(path.clone(), manager, detail));
    }
    errors
}

fn invalid<'a>(path: &'a Path, value: &'a str, messages: Vec<String>) -> impl Iterator<Item = FieldError> + 'a {
    messages.into_iter().map(move |message| FieldError::invalid(path.clone(), value, message))
}

fn text<'a>(of: &'a Value, field: &str) -> &'a str {
    of[field].as_str().unwrap_or_default()
}

fn integer(of: &Value, field: &str) -> i64 {
    of[field].as_i64().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts(errors: &[FieldError]) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    fn created(metadata: &Value) -> Vec<String> {
        texts(&validate(metadata, true, None))
    }

    fn stored() -> Value {
        json!({
            "name": "web", "namespace": "shop", "uid": "1", "resourceVersion": "7", "generation": 2,
            "creationTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["a.example/x"],
        })
    }

    fn updated(change: impl Fn(&mut Value)) -> Vec<String> {
        let mut new = stored();
        change(&mut new);
        texts(&validate(&new, true, Some(&stored())))
    }

    #[test]
    fn creation() {
        assert_eq!(created(&json!({"name": "web", "namespace": "shop", "labels": {"a/b": ""}})), [""; 0]);
        assert_eq!(
            created(&json!({})),
            ["metadata.name: Required value: name or generateName is required", "metadata.namespace: Required value",]
        );
        let cluster_scoped = json!({"name": "web", "namespace": "shop", "generation": -1});
        assert_eq!(
            texts(&validate(&cluster_scoped, false, None)),
            [
                "metadata.namespace: Forbidden: not allowed on this type",
                "metadata.generation: Invalid value: -1: must be greater than or equal to 0",
            ]
        );
        let bad = created(&json!({"generateName": "We-", "name": "We-x", "namespace": "a.b"}));
        assert_eq!(bad.len(), 3);
        assert!(bad[0].starts_with("metadata.generateName: Invalid value: \"We-\": a lowercase RFC 1123 subdomain"));
        assert!(bad[1].starts_with("metadata.name: Invalid value: \"We-x\": a lowercase RFC 1123 subdomain"));
        assert_eq!(bad[2], "metadata.namespace: Invalid value: \"a.b\": must not contain dots");
    }

    #[test]
    fn labels_annotations_and_finalizers() {
        let meta = |more: Value| {
            let mut meta = json!({"name": "web", "namespace": "shop"});
            meta.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            created(&meta)
        };
        assert!(meta(json!({"annotations": {"Example.COM/Any": "✓ anything"}})).is_empty());
        assert!(
            meta(json!({"labels": {"a": "b c"}}))[0]
                .starts_with("metadata.labels: Invalid value: \"b c\": a valid label")
        );
        assert_eq!(
            meta(json!({"annotations": {"a": "x".repeat(ANNOTATIONS_MAX_BYTES)}})),
            ["metadata.annotations: Too long: may not be more than 262144 bytes"]
        );
        assert_eq!(
            meta(json!({"finalizers": ["orphan", "foregroundDeletion"]})),
            [
                "metadata.finalizers: Invalid value: [\"orphan\",\"foregroundDeletion\"]: finalizer orphan and foregroundDeletion cannot be both set"
            ]
        );
        assert!(meta(json!({"finalizers": ["a/b/c"]}))[0].contains("a valid label key must consist of"));
        let names = json!(["a/b", "orphan", "mine"]);
        assert_eq!(
            texts(&qualified_finalizers(&names, &Path::new("metadata.finalizers"))),
            [
                "metadata.finalizers[2]: Invalid value: \"mine\": name is neither a standard finalizer name nor is it fully qualified"
            ]
        );
    }

    #[test]
    fn owners() {
        let check = |references: Value| texts(&owner_references(&references, &Path::new("metadata.ownerReferences")));
        let owner = |name: &str| json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": "1", "controller": true});
        assert!(check(json!([owner("a")])).is_empty());
        assert!(check(json!([owner("a"), owner("b")]))[0].ends_with(
            "Only one reference can have Controller set to true. Found \"true\" in references for ReplicaSet/a and ReplicaSet/b"
        ));
        assert_eq!(
            check(json!([{"apiVersion": "a/b/c"}])),
            [
                "metadata.ownerReferences.apiVersion: Invalid value: \"a/b/c\": version must not be empty",
                "metadata.ownerReferences.kind: Invalid value: \"\": must not be empty",
                "metadata.ownerReferences.name: Invalid value: \"\": must not be empty",
                "metadata.ownerReferences.uid: Invalid value: \"\": must not be empty",
            ]
        );
        let event = json!([{"apiVersion": "v1", "kind": "Event", "name": "e", "uid": "1"}]);
        assert!(check(event)[0].ends_with("/v1, Kind=Event is disallowed from being an owner"));
    }

    #[test]
    fn immutable_on_update() {
        assert_eq!(updated(|_| {}), [""; 0]);
        assert_eq!(
            updated(|new| new["name"] = json!("other")),
            ["metadata.name: Invalid value: \"other\": field is immutable"]
        );
        assert_eq!(updated(|new| new["uid"] = Value::Null), ["metadata.uid: Invalid value: \"\": field is immutable"]);
        assert_eq!(
            updated(|new| new["deletionTimestamp"] = json!("2026-01-02T00:00:00Z")),
            ["metadata.deletionTimestamp: Invalid value: \"2026-01-02T00:00:00Z\": field is immutable"]
        );
        assert_eq!(
            updated(|new| new["creationTimestamp"] = Value::Null),
            ["metadata.creationTimestamp: Invalid value: null: field is immutable"]
        );
        assert_eq!(
            updated(|new| new["generation"] = json!(1)),
            ["metadata.generation: Invalid value: 1: must not be decremented"]
        );
        assert_eq!(
            updated(|new| new["resourceVersion"] = json!("")),
            ["metadata.resourceVersion: Invalid value: \"\": must be specified for an update"]
        );
        assert!(updated(|new| new["finalizers"] = json!(["b.example/y"])).is_empty(), "not being deleted");
    }

    #[test]
    fn no_finalizer_is_added_while_deleting() {
        let mut old = stored();
        old["deletionTimestamp"] = json!("2026-01-02T00:00:00Z");
        let mut new = old.clone();
        new["finalizers"] = json!(["c/z", "a.example/x", "b/y"]);
        assert_eq!(
            texts(&validate(&new, true, Some(&old))),
            [
                "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{\"b/y\", \"c/z\"}"
            ]
        );
        new["finalizers"] = Value::Null;
        assert!(validate(&new, true, Some(&old)).is_empty(), "removing them is the point");
    }

    #[test]
    fn managed_fields_entries() {
        let check = |entry: Value| texts(&managed_fields(&json!([entry]), &Path::new("metadata.managedFields")));
        assert!(check(json!({"manager": "kubectl", "operation": "Apply", "fieldsType": "FieldsV1"})).is_empty());
        assert_eq!(
            check(json!({"manager": "a\nb", "operation": "Delete", "fieldsType": "FieldsV2"})),
            [
                "metadata.managedFields[0].operation: Invalid value: \"Delete\": must be `Apply` or `Update`",
                "metadata.managedFields[0].fieldsType: Invalid value: \"FieldsV2\": must be `FieldsV1`",
                "metadata.managedFields[0].manager: Invalid value: \"a\\nb\": invalid character U+000A (at position 1)",
            ]
        );
        assert_eq!(
            check(json!({"operation": "Update", "manager": "m".repeat(129), "subresource": "s".repeat(257)})),
            [
                "metadata.managedFields[0].manager: Too long: may not be more than 128 bytes",
                "metadata.managedFields[0].subresource: Too long: may not be more than 256 bytes",
            ]
        );
    }

    proptest! {
        #[test]
        fn any_metadata_is_checked_without_panic(
            new in crate::testing::any_json(),
            old in prop::option::of(crate::testing::any_json()),
            field in "(labels|annotations|finalizers|ownerReferences|managedFields|name|generation)",
        ) {
            validate(&new, true, old.as_ref());
            validate(&json!({ field: new }), false, None);
        }
    }
}
