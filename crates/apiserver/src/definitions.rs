//! The life of a CustomResourceDefinition: accepted names, established, terminating.
//!
//! Upstream this is a handful of controllers. Here a definition is established in the write that makes it, so that
//! whoever created it can use it with the next request.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::object;
use crate::registry::Registry;

/// The store's name for definitions.
pub const STORAGE: &str = "customresourcedefinitions.apiextensions.k8s.io";
/// Who establishes definitions upstream, and so owns their status.
pub const MANAGER: &str = "kube-apiserver";
/// Held until all objects of the kind are gone.
pub const CLEANUP_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Fills in `status` of a definition that is being created or updated.
pub fn establish(definition: &mut Value, registry: &Registry, now: Timestamp) {
    let group = definition["spec"]["group"].as_str().unwrap_or_default().to_owned();
    let names = accepted_names(&definition["spec"]["names"]);
    let conflict = name_conflict(registry, &group, &names);
    let was_established = condition_is(definition, "Established", "True");
    let time = object::timestamp(now);
    match &conflict {
        None => {
            let accepted = ("NamesAccepted", "True", "NoConflicts", "no conflicts found");
            set_condition(definition, accepted, &time);
            let established = ("Established", "True", "InitialNamesAccepted", "the initial names have been accepted");
            set_condition(definition, established, &time);
            definition["status"]["acceptedNames"] = names;
        }
        Some((reason, message)) => {
            set_condition(definition, ("NamesAccepted", "False", reason, message), &time);
            if !was_established {
                let words = ("Established", "False", "NotAccepted", "not all names are accepted");
                set_condition(definition, words, &time);
            }
        }
    }
    add_stored_version(definition);
}

/// Marks a definition whose deletion begins.
pub fn terminate(definition: &mut Value, now: Timestamp) {
    let meta = object::metadata(definition);
    let finalizers = meta.entry("finalizers").or_insert_with(|| json!([]));
    if let Some(list) = finalizers.as_array_mut()
        && !list.iter().any(|f| f == CLEANUP_FINALIZER)
    {
        list.push(CLEANUP_FINALIZER.into());
    }
    let words = (
        "Terminating",
        "True",
        "InstanceDeletionPending",
        "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
    );
    set_condition(definition, words, &object::timestamp(now));
}

/// Whether the definition's resources are served.
pub fn is_established(definition: &Value) -> bool {
    condition_is(definition, "Established", "True")
}

/// Whether the definition is on its way out: nothing new may be created.
pub fn is_terminating(definition: &Value) -> bool {
    object::is_deleting(definition)
}

fn accepted_names(spec: &Value) -> Value {
    let mut names = spec.clone();
    let kind = spec["kind"].as_str().unwrap_or_default().to_owned();
    if names["singular"].as_str().unwrap_or_default().is_empty() {
        names["singular"] = kind.to_lowercase().into();
    }
    if names["listKind"].as_str().unwrap_or_default().is_empty() {
        names["listKind"] = format!("{kind}List").into();
    }
    names
}

/// Two definitions of one group may not share a name; the first one keeps it.
fn name_conflict(registry: &Registry, group: &str, names: &Value) -> Option<(&'static str, String)> {
    let text = |field: &str| names[field].as_str().unwrap_or_default().to_owned();
    let plural = text("plural");
    let short: Vec<&str> =
        names["shortNames"].as_array().map(|l| l.iter().filter_map(Value::as_str).collect()).unwrap_or_default();
    for other in registry.all().filter(|r| r.group == group && r.plural != plural) {
        let taken =
            |name: &str| name == other.plural || name == other.singular || other.short_names.iter().any(|s| s == name);
        if taken(&plural) {
            return Some(("PluralConflict", format!("{plural:?} is already in use")));
        }
        if taken(&text("singular")) {
            return Some(("SingularConflict", format!("{:?} is already in use", text("singular"))));
        }
        if let Some(name) = short.iter().find(|s| taken(s)) {
            return Some(("ShortNamesConflict", format!("{name:?} is already in use")));
        }
        if text("kind") == other.kind {
            return Some(("KindConflict", format!("{:?} is already in use", text("kind"))));
        }
        if text("listKind") == other.list_kind {
            return Some(("ListKindConflict", format!("{:?} is already in use", text("listKind"))));
        }
    }
    None
}

fn condition_is(definition: &Value, kind: &str, status: &str) -> bool {
    let conditions = definition.pointer("/status/conditions").and_then(Value::as_array);
    conditions.is_some_and(|l| l.iter().any(|c| c["type"] == kind && c["status"] == status))
}

fn set_condition(definition: &mut Value, words: (&str, &str, &str, impl AsRef<str>), time: &str) {
    let (kind, status, reason, message) = words;
    if !definition["status"]["conditions"].is_array() {
        definition["status"]["conditions"] = json!([]);
    }
    let Some(list) = definition["status"]["conditions"].as_array_mut() else { return };
    let mut condition = json!({
        "type": kind, "status": status, "reason": reason, "message": message.as_ref(), "lastTransitionTime": time,
    });
    match list.iter_mut().find(|c| c["type"] == kind) {
        Some(old) => {
            if old["status"] == status {
                condition["lastTransitionTime"] = old["lastTransitionTime"].clone();
            }
            *old = condition;
        }
        None => list.push(condition),
    }
}

fn add_stored_version(definition: &mut Value) {
    let versions = definition["spec"]["versions"].as_array();
    let storage = versions.and_then(|l| l.iter().find(|v| v["storage"] == true)).map(|v| v["name"].clone());
    let Some(storage) = storage else { return };
    let stored = &mut definition["status"]["storedVersions"];
    if !stored.is_array() {
        *stored = json!([]);
    }
    if let Some(list) = stored.as_array_mut()
        && !list.contains(&storage)
    {
        list.push(storage);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(plural: &str, kind: &str) -> Value {
        json!({
            "metadata": {"name": format!("{plural}.example.com")},
            "spec": {"group": "example.com", "names": {"plural": plural, "kind": kind}, "versions": [{"name": "v1", "storage": true}]},
        })
    }

    #[test]
    fn a_definition_is_usable_in_the_write_that_makes_it() {
        let mut crd = definition("things", "Thing");
        establish(&mut crd, &Registry::new(&[]), Timestamp::UNIX_EPOCH);
        assert!(is_established(&crd));
        assert_eq!(crd["status"]["acceptedNames"]["listKind"], "ThingList");
        assert_eq!(crd["status"]["storedVersions"], json!(["v1"]));
        let again = crd.clone();
        establish(&mut crd, &Registry::new(&[]), "2026-01-01T00:00:00Z".parse().expect("time"));
        assert_eq!(crd, again, "deciding twice changes nothing");
    }

    #[test]
    fn deletion_waits_for_the_objects() {
        let mut crd = definition("things", "Thing");
        terminate(&mut crd, Timestamp::UNIX_EPOCH);
        assert_eq!(object::finalizers(&crd), [CLEANUP_FINALIZER]);
        assert!(condition_is(&crd, "Terminating", "True"));
    }
}
