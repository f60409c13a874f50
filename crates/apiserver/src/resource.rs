//! One served resource at one version: what the request path needs to know, for built-in kinds and custom
//! resources alike.

use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use tether_machinery::apply::FieldSet;
use tether_machinery::field::{FieldError, Path};
use tether_machinery::kinds::{self, Kind};
use tether_machinery::names::NameRule;
use tether_machinery::schema::{self, Schema};
use tether_machinery::status::Named;
use tether_machinery::table::Printer;
use tether_machinery::{builtin, crd, json_members, meta, proto};

use crate::admission::Operation;
use crate::custom::{self, Custom};
use crate::definitions;
use crate::object::{finalizers, is_deleting, meta_str};
use crate::registry::Definition;
use crate::store::Entry;

/// How an object was read, which is how what is wrong with it is worded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// From text.
    Text,
    /// From values that were merged.
    Merged,
}

/// Where a resource comes from.
#[derive(Clone, Debug)]
pub enum Source {
    Builtin(&'static Kind),
    Custom(Arc<Custom>),
}

/// A subresource as discovery lists it.
#[derive(Clone, Debug)]
pub struct Subresource {
    pub name: String,
    pub group: String,
    pub version: String,
    pub kind: String,
    pub verbs: Vec<&'static str>,
}

/// One resource at one version.
#[derive(Clone)]
pub struct Resource {
    pub group: String,
    pub version: String,
    pub kind: String,
    pub list_kind: String,
    pub plural: String,
    pub singular: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub namespaced: bool,
    pub verbs: Vec<&'static str>,
    pub subresources: Vec<Subresource>,
    /// The store's name for it.
    pub storage: String,
    pub schema: Arc<Schema>,
    pub printer: Arc<Printer>,
    pub source: Source,
}

const CUSTOM_VERBS: &[&str] = &["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];
const SUBRESOURCE_VERBS: &[&str] = &["get", "patch", "update"];

/// Kinds whose DELETE answers with the object instead of a Status, as their registries do upstream.
const RETURN_DELETED: &[&str] = &[
    "pods",
    "persistentvolumes",
    "persistentvolumeclaims",
    "serviceaccounts",
    "storageclasses.storage.k8s.io",
    "volumeattachments.storage.k8s.io",
    "csinodes.storage.k8s.io",
    "csidrivers.storage.k8s.io",
];

fn owned(list: &[&'static str]) -> Vec<String> {
    list.iter().map(|s| (*s).to_owned()).collect()
}

impl Resource {
    /// A built-in kind.
    pub fn builtin(kind: &'static Kind) -> Self {
        let or_own = |given: &'static str, own: &'static str| if given.is_empty() { own } else { given }.to_owned();
        let subresources = kind.subresources.iter().map(|sub| Subresource {
            name: sub.name.to_owned(),
            group: or_own(sub.group, if sub.version.is_empty() { kind.group } else { "" }),
            version: or_own(sub.version, kind.version),
            kind: sub.kind.to_owned(),
            verbs: sub.verbs.to_vec(),
        });
        Self {
            group: kind.group.to_owned(),
            version: kind.version.to_owned(),
            kind: kind.kind.to_owned(),
            list_kind: kind.list_kind.to_owned(),
            plural: kind.plural.to_owned(),
            singular: kind.singular.to_owned(),
            short_names: owned(kind.short_names),
            categories: owned(kind.categories),
            namespaced: kind.namespaced,
            verbs: kind.verbs.to_vec(),
            subresources: subresources.collect(),
            storage: kind.storage_resource(),
            schema: builtin::schema(kind.group, kind.version, kind.kind).unwrap_or_default(),
            printer: Arc::new(Printer::builtin(kind)),
            source: Source::Builtin(kind),
        }
    }

    /// Version `index` of a custom resource definition.
    pub fn custom(definition: &Definition, index: usize) -> Self {
        let info = &definition.info;
        let version = &info.versions[index];
        let sub = |name: &str, group: &str, version: &str, kind: &str| Subresource {
            name: name.to_owned(),
            group: group.to_owned(),
            version: version.to_owned(),
            kind: kind.to_owned(),
            verbs: SUBRESOURCE_VERBS.to_vec(),
        };
        let mut subresources = Vec::new();
        if version.status_subresource {
            subresources.push(sub("status", &info.group, &version.name, &info.kind));
        }
        if version.scale.is_some() {
            subresources.push(sub("scale", "autoscaling", "v1", "Scale"));
        }
        Self {
            group: info.group.clone(),
            version: version.name.clone(),
            kind: info.kind.clone(),
            list_kind: info.list_kind.clone(),
            plural: info.plural.clone(),
            singular: info.singular.clone(),
            short_names: info.short_names.clone(),
            categories: info.categories.clone(),
            namespaced: info.namespaced,
            verbs: CUSTOM_VERBS.to_vec(),
            subresources,
            storage: format!("{}.{}", info.plural, info.group),
            schema: version.schema.clone(),
            printer: Arc::new(
                Printer::custom(&version.columns).expect("the columns of a served definition must parse"),
            ),
            source: Source::Custom(Arc::new(Custom {
                info: info.clone(),
                version: index,
                changed_at: definition.changed_at,
                terminating: definition.terminating,
            })),
        }
    }

    pub fn is_custom(&self) -> bool {
        matches!(self.source, Source::Custom(_))
    }

    /// `v1`, `longhorn.io/v1beta2`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// As most errors name it.
    pub fn named<'a>(&'a self, name: &'a str) -> Named<'a> {
        Named { group: &self.group, resource: &self.plural, name }
    }

    /// As validation errors name it.
    pub fn kind_named<'a>(&'a self, name: &'a str) -> Named<'a> {
        let group = match &self.source {
            Source::Builtin(kind) => kind.error_group(),
            Source::Custom(_) => &self.group,
        };
        Named { group, resource: &self.kind, name }
    }

    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|s| s.name == name)
    }

    /// `apiVersion` and `kind` that a body must have.
    pub fn body_kind(&self, subresource: &str) -> (String, String) {
        match self.subresource(subresource) {
            Some(sub) if sub.kind != self.kind => {
                let api_version =
                    if sub.group.is_empty() { sub.version.clone() } else { format!("{}/{}", sub.group, sub.version) };
                (api_version, sub.kind.clone())
            }
            _ => (self.api_version(), self.kind.clone()),
        }
    }

    /// Where a real server keeps an object; errors about preconditions name it.
    pub fn registry_key(&self, namespace: &str, name: &str) -> String {
        let kept_as = match (&self.source, self.storage.as_str()) {
            (Source::Custom(_), _) | (_, definitions::STORAGE) => format!("{}/{}", self.group, self.plural),
            (_, "nodes") => "minions".to_owned(),
            _ => self.plural.clone(),
        };
        let namespace = if self.namespaced { format!("{namespace}/") } else { String::new() };
        format!("/registry/{kept_as}/{namespace}{name}")
    }

    /// What clients of a deprecated version are told with every answer.
    pub fn deprecation(&self) -> Option<String> {
        match &self.source {
            Source::Builtin(_) => None,
            Source::Custom(custom) => custom.info.deprecation(custom.version()),
        }
    }

    // ---- reading ----

    /// The stored object as this version shows it.
    pub fn read(&self, entry: &Entry) -> Value {
        let mut object: Value =
            serde_json::from_slice(&entry.value).expect("the store must hold JSON: it was encoded here");
        match &self.source {
            Source::Builtin(kind) => {
                if let Some(face) = kind.face {
                    (face.from_stored)(&mut object);
                }
            }
            Source::Custom(custom) => custom.present(&mut object, entry.revision),
        }
        object
    }

    /// Whether this version shows an object just as it is stored.
    pub fn is_as_stored(&self, entry: &Entry) -> bool {
        match &self.source {
            Source::Builtin(kind) => kind.face.is_none(),
            Source::Custom(custom) => custom.info.versions.len() == 1 && entry.revision >= custom.changed_at,
        }
    }

    /// The same as bytes; most often those of the store, shared.
    pub fn present(&self, entry: &Entry) -> Bytes {
        if self.is_as_stored(entry) { entry.value.clone() } else { self.read(entry).to_string().into() }
    }

    /// The same inside of a list, whose own type says what its items are; custom objects say it again, as upstream.
    pub fn present_item(&self, entry: &Entry) -> Bytes {
        let object = self.present(entry);
        if self.is_custom() {
            return object;
        }
        let item = json_members::without_members(&object, &["apiVersion", "kind"]);
        item.expect("the store must hold JSON objects: they were encoded here").into()
    }

    /// The object as it is stored.
    pub fn to_stored(&self, mut object: Value) -> Value {
        match &self.source {
            Source::Builtin(kind) => {
                if let Some(face) = kind.face {
                    (face.to_stored)(&mut object);
                }
            }
            Source::Custom(custom) => custom.store(&mut object),
        }
        object
    }

    /// Whether a field selector may name this field.
    pub fn selectable(&self, field: &str) -> bool {
        match &self.source {
            Source::Builtin(kind) => kind.field(&Value::Null, field).is_some(),
            Source::Custom(custom) => {
                field == "metadata.name"
                    || (field == "metadata.namespace" && self.namespaced)
                    || custom.version().selectable_fields.iter().any(|f| f.trim_start_matches('.') == field)
            }
        }
    }

    /// What a selector is told that names another field.
    pub fn not_selectable(&self, field: &str) -> String {
        match &self.source {
            Source::Builtin(kind) => kind.not_selectable(field),
            Source::Custom(_) => format!("field label not supported: {field}"),
        }
    }

    /// The value of a selectable field, as text.
    pub fn field_value(&self, object: &Value, field: &str) -> String {
        match &self.source {
            Source::Builtin(kind) => kind.field(object, field).unwrap_or_default(),
            Source::Custom(_) => {
                let found = field.split('.').try_fold(object, |at, part| at.get(part));
                match found {
                    Some(Value::String(text)) => text.clone(),
                    Some(Value::Null) | None => String::new(),
                    Some(other) => other.to_string(),
                }
            }
        }
    }

    // ---- writing ----

    /// Drops what the schema does not know and what is empty; returns the paths of unknown fields, or what
    /// has the wrong type.
    pub fn clean(&self, subresource: &str, object: &mut Value, reading: Reading) -> Result<Vec<String>, String> {
        let (api_version, kind) = self.body_kind(subresource);
        if self.is_custom() && kind == self.kind {
            return custom::clean(object, &self.schema);
        }
        let other;
        let schema = if kind == self.kind {
            &self.schema
        } else {
            let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
            other = builtin::schema(group, version, &kind).unwrap_or_default();
            &other
        };
        let unknown = schema::prune(object, schema);
        match reading {
            Reading::Text => schema::decode(object, schema)?,
            Reading::Merged => schema::decode_merged(object, schema)?,
        }
        let managers = object.pointer("/metadata/managedFields");
        let forget_managers = managers.and_then(Value::as_array).is_some_and(Vec::is_empty);
        proto::trim(&api_version, &kind, object);
        if forget_managers {
            // Empty, but not as good as absent: the client wants to start over.
            object["metadata"]["managedFields"] = json!([]);
        }
        Ok(unknown)
    }

    /// What decoding adds to an object: the defaults of its kind, and what a typed server always writes, so that
    /// every reader sees it.
    pub fn complete(&self, object: &mut Value) {
        if let Source::Builtin(kind) = &self.source {
            (kind.strategy.default)(object);
            proto::complete(&self.api_version(), &self.kind, object);
        }
    }

    /// What the admission plugins of a stock server add to every object of a built-in kind.
    pub fn admit(&self, operation: Operation, subresource: &str, object: &mut Value) {
        match (&self.source, operation, subresource) {
            (Source::Builtin(kind), Operation::Create, "") => (kind.strategy.admit_create)(object),
            (Source::Builtin(kind), Operation::Update, "") => (kind.strategy.admit_update)(object),
            _ => {}
        }
    }

    /// What is likely not meant, though it is allowed.
    pub fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        match &self.source {
            Source::Builtin(_) if self.storage == definitions::STORAGE => crd::warnings(object),
            Source::Builtin(kind) => (kind.strategy.warnings)(object, old),
            Source::Custom(_) => Vec::new(),
        }
    }

    pub fn prepare_create(&self, object: &mut Value, now: Timestamp) {
        match &self.source {
            Source::Builtin(kind) => kind.prepare_create(object, now),
            Source::Custom(custom) => {
                if custom.version().status_subresource {
                    remove(object, "status");
                }
                object["metadata"]["generation"] = json!(1);
            }
        }
    }

    /// Why a new object is forbidden, whoever wants it.
    pub fn refuse_create(&self, object: &Value) -> Option<String> {
        match &self.source {
            Source::Builtin(kind) => (kind.strategy.refuse_create)(object),
            Source::Custom(_) => None,
        }
    }

    /// What an update through `subresource` may not touch is put back.
    pub fn prepare_update(&self, subresource: &str, wished: &mut Value, current: &Value, now: Timestamp) {
        match &self.source {
            Source::Builtin(kind) => match subresource {
                "status" => {
                    kind.prepare_status(wished, current, now);
                }
                // A binding computes the whole object itself and changes nothing else.
                "binding" => {}
                "finalize" => kinds::namespace::prepare_finalize(wished, current),
                _ => kind.prepare_update(wished, current),
            },
            Source::Custom(custom) => {
                if subresource == "status" {
                    keep_all_but_status(wished, current);
                } else if custom.version().status_subresource && wished.get("status") != current.get("status") {
                    put_or_remove(wished, "status", current.get("status").cloned());
                }
            }
        }
    }

    /// The generation counts changes of what is wished: everything but metadata, and but status where that is a
    /// subresource. Built-in kinds have done so in `prepare_update`.
    pub fn bump_generation(&self, subresource: &str, wished: &mut Value, current: &Value) {
        let Source::Custom(custom) = &self.source else { return };
        if subresource == "status" {
            return;
        }
        let aside = |name: &str| name == "metadata" || (custom.version().status_subresource && name == "status");
        if !same_fields_but(wished, current, aside) {
            let generation = current["metadata"]["generation"].as_i64().unwrap_or(0);
            wished["metadata"]["generation"] = (generation + 1).into();
        }
    }

    pub fn validate_create(&self, object: &Value) -> Vec<FieldError> {
        let mut errors = self.validate_meta(object, None);
        match &self.source {
            Source::Builtin(kind) => {
                errors.extend((kind.strategy.validate_create)(object));
                errors.extend(self.validate_definition(object, None));
                errors
            }
            Source::Custom(custom) => crd::validate_object(errors, object, None, false, custom.version()),
        }
    }

    pub fn validate_update(&self, subresource: &str, wished: &Value, current: &Value) -> Vec<FieldError> {
        let mut errors = self.validate_meta(wished, Some(current));
        match &self.source {
            Source::Builtin(_) if subresource == "binding" => {}
            Source::Builtin(_) if subresource == "finalize" => {
                errors.extend(kinds::namespace::validate_finalize(wished));
            }
            Source::Builtin(kind) if subresource == "status" => {
                errors.extend((kind.strategy.validate_status)(wished, current));
            }
            Source::Builtin(kind) => {
                errors.extend((kind.strategy.validate_update)(wished, current));
                errors.extend(self.validate_definition(wished, Some(current)));
            }
            Source::Custom(custom) => {
                let status = subresource == "status";
                return crd::validate_object(errors, wished, Some(current), status, custom.version());
            }
        }
        errors
    }

    /// What custom resource definitions must satisfy.
    fn validate_definition(&self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        if self.storage != definitions::STORAGE {
            return Vec::new();
        }
        let mut errors = crd::validate(object, old);
        if object.pointer("/spec/conversion/strategy").is_some_and(|s| s == "Webhook") {
            // Served versions differ in name only here; a schema that needs more has to wait for a real cluster.
            let path = Path::new("spec.conversion.strategy");
            errors.push(FieldError::not_supported(path, "Webhook", &["None"]));
        }
        errors
    }

    fn validate_meta(&self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let rule = match &self.source {
            Source::Builtin(kind) => kind.strategy.name,
            Source::Custom(_) => NameRule::Subdomain,
        };
        let mut errors = meta::validate_named(&object["metadata"], self.namespaced, rule, old.map(|o| &o["metadata"]));
        if let Source::Builtin(kind) = &self.source {
            errors.extend(kind.validate_finalizers(object));
        }
        if !self.namespaced && !meta_str(object, "namespace").is_empty() {
            let why = "not allowed on this type";
            if !errors.iter().any(|e| e.path == Path::new("metadata.namespace")) {
                errors.push(FieldError::forbidden(Path::new("metadata.namespace"), why));
            }
        }
        errors
    }

    /// Fields that an apply through `subresource` cannot own, since writing there resets them.
    pub fn reset_fields(&self, subresource: &str) -> FieldSet {
        let status_apart = match &self.source {
            Source::Builtin(kind) => kind.strategy.prepare_status.is_some(),
            Source::Custom(custom) => custom.version().status_subresource,
        };
        match subresource {
            "status" => match self.storage.as_str() {
                "pods" => FieldSet::of_fields(&[
                    &["spec"],
                    &["metadata", "deletionTimestamp"],
                    &["metadata", "ownerReferences"],
                ]),
                "volumeattachments.storage.k8s.io" => FieldSet::of_fields(&[&["spec"], &["metadata"]]),
                _ => FieldSet::of_fields(&[&["spec"]]),
            },
            _ if status_apart => FieldSet::of_fields(&[&["status"]]),
            _ => FieldSet::default(),
        }
    }

    pub fn create_on_update(&self) -> bool {
        matches!(&self.source, Source::Builtin(kind) if kind.create_on_update)
    }

    pub fn unconditional_update(&self) -> bool {
        matches!(&self.source, Source::Builtin(kind) if kind.unconditional_update)
    }

    // ---- deleting ----

    pub fn returns_deleted(&self) -> bool {
        RETURN_DELETED.contains(&self.storage.as_str())
    }

    /// The seconds that an object may take to go.
    pub fn deletion_grace(&self, object: &Value, asked: Option<i64>) -> i64 {
        match self.storage.as_str() {
            "pods" => tether_machinery::kinds::pod::deletion_grace(object, asked),
            _ => 0,
        }
    }

    /// What else changes when a deletion begins.
    pub fn on_deletion(&self, object: &mut Value, now: Timestamp) {
        match self.storage.as_str() {
            "namespaces" => object["status"]["phase"] = "Terminating".into(),
            definitions::STORAGE => definitions::terminate(object, now),
            _ => {}
        }
    }

    /// Whether new objects are refused because the definition is going away.
    pub fn is_terminating(&self) -> bool {
        matches!(&self.source, Source::Custom(custom) if custom.terminating)
    }

    /// Whether nothing holds an object that is being deleted any more.
    pub fn deletion_is_complete(&self, object: &Value) -> bool {
        let held_by_namespace = self.storage == "namespaces"
            && object.pointer("/spec/finalizers").and_then(Value::as_array).is_some_and(|l| !l.is_empty());
        let grace = object["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
        is_deleting(object) && finalizers(object).is_empty() && grace == 0 && !held_by_namespace
    }
}

fn remove(object: &mut Value, field: &str) {
    if let Some(map) = object.as_object_mut() {
        map.remove(field);
    }
}

fn put_or_remove(object: &mut Value, field: &str, value: Option<Value>) {
    match value {
        Some(value) => object[field] = value,
        None => remove(object, field),
    }
}

/// Whether two objects have the same fields, some aside.
fn same_fields_but(one: &Value, other: &Value, aside: impl Fn(&str) -> bool) -> bool {
    let (Some(one), Some(other)) = (one.as_object(), other.as_object()) else { return one == other };
    let fields = |map: &'_ Map<String, Value>| map.keys().filter(|name| !aside(name)).count();
    fields(one) == fields(other) && one.iter().all(|(name, value)| aside(name) || other.get(name) == Some(value))
}

/// Everything becomes what it was but `status` and who manages which fields. A patch has left the rest alone, most often:
/// to see that costs less than to copy it.
fn keep_all_but_status(wished: &mut Value, current: &Value) {
    let (Some(new), Some(old)) = (wished.as_object_mut(), current.as_object()) else { return };
    if !new.get("metadata").is_some_and(Value::is_object) {
        new.insert("metadata".to_owned(), old.get("metadata").cloned().unwrap_or_default());
    }
    restore(new, old, &["metadata", "status"]);
    if let (Some(Value::Object(new)), Some(Value::Object(old))) = (new.get_mut("metadata"), old.get("metadata")) {
        let aside: &[&str] = if new.contains_key("managedFields") { &["managedFields"] } else { &[] };
        restore(new, old, aside);
    }
}

/// Makes every field what it was but those aside.
fn restore(new: &mut Map<String, Value>, old: &Map<String, Value>, aside: &[&str]) {
    new.retain(|name, _| aside.contains(&name.as_str()) || old.contains_key(name));
    for (name, value) in old.iter().filter(|(name, _)| !aside.contains(&name.as_str())) {
        if new.get(name) != Some(value) {
            new.insert(name.clone(), value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What [`keep_all_but_status`] has to come to, said in the plainest way.
    fn plainly(wished: &Value, current: &Value) -> Value {
        let mut object = current.clone();
        put_or_remove(&mut object, "status", wished.get("status").cloned());
        if let Some(managed) = wished["metadata"].get("managedFields") {
            object["metadata"]["managedFields"] = managed.clone();
        }
        object
    }

    #[test]
    fn a_status_leaves_everything_else_as_it_was() {
        let current = json!({"apiVersion": "g/v1", "kind": "K", "spec": {"a": 1}, "status": {"b": 1},
            "metadata": {"name": "x", "labels": {"l": "1"}, "managedFields": [{"manager": "m"}]}});
        let wishes = [
            current.clone(),
            json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "x"}, "status": {"b": 2}}),
            json!({"kind": "K", "metadata": {"name": "x", "labels": {}, "annotations": {"n": "2"},
                "managedFields": []}, "spec": {"a": 2, "c": {}}, "extra": 1}),
            json!({"metadata": null, "status": null}),
            json!({"metadata": {"managedFields": [{"manager": "you"}]}, "spec": null, "status": {"b": {}}}),
        ];
        for wish in wishes {
            let mut kept = wish.clone();
            keep_all_but_status(&mut kept, &current);
            assert_eq!(kept, plainly(&wish, &current), "{wish}");
        }
    }

    #[test]
    fn fields_aside_do_not_count() {
        let aside = |name: &str| name == "metadata";
        let same = |one: Value, other: Value| same_fields_but(&one, &other, aside);
        assert!(same(json!({"metadata": 1, "spec": {"a": 1}}), json!({"spec": {"a": 1}})));
        assert!(!same(json!({"spec": {"a": 1}}), json!({"spec": {"a": 1}, "more": null})));
        assert!(!same(json!({"spec": {"a": 1}}), json!({"metadata": 1, "spec": {"a": 2}})));
    }
}
